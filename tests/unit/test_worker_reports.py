"""What a training task tells its scheduler, while that comes and goes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest

from node.config import FetchConfig
from node.errors import PeerUnreachable, Refused
from node.network.cache import ContentCache
from node.network.overlay import Overlay
from node.wire import Ack, Dispatch, ExecutorKind, InnerOptimizer, Measure, ModelSource, Plan, Progress, Span, TrainTask
from node.worker import reports
from node.worker.bridge_state import Destination, TaskProgress
from node.worker.context import TaskContext
from node.worker.reports import Reports
from node.worker.web import Web

pytestmark = pytest.mark.asyncio

TASK = TrainTask(
    model=ModelSource(task="causal-lm"),
    dataset="data",
    parameter_server="one",
    optimizer=InnerOptimizer(learning_rate=0.1),
    batch_size=4,
    rounds=9,
)


class Scheduler:
    """Answers, or does not, and notes what it was told."""

    def __init__(self) -> None:
        self.trouble: list[Exception] = []
        self.progress: list[Progress] = []
        self.measures: list[Measure] = []
        self.plan = Plan(round=0, target_batches=3, parameter_server="one")

    async def call(self, peer_id: str, request: Any, *, timeout_s: float) -> Any:
        """One call."""
        if self.trouble:
            raise self.trouble.pop(0)
        if isinstance(request, Measure):
            self.measures.append(request)
            return Ack()
        self.progress.append(request)
        return self.plan


class Rig:
    """Reports of one task."""

    def __init__(self, tmp_path: Path) -> None:
        self.scheduler = Scheduler()
        self.progress = TaskProgress(9, Destination(0, "one"))
        dispatch = Dispatch(
            lease_id="l", job_id="job", task_id="t1", epoch=0, executor=ExecutorKind(class_="train"), task=TASK
        )
        cache = ContentCache(tmp_path / "cache", 1 << 30)
        web = Web(cache, FetchConfig())
        context = TaskContext("me", "scheduler", dispatch, tmp_path, tmp_path / "log", cache, web)
        self.moves = 0
        self.reports = Reports(context, cast(Overlay, self.scheduler), self.progress, self._moved)

    def _moved(self) -> None:
        self.moves += 1

    async def run_until(self, condition: Any) -> None:
        """Report until it holds."""
        async with asyncio.TaskGroup() as tasks:
            loop = tasks.create_task(self.reports.run())
            async with asyncio.timeout(5):
                while not condition():
                    await asyncio.sleep(0.002)
            loop.cancel()


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rig:
    """With short pauses."""
    monkeypatch.setattr(reports, "REPORT_EVERY_S", 0.01)
    monkeypatch.setattr(reports, "LONGEST_PAUSE_S", 0.01)
    monkeypatch.setattr(reports, "ASK_AGAIN_S", 0.01)
    return Rig(tmp_path)


async def test_a_scheduler_that_was_gone_gets_the_totals_the_measures_and_the_returned_rows(rig: Rig) -> None:
    """U34: nothing that it has not acknowledged is forgotten, and the executor is told to go on meanwhile."""
    rig.scheduler.trouble = [PeerUnreachable("gone"), TimeoutError(), Refused("busy", "starting")] * 2
    rig.progress.rows.take(Span(0, 0, 0, 40))
    assert rig.progress.batch(4, 1.5, 0.1, 1.0) == {"type": "Continue"}
    rig.progress.rows.give_back([Span(0, 9, 0, 5)])
    rig.reports.measured(0, {"loss": 1.5, "eval_loss": float("nan")})
    await rig.run_until(lambda: rig.scheduler.measures)
    first = rig.scheduler.progress[0]
    assert (first.round, first.batches, first.samples, first.loss) == (0, 1, 4, 1.5)
    assert (first.return_number, first.returned) == (1, [Span(0, 9, 0, 5)])
    assert [(m.round, m.metrics) for m in rig.scheduler.measures] == [(0, {"loss": 1.5})]
    await rig.run_until(lambda: len(rig.scheduler.progress) > 2)
    assert (rig.scheduler.progress[-1].return_number, rig.scheduler.progress[-1].returned) == (1, [])
    assert rig.progress.target == 3


async def test_another_parameter_server_in_the_plan_is_passed_on_once(rig: Rig) -> None:
    rig.scheduler.plan = Plan(round=0, epoch=1, parameter_server="two")
    await rig.run_until(lambda: len(rig.scheduler.progress) > 2)
    assert (rig.moves, rig.progress.destination) == (1, Destination(1, "two"))


async def test_a_refused_measure_holds_nothing_up(rig: Rig) -> None:
    rig.reports.measured(0, {"loss": 1.0})
    rig.reports.measured(0, {"loss": 2.0})
    await rig.reports.flush()
    rig.scheduler.measures.clear()
    rig.reports.measured(0, {"loss": 3.0})
    rig.reports.measured(0, {"loss": 4.0})
    rig.scheduler.trouble = [Refused("stale", "the task is over")]
    await rig.reports.flush()
    assert [measure.metrics["loss"] for measure in rig.scheduler.measures] == [4.0]


async def test_metrics_belong_to_the_round_of_the_update_and_losses_to_the_version_named(rig: Rig) -> None:
    rig.progress.rows.take(Span(0, 0, 0, 40))
    rig.progress.batch(4, 1.5, 0.1, 1.0)
    rig.progress.update(1.0)
    rig.reports.measured(7, {"loss": 1.0, "eval_loss": 2.0})
    await rig.reports.flush()
    assert [(m.round, m.metrics) for m in rig.scheduler.measures] == [(7, {"eval_loss": 2.0}), (0, {"loss": 1.0})]
