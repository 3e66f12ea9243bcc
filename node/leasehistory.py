"""What happened to leases, kept by whoever holds or gives them. Pure: the time comes in as monotonic seconds."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from node.views import LeaseMark

RENEWALS_KEPT: Final = 64
"""Of each lease, the last ones."""
ENDED_KEPT: Final = 200
"""Leases that are over, the last ones. Those that are not are as many as there are leases."""
RENEWED: Final = "renewed"


@dataclass(slots=True)
class _Life:
    marks: list[tuple[float, str, str]] = field(default_factory=list)
    renewals: deque[float] = field(default_factory=lambda: deque(maxlen=RENEWALS_KEPT))
    renewed: int = 0


class LeaseHistories:
    """The lives of leases, each a few marks and its last renewals."""

    def __init__(self) -> None:
        self._lives: dict[str, _Life] = {}
        self._ended: deque[str] = deque()

    def note(self, lease_id: str, name: str, now: float, text: str = "") -> None:
        """Something happened to a lease."""
        self._lives.setdefault(lease_id, _Life()).marks.append((now, name, text))

    def renewed(self, lease_id: str, now: float) -> None:
        """It was renewed."""
        life = self._lives.setdefault(lease_id, _Life())
        life.renewals.append(now)
        life.renewed += 1

    def ended(self, lease_id: str, name: str, now: float, text: str = "") -> None:
        """It is over. The oldest of those that are over are forgotten."""
        if lease_id in self._ended:
            return
        self.note(lease_id, name, now, text)
        self._ended.append(lease_id)
        while len(self._ended) > ENDED_KEPT:
            self._lives.pop(self._ended.popleft(), None)

    def marks(self, lease_id: str, now: float) -> list[LeaseMark] | None:
        """What is known, oldest first; None of a lease that is not known (any more)."""
        life = self._lives.get(lease_id)
        if life is None:
            return None
        told = [*life.marks, *((at, RENEWED, "") for at in life.renewals)]
        return [LeaseMark(name=name, age_s=now - at, text=text) for at, name, text in sorted(told)]

    def earlier_renewals(self, lease_id: str) -> int:
        """How many renewals `marks` leaves out."""
        life = self._lives.get(lease_id)
        return 0 if life is None else life.renewed - len(life.renewals)
