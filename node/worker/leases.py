"""The ledger of what this worker has promised. No clock, no I/O: time comes in as monotonic seconds.

An offer reserves its resources at once, for a short while. Its first renewal, by the scheduler it was made to, turns it
into a lease; silence ends either. The same resource is never promised twice.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from node.errors import Refused
from node.wire import ExecutorKind, Resources

RESOURCES = ("cpu", "memory", "storage", "gpu")
OFFER_TTL_S = 8.0
MAX_LEASE_S = 3600.0
_TOLERANCE = 1e-6

State = Literal["offered", "held", "expired", "released", "lapsed"]


@dataclass(frozen=True, slots=True)
class Lease:
    """Resources promised to one scheduler for one job; `ends_at` is on this node's monotonic clock."""

    lease_id: str
    scheduler: str
    job_id: str
    executor: ExecutorKind
    resources: Resources
    price: float
    state: State
    duration_s: float
    made_at: float
    ends_at: float
    renewals: int = 0

    @property
    def is_live(self) -> bool:
        """Whether its resources are reserved."""
        return self.state in ("offered", "held")


def shortage(wanted: Resources, available: Resources) -> tuple[str, float, float] | None:
    """The first resource of which more is wanted than available: its name, what there is, what is wanted."""
    for name in RESOURCES:
        have, want = getattr(available, name), getattr(wanted, name)
        if want > have + _TOLERANCE:
            return name, have, want
    return None


class Ledger:
    """Offers and leases of one worker with `total` resources."""

    def __init__(self, total: Resources) -> None:
        self.total = total
        self._live: dict[str, Lease] = {}
        self._ended: dict[str, Lease] = {}

    @property
    def live(self) -> list[Lease]:
        """Offers and held leases, oldest first."""
        return list(self._live.values())

    def free(self) -> Resources:
        """What is promised to nobody."""
        left = {name: getattr(self.total, name) for name in RESOURCES}
        for lease in self._live.values():
            for name in RESOURCES:
                left[name] -= getattr(lease.resources, name)
        return Resources(**{name: max(0.0, round(value, 9)) for name, value in left.items()})

    def offer(
        self,
        lease_id: str,
        scheduler: str,
        job_id: str,
        executor: ExecutorKind,
        resources: Resources,
        price: float,
        now: float,
        ttl_s: float = OFFER_TTL_S,
    ) -> Lease | None:
        """Reserve `resources` for an offer; None where they are not free."""
        if lease_id in self._live or lease_id in self._ended or shortage(resources, self.free()):
            return None
        if any(getattr(resources, name) < 0 for name in RESOURCES):
            return None
        lease = Lease(
            lease_id=lease_id,
            scheduler=scheduler,
            job_id=job_id,
            executor=executor,
            resources=resources,
            price=price,
            state="offered",
            duration_s=ttl_s,
            made_at=now,
            ends_at=now + ttl_s,
        )
        self._live[lease_id] = lease
        return lease

    def renew(self, lease_id: str, caller: str, job_id: str, duration_s: float, now: float) -> Lease:
        """Extend a lease to `duration_s` from now; the first time, accept the offer. Raises `Refused`."""
        lease = self.held_by(lease_id, caller, now, accept_offers=True)
        if lease.job_id != job_id:
            raise Refused("conflict", f"lease {lease_id} is for job {lease.job_id}, not {job_id}")
        if not 0 < duration_s <= MAX_LEASE_S:
            raise Refused("invalid", f"a lease lasts between 0 and {MAX_LEASE_S:g} s, not {duration_s:g}")
        renewed = replace(
            lease, state="held", duration_s=duration_s, ends_at=now + duration_s, renewals=lease.renewals + 1
        )
        self._live[lease_id] = renewed
        return renewed

    def held_by(self, lease_id: str, caller: str, now: float, *, accept_offers: bool = False) -> Lease:
        """The lease, if `caller` holds it now. Raises `Refused`."""
        lease = self._live.get(lease_id)
        if lease is None:
            ended = self._ended.get(lease_id)
            if ended is None or ended.scheduler != caller:
                raise Refused("unknown", f"no lease {lease_id} here")
            raise Refused("stale", f"lease {lease_id} is {ended.state}", hint="look for a new offer")
        if lease.scheduler != caller:
            raise Refused("denied", f"lease {lease_id} was offered to another scheduler")
        if now >= lease.ends_at:
            raise Refused("stale", f"lease {lease_id} has run out", hint="look for a new offer")
        if lease.state == "offered" and not accept_offers:
            raise Refused("conflict", f"lease {lease_id} is not accepted yet", hint="renew it first")
        return lease

    def release(self, lease_id: str, caller: str) -> Lease | None:
        """End a lease that `caller` holds; None where it is over already. Raises `Refused` for another's lease."""
        lease = self._live.get(lease_id)
        if lease is None:
            return None
        if lease.scheduler != caller:
            raise Refused("denied", f"lease {lease_id} was offered to another scheduler")
        return self._end(lease, "released")

    def withdraw(self, lease_id: str) -> Lease | None:
        """Take back an offer that never reached its scheduler, or end a lease because this worker stops."""
        lease = self._live.get(lease_id)
        return None if lease is None else self._end(lease, "released" if lease.state == "held" else "lapsed")

    def expire(self, now: float) -> list[Lease]:
        """End everything that nobody renewed in time; returns what ended."""
        late = [lease for lease in self._live.values() if now >= lease.ends_at]
        return [self._end(lease, "lapsed" if lease.state == "offered" else "expired") for lease in late]

    def next_end(self) -> float | None:
        """When `expire` has something to do next, unless a renewal comes."""
        return min((lease.ends_at for lease in self._live.values()), default=None)

    def validate(self) -> None:
        """Raise AssertionError where more is promised than there is."""
        for name in RESOURCES:
            promised = sum(getattr(lease.resources, name) for lease in self._live.values())
            if promised > getattr(self.total, name) + _TOLERANCE * (1 + len(self._live)):
                raise AssertionError(f"{name}: {promised} promised of {getattr(self.total, name)}")
        if set(self._live) & set(self._ended):
            raise AssertionError("a lease is both live and ended")

    def _end(self, lease: Lease, state: State) -> Lease:
        del self._live[lease.lease_id]
        ended = replace(lease, state=state)
        self._ended[lease.lease_id] = ended
        while len(self._ended) > 200:
            del self._ended[next(iter(self._ended))]
        return ended
