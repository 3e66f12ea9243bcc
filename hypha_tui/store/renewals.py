"""How far apart the renewals of leases are, as their views tell it. Bounded: two numbers for each lease."""

from __future__ import annotations

from dataclasses import dataclass

from node.views import LeaseView


@dataclass(frozen=True, slots=True)
class _Renewed:
    count: int
    at: float
    apart_s: float | None


class Renewals:
    """The last renewals of each lease.

    A lease tells how much of it is left, and that is all of it at a renewal: so each view says when the last one was.
    """

    def __init__(self) -> None:
        self._known: dict[str, _Renewed] = {}

    def put(self, lease: LeaseView, now: float) -> float | None:
        """Note a lease as it is told; how long after the one before it was renewed, where it was since."""
        if lease.state != "held":
            self.drop(lease.id)
            return None
        before = self._known.get(lease.id)
        if before is not None and before.count == lease.renewals:
            return None
        at = now - max(lease.duration_s - lease.remaining_s, 0.0)
        if before is None or lease.renewals < before.count:
            mean = lease.age_s / lease.renewals if lease.renewals else None
            self._known[lease.id] = _Renewed(lease.renewals, at, mean)
            return None
        apart = max(at - before.at, 0.0) / (lease.renewals - before.count)
        self._known[lease.id] = _Renewed(lease.renewals, at, apart)
        return apart

    def drop(self, lease_id: str) -> None:
        """The lease is gone."""
        self._known.pop(lease_id, None)

    def apart_s(self, now: float) -> list[float]:
        """For each lease that was renewed, the time between its last two renewals (the mean of all where no two were
        seen), or since the last one where that is longer already; sorted."""
        known = [one for one in self._known.values() if one.apart_s is not None]
        return sorted(max(one.apart_s or 0.0, now - one.at) for one in known)
