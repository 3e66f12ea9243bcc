"""Partition strategies of a job: whose slices are whose, and that no slice waits for anybody."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from node.errors import JobError
from node.jobspec import PartitionSpec
from node.ordering import order_of
from node.scheduler.ledger import Ledger
from node.scheduler.partition import Partition, check
from node.wire import Span

SLICES = 60


def served(spec: PartitionSpec, turns: list[int], world: int, speeds: list[float] | None = None) -> list[list[Span]]:
    """What each worker is given, when they ask in these turns; every grant is committed at once."""
    ledger = Ledger([2] * SLICES, 7)
    partition = Partition(spec)
    given: list[list[Span]] = [[] for _ in range(world)]
    for turn in turns:
        span, _ = ledger.give(
            f"t{turn}",
            len(given[turn]) + 1,
            turn,
            lambda pass_, order: partition.owners(pass_, order, speeds or [0.0] * world),
        )
        given[turn].append(span)
        ledger.commit(f"t{turn}", [span])
        ledger.validate()
    return given


@pytest.mark.parametrize("strategy", ["round-robin", "contiguous", "hash", "range", "adaptive"])
def test_a_worker_gets_its_own_slices_first_and_then_helps_the_others(strategy: str) -> None:
    ranges = [(0, 20), (20, 40), (40, 60)] if strategy == "range" else []
    spec = PartitionSpec(strategy=strategy, ranges=ranges)  # type: ignore[arg-type]
    chance = random.Random(strategy)
    even = served(spec, [turn for _ in range(15) for turn in chance.sample(range(3), 3)], 3)
    uneven = served(spec, [0] * 10 + [1] * 3 + [0] * 47, 3)
    order = order_of(7, 0, SLICES)
    owners = Partition(spec).owners(0, order, [0.0] * 3)
    assert owners is not None
    for rank in range(3):
        own = [index for index in order if owners[index] == rank]
        assert [span.index for span in even[rank]][: len(own)] == own[:15], "in the order of the pass"
    assert Counter(span.index for worker in uneven for span in worker) == Counter(range(SLICES)), "nothing waits"
    if strategy == "contiguous":
        assert [span.index for span in even[1]] == order[20:35]
    if strategy == "range":
        assert {span.index for span in even[2]} <= set(range(40, 60))


def test_adaptive_gives_fast_workers_more_and_keeps_to_that_while_speeds_waver() -> None:
    spec = PartitionSpec(strategy="adaptive", rebalance_threshold=0.3)
    partition = Partition(spec)
    order = order_of(7, 0, SLICES)
    shares = Counter(partition.owners(0, order, [30.0, 10.0, 10.0]) or ())
    assert shares == {0: 36, 1: 12, 2: 12}
    first = partition.owners(0, order, [30.0, 10.0, 10.0])
    assert partition.owners(0, order, [25.0, 11.0, 9.0]) is first
    assert Counter(partition.owners(0, order, [10.0, 10.0, 10.0]) or ()) == {0: 20, 1: 20, 2: 20}
    assert Counter(partition.owners(0, order, [30.0, 0.0, 10.0]) or ()) == {0: 20, 1: 20, 2: 20}, "not known yet"


def test_by_hash_a_slice_goes_to_the_same_worker_in_every_pass() -> None:
    partition = Partition(PartitionSpec(strategy="hash"))
    assert partition.owners(0, order_of(7, 0, SLICES), [0.0] * 3) == partition.owners(
        5, order_of(7, 5, SLICES), [0.0] * 3
    )


def test_first_come_first_served_is_what_a_job_has_that_asks_for_nothing() -> None:
    assert Partition(PartitionSpec()).owners(0, [0, 1], [0.0]) is None


@pytest.mark.parametrize(
    ("ranges", "says"),
    [
        ([(0, 30), (31, 60)], "see slice 30"),
        ([(0, 30), (29, 60)], "see slice 29"),
        ([(0, 30), (30, 50)], "end at slice 50, the dataset has 60"),
    ],
)
def test_ranges_that_leave_a_slice_out_or_have_it_twice_are_refused(ranges: list[tuple[int, int]], says: str) -> None:
    with pytest.raises(JobError, match=says):
        check(PartitionSpec(strategy="range", ranges=ranges), SLICES)
