"""Where one training task stands, as seen through its bridge. No clock, no I/O.

Two states run side by side: the round that the executor trains on, and the exchange of its last update, from `update`
until `update-received`. Without overlap there is no training during an exchange; with it, the next round has begun.
A status that does not fit is answered with `Error` and changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from node.wire import Plan
from node.worker.rows import Rows, count

FORGET = 0.3
"""Weight of the newest batch in the average: after five batches at a new speed the estimate is within 20 % of it."""


class Phase(Enum):
    """How far the exchange of an update is; `training` where there is none."""

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


@dataclass(frozen=True, slots=True)
class Destination:
    """The group's parameter server, and the epoch of the group that it serves; no server while there is none."""

    epoch: int
    server: str


@dataclass(slots=True)
class Exchange:
    """An update on its way, and what answers it."""

    round: int
    samples: int
    batches: int
    is_last: bool
    evaluate: bool
    is_sent: bool = False
    arriving: int | None = None


class TaskProgress:
    """The rounds, batches and rows of one training task."""

    def __init__(self, rounds: int, destination: Destination, *, overlaps: bool = False) -> None:
        self.round = 0
        self.rounds = rounds
        self.rows = Rows()
        self.destination = destination
        self.exchange: Exchange | None = None
        self.is_done = False
        self.loads_weights = False
        self.batches = 0
        self.batch_s = 0.0
        self.loss: float | None = None
        self.target: int | None = None
        self.round_s = 0.0
        """How long the batches of the last round took, from the first to its update."""
        self._overlaps = overlaps
        self._newest = 0
        self._evaluate = False
        self._was_told = False
        self._is_measured = False
        self._last_batch_at: float | None = None
        self._began_at: float | None = None
        self._away_s = 0.0

    @property
    def phase(self) -> Phase:
        """What the executor's last update is waiting for."""
        if self.is_done:
            return Phase.DONE
        if self.exchange is None:
            return Phase.TRAINING
        if self.exchange.arriving is not None:
            return Phase.APPLYING
        return Phase.WAITING if self.exchange.is_sent else Phase.SENDING

    @property
    def measured_round(self) -> int:
        """The round that metrics of the executor are about: that of the update under way, if there is one."""
        return self.round if self.exchange is None else self.exchange.round

    def totals(self) -> Totals:
        """The present round in numbers."""
        exchange = self.exchange
        if exchange is not None and exchange.round == self.round:
            return Totals(self.round, exchange.batches, exchange.samples, self.batch_s, self.loss)
        return Totals(self.round, self.batches, count(self.rows.open), self.batch_s, self.loss)

    def started_from(self, version: int) -> None:
        """The executor has loaded this version of the weights: it trains the round of the same number."""
        self.loads_weights = True
        if self.exchange is None and not self.is_done and version > self.round:
            self.rows.drop()
            self._begin(version)

    def plan(self, plan: Plan) -> bool:
        """Take in the scheduler's plan; whether the parameter server is another one now. What it says of a round that
        is neither trained nor exchanged is ignored."""
        if plan.round == self.round:
            self.target = plan.target_batches
            self._evaluate = plan.evaluate
        if self.exchange is not None and plan.round == self.exchange.round:
            self.exchange.evaluate = plan.evaluate
        before = self.destination
        if plan.epoch >= before.epoch:
            self.destination = Destination(plan.epoch, plan.parameter_server)
        return self.destination != before

    def away(self, seconds: float) -> None:
        """Time the executor spent waiting for us, not computing (a slice that was not there yet)."""
        self._away_s += seconds

    def batch(
        self, size: int, loss: float | None, reported_s: float, now: float, *, batches: int = 1
    ) -> dict[str, Any]:
        """A local batch is done, or several short ones, with the sums of their rows and times."""
        exchange = self.exchange
        if self.is_done or (exchange is not None and (exchange.is_last or not self._overlaps)):
            return _error(f"a batch while {self.phase.value}")
        self._measure(reported_s / batches, now, batches)
        if self._began_at is None:
            self._began_at = now
        self.batches += batches
        self.rows.use(size)
        if loss is not None:
            self.loss = loss
        if self._newest > self.round:
            # The round is over without this task: the way to the next one is through its update.
            return self._schedule(0)
        if self.target is None or not self.destination.server:
            # Executors count a given number down by themselves, so that it has to be put off again and again.
            return self._schedule(1) if self._was_told else {"type": "Continue"}
        return self._schedule(max(0, self.target - self.batches))

    def update(self, now: float) -> dict[str, Any]:
        """The executor is about to send its update: the rows used so far are those of this round."""
        if self.is_done or self.exchange is not None or self.batches == 0:
            return _error(f"an update after {self.batches} batches while {self.phase.value}")
        self.round_s = now - (now if self._began_at is None else self._began_at)
        samples = count(self.rows.freeze(self.round))
        is_last = self.round >= self.rounds - 1
        self.exchange = Exchange(self.round, samples, self.batches, is_last, self._evaluate)
        if self._overlaps and not is_last:
            self._begin(self.round + 1)
        self.batches = 0
        self._last_batch_at = None
        self._began_at = now if self._overlaps else None
        return {"type": "Ok", "last": True} if is_last else {"type": "Ok"}

    def sent(self) -> None:
        """Its update has been handed over (or refused because the round is over): the answer is awaited."""
        if self.exchange is not None:
            self.exchange.is_sent = True

    def arrived(self, version: int, newest: int, contributors: Iterable[int]) -> bool:
        """The way to `version`, which is committed with this task's updates of the rounds `contributors`, lies in the
        work directory. Whether the update under way counts, in this version or a later one."""
        exchange = self.exchange
        if exchange is None or not exchange.is_sent or exchange.arriving is not None:
            raise AssertionError(f"version {version} arrived while {self.phase.value}")
        counted = list(contributors)
        self.rows.learn(version, counted)
        self._newest = max(self._newest, newest)
        exchange.arriving = version
        return exchange.round in counted or exchange.round in self.rows.outstanding

    def applied(self, now: float) -> dict[str, Any]:
        """The executor has new global weights."""
        exchange = self.exchange
        if exchange is None or exchange.arriving is None:
            return _error(f"update-received while {self.phase.value}")
        self.exchange = None
        version = exchange.arriving
        evaluate = {"evaluate": True} if exchange.evaluate else {}
        if version >= self.rounds:
            self.round, self.is_done = version, True
            return {"type": "Done", **evaluate}
        if not self._overlaps:
            self._begin(version)
        else:
            if version > self.round:
                self._begin(version, keeps=True)
            # From here to the next batch it computes, unless it has to evaluate first.
            self._last_batch_at = None if evaluate else now
            self._away_s = 0.0
        return {"type": "Continue", **evaluate}

    def validate(self) -> None:
        """Raise AssertionError where the counts contradict each other."""
        self.rows.validate()
        if self.batches < 0 or not 0 <= self.round <= self.rounds:
            raise AssertionError(f"impossible totals {self.totals()}")
        exchange = self.exchange
        if exchange is not None and (self.is_done or exchange.round not in (self.round, self.round - 1)):
            raise AssertionError(f"round {self.round} while {exchange} is under way")

    def _begin(self, round_: int, *, keeps: bool = False) -> None:
        """`keeps`: what was trained so far belongs to this round, for the executor keeps a part of it."""
        self.round = round_
        self.target = None
        self._evaluate = self._was_told = False
        if not keeps:
            self.batches = 0
            self._last_batch_at = None
            self._away_s = 0.0

    def _schedule(self, counter: int) -> dict[str, Any]:
        self._was_told = True
        return {"type": "ScheduleUpdate", "counter": counter}

    def _measure(self, reported_s: float, now: float, batches: int) -> None:
        # The first interval of a round holds the download, the merge and an evaluation, so it measures nothing;
        # the executor's own figure, often wrong, only fills in until there is a measurement.
        if self._last_batch_at is None:
            if self.batch_s == 0.0 and 0.0 < reported_s < 3600.0:
                self.batch_s = reported_s
        else:
            took = max(0.0, now - self._last_batch_at - self._away_s) / batches
            kept = (1 - FORGET) ** batches if self._is_measured else 0.0
            self.batch_s = kept * self.batch_s + (1 - kept) * took
            self._is_measured = True
        self._last_batch_at = now
        self._away_s = 0.0


def _error(detail: str) -> dict[str, Any]:
    return {"type": "Error", "detail": detail}
