"""When each member of a group is to send its update, so that all arrive together.

Pure. A round is over when the group has trained on `budget` samples. From the measured time of a batch of each member
the moment is projected at which that will be so, always relative to now, and each member is told once how many batches
of the round it should have done by then. Targets are totals of the round, so a late answer does no harm.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass

HORIZON_BATCHES = 2.0
"""A target is given this many of the member's batches ahead.."""
HORIZON_S = 0.5
"""..and at least this long ahead: two reports of a member."""
SILENT_BATCHES = 4.0
SILENT_S = 5.0
"""A member that is silent for longer than either is not projected further."""
LEAST_BATCH_S = 1e-6
LOOK_AGAIN_S = 1e-4
"""A projection holds for so long for each member: in a group of a thousand, not every report can make a new one."""


@dataclass(slots=True)
class _Pace:
    batch_size: float
    batch_s: float | None = None
    batches: int = 0
    reported_at: float | None = None
    target: int | None = None

    def position(self, now: float) -> float:
        """Batches done by now, as far as can be told."""
        if self.batch_s is None or self.reported_at is None:
            return float(self.batches)
        silence = min(max(0.0, now - self.reported_at), max(SILENT_S, SILENT_BATCHES * self.batch_s))
        return self.batches + silence / self.batch_s

    @property
    def rate(self) -> float:
        """Samples a second; 0 while unknown."""
        return 0.0 if self.batch_s is None else self.batch_size / self.batch_s

    @property
    def is_open(self) -> bool:
        """Whether its end in this round is still open, and its speed is known."""
        return self.batch_s is not None and self.target is None


