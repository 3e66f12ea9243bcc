"""A round in which members train: what each has done of it, when it will be over, and where each is to end. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from node.scheduler.ending import Runner, ends

HORIZON_BATCHES = 2.0
"""A target is given this many of the member's batches ahead.."""
HORIZON_S = 0.5
"""..and at least this long ahead: two reports of a member."""
SILENT_BATCHES = 4.0
SILENT_S = 5.0
"""A member that is silent for longer than either is not projected further."""
LOOK_AGAIN_S = 1e-4
"""A projection holds for so long for each member: in a group of a thousand, not every report can make a new one."""
SLACK_SHARE = 0.05
"""A round may hold so much more than it is to, so that its members end together."""
EXCESS_SHARE = 0.5
"""At most so much of a round is taken as done in the one before."""


@dataclass(slots=True)
class Pace:
    """How fast a member is; `batch_s` is unknown at first."""

    batch_size: float
    batch_s: float | None = None

    @property
    def rate(self) -> float:
        """Samples a second; 0 while unknown."""
        return 0.0 if self.batch_s is None else self.batch_size / self.batch_s

    @property
    def patience_s(self) -> float:
        """How long it may be silent."""
        return max(SILENT_S, SILENT_BATCHES * (self.batch_s or 0.0))


@dataclass(slots=True)
class _Share:
    """A member's part of the round."""

    batches: int = 0
    reported_at: float | None = None
    target: int | None = None


