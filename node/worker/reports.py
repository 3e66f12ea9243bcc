"""What a training task tells its scheduler: progress, returned rows and metrics, until it has heard them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import random
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from node.errors import PeerError, Refused
from node.network.backoff import Backoff
from node.wire import Measure, Progress
from node.worker.bridge_state import TaskProgress
from node.worker.context import TaskContext

if TYPE_CHECKING:
    from node.network.overlay import Overlay

log = logging.getLogger(__name__)

REPORT_EVERY_S = 0.25
ASK_AGAIN_S = 1.0
CALL_S = 5.0
LONGEST_PAUSE_S = 2.0
MEASURES = 100


class Reports:
    """The reports of one task. A scheduler that is gone costs nothing but these: the executor computes on, and a new
    life of it gets the totals of the round and everything it has not acknowledged."""

    def __init__(
        self, context: TaskContext, overlay: Overlay, progress: TaskProgress, moved: Callable[[], None]
    ) -> None:
        self._context = context
        self._overlay = overlay
        self._progress = progress
        self._moved = moved
        self._changed = asyncio.Event()
        self._at_once = asyncio.Event()
        self._reported_round = 0
        self._backoff = Backoff(random.Random(), first_s=REPORT_EVERY_S, most_s=LONGEST_PAUSE_S)
        self._measures: list[Measure] = []

    def changed(self) -> None:
        """The progress moved on: the scheduler is told soon; at once of a new round and of its 1st, 2nd, 4th, 8th..
        batch, so that a round of short batches has its plan in time."""
        self._changed.set()
        batches = self._progress.batches
        is_early = self._progress.target is None and batches > 0 and batches & (batches - 1) == 0
        if self._progress.round != self._reported_round or is_early:
            self._at_once.set()

    def measured(self, round_: int, metrics: dict[str, float]) -> None:
        """Pass metrics on. A validation loss belongs to the version that the executor names; so does all else where it
        counts rounds as we do, because it has asked for the weights of one."""
        finite = {name: value for name, value in metrics.items() if math.isfinite(value)}
        evaluation = {name: value for name, value in finite.items() if name == "eval_loss"}
        rest = {name: value for name, value in finite.items() if name != "eval_loss"}
        own = round_ if self._progress.loads_weights else self._progress.measured_round
        for number, values in ((round_, evaluation), (own, rest)):
            if values:
                self._measures.append(Measure(task_id=self._context.task_id, round=number, metrics=values))
        del self._measures[:-MEASURES]
        self.changed()

    async def run(self) -> None:
        """Tell of changes, four times a second or so, and take in the plan."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(ASK_AGAIN_S):
                    await self._changed.wait()
            self._changed.clear()
            self._at_once.clear()
            self._reported_round = self._progress.round
            began = time.monotonic()
            try:
                await self._report()
            except (PeerError, TimeoutError) as error:
                log.warning("progress.not_told task=%s reason=%s", self._context.task_id, error)
                await asyncio.sleep(self._backoff.failed())
                continue
            self._backoff.succeeded()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(began + REPORT_EVERY_S - time.monotonic()):
                    await self._at_once.wait()

    async def flush(self) -> None:
        """Tell what was measured and not told yet, with one try."""
        with contextlib.suppress(PeerError, TimeoutError):
            await self._tell_measures()

    async def _report(self) -> None:
        if not self._progress.is_done:
            totals = self._progress.totals()
            number, returned = self._progress.rows.returned
            request = Progress(
                task_id=self._context.task_id,
                round=totals.round,
                batches=totals.batches,
                samples=totals.samples,
                batch_s=totals.batch_s,
                loss=totals.loss,
                returned=returned,
                return_number=number,
            )
            plan = await self._overlay.call(self._context.scheduler, request, timeout_s=CALL_S)
            self._progress.rows.answered(number)
            if self._progress.plan(plan):
                log.info(
                    "server.changed task=%s epoch=%s server=%s",
                    self._context.task_id,
                    plan.epoch,
                    plan.parameter_server,
                )
                self._moved()
        await self._tell_measures()

    async def _tell_measures(self) -> None:
        while self._measures:
            measure = self._measures[0]
            try:
                await self._overlay.call(self._context.scheduler, measure, timeout_s=CALL_S)
            except Refused as error:
                if error.code == "busy":
                    raise
                log.warning("measure.refused task=%s reason=%s", self._context.task_id, error)
            if self._measures and self._measures[0] is measure:
                self._measures.pop(0)
