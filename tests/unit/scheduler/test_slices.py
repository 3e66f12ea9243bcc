from __future__ import annotations

import random
from collections import Counter

import pytest

from node.errors import JobError
from node.scheduler.slices import Grant, SliceTracker, order_of


def served(workers: int, count: int, passes: int, seed: int, kill_every: int = 0) -> tuple[list[Grant], SliceTracker]:
    """Train with `workers` tasks, some of which die; answers with what was used, in the order of consumption."""
    rng = random.Random(seed)
    tracker = SliceTracker(count, seed=7)
    tasks = [f"t{number}" for number in range(workers)]
    holding: dict[str, list[Grant]] = {task: [] for task in tasks}
    used: list[Grant] = []
    step = 0
    while tracker.pass_ < passes:
        step += 1
        task = rng.choice(tasks)
        if kill_every and step % kill_every == 0:
            given = tracker.lost(task)
            assert set(given) <= set(holding[task])
            tasks[tasks.index(task)] = task = f"{task}'"
            holding[task] = []
        elif len(holding[task]) < 2:
            holding[task].append(tracker.give(task))
        else:
            grant = holding[task].pop(0)
            assert tracker.used(task, grant)
            used.append(grant)
        tracker.validate()
    return used, tracker


def test_the_order_of_a_pass_depends_on_seed_and_pass_alone() -> None:
    """U52: the same sequence for any number of workers."""
    orders = []
    for workers in (1, 2, 3, 5):
        tracker = SliceTracker(20, seed=3)
        orders.append([tracker.give(f"t{number % workers}").index for number in range(40)])
    assert all(order == orders[0] for order in orders)
    assert orders[0] == order_of(3, 0, 20) + order_of(3, 1, 20)
    assert order_of(3, 0, 20) != order_of(3, 1, 20)
    assert order_of(3, 0, 20) != order_of(4, 0, 20)
    assert order_of(5, 2, 6) == [1, 2, 4, 3, 5, 0], "a stored order must stay the same in every version"


@pytest.mark.parametrize("workers", [1, 2, 3, 5])
@pytest.mark.parametrize("seed", range(10))
def test_every_slice_of_a_pass_is_used_exactly_once_whoever_dies(workers: int, seed: int) -> None:
    """H43, U50, U51: what a lost task had not used is served again, once."""
    used, tracker = served(workers, 9, 3, seed, kill_every=17)
    counted = Counter(grant for grant in used if grant.pass_ < tracker.pass_)
    assert counted == Counter({Grant(pass_, index): 1 for pass_ in range(tracker.pass_) for index in range(9)})


def test_a_slice_is_used_when_it_was_consumed_not_when_it_was_handed_out() -> None:
    """H43."""
    tracker = SliceTracker(3, seed=1)
    grant = tracker.give("a")
    assert tracker.counts() == {"available": 2, "assigned": 1, "used": 0}
    assert tracker.lost("a") == [grant]
    assert tracker.counts() == {"available": 3, "assigned": 0, "used": 0}
    assert tracker.give("b") == grant


def test_near_the_end_of_a_pass_nobody_waits() -> None:
    tracker = SliceTracker(2, seed=1)
    slow = tracker.give("slow")
    for _ in range(5):
        assert tracker.used("fast", tracker.give("fast"))
    assert tracker.pass_ == 0
    assert tracker.used("slow", slow)
    assert tracker.pass_ == 3
    tracker.validate()


def test_a_report_of_use_counts_once_and_only_from_its_holder() -> None:
    """H46: membership is checked."""
    tracker = SliceTracker(2, seed=1)
    grant = tracker.give("a")
    assert not tracker.used("stranger", grant)
    assert tracker.used("a", grant)
    assert not tracker.used("a", grant)
    assert not tracker.used("a", Grant(99, 99))
    tracker.validate()


def test_a_late_report_of_a_lost_task_is_ignored() -> None:
    tracker = SliceTracker(2, seed=1)
    grant = tracker.give("a")
    tracker.lost("a")
    assert not tracker.used("a", grant)
    assert tracker.give("b") == grant
    assert not tracker.used("a", grant)
    assert tracker.used("b", grant)


def test_a_grant_whose_answer_was_lost_goes_back() -> None:
    tracker = SliceTracker(5, seed=1)
    first, lost, third = tracker.give("a"), tracker.give("a"), tracker.give("a")
    tracker.used("a", first)
    tracker.used("a", third)
    tracker.validate()
    assert tracker.counts()["assigned"] == 0
    assert tracker.give("b") == lost


def test_a_dataset_without_slices_is_an_error() -> None:
    """H44."""
    with pytest.raises(JobError, match="no slices"):
        SliceTracker(0, seed=1)
