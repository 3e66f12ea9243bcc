"""Where a task stands: rounds, targets and batch times."""

from __future__ import annotations

import pytest

from node.wire import Plan
from node.worker.bridge_state import Phase, TaskProgress


def trained(progress: TaskProgress, batches: int, *, start: float = 0.0, step_s: float = 1.0) -> float:
    now = start
    for _ in range(batches):
        now += step_s
        progress.batch(8, 1.0, 0.0, now)
        progress.validate()
    return now


def test_a_round_goes_from_batches_to_update_to_the_next_round() -> None:
    progress = TaskProgress(rounds=2)
    assert progress.batch(8, 2.5, 0.1, 1.0) == {"type": "Continue"}
    progress.plan(Plan(round=0, target_batches=3))
    assert progress.batch(8, 2.4, 0.1, 2.0) == {"type": "ScheduleUpdate", "counter": 1}
    assert progress.batch(8, 2.3, 0.1, 3.0) == {"type": "ScheduleUpdate", "counter": 0}
    assert progress.totals().samples == 24
    assert progress.update() == {"type": "Ok"}
    progress.sent()
    progress.arrived(1)
    assert progress.applied() == {"type": "Continue"}
    assert (progress.round, progress.batches, progress.samples, progress.phase) == (1, 0, 0, Phase.TRAINING)


def test_the_last_round_ends_in_done_for_everybody() -> None:
    """H12: judged by the task's own round, whatever the others do."""
    progress = TaskProgress(rounds=1)
    trained(progress, 1)
    progress.update()
    progress.sent()
    progress.arrived(1)
    assert progress.applied() == {"type": "Done"}


def test_an_executor_past_its_target_is_told_to_send_now() -> None:
    progress = TaskProgress(rounds=1)
    trained(progress, 5)
    progress.plan(Plan(round=0, target_batches=3))
    assert progress.batch(8, None, 0.0, 9.0)["counter"] == 0


def test_a_plan_for_another_round_is_ignored() -> None:
    progress = TaskProgress(rounds=3)
    progress.plan(Plan(round=1, target_batches=1))
    assert progress.batch(8, None, 0.0, 1.0) == {"type": "Continue"}


def test_what_comes_out_of_order_is_an_error_and_changes_nothing() -> None:
    progress = TaskProgress(rounds=1)
    assert progress.update()["type"] == "Error"
    assert progress.applied()["type"] == "Error"
    trained(progress, 1)
    progress.update()
    before = progress.totals()
    assert progress.batch(8, None, 0.0, 5.0)["type"] == "Error"
    assert progress.applied()["type"] == "Error"
    assert progress.totals() == before


def test_evaluation_is_asked_for_with_the_version_it_belongs_to() -> None:
    progress = TaskProgress(rounds=2)
    trained(progress, 1)
    progress.plan(Plan(round=0, target_batches=1, evaluate=True))
    progress.update()
    progress.sent()
    progress.arrived(1)
    assert progress.applied() == {"type": "Continue", "evaluate": True}


def test_a_late_joiner_begins_with_the_round_of_its_weights() -> None:
    progress = TaskProgress(rounds=5)
    progress.started_from(3)
    assert progress.round == 3
    trained(progress, 1)
    progress.started_from(4)
    assert progress.round == 3


def test_the_batch_time_follows_a_slow_down_within_five_batches() -> None:
    """H15: a forgetting average, in float."""
    progress = TaskProgress(rounds=1)
    now = trained(progress, 40, step_s=0.1)
    assert progress.batch_s == pytest.approx(0.1)
    trained(progress, 5, start=now, step_s=1.0)
    assert progress.batch_s == pytest.approx(1.0, rel=0.2)


def test_the_first_batch_of_a_round_and_waits_for_slices_do_not_count() -> None:
    """H16: what the worker measures is computing, not downloading."""
    progress = TaskProgress(rounds=3)
    now = trained(progress, 10, step_s=0.1)
    progress.update()
    progress.sent()
    progress.arrived(1)
    progress.applied()
    progress.batch(8, None, 0.0, now + 60)
    assert progress.batch_s == pytest.approx(0.1)
    progress.away(5.0)
    progress.batch(8, None, 0.0, now + 65.1)
    assert progress.batch_s == pytest.approx(0.1, abs=0.01)


def test_a_senseless_round_time_of_the_executor_is_not_believed() -> None:
    """H51: negative or absurd figures of upstream's executor."""
    progress = TaskProgress(rounds=1)
    progress.batch(8, None, -3.0, 1.0)
    assert progress.batch_s == 0.0
