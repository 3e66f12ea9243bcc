"""Who keeps a round waiting: seen by what is left of its work, and named once. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping

BEHIND_S = 3.0
"""A worker is behind when it will be done so much later than the middle of the group.."""
BEHIND_SHARE = 0.5
"""..and so much of what the round has lasted."""


class Stragglers:
    """The open round's."""

    def __init__(self) -> None:
        self.behind: dict[str, float] = {}
        """Tasks that are behind now, and by how many seconds."""
        self._named: set[str] = set()

    def open(self) -> None:
        """The next round begins."""
        self.behind.clear()
        self._named.clear()

    def look(self, finishes: Mapping[str, float], round_s: float) -> list[tuple[str, float]]:
        """From when each member is done: those that are behind, as far as this round did not name them yet."""
        self.behind.clear()
        if len(finishes) < 2:
            return []
        middle = statistics.median_low(finishes.values())
        for task_id, left in finishes.items():
            if left - middle > max(BEHIND_S, BEHIND_SHARE * round_s):
                self.behind[task_id] = left - middle
        new = [(task_id, late) for task_id, late in self.behind.items() if task_id not in self._named]
        self._named.update(task_id for task_id, _ in new)
        return new
