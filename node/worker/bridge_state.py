"""Where one training task stands, as seen through its bridge. No clock, no I/O.

A round goes training -> sending -> waiting -> applying -> training of the next. A status that does not fit the
phase is answered with `Error` and changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from node.wire import Plan

FORGET = 0.3
"""Weight of the newest batch in the average: after five batches at a new speed the estimate is within 20 % of it."""


class Phase(Enum):
    """What the executor is doing."""

    TRAINING = "training"
    SENDING = "sending"
    WAITING = "waiting"
    APPLYING = "applying"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class Totals:
    """What a `Progress` says."""

    round: int
    batches: int
    samples: int
    batch_s: float
    loss: float | None


class TaskProgress:
    """The round, batches and samples of one training task."""

    def __init__(self, rounds: int) -> None:
        self.round = 0
        self.rounds = rounds
        self.phase = Phase.TRAINING
        self.batches = 0
        self.samples = 0
        self.total_samples = 0
        self.batch_s = 0.0
        self.loss: float | None = None
        self.target: int | None = None
        self._evaluate = False
        self._arriving: int | None = None
        self._last_batch_at: float | None = None
        self._away_s = 0.0

    def totals(self) -> Totals:
        """The present round in numbers."""
        return Totals(self.round, self.batches, self.samples, self.batch_s, self.loss)

    def started_from(self, version: int) -> None:
        """The executor has loaded this version of the weights: it trains the round of the same number."""
        if self.batches == 0 and self.phase is Phase.TRAINING and version > self.round:
            self._begin(version)

    def plan(self, plan: Plan) -> None:
        """Take in the scheduler's plan; one for another round is ignored."""
        if plan.round == self.round:
            self.target = plan.target_batches
            self._evaluate = plan.evaluate

    def away(self, seconds: float) -> None:
        """Time the executor spent waiting for us, not computing (a slice that was not there yet)."""
        self._away_s += seconds

    def batch(self, size: int, loss: float | None, reported_s: float, now: float) -> dict[str, Any]:
        """One local batch is done."""
        if self.phase is not Phase.TRAINING:
            return _error(f"a batch while {self.phase.value}")
        self._measure(reported_s, now)
        self.batches += 1
        self.samples += size
        self.total_samples += size
        if loss is not None:
            self.loss = loss
        if self.target is None:
            return {"type": "Continue"}
        return {"type": "ScheduleUpdate", "counter": max(0, self.target - self.batches)}

    def update(self) -> dict[str, Any]:
        """The executor is about to send its update."""
        if self.phase is not Phase.TRAINING or self.batches == 0:
            return _error(f"an update after {self.batches} batches while {self.phase.value}")
        self.phase = Phase.SENDING
        return {"type": "Ok"}

    def sent(self) -> None:
        """Its update has been handed over (or refused because the round is over): the next step is awaited."""
        if self.phase is Phase.SENDING:
            self.phase = Phase.WAITING

    def arrived(self, version: int) -> None:
        """The step to `version` lies in the work directory."""
        if self.phase is Phase.WAITING:
            self.phase = Phase.APPLYING
            self._arriving = version

    def applied(self) -> dict[str, Any]:
        """The executor has new global weights."""
        if self.phase is not Phase.APPLYING or self._arriving is None:
            return _error(f"update-received while {self.phase.value}")
        evaluate = {"evaluate": True} if self._evaluate else {}
        self._begin(self._arriving)
        if self.round >= self.rounds:
            self.phase = Phase.DONE
            return {"type": "Done", **evaluate}
        return {"type": "Continue", **evaluate}

    def validate(self) -> None:
        """Raise AssertionError where the counts contradict each other."""
        if self.samples > self.total_samples or self.batches < 0 or self.round < 0:
            raise AssertionError(f"impossible totals {self.totals()}")
        if (self._arriving is not None) != (self.phase is Phase.APPLYING):
            raise AssertionError(f"{self.phase} with a step to {self._arriving}")

    def _begin(self, version: int) -> None:
        self.round = version
        self.phase = Phase.TRAINING
        self.batches = self.samples = 0
        self.target = None
        self._evaluate = False
        self._arriving = None
        self._last_batch_at = None
        self._away_s = 0.0

    def _measure(self, reported_s: float, now: float) -> None:
        # The first interval of a round holds the download, the merge and an evaluation, so it measures nothing;
        # the executor's own figure, often wrong, only fills in until there is a measurement.
        if self._last_batch_at is None:
            if self.batch_s == 0.0 and 0.0 < reported_s < 3600.0:
                self.batch_s = reported_s
        else:
            took = max(0.0, now - self._last_batch_at - self._away_s)
            self.batch_s = took if self.batches == 1 and self.round == 0 else self._blend(took)
        self._last_batch_at = now
        self._away_s = 0.0

    def _blend(self, took: float) -> float:
        return took if self.batch_s == 0.0 else (1 - FORGET) * self.batch_s + FORGET * took


def _error(detail: str) -> dict[str, Any]:
    return {"type": "Error", "detail": detail}
