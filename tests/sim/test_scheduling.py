"""The scheduler's logic at scale, and with workers that are not alike: fake clocks, no I/O."""

from __future__ import annotations

import bisect
import heapq
import itertools
import random

import pytest

from benchmarks import scale
from node.scheduler.plan import RoundPlan

REPORT_EVERY_S = 0.25


def idle_shares(speeds: dict[str, float], budget: int, rounds: int, seed: int) -> dict[str, float]:
    """Workers that report four times a second, with batches that vary by a tenth: how much of the time each waits."""
    rng = random.Random(seed)
    plan = RoundPlan(budget, 1)
    for task in speeds:
        plan.join(task)
    now, idle = 0.0, dict.fromkeys(speeds, 0.0)
    for number in range(rounds):
        plan.open(number, now)
        ends = {
            task: list(itertools.accumulate((speed * rng.uniform(0.9, 1.1) for _ in range(budget)), initial=now))[1:]
            for task, speed in speeds.items()
        }
        targets: dict[str, int] = {}
        queue = [(now + rng.uniform(0.0, REPORT_EVERY_S), task) for task in sorted(speeds)]
        heapq.heapify(queue)
        while queue:
            when, task = heapq.heappop(queue)
            done = bisect.bisect_right(ends[task], when)
            target = plan.report(when, task, batches=done, samples=done, batch_s=speeds[task])
            if target is None:
                heapq.heappush(queue, (when + REPORT_EVERY_S, task))
            else:
                assert target >= done, "it has trained on for nothing"
                targets[task] = target
        ended = {task: ends[task][target - 1] for task, target in targets.items()}
        assert budget <= sum(targets.values()) <= budget * 1.1
        now = max(ended.values())
        for task in speeds:
            idle[task] += now - ended[task]
    return {task: waited / now for task, waited in idle.items()}


@pytest.mark.parametrize("seed", range(3))
def test_of_two_workers_one_four_times_slower_neither_waits_five_percent_of_the_time(seed: int) -> None:
    shares = idle_shares({"fast": 0.05, "slow": 0.2}, budget=200, rounds=20, seed=seed)
    assert max(shares.values()) <= 0.05, shares


def test_a_group_of_unlike_workers_does_not_wait_either() -> None:
    speeds = {f"w{number}": 0.05 * 1.4**number for number in range(8)}
    shares = idle_shares(speeds, budget=800, rounds=10, seed=1)
    assert max(shares.values()) <= 0.08, shares


def test_two_hundred_workers_and_twenty_jobs_are_planned_in_no_time_and_little_memory() -> None:
    """In full: `python -m benchmarks.scale`."""
    found = scale.measure(jobs=20, workers=200, rounds=2)
    assert found.median_s < 0.05
    assert found.memory_bytes < 40e6


def test_a_job_with_many_workers_does_not_slow_down_with_their_square() -> None:
    found = scale.measure(jobs=1, workers=300, rounds=2)
    assert found.median_s < 1.0
