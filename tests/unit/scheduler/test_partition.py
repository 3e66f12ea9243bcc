"""Partition strategies of a job: whose slices and rows are whose, and that nothing waits for anybody."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from node.errors import ConfigError, JobError
from node.jobspec import PartitionSpec, parse_job
from node.ordering import order_of
from node.scheduler.ledger import Ledger
from node.scheduler.partition import Partition, classes_of
from node.wire import SliceInfo, Span
from tests.terminal.feed import WHOLE_JOB

SLICES = 60
EVEN = [2] * SLICES
CLASSES = [index // 20 for index in range(SLICES)]
"""Three classes, as of a folder of pictures that was not mixed."""
BATCH = 4
UNEVEN = [random.Random(1).randint(0, 50) for _ in range(SLICES)]
STRATEGIES = ["round-robin", "contiguous", "hash", "range", "stratified", "adaptive"]


def spec_of(strategy: str, unit: str = "slices", rows: Sequence[int] = EVEN, **more: Any) -> PartitionSpec:
    """With three ranges of equal size where the strategy wants them."""
    units = len(rows) if unit == "slices" else sum(rows)
    third = units // 3
    ranges = [(0, third), (third, 2 * third), (2 * third, units)] if strategy == "range" else []
    return PartitionSpec(**({"strategy": strategy, "unit": unit, "ranges": ranges} | more))


def partition(spec: PartitionSpec, rows: Sequence[int] = EVEN) -> Partition:
    return Partition(spec, rows, CLASSES, BATCH)


def owned(spec: PartitionSpec, world: int, rows: Sequence[int] = EVEN, pass_: int = 0) -> list[list[tuple[int, int]]]:
    """The rows of each worker as (slice, row), in their order."""
    order = order_of(7, pass_, len(rows))
    shares = partition(spec, rows).shares(pass_, order, [0.0] * world)
    assert shares is not None
    return [[(i, row) for i, start, end in shares.of(rank) for row in range(start, end)] for rank in range(world)]


def served(spec: PartitionSpec, turns: list[int], world: int) -> list[list[Span]]:
    """What each worker is given, when they ask in these turns; every grant is committed at once."""
    ledger = Ledger(EVEN, 7)
    made = partition(spec)
    given: list[list[Span]] = [[] for _ in range(world)]
    for turn in turns:
        span, _ = ledger.give(
            f"t{turn}", len(given[turn]) + 1, turn, lambda pass_, order: made.shares(pass_, order, [0.0] * world)
        )
        given[turn].append(span)
        ledger.commit(f"t{turn}", [span])
        ledger.validate()
    return given


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_worker_gets_its_own_slices_first_and_then_helps_the_others(strategy: str) -> None:
    spec = spec_of(strategy)
    chance = random.Random(strategy)
    even = served(spec, [turn for _ in range(15) for turn in chance.sample(range(3), 3)], 3)
    uneven = served(spec, [0] * 10 + [1] * 3 + [0] * 47, 3)
    for rank, rows in enumerate(owned(spec, 3)):
        own = list(dict.fromkeys(index for index, _ in rows))
        assert [span.index for span in even[rank]][: len(own)] == own[:15], "in the order of the pass"
    assert Counter(span.index for worker in uneven for span in worker) == Counter(range(SLICES)), "nothing waits"
    order = order_of(7, 0, SLICES)
    if strategy == "contiguous":
        assert [span.index for span in even[1]] == order[20:35]
    if strategy == "range":
        assert {span.index for span in even[2]} <= set(range(40, 60))


@pytest.mark.parametrize("world", [1, 2, 3, 5])
@pytest.mark.parametrize("unit", ["slices", "rows"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_row_is_meant_for_one_worker_whatever_the_strategy(strategy: str, unit: str, world: int) -> None:
    ranges = {"ranges": spec_of("range", unit, UNEVEN).ranges} if strategy == "range" else {}
    shares = owned(spec_of(strategy, unit, UNEVEN, **ranges), world, UNEVEN)
    everything = Counter(row for share in shares for row in share)
    assert everything == Counter((index, row) for index, rows in enumerate(UNEVEN) for row in range(rows))
    if unit == "rows" and strategy in ("contiguous", "round-robin", "stratified", "adaptive"):
        sizes = [len(share) for share in shares]
        assert max(sizes) - min(sizes) <= (1 if strategy == "contiguous" else 0.05 * sum(UNEVEN))


def test_the_worker_with_the_most_rows_left_is_helped_from_its_end() -> None:
    """H44: never the one with the fewest, and never by chance."""
    made = partition(spec_of("contiguous"))
    ledger, numbers = Ledger(EVEN, 7), Counter[int]()

    def ask(rank: int) -> int:
        numbers[rank] += 1
        return ledger.give(f"t{rank}", numbers[rank], rank, lambda p, order: made.shares(p, order, [0.0] * 3))[0].index

    order = order_of(7, 0, SLICES)
    assert [ask(0) for _ in range(20)] == order[:20]
    assert [ask(1) for _ in range(5)] == order[20:25]
    assert [ask(0) for _ in range(3)] == [order[59], order[58], order[57]], "the third has 20 left, the second 15"
    assert [ask(0) for _ in range(4)] == [order[56], order[55], order[39], order[54]], "equal ones in turn"


def test_by_row_a_run_is_a_batch_and_ranges_and_blocks_are_exact() -> None:
    assert owned(spec_of("round-robin", "rows"), 2)[0][:4] == [(order_of(7, 0, SLICES)[at], row) for at in (0, 2) for row in (0, 1)]  # fmt: skip # noqa: E501
    rows = [10, 10]
    first, second = owned(PartitionSpec(strategy="round-robin", unit="rows"), 2, rows)
    assert sorted(Counter(index for index, _ in first).values()) == [4, 6]
    assert len(first) + len(second) == 20
    spec = PartitionSpec(strategy="range", unit="rows", ranges=[(13, 20), (0, 13)])
    assert sorted(owned(spec, 2, rows)[1]) == [(0, row) for row in range(10)] + [(1, row) for row in range(3)]
    third = owned(PartitionSpec(strategy="contiguous", unit="rows"), 3, [7, 7, 7])
    assert [len(share) for share in third] == [7, 7, 7]
    assert [len(share) for share in owned(PartitionSpec(strategy="contiguous", unit="rows"), 4, [7])] == [1, 2, 2, 2]


def test_a_dataset_of_many_batches_is_dealt_out_in_longer_runs() -> None:
    made = Partition(PartitionSpec(strategy="round-robin", unit="rows"), [1 << 20] * 16, [], 16)
    shares = made.shares(0, order_of(7, 0, 16), [0.0] * 2)
    assert shares is not None
    sizes = {end - start for rank in range(2) for _, start, end in shares.of(rank)}
    assert sizes == {512}


@pytest.mark.parametrize("unit", ["slices", "rows"])
def test_by_class_every_worker_gets_as_much_of_each(unit: str) -> None:
    for share in owned(spec_of("stratified", unit), 3):
        counts = Counter(CLASSES[index] for index, _ in share)
        assert max(counts.values()) - min(counts.values()) <= 2 and set(counts) == {0, 1, 2}
    with pytest.raises(JobError, match="does not say how many rows of each class"):
        Partition(spec_of("stratified"), EVEN, [], BATCH)


def test_a_slice_is_of_the_class_that_most_of_its_rows_have() -> None:
    def info(rows: int, **labels: int) -> SliceInfo:
        counts = {int(label.removeprefix("c")): count for label, count in labels.items()}
        return SliceInfo(name="a", size_bytes=1, rows=rows, sha256="", labels=counts)

    assert classes_of([info(5, c7=3, c2=2), info(4, c2=4), info(4, c2=2, c9=2)]) == (1, 0, 0)
    assert classes_of([info(5, c7=5), info(5)]) == ()
    assert classes_of([info(5, c7=5), info(0)]) == (1, 0)


def test_adaptive_gives_fast_workers_more_and_keeps_to_that_while_speeds_waver() -> None:
    made = partition(spec_of("adaptive", rebalance_threshold=0.3))
    order = order_of(7, 0, SLICES)

    def sizes(*speeds: float) -> list[int]:
        shares = made.shares(0, order, speeds)
        assert shares is not None
        return [len(shares.of(rank)) for rank in range(len(speeds))]

    assert sizes(30.0, 10.0, 10.0) == [36, 12, 12]
    assert made.shares(0, order, [25.0, 11.0, 9.0]) is made.shares(0, order, [30.0, 10.0, 10.0])
    assert sizes(10.0, 10.0, 10.0) == [20, 20, 20]
    assert sizes(30.0, 0.0, 10.0) == [20, 20, 20], "not known yet"


@pytest.mark.parametrize("unit", ["slices", "rows"])
def test_by_hash_the_same_rows_go_to_the_same_worker_in_every_pass(unit: str) -> None:
    first, later = (owned(spec_of("hash", unit), 3, pass_=pass_) for pass_ in (0, 5))
    assert [set(share) for share in first] == [set(share) for share in later]
    assert first != later


def test_first_come_first_served_is_what_a_job_has_that_asks_for_nothing() -> None:
    assert partition(PartitionSpec()).shares(0, [0, 1], [0.0]) is None


@pytest.mark.parametrize(
    ("unit", "ranges", "says"),
    [
        ("slices", [(0, 30), (31, 60)], "see slice 30"),
        ("slices", [(0, 30), (29, 60)], "see slice 29"),
        ("slices", [(0, 30), (30, 50)], "end at slice 50, the dataset has 60"),
        ("rows", [(0, 60), (61, 120)], "every row once, see row 60"),
        ("rows", [(0, 60)], "end at row 60, the dataset has 120"),
    ],
)
def test_ranges_that_leave_something_out_or_have_it_twice_are_refused(
    unit: str, ranges: list[tuple[int, int]], says: str
) -> None:
    with pytest.raises(JobError, match=says):
        partition(PartitionSpec(strategy="range", unit=unit, ranges=ranges))  # type: ignore[arg-type]


def test_rows_are_dealt_out_by_a_strategy_only() -> None:
    assert parse_job(WHOLE_JOB + '[partition]\nstrategy = "hash"\nunit = "rows"\n').partition.unit == "rows"
    with pytest.raises(ConfigError, match=r"partition.unit.* goes with a strategy"):
        parse_job(WHOLE_JOB + '[partition]\nunit = "rows"\n')


class Play:
    """Workers that come and go, ask, return and commit, in any order; the ledger says whether each row counts once."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.rows = [rng.choice([0, 1, 7, 30]) for _ in range(rng.randint(1, 12))] + [5]
        spec = spec_of(rng.choice(STRATEGIES), rng.choice(["slices", "rows"]), self.rows, rebalance_threshold=0.1)
        self.made = Partition(spec, self.rows, [rng.randrange(4) for _ in self.rows], BATCH)
        self.ledger = Ledger(self.rows, seed)
        self.spec = spec
        self.most = max(1, len(spec.ranges)) if spec.strategy == "range" else 6
        self.crew: list[str] = []
        self.asked: Counter[str] = Counter()
        self.born = 0
        self.committed: Counter[tuple[int, int, int]] = Counter()

    def step(self) -> None:
        """One event."""
        if not self.crew or (len(self.crew) < self.most and self.rng.random() < 0.05):
            self.crew.append(f"t{self.born}")
            self.born += 1
        task = self.rng.choice(self.crew)
        event = self.rng.choice([self.ask, self.ask, self.commit, self.give_back, self.lose])
        if event != self.lose or self.rng.random() < 0.2:
            event(task)
        self.ledger.validate()

    def ask(self, task: str) -> None:
        """The next rows, which are free, and of one's own while there are some."""
        if len(self.ledger.granted_to(task)) > 3:
            return
        self.asked[task] += 1
        rank, speeds = self.crew.index(task), [self.rng.choice([1.0, 1.0, 3.0]) for _ in self.crew]
        shares = None
        free: set[tuple[int, int, int]] = set()

        def sharing(pass_: int, order: Sequence[int]) -> Any:
            nonlocal shares, free
            shares = self.made.shares(pass_, order, speeds)
            its_pass = self.ledger._open(pass_)
            free = {
                (pass_, index, row)
                for index, rows in enumerate(self.rows)
                for low, high in its_pass.free_of(index, rows)
                for row in range(low, high)
            }
            return shares

        span, _ = self.ledger.give(task, self.asked[task], rank, sharing)
        given = {(span.pass_, span.index, row) for row in range(span.start, span.end)}
        assert given and given <= free
        own = {(span.pass_, i, row) for i, start, end in shares.of(rank) for row in range(start, end)} & free  # type: ignore[attr-defined]
        assert given <= own or not own

    def commit(self, task: str) -> None:
        """A round counts some of what a task has."""
        spans = self.rng.sample(held := self.ledger.granted_to(task), self.rng.randint(0, len(held)))
        self.ledger.commit(task, spans)
        self.committed.update((s.pass_, s.index, row) for s in spans for row in range(s.start, s.end))

    def give_back(self, task: str) -> None:
        """Some rows of an update that did not count."""
        for span in self.ledger.granted_to(task)[:1]:
            middle = self.rng.randint(span.start, span.end)
            if middle < span.end:
                self.ledger.returned(task, [Span(span.pass_, span.index, middle, span.end)])

    def lose(self, task: str) -> None:
        """It is gone, and those who are left share its rows."""
        self.crew.remove(task)
        self.ledger.lost(task)


@pytest.mark.parametrize("seed", range(40))
def test_rows_are_rebalanced_when_workers_are_lost_and_each_counts_once_a_pass(seed: int) -> None:
    play = Play(seed)
    for _ in range(250):
        play.step()
    for task in list(play.crew):
        play.commit(task)
    assert set(play.committed.values()) <= {1}
    whole = {(i, row) for i, rows in enumerate(play.rows) for row in range(rows)}
    for pass_ in range(play.ledger.pass_):
        assert {(i, row) for number, i, row in play.committed if number == pass_} == whole
    assert play.committed
