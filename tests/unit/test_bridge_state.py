"""Where a task stands: rounds, targets, batch times, rows, and the parameter server it belongs to."""

from __future__ import annotations

import pytest

from node.wire import Plan, Span
from node.worker.bridge_state import Destination, Phase, TaskProgress
from node.worker.rows import Rows, merged

HERE = Destination(0, "server")


def task(rounds: int, *, overlaps: bool = False) -> TaskProgress:
    return TaskProgress(rounds, HERE, overlaps=overlaps)


def plan(round_: int, target: int | None, *, evaluate: bool = False, epoch: int = 0, server: str = "server") -> Plan:
    return Plan(round=round_, target_batches=target, evaluate=evaluate, epoch=epoch, parameter_server=server)


def answered(progress: TaskProgress, version: int, *, counted: bool = True, now: float = 0.0) -> dict[str, object]:
    """The update goes out, and this version comes back and is applied."""
    exchange = progress.exchange
    assert exchange is not None
    progress.sent()
    assert progress.arrived(version, version, [exchange.round] if counted else []) is counted
    return progress.applied(now)


def trained(progress: TaskProgress, batches: int, *, start: float = 0.0, step_s: float = 1.0) -> float:
    if progress.rows.in_hand is None:
        progress.rows.take(Span(0, progress.round, 0, 1000))
    now = start
    for _ in range(batches):
        now += step_s
        progress.batch(8, 1.0, 0.0, now)
        progress.validate()
    return now


def test_a_round_goes_from_batches_to_update_to_the_next_round() -> None:
    progress = task(2)
    progress.rows.take(Span(0, 0, 0, 100))
    assert progress.batch(8, 2.5, 0.1, 1.0) == {"type": "Continue"}
    progress.plan(plan(0, 3))
    assert progress.batch(8, 2.4, 0.1, 2.0) == {"type": "ScheduleUpdate", "counter": 1}
    assert progress.batch(8, 2.3, 0.1, 3.0) == {"type": "ScheduleUpdate", "counter": 0}
    assert progress.totals().samples == 24
    assert progress.update(3.0) == {"type": "Ok"}
    assert progress.totals().samples == 24
    assert answered(progress, 1) == {"type": "Continue"}
    assert (progress.round, progress.batches, progress.totals().samples, progress.phase) == (1, 0, 0, Phase.TRAINING)


def test_the_last_round_ends_in_done_for_everybody() -> None:
    """H12: judged by the task's own round, whatever the others do."""
    progress = task(1)
    trained(progress, 1)
    assert progress.update(1.0) == {"type": "Ok", "last": True}
    assert answered(progress, 1) == {"type": "Done"}


def test_an_executor_past_its_target_is_told_to_send_now() -> None:
    progress = task(1)
    trained(progress, 5)
    progress.plan(plan(0, 3))
    assert progress.batch(8, None, 0.0, 9.0)["counter"] == 0


def test_a_plan_for_another_round_is_ignored() -> None:
    progress = task(3)
    progress.plan(plan(1, 1))
    assert progress.batch(8, None, 0.0, 1.0) == {"type": "Continue"}


def test_what_comes_out_of_order_is_an_error_and_changes_nothing() -> None:
    progress = task(1)
    assert progress.update(0.0)["type"] == "Error"
    assert progress.applied(0.0)["type"] == "Error"
    trained(progress, 1)
    progress.update(1.0)
    before = progress.totals()
    assert progress.batch(8, None, 0.0, 5.0)["type"] == "Error"
    assert progress.applied(5.0)["type"] == "Error"
    assert progress.update(5.0)["type"] == "Error"
    assert progress.totals() == before


def test_evaluation_is_asked_for_with_the_version_it_belongs_to() -> None:
    progress = task(2)
    trained(progress, 1)
    progress.plan(plan(0, 1, evaluate=True))
    progress.update(1.0)
    assert answered(progress, 1) == {"type": "Continue", "evaluate": True}


def test_a_late_joiner_begins_with_the_round_of_its_weights() -> None:
    progress = task(5)
    progress.started_from(3)
    assert progress.round == 3
    trained(progress, 1)
    progress.started_from(3)
    assert (progress.round, progress.batches) == (3, 1)


def test_rows_whose_training_is_thrown_away_for_newer_weights_go_back() -> None:
    progress = task(5)
    trained(progress, 2)
    progress.started_from(2)
    assert (progress.round, progress.batches, progress.totals().samples) == (2, 0, 0)
    assert progress.rows.returned == (1, [Span(0, 0, 0, 16)])


