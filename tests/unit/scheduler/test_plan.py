from __future__ import annotations

import heapq
from dataclasses import dataclass

import pytest

from node.scheduler.plan import RoundPlan


@dataclass
class Outcome:
    ended_at: dict[str, float]
    batches: dict[str, int]
    issued_at: dict[str, float]


def play(
    plan: RoundPlan,
    speeds: dict[str, float],
    size: int = 4,
    *,
    began: float = 0.0,
    late: dict[str, float] | None = None,
    limit: float = 4000.0,
) -> Outcome:
    """Members run batches and report each one, until every one has reached its target."""
    late = late or {}
    queue = [(began + late.get(task, 0.0) + speed, task) for task, speed in speeds.items()]
    heapq.heapify(queue)
    outcome = Outcome({}, dict.fromkeys(speeds, 0), {})
    targets: dict[str, int] = {}
    while queue:
        now, task = heapq.heappop(queue)
        assert now - began < limit, "the round does not end"
        outcome.batches[task] += 1
        done = outcome.batches[task]
        target = plan.report(now, task, plan.round, batches=done, samples=done * size, batch_s=speeds[task])
        plan.validate()
        if target is not None:
            assert targets.setdefault(task, target) == target, "a target changed"
            outcome.issued_at.setdefault(task, now)
            if done >= target:
                outcome.ended_at[task] = now
                continue
        heapq.heappush(queue, (now + speeds[task], task))
    return outcome


def plan_for(budget: int, *tasks: str, size: int = 4) -> RoundPlan:
    plan = RoundPlan(budget, size)
    for task in tasks:
        plan.join(task)
    return plan


