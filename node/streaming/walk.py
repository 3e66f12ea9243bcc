"""A worker's way through an epoch: which rows of which slices are its own and not used yet, in order.

Everything is derived from the order of the epoch, the strategy and the counts of the generations. Slices dealt out
whole take memory by the slice; rows dealt out singly are gone through slice by slice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from node.streaming.config import Unit
from node.streaming.epoch import Epoch
from node.streaming.hashing import Ids
from node.streaming.partition import Divider, Strategy
from node.streaming.state import Generation

Labels: TypeAlias = "NDArray[np.integer]"


@dataclass(frozen=True, slots=True)
class Share:
    """What of an epoch is a worker's: the last of the generations is the present one, its counts what to leave out."""

    epoch: Epoch
    strategy: Strategy
    unit: Unit
    generations: tuple[Generation, ...]
    rank: int
    labels: Labels | None = None

    def pieces(self) -> Iterator[tuple[int, Ids]]:
        """(slice, rows within it) in the order in which they are read; none is empty."""
        return self._by_slices() if self.unit == "slices" else self._by_rows()

    def whole(self) -> int:
        """How many rows the worker's share has, used ones included."""
        fresh = Generation((0,) * self.generations[-1].world_size, self.generations[-1].speeds)
        share = Share(self.epoch, self.strategy, self.unit, (*self.generations[:-1], fresh), self.rank, self.labels)
        if self.unit == "slices":
            return sum(int(end - start) for _, start, end in share._parts())
        return sum(len(rows) for _, rows in share._by_rows())

    def _by_slices(self) -> Iterator[tuple[int, Ids]]:
        for index, start, end in self._parts():
            yield int(index), self.epoch.rows_of(int(index))[start:end]

    def _parts(self) -> NDArray[np.int64]:
        """(slice, first place, end) of what is left of each slice of the worker's own."""
        order = np.array(self.epoch.slices(), dtype=np.int64)
        rows = np.array(self.epoch.rows, dtype=np.int64)[order]
        parts = np.stack([order, np.zeros_like(rows), rows], axis=1)[rows > 0]
        for at, generation in enumerate(self.generations):
            owners = self._divider(generation, len(parts)).next(parts[:, 0])
            for owner, count in enumerate(generation.counts):
                own = np.flatnonzero(owners == owner)
                sizes = parts[own, 2] - parts[own, 1]
                used = np.clip(count - (np.cumsum(sizes) - sizes), 0, sizes)
                parts[own, 1] += used
            is_left = parts[:, 1] < parts[:, 2]
            if at + 1 == len(self.generations):
                is_left &= owners == self.rank
            parts = parts[is_left]
        return parts

    def _by_rows(self) -> Iterator[tuple[int, Ids]]:
        first = np.concatenate([[0], np.cumsum(self.epoch.rows)])
        left = int(first[-1])
        sieves = []
        for generation in self.generations:
            sieves.append(_Sieve(self._divider(generation, left), generation.counts))
            left -= sum(generation.counts)
        only_one = self.rank if len(sieves) == 1 else None
        for index in self.epoch.slices():
            if sieves[0].swallows(int(first[index]), self.epoch.rows[index], only_one):
                continue
            rows = self.epoch.rows_of(index)
            owners = rows
            for sieve in sieves:
                rows, owners = sieve.left_of(rows, int(first[index]))
            rows = rows[owners == self.rank]
            if len(rows):
                yield index, rows

    def _divider(self, generation: Generation, units: int) -> Divider:
        return Divider(self.strategy, generation.world_size, units, labels=self.labels, speeds=generation.speeds)


class _Sieve:
    """One generation: takes out the rows that its workers have used, each the first ones of its share."""

    def __init__(self, divider: Divider, counts: Sequence[int]) -> None:
        self._divider = divider
        self._left = list(counts)

    def swallows(self, first: int, count: int, rank: int | None) -> bool:
        """Whether all these rows are used, or all that are worker `rank`'s; then they are gone. It spares shuffling."""
        if not any(self._left):
            return False
        tally = self._divider.tally(first, count).tolist()
        if any(tally[owner] > left for owner, left in enumerate(self._left) if rank is None or owner == rank):
            return False
        self._divider.skip(first, count)
        self._left = [max(0, left - taken) for left, taken in zip(self._left, tally, strict=True)]
        return True

    def left_of(self, rows: Ids, first: int) -> tuple[Ids, Ids]:
        """The rows that are left of these, and their owners."""
        owners = self._divider.next(first + rows)
        if not any(self._left):
            return rows, owners
        is_left: Any = np.ones(len(rows), dtype=bool)
        for owner, left in enumerate(self._left):
            if left:
                used = np.flatnonzero(owners == owner)[:left]
                is_left[used] = False
                self._left[owner] -= len(used)
        return rows[is_left], owners[is_left]