def test_the_batch_time_follows_a_slow_down_within_five_batches() -> None:
    """H15: a forgetting average, in float."""
    progress = task(1)
    now = trained(progress, 40, step_s=0.1)
    assert progress.batch_s == pytest.approx(0.1)
    trained(progress, 5, start=now, step_s=1.0)
    assert progress.batch_s == pytest.approx(1.0, rel=0.2)


def test_the_first_batch_of_a_round_and_waits_for_slices_do_not_count() -> None:
    """H16: what the worker measures is computing, not downloading."""
    progress = task(3)
    now = trained(progress, 10, step_s=0.1)
    progress.update(now)
    answered(progress, 1, now=now + 1)
    progress.batch(8, None, 0.0, now + 60)
    assert progress.batch_s == pytest.approx(0.1)
    progress.away(5.0)
    progress.batch(8, None, 0.0, now + 65.1)
    assert progress.batch_s == pytest.approx(0.1, abs=0.01)


def test_a_senseless_round_time_of_the_executor_is_not_believed() -> None:
    """H51: negative or absurd figures of upstream's executor."""
    progress = task(1)
    progress.batch(8, None, -3.0, 1.0)
    assert progress.batch_s == 0.0


def test_batches_are_measured_right_while_an_update_is_on_its_way() -> None:
    """Neither the update's making nor the taking in of what comes back counts as computing."""
    progress = task(9, overlaps=True)
    now = trained(progress, 10, step_s=0.1)
    for version in range(1, 6):
        progress.update(now)
        now = trained(progress, 1, start=now + 3.0, step_s=0.1)
        now = trained(progress, 3, start=now, step_s=0.1)
        answered(progress, version, now=now + 2.0)
        now = trained(progress, 2, start=now + 2.0, step_s=0.1)
    assert progress.batch_s == pytest.approx(0.1)


def test_with_overlap_the_next_round_begins_while_the_update_is_on_its_way() -> None:
    progress = task(3, overlaps=True)
    now = trained(progress, 4)
    progress.plan(plan(0, 4, evaluate=True))
    assert progress.update(now) == {"type": "Ok"}
    assert (progress.round, progress.measured_round, progress.phase) == (1, 0, Phase.SENDING)
    now = trained(progress, 2, start=now)
    assert (progress.totals().round, progress.totals().batches, progress.totals().samples) == (1, 2, 16)
    assert progress.update(now)["type"] == "Error"
    assert answered(progress, 1, now=now) == {"type": "Continue", "evaluate": True}
    assert (progress.round, progress.totals().batches) == (1, 2)


def test_with_overlap_nothing_is_trained_after_the_last_update() -> None:
    progress = task(1, overlaps=True)
    trained(progress, 1)
    assert progress.update(1.0) == {"type": "Ok", "last": True}
    assert progress.batch(8, None, 0.0, 2.0)["type"] == "Error"
    assert answered(progress, 1) == {"type": "Done"}


def test_what_was_trained_meanwhile_counts_in_the_round_that_an_overlapping_task_lands_in() -> None:
    progress = task(9, overlaps=True)
    trained(progress, 2)
    progress.update(2.0)
    trained(progress, 3)
    assert answered(progress, 5, counted=False) == {"type": "Continue"}
    assert (progress.round, progress.totals().batches, progress.totals().samples) == (5, 3, 24)
    assert progress.rows.returned[1] == [Span(0, 0, 0, 16)]


def test_while_there_is_no_parameter_server_a_task_goes_on_training() -> None:
    """A count that the executor was given is put off, for it counts down by itself."""
    progress = task(2)
    progress.plan(plan(0, 3))
    trained(progress, 1)
    assert progress.batch(8, None, 0.0, 2.0) == {"type": "ScheduleUpdate", "counter": 1}
    assert progress.plan(plan(0, 3, server="")) is True
    for now in range(3, 9):
        assert progress.batch(8, None, 0.0, float(now)) == {"type": "ScheduleUpdate", "counter": 1}
    assert progress.plan(plan(0, 8, epoch=1, server="other")) is True
    assert progress.plan(plan(0, 8, epoch=1, server="other")) is False
    assert progress.batch(8, None, 0.0, 9.0) == {"type": "ScheduleUpdate", "counter": 0}


