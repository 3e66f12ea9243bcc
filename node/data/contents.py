"""What is in a dataset: how large its slices are, and how many rows each class has."""

from __future__ import annotations

import os
from array import array
from collections import Counter
from collections.abc import Sequence

from node.data.datasets import Dataset
from node.data.sources.source import LABELS
from node.errors import DatasetError
from node.tensorfile import read_header

BINS = 8
BAR = 40
_CODES = {"U8": "B", "I8": "b", "U16": "H", "I16": "h", "U32": "I", "I32": "i", "U64": "Q", "I64": "q"}


def histogram(sizes: Sequence[int]) -> list[str]:
    """Lines of a histogram of sizes, in bins of equal width."""
    low, high = min(sizes), max(sizes)
    if low == high:
        return [f"  {low:>15,} {'#' * BAR} {len(sizes):,}"]
    width = -(-(high - low + 1) // BINS)
    counts = Counter((size - low) // width for size in sizes)
    most = max(counts.values())
    return [
        f"  {low + number * width:>15,} {'#' * -(-counts[number] * BAR // most):<{BAR}} {counts[number]:,}"
        for number in range(-(-(high - low + 1) // width))
    ]


def class_counts(dataset: Dataset) -> dict[str, int]:
    """Rows of each class, by its name if it has one; empty where there is no column `labels` of one number a row.

    Reads that column of all slices. Raises `DatasetError`.
    """
    kind, _, shape = dataset.manifest.schema.get(LABELS, "").partition("[")
    if shape != "]" or kind not in _CODES:
        return {}
    counts: Counter[int] = Counter()
    for info in dataset.manifest.slices:
        path = dataset.path_of(info)
        tensor = read_header(path)
        entry = tensor.tensors[LABELS]
        try:
            with path.open("rb", buffering=0) as file:
                content = os.pread(file.fileno(), entry.end - entry.start, tensor.data_start + entry.start)
        except OSError as error:
            raise DatasetError(f"{path} cannot be read: {error.strerror}") from error
        counts.update(array(_CODES[kind], content))
    names = dataset.manifest.classes.get(LABELS, [])
    return {
        names[number] if 0 <= number < len(names) else str(number): count for number, count in sorted(counts.items())
    }
