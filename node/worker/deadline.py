"""How long a round waits for those who have not answered, from when updates came in the rounds before. Pure."""

from __future__ import annotations

from collections import deque
from statistics import median

from node.wire import Aggregation

ROUNDS_SEEN = 8
FIRST_GRACE_S = 15.0
"""While there is no round to go by: how long after the first update, or as long again as that one took."""


class Deadline:
    """The deadline of the open round.

    It is the median of recent arrivals, counted from the opening of their round, plus `deadline_k` times their median
    absolute deviation. Rounds differ in length, so that it is also never earlier than that deviation, or the floor,
    after the round's first update, and never later than the ceiling after it.
    """

    def __init__(self, terms: Aggregation, now: float) -> None:
        self._terms = terms
        self._seen: deque[list[float]] = deque(maxlen=ROUNDS_SEEN)
        self._opened_at = now
        self._first_at: float | None = None
        self._offsets: list[float] = []
        self._before: tuple[float, list[float]] | None = None

    def opened(self, now: float) -> None:
        """The next round is open."""
        if self._offsets:
            self._seen.append(self._offsets)
            self._before = (self._opened_at, self._offsets)
        self._opened_at, self._first_at, self._offsets = now, None, []

    def arrived(self, now: float) -> None:
        """An update of the open round is in."""
        self._offsets.append(now - self._opened_at)
        if self._first_at is None:
            self._first_at = now

    def came_late(self, now: float) -> None:
        """One of the round before came after it was closed; the next deadlines take that into account."""
        if self._before is not None:
            opened_at, offsets = self._before
            offsets.append(now - opened_at)

    def at(self) -> float | None:
        """When to go on without the others; None before the first update."""
        if self._first_at is None:
            return None
        first, terms = self._first_at, self._terms
        offsets = [offset for round_ in self._seen for offset in round_]
        if not offsets:
            wait_s = max(FIRST_GRACE_S, terms.deadline_floor_s, first - self._opened_at)
            return first + min(wait_s, terms.deadline_ceiling_s)
        middle = median(offsets)
        spread = terms.deadline_k * median(abs(offset - middle) for offset in offsets)
        usual = self._opened_at + middle + spread
        earliest = first + max(terms.deadline_floor_s, spread)
        return min(max(usual, earliest), first + terms.deadline_ceiling_s)
