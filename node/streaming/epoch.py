"""One epoch as a sequence of rows: a function of the dataset, the seed and the epoch's number, and of nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from node.ordering import order_of
from node.streaming.config import Shuffle
from node.streaming.hashing import Ids, shuffled


@dataclass(frozen=True, slots=True)
class Epoch:
    """The slices in order, and the rows of each in order. `rows` are the numbers of rows of the dataset's slices."""

    rows: Sequence[int]
    number: int
    seed: int | None
    shuffle: Shuffle

    def slices(self) -> list[int]:
        """The slices in the order in which they are read."""
        if self.seed is None or self.shuffle == "none":
            return list(range(len(self.rows)))
        return order_of(self.seed, self.number, len(self.rows))

    def rows_of(self, index: int) -> Ids:
        """The rows of a slice in the order in which they are read, counted within the slice."""
        if self.seed is None or self.shuffle != "rows":
            return np.arange(self.rows[index])
        return shuffled(self.rows[index], f"hypha rows {self.seed} {self.number} {index}")
