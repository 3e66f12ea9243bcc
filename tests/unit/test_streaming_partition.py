"""Partition strategies: every unit has one owner, and the same one everywhere."""

from __future__ import annotations

import numpy as np
import pytest

from node.errors import ConfigError
from node.streaming import Adaptive, Contiguous, HashBased, RangeBased, RoundRobin, Strategy, Stratified, divide
from node.streaming.hashing import mixed, shuffled
from node.streaming.partition import Divider, check

UNITS = 1_000
LABELS = np.arange(UNITS) % 7 % 3
STRATEGIES: list[Strategy] = [
    RoundRobin(),
    Contiguous(),
    HashBased(num_partitions=32, hash_seed=4),
    RangeBased(ranges=((600, 1000), (0, 200), (200, 600))),
    Stratified(num_classes=3),
    Adaptive(base=Stratified(num_classes=3)),
]


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda strategy: type(strategy).__name__)
def test_units_dealt_out_piece_by_piece_go_where_they_go_all_at_once(strategy: Strategy) -> None:
    order = np.random.default_rng(1).permutation(UNITS)
    whole = divide(strategy, order, 3, labels=LABELS)
    assert whole.min() >= 0 and set(whole.tolist()) == {0, 1, 2}
    divider = Divider(strategy, 3, UNITS, labels=LABELS)
    pieces = np.split(order, [1, 2, 300, 301, 900])
    assert np.concatenate([divider.next(piece) for piece in pieces]).tolist() == whole.tolist()
    divider = Divider(strategy, 3, UNITS, labels=LABELS)
    tally = divider.tally(0, UNITS)
    assert tally.tolist() == divider.tally(0, UNITS).tolist(), "counting deals nothing out"
    assert tally.sum() == UNITS


def test_each_strategy_deals_as_it_says() -> None:
    ids = np.arange(10)
    assert divide(RoundRobin(), ids, 3).tolist() == [0, 1, 2, 0, 1, 2, 0, 1, 2, 0]
    assert divide(Contiguous(), ids, 3).tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2, 2]
    assert divide(RangeBased(ranges=((5, 10), (0, 5))), ids, 2).tolist() == [1, 1, 1, 1, 1, 0, 0, 0, 0, 0]
    of_hash = divide(HashBased(num_partitions=8), ids, 3)
    assert divide(HashBased(num_partitions=8), ids[::-1], 3).tolist() == of_hash[::-1].tolist(), "by the id alone"
    assert divide(HashBased(num_partitions=8, hash_seed=1), ids, 3).tolist() != of_hash.tolist()


def test_stratified_gives_every_worker_each_class_in_equal_parts() -> None:
    order = np.random.default_rng(2).permutation(UNITS)
    owners = divide(Stratified(num_classes=3), order, 4, labels=LABELS)
    for class_ in range(3):
        parts = np.bincount(owners[LABELS[order] == class_], minlength=4)
        assert parts.max() - parts.min() <= 1


def test_adaptive_keeps_to_its_base_until_the_speeds_lie_too_far_apart() -> None:
    adaptive = Adaptive(base=RoundRobin(), rebalance_threshold=0.5)
    even = divide(RoundRobin(), np.arange(UNITS), 3)
    assert divide(adaptive, np.arange(UNITS), 3).tolist() == even.tolist()
    assert divide(adaptive, np.arange(UNITS), 3, speeds=(10, 11, 12)).tolist() == even.tolist()
    owners = divide(adaptive, np.arange(1024), 3, speeds=(30.0, 10.0, 10.0))
    assert np.bincount(owners).tolist() == [614, 205, 205]
    assert np.bincount(owners[:50], minlength=3).tolist() == [30, 10, 10], "evenly all along"
    assert 2 not in divide(adaptive, np.arange(1024), 3, speeds=(1.0, 1.0, 0.0))


@pytest.mark.parametrize(
    ("strategy", "says"),
    [
        (HashBased(num_partitions=2), "2 partitions for 3 workers"),
        (RangeBased(ranges=((0, 1000),)), "1 ranges for 3 workers"),
        (RangeBased(ranges=((0, 250), (250, 500), (750, 1000))), "500 to 750 are in no range"),
        (RangeBased(ranges=((0, 500), (400, 900), (900, 1000))), "400 to 500 are in two ranges"),
        (RangeBased(ranges=((0, 500), (500, 900), (900, 990))), "end at 990, there are 1,000"),
        (Stratified(num_classes=2), "labels go from 0 to 2"),
        (Stratified(num_classes=0), "num_classes is 0"),
        (Adaptive(rebalance_threshold=-1), "rebalance_threshold is -1"),
    ],
)
def test_a_strategy_that_would_lose_or_repeat_units_is_refused(strategy: Strategy, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        check(strategy, 3, UNITS, LABELS)


def test_stratified_without_labels_is_refused() -> None:
    with pytest.raises(ConfigError, match="needs the label"):
        check(Stratified(num_classes=3), 3, UNITS, None)
    with pytest.raises(ConfigError, match="1,000 labels and 999 units"):
        check(Stratified(num_classes=3), 3, UNITS - 1, LABELS)


def test_hashes_are_the_same_on_every_machine() -> None:
    hashes = [int(value) for value in mixed(np.arange(3), "a key")]
    assert hashes == [
        3698692798786657144,
        1522251068148940881,
        13201573517205629409,
    ]
    assert shuffled(8, "a key").tolist() == [7, 1, 5, 3, 0, 4, 2, 6]