def test_a_plan_of_an_epoch_that_is_over_moves_nobody() -> None:
    """U23: old messages are fenced."""
    progress = task(2)
    progress.plan(plan(0, None, epoch=2, server="new"))
    assert progress.plan(plan(0, None, epoch=1, server="old")) is False
    assert progress.destination == Destination(2, "new")


def test_an_executor_that_takes_no_whole_weights_catches_up_step_by_step() -> None:
    """One batch for each version that it missed, as fast as it can."""
    progress = task(9)
    trained(progress, 2)
    progress.update(2.0)
    progress.sent()
    progress.arrived(1, 3, [])
    progress.applied(3.0)
    assert progress.batch(8, None, 0.0, 4.0) == {"type": "ScheduleUpdate", "counter": 0}
    progress.update(4.0)
    progress.sent()
    progress.arrived(2, 3, [])
    progress.applied(5.0)
    assert progress.batch(8, None, 0.0, 6.0) == {"type": "ScheduleUpdate", "counter": 0}
    progress.update(6.0)
    answered(progress, 3)
    assert progress.batch(8, None, 0.0, 7.0) == {"type": "Continue"}


def test_rows_are_those_of_the_batches_and_adjacent_ones_are_one_span() -> None:
    rows = Rows()
    rows.take(Span(0, 4, 10, 30))
    assert [rows.use(8), rows.use(8), rows.use(8), rows.use(8)] == [8, 8, 4, 0]
    rows.take(Span(0, 5, 0, 30))
    rows.use(8)
    assert rows.freeze(0) == [Span(0, 4, 10, 30), Span(0, 5, 0, 8)]
    rows.use(8)
    rows.take(Span(0, 6, 0, 5))
    assert rows.freeze(1) == [Span(0, 5, 8, 30)]
    assert merged([Span(0, 1, 5, 9), Span(0, 1, 0, 5), Span(1, 1, 9, 10), Span(0, 2, 9, 10)]) == [
        Span(0, 1, 0, 9),
        Span(0, 2, 9, 10),
        Span(1, 1, 9, 10),
    ]


def test_rows_of_an_update_that_did_not_count_are_given_back_until_that_is_heard() -> None:
    rows = Rows()
    for round_ in range(3):
        rows.take(Span(0, round_, 0, 10))
        rows.finish()
        rows.freeze(round_)
        rows.learn(round_ + 1, [round_] if round_ == 1 else [])
    assert rows.returned == (1, [Span(0, 0, 0, 10)])
    rows.answered(0)
    assert rows.returned == (1, [Span(0, 0, 0, 10)])
    rows.answered(1)
    rows.answered(1)
    assert rows.returned == (2, [Span(0, 2, 0, 10)])
    rows.answered(2)
    assert rows.returned == (2, [])


def test_a_late_update_that_is_carried_over_counts_with_the_round_that_took_it() -> None:
    progress = task(9)
    trained(progress, 2)
    progress.update(2.0)
    progress.rows.taken(0, 1)
    progress.sent()
    assert progress.arrived(1, 1, []) is True
    progress.applied(3.0)
    trained(progress, 1)
    progress.update(4.0)
    progress.sent()
    assert progress.arrived(2, 2, [0, 1]) is True
    assert progress.rows.outstanding == {}
    assert progress.rows.returned == (0, [])


def test_a_carried_update_is_lost_with_the_parameter_server_that_took_it() -> None:
    progress = task(9)
    trained(progress, 2)
    progress.update(2.0)
    progress.rows.taken(0, 1)
    progress.sent()
    progress.arrived(1, 1, [])
    progress.applied(3.0)
    trained(progress, 1)
    progress.update(4.0)
    answered(progress, 2)
    assert progress.rows.returned == (1, [Span(0, 0, 0, 16)])


def test_short_batches_may_be_reported_together() -> None:
    progress = task(2)
    progress.rows.take(Span(0, 0, 0, 1000))
    progress.plan(plan(0, 20))
    progress.batch(8, 1.0, 0.1, 1.0)
    assert progress.batch(40, 1.0, 0.5, 1.5, batches=5) == {"type": "ScheduleUpdate", "counter": 14}
    assert progress.batch_s == pytest.approx(0.1)
    progress.batch(40, 1.0, 0.5, 6.5, batches=5)
    assert progress.batch_s == pytest.approx(1.0, rel=0.2)
    assert (progress.totals().batches, progress.totals().samples) == (11, 88)
