"""When each member of a group is to send its update, so that all arrive together.

Pure. A round is over when the group has trained on `budget` samples. From the measured time of a batch of each member
the moment is projected at which that will be so, always relative to now, and each member is told once how many batches
of the round it should have done by then. Targets are totals of the round, so a late answer does no harm.

Where updates travel while training goes on, members are in the next round before the open one is committed: it has a
plan from the first report on. A round may hold a few samples more, so that its members end together; the next one then
holds fewer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from node.scheduler.openround import OpenRound, Pace

LEAST_BATCH_S = 1e-6


class RoundPlan:
    """The open round of a group, and the next one where members are in it already."""

    def __init__(self, budget: int, batch_size: int) -> None:
        self.round = 0
        self._budget = float(max(1, budget))
        self._batch_size = float(max(1, batch_size))
        self._paces: dict[str, Pace] = {}
        self._open = OpenRound(self._paces, self._budget, -math.inf)
        self._next: OpenRound | None = None

    def join(self, task_id: str) -> None:
        """A member trains from now on."""
        self._paces.setdefault(task_id, Pace(self._batch_size))
        for open_round in self._rounds():
            open_round.join(task_id)

    def leave(self, task_id: str) -> None:
        """A member is gone: rounds under way end when they would have, without its share. Those after are whole."""
        gone = self._paces.pop(task_id, None)
        if gone is not None:
            for open_round in self._rounds():
                open_round.leave(task_id, gone)

    def speeds(self, crew: Sequence[str]) -> list[float]:
        """Samples a second of these members, 0 where nothing is known."""
        return [pace.rate if (pace := self._paces.get(task_id)) is not None else 0.0 for task_id in crew]

    def open(self, round_: int, now: float) -> None:
        """The next round begins; what is known of each member's speed is kept."""
        following = self._following(now)
        following.opened(now)
        self.round, self._open, self._next = round_, following, None

    def report(
        self, now: float, task_id: str, round_: int, *, batches: int, samples: int, batch_s: float
    ) -> int | None:
        """Totals of a member in the open round or the next; answers with its target, if it has one by now."""
        pace = self._paces.get(task_id)
        if pace is None or round_ not in (self.round, self.round + 1):
            return None
        if batches:
            pace.batch_size = max(1.0, samples / batches)
        if batch_s > 0 and math.isfinite(batch_s):
            pace.batch_s = max(LEAST_BATCH_S, batch_s)
        if round_ == self.round:
            return self._open.report(now, task_id, batches)
        self._open.went_on(task_id)
        self._next = self._following(now)
        return self._next.report(now, task_id, batches)

    def seconds_left(self, now: float) -> float | None:
        """Of the open round, until those without a target have done what is missing; None while no speed is known."""
        return self._open.seconds_left(now)

    def finishes(self, now: float) -> dict[str, float]:
        """For each member with a target in the open round: seconds until it has done that; infinite where it has
        fallen silent."""
        return self._open.finishes(now)

    def validate(self) -> None:
        """Raise AssertionError where the state contradicts itself."""
        for pace in self._paces.values():
            assert pace.batch_s is None or pace.batch_s >= LEAST_BATCH_S
        for open_round in self._rounds():
            open_round.validate()

    def _rounds(self) -> list[OpenRound]:
        return [self._open] if self._next is None else [self._open, self._next]

    def _following(self, now: float) -> OpenRound:
        return self._next or OpenRound(self._paces, self._budget, now, before=self._open)
