"""The rows of one pass as they are meant for the workers: who is next to be given what. Pure.

A worker is given its own rows in the order of the pass. One that has none left is given the last ones of whoever has
the most left, so that no row waits for a worker that is slow or gone.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate

Piece = tuple[int, int, int]
"""A slice, and rows of it: the first, and the one after the last."""
Free = Callable[[int], Sequence[tuple[int, int]]]
"""Answers, for a slice, with its rows that nobody has: sorted ranges."""


class Shares:
    """The pieces that are meant for each worker, by its rank, in the order of the pass.

    It keeps places before and behind which nothing is free, so that `find` does not look there again. `frees` counts
    how often rows have come back, which makes these places void.
    """

    def __init__(self, pieces: Iterable[tuple[int, Piece]], world: int) -> None:
        own: list[list[Piece]] = [[] for _ in range(world)]
        for rank, piece in pieces:
            before = own[rank][-1] if own[rank] else (-1, 0, 0)
            if before[0] == piece[0] and before[2] == piece[1]:
                own[rank][-1] = (piece[0], before[1], piece[2])
            else:
                own[rank].append(piece)
        self._columns = [[array("q", column) for column in zip(*some, strict=True)] for some in own]
        self._rows = [array("q", accumulate((end - start for _, start, end in some), initial=0)) for some in own]
        self._frees = -1
        self._heads: list[int] = []
        self._tails: list[int] = []

    def of(self, rank: int) -> list[Piece]:
        """What is meant for a worker."""
        return list(zip(*self._columns[rank], strict=True)) if self._columns[rank] else []

    def find(self, rank: int, free: Free, frees: int) -> Piece | None:
        """What to give a worker next; None where nothing is free."""
        if frees != self._frees:
            self._frees = frees
            self._heads = [0] * len(self._rows)
            self._tails = [len(rows) - 1 for rows in self._rows]
        found = self._first(rank, free)
        if found is not None:
            return found
        lasts = [self._last(owner, free) for owner in range(len(self._rows))]
        owner = max(range(len(lasts)), key=lambda one: (self._left(one, free), -one))
        return lasts[owner]

    def _left(self, owner: int, free: Free) -> int:
        """The rows between the first and the last piece of which something is free."""
        self._first(owner, free)
        return self._rows[owner][self._tails[owner]] - self._rows[owner][self._heads[owner]]

    def _first(self, rank: int, free: Free) -> Piece | None:
        while self._heads[rank] < self._tails[rank]:
            index, start, end = self._piece(rank, self._heads[rank])
            for low, high in free(index):
                if max(low, start) < min(high, end):
                    return index, max(low, start), min(high, end)
            self._heads[rank] += 1
        return None

    def _last(self, owner: int, free: Free) -> Piece | None:
        while self._heads[owner] < self._tails[owner]:
            index, start, end = self._piece(owner, self._tails[owner] - 1)
            for low, high in reversed(free(index)):
                if max(low, start) < min(high, end):
                    return index, max(low, start), min(high, end)
            self._tails[owner] -= 1
        return None

    def _piece(self, rank: int, place: int) -> Piece:
        index, start, end = self._columns[rank]
        return index[place], start[place], end[place]