class OpenRound:
    """One round. `before` is the one that its members are still in, or have an update of under way; without it, they
    begin when it is opened."""

    def __init__(
        self, paces: Mapping[str, Pace], budget: float, opened_at: float, before: OpenRound | None = None
    ) -> None:
        self._paces = paces
        self._full = budget
        self._opened_at = opened_at
        self._before = before
        self._shares: dict[str, _Share] = {task_id: _Share() for task_id in paces}
        self._taken_off = 0.0
        self._projected: tuple[float, float | None] | None = None
        self._chosen: tuple[float, dict[str, int]] | None = None

    def opened(self, now: float) -> None:
        """The round before is committed: who has not begun does so now."""
        if self._before is not None:
            self._taken_off += self._before.excess()
        self._before, self._opened_at = None, now
        self._forget()

    def join(self, task_id: str) -> None:
        """A member trains from now on."""
        self._shares.setdefault(task_id, _Share())
        self._forget()

    def leave(self, task_id: str, gone: Pace) -> None:
        """A member is gone, and so is its share of the round, which ends when it would have."""
        self._shares.pop(task_id, None)
        self._forget()
        rates = sum(pace.rate for pace in self._paces.values())
        if gone.rate and rates:
            self._taken_off += self._budget() * gone.rate / (gone.rate + rates)

    def went_on(self, task_id: str) -> None:
        """A member trains for the next round already."""
        share = self._shares.get(task_id)
        if share is not None and (share.target is None or share.batches < share.target):
            share.target = share.batches = max(1, share.batches, share.target or 0)
            self._forget()

    def report(self, now: float, task_id: str, batches: int) -> int | None:
        """A member's total; answers with its target, if it has one by now."""
        share = self._shares[task_id]
        if batches >= share.batches:
            # The same count again is a batch under way; before the first one, nobody knows whether it has begun.
            if batches > share.batches or batches == 0:
                share.reported_at = now
            share.batches = batches
        if share.target is None:
            share.target = self._target_for(now, task_id, share)
        return share.target

    def seconds_left(self, now: float) -> float | None:
        """Until those without a target have done what is missing of the budget; None while no speed is known."""
        missing, rate = self._budget(), 0.0
        for task_id, share in self._shares.items():
            pace = self._paces[task_id]
            if share.target is not None:
                missing -= pace.batch_size * max(share.batches, share.target)
                continue
            position, is_moving = self._standing(task_id, now)
            missing -= pace.batch_size * position
            if is_moving:
                rate += pace.rate
        if missing <= 0:
            return 0.0
        return missing / rate if rate else None

    def finishes(self, now: float) -> dict[str, float]:
        """For each member with a target: seconds until it has done that; infinite where it has fallen silent."""
        return {
            task_id: self._finish(task_id, now)
            for task_id, share in self._shares.items()
            if share.target is not None and self._paces[task_id].batch_s is not None
        }

    def excess(self) -> float:
        """Samples that its members do beyond what they were to do; of no account before all know their targets."""
        if not self._shares or any(share.target is None for share in self._shares.values()):
            return 0.0
        done = sum(
            self._paces[task_id].batch_size * max(share.batches, share.target or 0)
            for task_id, share in self._shares.items()
        )
        return min(max(0.0, done - self._budget()), EXCESS_SHARE * self._full)

    def validate(self) -> None:
        """Raise AssertionError where the state contradicts itself."""
        assert self._shares.keys() == self._paces.keys(), "a round with other members than the group"
        for share in self._shares.values():
            assert share.target is None or share.target >= 1
            assert share.batches >= 0

    # ---- projections --------------------------------------------------------------------------------

    def _budget(self) -> float:
        """What is to be done of the round by those who are here."""
        return self._full - self._taken_off - (0.0 if self._before is None else self._before.excess())

    def _begins_in(self, task_id: str, now: float) -> float:
        """Seconds until a member begins that has not been heard of in this round: the first to report must not be given
        the work of all."""
        if self._before is None:
            return 0.0 if now - self._opened_at < SILENT_S else math.inf
        return self._before._done_in(task_id, now)

    def _done_in(self, task_id: str, now: float) -> float:
        if self._shares[task_id].target is not None:
            return self._finish(task_id, now)
        left = self._left(now)
        return math.inf if left is None or not self._standing(task_id, now)[1] else left

    def _finish(self, task_id: str, now: float) -> float:
        share, pace = self._shares[task_id], self._paces[task_id]
        missing = (share.target or 0) - share.batches
        if missing <= 0:
            return 0.0
        silent_s = now - (self._opened_at if share.reported_at is None else share.reported_at)
        if pace.batch_s is None or silent_s > pace.patience_s:
            return math.inf
        return max(0.0, ((share.target or 0) - self._standing(task_id, now)[0]) * pace.batch_s)

    def _standing(self, task_id: str, now: float) -> tuple[float, bool]:
        """Batches done by now, as far as can be told, below nought where the member has yet to begin; and whether more
        can be foreseen."""
        share, pace = self._shares[task_id], self._paces[task_id]
        if pace.batch_s is None:
            return float(share.batches), False
        if share.reported_at is not None:
            return share.batches + min(max(0.0, now - share.reported_at), pace.patience_s) / pace.batch_s, True
        begins_in = self._begins_in(task_id, now)
        return (share.batches - begins_in / pace.batch_s, True) if begins_in < math.inf else (share.batches, False)

    def _target_for(self, now: float, task_id: str, share: _Share) -> int | None:
        left, batch_s = self._left(now), self._paces[task_id].batch_s
        if left is None or batch_s is None:
            return max(1, share.batches) if left == 0.0 else None
        if left > max(HORIZON_S, HORIZON_BATCHES * batch_s):
            return None
        if self._chosen is None or not self._holds(self._chosen[0], now):
            self._chosen = now, self._choose(now)
        return max(1, share.batches, self._chosen[1][task_id])

    def _choose(self, now: float) -> dict[str, int]:
        """Where each member is to end."""
        runners: dict[str, Runner] = {}
        settled: dict[str, int] = {}
        for task_id, share in self._shares.items():
            pace = self._paces[task_id]
            position, is_moving = self._standing(task_id, now)
            if share.target is None and is_moving and pace.batch_s is not None:
                runners[task_id] = Runner(position, share.batches, pace.batch_s, pace.batch_size)
            else:
                settled[task_id] = max(share.batches, share.target or 0)
        missing = self._budget() - sum(self._paces[task_id].batch_size * done for task_id, done in settled.items())
        others = [left for left in self.finishes(now).values() if math.isfinite(left)]
        return settled | ends(runners, others, missing, SLACK_SHARE * self._full)

    def _left(self, now: float) -> float | None:
        """As `seconds_left`, from a projection that is not quite new in a large group."""
        if self._projected is None or not self._holds(self._projected[0], now):
            self._projected = now, self.seconds_left(now)
        at, left = self._projected
        return None if left is None else max(0.0, left - (now - at))

    def _holds(self, at: float, now: float) -> bool:
        return 0 <= now - at < LOOK_AGAIN_S * (len(self._paces) - 10)

    def _forget(self) -> None:
        self._projected = self._chosen = None