def test_one_worker_stops_exactly_at_the_budget() -> None:
    """H13: reaching the budget ends the round, also when it is not a multiple of the batch."""
    for budget in (1, 3, 4, 5, 40, 41):
        outcome = play(plan_for(budget, "a"), {"a": 1.0})
        assert outcome.batches["a"] == max(1, -(-budget // 4))


@pytest.mark.parametrize("ratio", [1.0, 1.7, 4.0])
def test_unequal_members_arrive_together(ratio: float) -> None:
    plan = plan_for(400, "fast", "slow")
    outcome = play(plan, {"fast": 0.5, "slow": 0.5 * ratio})
    samples = 4 * sum(outcome.batches.values())
    assert 400 <= samples <= 400 + 8
    ends = sorted(outcome.ended_at.values())
    assert ends[-1] - ends[0] <= 0.5 * ratio + 0.5
    assert outcome.batches["fast"] == pytest.approx(outcome.batches["slow"] * ratio, rel=0.2, abs=1)


def test_rounds_of_minutes_are_planned_from_now_and_not_from_their_start() -> None:
    """H14: the projection is relative to now, however long the round has been open."""
    plan = plan_for(480, "a", "b")
    for number in range(3):
        plan.open(number, 1000.0 * number)
        outcome = play(plan, {"a": 1.0, "b": 1.0}, began=1000.0 * number)
        assert outcome.batches == {"a": 60, "b": 60}
        for task, at in outcome.issued_at.items():
            assert outcome.ended_at[task] - at <= 3.0


def test_a_target_is_given_once_and_about_two_batches_ahead() -> None:
    outcome = play(plan_for(160, "a", "b"), {"a": 2.0, "b": 2.0})
    for task, at in outcome.issued_at.items():
        assert 0 <= outcome.ended_at[task] - at <= 4.0


def test_a_member_that_is_four_times_slower_than_the_round_still_does_one_batch() -> None:
    outcome = play(plan_for(16, "fast", "slow"), {"fast": 0.1, "slow": 4.0})
    assert outcome.batches["slow"] == 1
    assert outcome.batches["fast"] >= 4


def test_a_late_joiner_sends_after_its_first_batch_when_the_round_is_full() -> None:
    plan = plan_for(40, "a", "b")
    outcome = play(plan, {"a": 0.5, "b": 0.5}, late={"b": 100.0})
    assert outcome.batches == {"a": 10, "b": 1}


def test_a_round_that_loses_a_member_ends_when_it_would_have_and_the_next_one_is_whole() -> None:
    plan = plan_for(80, "a", "b")
    for step in range(1, 4):
        for task in ("a", "b"):
            assert plan.report(step * 1.0, task, plan.round, batches=step, samples=4 * step, batch_s=1.0) is None
    plan.leave("b")
    assert plan.report(4.0, "b", plan.round, batches=4, samples=16, batch_s=1.0) is None
    for step in range(4, 9):
        target = plan.report(step * 1.0, "a", plan.round, batches=step, samples=4 * step, batch_s=1.0)
    assert target == 10
    plan.open(1, 10.0)
    for step in range(1, 19):
        target = plan.report(10.0 + step, "a", plan.round, batches=step, samples=4 * step, batch_s=1.0)
    assert target == 20


def test_a_silent_member_is_not_projected_for_ever() -> None:
    plan = plan_for(1000, "a", "silent")
    plan.report(0.0, "silent", plan.round, batches=1, samples=4, batch_s=0.1)
    plan.report(0.0, "a", plan.round, batches=1, samples=4, batch_s=0.1)
    before = plan.seconds_left(0.0)
    assert before is not None
    assert before > 10
    plan.report(100.0, "a", plan.round, batches=2, samples=8, batch_s=0.1)
    after = plan.seconds_left(100.0)
    assert after is not None
    assert after > 1


def test_reports_that_are_repeated_or_out_of_order_change_nothing() -> None:
    plan = plan_for(400, "a")
    plan.report(1.0, "a", plan.round, batches=5, samples=20, batch_s=0.2)
    left = plan.seconds_left(1.0)
    plan.report(1.0, "a", plan.round, batches=3, samples=12, batch_s=0.2)
    plan.report(1.0, "a", plan.round, batches=5, samples=20, batch_s=0.2)
    assert plan.seconds_left(1.0) == left
    plan.validate()


def test_a_batch_time_of_nothing_divides_nothing_by_zero() -> None:
    plan = plan_for(40, "a")
    assert plan.report(0.0, "a", plan.round, batches=0, samples=0, batch_s=0.0) is None
    plan.report(0.1, "a", plan.round, batches=1, samples=4, batch_s=0.0)
    plan.report(0.2, "a", plan.round, batches=2, samples=8, batch_s=float("nan"))
    plan.report(0.2, "a", plan.round, batches=2, samples=8, batch_s=float("inf"))
    assert plan.report(0.3, "a", plan.round, batches=10, samples=40, batch_s=0.0) == 10
    plan.validate()


def test_a_member_whose_first_report_of_a_round_is_empty_is_projected_from_there() -> None:
    plan = plan_for(80, "a", "b")
    for task in ("a", "b"):
        plan.report(0.0, task, plan.round, batches=1, samples=4, batch_s=0.05)
    plan.open(1, 0.9)
    for task in ("a", "b"):
        assert plan.report(1.0, task, plan.round, batches=0, samples=0, batch_s=0.05) in (None, 10)
    targets = [plan.report(1.25, task, plan.round, batches=5, samples=20, batch_s=0.05) for task in ("a", "b")]
    assert targets == [10, 10]


def test_whoever_comes_first_into_a_short_round_is_not_given_all_of_it() -> None:
    """Speeds are known from the round before; a member that has said nothing yet is counted on all the same."""
    plan = plan_for(80, "a", "b")
    for number in range(2):
        plan.open(number, 10.0 * number)
        play(plan, {"a": 0.02, "b": 0.02}, began=10.0 * number)
    plan.open(2, 20.0)
    assert plan.report(20.0, "a", 2, batches=0, samples=0, batch_s=0.02) in (9, 10)
    assert plan.report(20.02, "b", 2, batches=0, samples=0, batch_s=0.02) in (9, 10)


def test_a_member_that_never_comes_into_a_round_is_not_waited_for() -> None:
    plan = plan_for(80, "a", "gone")
    for task in ("a", "gone"):
        plan.report(0.0, task, plan.round, batches=1, samples=4, batch_s=1.0)
    plan.open(1, 1.0)
    for batch in range(1, 18):
        assert plan.report(1.0 + batch, "a", plan.round, batches=batch, samples=4 * batch, batch_s=1.0) is None
    assert plan.report(19.0, "a", plan.round, batches=18, samples=72, batch_s=1.0) == 20


def test_what_a_round_holds_too_many_the_next_one_holds_less() -> None:
    """H13: over the whole job the rounds hold what they were to hold."""
    plan = plan_for(41, "a")
    for number, expected in enumerate([11, 10, 10, 10, 11]):
        plan.open(number, 100.0 * number)
        outcome = play(plan, {"a": 1.0}, began=100.0 * number)
        assert outcome.batches["a"] == expected


def test_a_member_that_is_in_the_next_round_already_has_a_target_there() -> None:
    """Its update is under way, and nobody knows how long that takes."""
    plan = plan_for(80, "a", "b")
    play(plan, {"a": 0.2, "b": 0.2})
    early = plan.report(2.0, "a", 1, batches=0, samples=0, batch_s=0.02)
    assert early is not None
    plan.open(1, 2.4)
    assert plan.report(2.4, "b", 1, batches=1, samples=4, batch_s=0.2) == 20 - early
    assert plan.report(2.4, "a", 1, batches=9, samples=36, batch_s=0.02) == early
    assert plan.report(2.5, "a", 3, batches=1, samples=4, batch_s=0.02) is None, "a round that nobody can be in"


def test_who_is_slow_in_the_open_round_is_counted_on_in_the_next_one_from_its_end_there() -> None:
    plan = plan_for(80, "fast", "slow")
    for task in ("fast", "slow"):
        plan.report(0.0, task, 0, batches=0, samples=0, batch_s=0.4)
    assert plan.report(3.2, "slow", 0, batches=8, samples=32, batch_s=0.4) == 10
    assert plan.report(3.6, "fast", 0, batches=9, samples=36, batch_s=0.02) in (10, 11)
    early = plan.report(3.62, "fast", 1, batches=0, samples=0, batch_s=0.02)
    assert early in (19, 20), "the other is not even done with its round when this one is over"
