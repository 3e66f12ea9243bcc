"""Small datasets for the tests of streams: every row knows its own number."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from node.streaming import StreamingLoader
from node.tensorfile import write_tensors


def dataset(folder: Path, slices: int = 13, *, seed: int = 0) -> int:
    """Slices of 1 to 30 rows with an `id` and two floats; how many rows there are."""
    chance = random.Random(seed)
    first = 0
    for index in range(slices):
        count = chance.randint(1, 30)
        ids = np.arange(first, first + count)
        first += count
        write_tensors(
            folder / f"slice-{index:04}.safetensors",
            {
                "id": ("I64", [count], ids.tobytes()),
                "x": ("F32", [count, 2], np.stack([ids, -ids], axis=1).astype("<f4").tobytes()),
            },
            durable=False,
        )
    return first


def ids(row: dict[str, np.ndarray]) -> list[int]:
    """The numbers of the rows in a row or batch."""
    found: list[int] = np.atleast_1d(row["id"]).tolist()
    return found


def epoch_of(loader: StreamingLoader) -> list[int]:
    """What is left of a loader's epoch."""
    return [one for row in loader for one in ids(row)]


def in_turns(shares: Sequence[Sequence[int]]) -> list[int]:
    """The shares dealt together again, one of each in turn."""
    return [share[at] for at in range(max(map(len, shares))) for share in shares if at < len(share)]
