"""Which worker each slice or row is meant for, where a job asks for a partition strategy. Pure.

The strategies are those of the streaming loader. They decide what a worker is given while it has something of its own
left (`shares`). Rows are dealt out in runs of a batch, as a worker is told of each run by itself.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from node.errors import JobError
from node.jobspec import PartitionSpec
from node.scheduler.shares import Piece, Shares
from node.wire import SliceInfo

if TYPE_CHECKING:
    from node.streaming.partition import Strategy

FIRST_COME = "first-come"
MOST_RUNS = 1 << 15
"""Of a dataset that has more batches than this, runs are longer."""
KEPT = 2
"""While the last rows of a pass are under way, the next pass has begun."""


def classes_of(slices: Sequence[SliceInfo]) -> tuple[int, ...]:
    """The commonest class of each slice, numbered from 0; empty where a slice's rows have not been counted by class."""
    if not all(info.labels for info in slices if info.rows):
        return ()
    commonest = [max(info.labels, key=lambda one: (info.labels[one], -one)) if info.labels else 0 for info in slices]
    numbers = {label: number for number, label in enumerate(sorted(set(commonest)))}
    return tuple(numbers[label] for label in commonest)


class Partition:
    """The owners of the rows of one job: `rows` and `classes` are those of the dataset's slices."""

    def __init__(self, spec: PartitionSpec, rows: Sequence[int], classes: Sequence[int], batch_size: int) -> None:
        """Raises `JobError` where such a dataset cannot be shared out like this."""
        self._spec = spec
        self._rows = rows
        self._classes = classes
        self._firsts = [0, *accumulate(rows)]
        self._run = max(batch_size, -(-self._firsts[-1] // MOST_RUNS))
        self._made: dict[tuple[int, int, tuple[float, ...] | None], Shares] = {}
        self._speeds: tuple[float, ...] | None = None
        if spec.strategy == "stratified" and not classes:
            raise JobError(
                "partition: the dataset does not say how many rows of each class its slices have",
                hint="build it again, from pictures in folders, or with --label",
            )
        if spec.strategy == "range":
            self._check_ranges()
        if spec.strategy != FIRST_COME:
            self._strategy()

    def shares(self, pass_: int, order: Sequence[int], speeds: Sequence[float]) -> Shares | None:
        """What is meant for whom in a pass of this order; None where whoever asks first is served first.

        `speeds` are those of the workers, by rank, 0 where not known yet.
        """
        if self._spec.strategy == FIRST_COME:
            return None
        told = self._speeds_for(speeds)
        key = pass_, len(speeds), told
        if key not in self._made:
            while len(self._made) >= KEPT:
                del self._made[next(iter(self._made))]
            self._made[key] = Shares(self._pieces(order, len(speeds), told), len(speeds))
        return self._made[key]

    def _speeds_for(self, speeds: Sequence[float]) -> tuple[float, ...] | None:
        """The speeds to go by: the last ones, until a worker's is further from its than the threshold."""
        if self._spec.strategy != "adaptive" or not all(speeds):
            return None
        before = self._speeds
        if before is None or len(before) != len(speeds) or _furthest(speeds, before) > self._spec.rebalance_threshold:
            self._speeds = tuple(speeds)
        return self._speeds

    def _pieces(
        self, order: Sequence[int], world: int, speeds: tuple[float, ...] | None
    ) -> Iterator[tuple[int, Piece]]:
        if self._spec.unit == "slices":
            return self._dealt([(index, 0, self._rows[index]) for index in order], order, self._classes, world, speeds)
        if self._spec.strategy == "contiguous":
            return self._blocks(order, world)
        if self._spec.strategy == "range":
            return self._ranges(order, world)
        counts = [-(-rows // self._run) for rows in self._rows]
        first = [0, *accumulate(counts)]
        runs = [
            (index, at * self._run, min(self._rows[index], (at + 1) * self._run))
            for index in order
            for at in range(counts[index])
        ]
        ids = [first[index] + at for index in order for at in range(counts[index])]
        classes = [class_ for class_, count in zip(self._classes, counts, strict=False) for _ in range(count)]
        return self._dealt(runs, ids, classes, world, speeds)

    def _dealt(
        self,
        pieces: Sequence[Piece],
        ids: Sequence[int],
        classes: Sequence[int],
        world: int,
        speeds: tuple[float, ...] | None,
    ) -> Iterator[tuple[int, Piece]]:
        """As the strategy deals these pieces out; `classes` are by their ids."""
        import numpy as np

        from node.streaming.partition import divide

        owners = divide(self._strategy(), ids, world, labels=np.array(classes, dtype=np.int64), speeds=speeds)
        return ((owner, piece) for owner, piece in zip(owners.tolist(), pieces, strict=True) if piece[1] < piece[2])

    def _blocks(self, order: Sequence[int], world: int) -> Iterator[tuple[int, Piece]]:
        """The rows in the order of the pass, cut into blocks of equal size."""
        total, at = self._firsts[-1], 0
        ends = [total * (rank + 1) // world for rank in range(world)]
        for index in order:
            start = 0
            while start < self._rows[index]:
                rank = bisect_right(ends, at)
                end = min(self._rows[index], start + ends[rank] - at)
                yield rank, (index, start, end)
                at += end - start
                start = end

    def _ranges(self, order: Sequence[int], world: int) -> Iterator[tuple[int, Piece]]:
        """The rows that are in each range, as they are numbered in the dataset."""
        ranges = sorted((end, number) for number, (start, end) in enumerate(self._spec.ranges) if start < end)
        ends = [end for end, _ in ranges]
        for index in order:
            first, start = self._firsts[index], 0
            while start < self._rows[index]:
                place = bisect_right(ends, first + start)
                end = min(self._rows[index], ends[place] - first)
                yield ranges[place][1] % world, (index, start, end)
                start = end

    def _check_ranges(self) -> None:
        unit = self._spec.unit.removesuffix("s")
        units = len(self._rows) if unit == "slice" else self._firsts[-1]
        at = 0
        for start, end in sorted(self._spec.ranges):
            if start != at or end < start:
                raise JobError(f"partition: the ranges do not have every {unit} once, see {unit} {min(start, at)}")
            at = end
        if at != units:
            raise JobError(f"partition: the ranges end at {unit} {at}, the dataset has {units}")

    def _strategy(self) -> Strategy:
        try:
            from node.streaming import partition
        except ImportError as error:
            raise JobError(
                "a partition needs NumPy where the scheduler runs", hint="pip install 'hypha-tui[train]' there"
            ) from error
        spec = self._spec
        by_hash = partition.HashBased(num_partitions=spec.num_partitions, hash_seed=spec.hash_seed)
        match spec.strategy:
            case "contiguous":
                return partition.Contiguous()
            case "hash":
                return by_hash
            case "range":
                return partition.RangeBased(ranges=tuple(spec.ranges))
            case "stratified":
                return partition.Stratified(num_classes=max(self._classes) + 1)
            case "adaptive":
                base: partition.RoundRobin | partition.Contiguous | partition.HashBased = partition.RoundRobin()
                if spec.base != "round-robin":
                    base = by_hash if spec.base == "hash" else partition.Contiguous()
                return partition.Adaptive(base=base, rebalance_threshold=spec.rebalance_threshold)
            case _:
                return partition.RoundRobin()


def _furthest(speeds: Sequence[float], before: Sequence[float]) -> float:
    return max(abs(now / then - 1) for now, then in zip(speeds, before, strict=True))
