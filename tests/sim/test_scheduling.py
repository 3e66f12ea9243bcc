"""The scheduler's logic at scale, with workers that are not alike, and with some that die: fake clocks, no I/O."""

from __future__ import annotations

import itertools

import pytest

from benchmarks import scale
from tests.sim.rounds import Cluster, Way

AT_ONCE = Way(call=0.002, up=0.0, prepare=0.0, commit=0.001, down=0.0, merge=0.0)
"""Exchanges that take no time: who is idle then waits for others."""


def check_samples(group: Cluster, budget: int, share: float) -> None:
    """All rounds together hold what they are to hold, and no round much more."""
    total = 0
    for number, committed in enumerate(group.rounds, 1):
        total += committed.samples
        assert committed.samples <= budget * (1 + share), f"round {number} holds {committed.samples}"
        assert total >= number * budget * (1 - share / 4), f"{total} samples in {number} rounds"
    assert total <= len(group.rounds) * budget + budget * share


@pytest.mark.parametrize("batch_s", [0.05, 0.2])
@pytest.mark.parametrize("seed", range(3))
def test_of_two_workers_one_four_times_slower_neither_waits_five_percent_of_the_time(seed: int, batch_s: float) -> None:
    budget = int(12 / batch_s * 1.25)
    group = Cluster({"fast": batch_s, "slow": 4 * batch_s}, budget, seed=seed)
    group.run(12)
    assert max(group.idle().values()) <= 0.05, group.idle()
    check_samples(group, budget, 0.1)


@pytest.mark.parametrize("seed", range(3))
def test_members_wait_for_each_other_less_than_two_percent_of_a_round_of_many_batches(seed: int) -> None:
    group = Cluster({"fast": 0.05, "slow": 0.2}, 300, seed=seed, way=AT_ONCE)
    group.run(12)
    assert max(group.idle().values()) <= 0.02, group.idle()


def test_a_group_of_unlike_workers_does_not_wait_either() -> None:
    speeds = {f"w{number}": 0.05 * 1.4**number for number in range(8)}
    group = Cluster(speeds, 800, seed=1, way=AT_ONCE)
    group.run(10)
    assert max(group.idle().values()) <= 0.05, group.idle()
    check_samples(group, 800, 0.1)


@pytest.mark.parametrize("round_s", [0.4, 0.8, 2.0])
@pytest.mark.parametrize("ratio", [1.0, 4.0])
def test_rounds_that_are_hardly_longer_than_an_exchange_hold_no_more_than_they_are_to(
    round_s: float, ratio: float
) -> None:
    """Training goes on while an update is on its way: the next round has its plan before the open one is committed."""
    budget = int(round_s / 0.02 * (1 + 1 / ratio))
    for seed in range(3):
        group = Cluster({"a": 0.02, "b": 0.02 * ratio}, budget, seed=seed, overlap=True, delay=2)
        group.run(25)
        late = [committed.samples for committed in group.rounds[3:]]
        assert sum(late) <= 1.02 * budget * len(late), f"seed {seed}: {late}"
        assert max(late) <= 1.1 * budget, f"seed {seed}: {late}"
        assert max(group.idle().values()) <= 0.06, group.idle()


def test_a_worker_that_dies_delays_no_commit() -> None:
    """Nor do the others train its share: the round ends when it would have."""
    for seed, overlap in itertools.product(range(8), (False, True)):
        speeds = {"a": 0.05, "b": 0.05, "c": 0.1}
        undisturbed = Cluster(speeds, 170, seed=seed, overlap=overlap)
        undisturbed.run(8)
        group = Cluster(speeds, 170, seed=seed, overlap=overlap)
        group.run(3)
        killed_at = group.now + 0.1 + 0.4 * seed
        group.run_until(killed_at)
        group.lose("b" if seed % 2 else "c", known_after=0.3)
        before = len(group.rounds)
        group.run(1)
        usual = undisturbed.rounds[before].at
        assert group.now <= max(usual, killed_at + 0.3) + 0.25, f"seed {seed}: {group.now} after {usual}"
        group.run(2)
        lengths = [group.rounds[-1].at - group.rounds[-2].at, group.rounds[-2].at - group.rounds[-3].at]
        assert min(lengths) > 0.9 * undisturbed.rounds[0].at, "the rounds after it are whole"


def test_two_hundred_workers_and_twenty_jobs_are_planned_in_no_time_and_little_memory() -> None:
    """In full: `python -m benchmarks.scale`."""
    found = scale.measure(jobs=20, workers=200, rounds=2)
    assert found.median_s < 0.05
    assert found.memory_bytes < 40e6


def test_a_job_with_many_workers_does_not_slow_down_with_their_square() -> None:
    found = scale.measure(jobs=1, workers=300, rounds=2)
    assert found.median_s < 1.0