class RoundPlan:
    """The open round of a group."""

    def __init__(self, budget: int, batch_size: int) -> None:
        self.round = 0
        self._budget = max(1, budget)
        self._batch_size = max(1, batch_size)
        self._paces: dict[str, _Pace] = {}
        self._opened_at = -math.inf
        self._remitted = 0.0
        self._projected: tuple[float, float | None] | None = None
        self._finishing: tuple[float, dict[str, int]] | None = None

    def join(self, task_id: str) -> None:
        """A member trains from now on."""
        self._paces.setdefault(task_id, _Pace(float(self._batch_size)))
        self._forget()

    def leave(self, task_id: str) -> None:
        """A member is gone: the open round ends when it would have, without its share. The next one is whole again."""
        gone = self._paces.pop(task_id, None)
        self._forget()
        rates = [pace.rate for pace in self._paces.values()]
        if gone is not None and gone.rate and sum(rates):
            self._remitted += (self._budget - self._remitted) * gone.rate / (gone.rate + sum(rates))

    def speeds(self, crew: Sequence[str]) -> list[float]:
        """Samples a second of these members, 0 where nothing is known."""
        return [pace.rate if (pace := self._paces.get(task_id)) is not None else 0.0 for task_id in crew]

    def open(self, round_: int, now: float) -> None:
        """The next round begins; what is known of each member's speed is kept."""
        self.round = round_
        self._opened_at = now
        for pace in self._paces.values():
            pace.batches = 0
            pace.reported_at = None
            pace.target = None
        self._remitted = 0.0
        self._forget()

    def report(self, now: float, task_id: str, *, batches: int, samples: int, batch_s: float) -> int | None:
        """Totals of a member in the open round; answers with its target, if it has one by now."""
        pace = self._paces.get(task_id)
        if pace is None:
            return None
        if batches >= pace.batches:
            # The same count again is a batch under way; before the first one, nobody knows whether it has begun.
            if batches > pace.batches or batches == 0:
                pace.reported_at = now
            pace.batches = batches
            if batches:
                pace.batch_size = max(1.0, samples / batches)
        if batch_s > 0 and math.isfinite(batch_s):
            pace.batch_s = max(LEAST_BATCH_S, batch_s)
        if pace.target is None:
            pace.target = self._target_for(now, task_id, pace)
        return pace.target

    def seconds_left(self, now: float) -> float | None:
        """Until those without a target have done what is missing of the budget; None while no speed is known."""
        missing = self._budget - self._remitted
        rate = 0.0
        for pace in self._paces.values():
            missing -= pace.batch_size * (pace.position(now) if pace.target is None else max(pace.batches, pace.target))
            if self._is_moving(pace, now) and pace.batch_s is not None:
                rate += pace.batch_size / pace.batch_s
        if missing <= 0:
            return 0.0
        return missing / rate if rate else None

    def finishes(self, now: float) -> dict[str, float]:
        """For each member with a target: seconds until it has done that; infinite where it has fallen silent."""
        left: dict[str, float] = {}
        for task_id, pace in self._paces.items():
            if pace.target is None or pace.batch_s is None:
                continue
            missing = pace.target - pace.batches
            silent_s = now - (self._opened_at if pace.reported_at is None else pace.reported_at)
            if missing > 0 and silent_s > max(SILENT_S, SILENT_BATCHES * pace.batch_s):
                left[task_id] = math.inf
            else:
                left[task_id] = max(0.0, (pace.target - pace.position(now)) * pace.batch_s) if missing > 0 else 0.0
        return left

    def validate(self) -> None:
        """Raise AssertionError where the state contradicts itself."""
        for pace in self._paces.values():
            assert pace.target is None or pace.target >= 1
            assert pace.batch_s is None or pace.batch_s >= LEAST_BATCH_S
            assert pace.batches >= 0

    def _is_moving(self, pace: _Pace, now: float) -> bool:
        """Whether its end can be projected. One not heard of in this round yet is taken to begin just now: the first
        member to report must not be given the work of all."""
        return pace.is_open and (pace.reported_at is not None or now - self._opened_at < SILENT_S)

    def _target_for(self, now: float, task_id: str, pace: _Pace) -> int | None:
        left = self._left(now)
        if left is None or pace.batch_s is None:
            return max(1, pace.batches) if left == 0.0 else None
        if left > max(HORIZON_S, HORIZON_BATCHES * pace.batch_s):
            return None
        if self._finishing is None or not self._holds(self._finishing[0], now):
            self._finishing = now, self._finish(now, left)
        return max(1, pace.batches, self._finishing[1][task_id])

    def _left(self, now: float) -> float | None:
        """As `seconds_left`, from a projection that is not quite new in a large group."""
        if self._projected is None or not self._holds(self._projected[0], now):
            self._projected = now, self.seconds_left(now)
        at, left = self._projected
        return None if left is None else max(0.0, left - (now - at))

    def _holds(self, at: float, now: float) -> bool:
        return 0 <= now - at < LOOK_AGAIN_S * (len(self._paces) - 10)

    def _forget(self) -> None:
        self._projected = self._finishing = None

    def _finish(self, now: float, left: float) -> dict[str, int]:
        """Whole batches of each member when the budget is reached: round down, then let the next to finish go on."""
        done: dict[str, int] = {}
        queue: list[tuple[float, str]] = []
        samples = 0.0
        for task_id, pace in sorted(self._paces.items()):
            if self._is_moving(pace, now) and pace.batch_s is not None:
                reached = pace.position(now) + left / pace.batch_s
                done[task_id] = max(pace.batches, math.floor(reached))
                heapq.heappush(queue, ((done[task_id] + 1 - reached) * pace.batch_s, task_id))
            else:
                done[task_id] = max(pace.batches, pace.target or 0)
            samples += done[task_id] * pace.batch_size
        while samples < self._budget - self._remitted and queue:
            after, task_id = heapq.heappop(queue)
            pace = self._paces[task_id]
            done[task_id] += 1
            samples += pace.batch_size
            heapq.heappush(queue, (after + (pace.batch_s or LEAST_BATCH_S), task_id))
        return done
