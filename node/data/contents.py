"""What is in a dataset: how large its slices are, and how many rows each class has."""

from __future__ import annotations

import contextlib
import os
from array import array
from collections import Counter
from collections.abc import Callable, Sequence

import msgspec

from node.data.datasets import Dataset
from node.data.sources.source import LABELS
from node.errors import DatasetError, HyphaError
from node.tensorfile import Header, read_header
from node.wire import Manifest, SliceInfo

BINS = 8
BAR = 40
MOST_CLASSES = 1024
"""Numbers that are more than this are taken for no classes: a manifest stays small."""
Labels = Callable[[SliceInfo], bytes]
"""Reads the column `labels` of a slice. Raises `HyphaError`."""
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


def counted(dtype: str, shape: Sequence[int], content: bytes) -> dict[int, int]:
    """Rows of each class in a column of one number a row; empty where it is another, or has too many numbers."""
    if len(shape) or dtype not in _CODES:
        return {}
    counts = Counter(array(_CODES[dtype], content))
    return dict(sorted(counts.items())) if len(counts) <= MOST_CLASSES else {}


def with_few_classes(infos: Sequence[SliceInfo]) -> list[SliceInfo]:
    """Slices as they go into a manifest: with their counts of classes only where all of them together have few."""
    are_few = len({label for info in infos for label in info.labels}) <= MOST_CLASSES
    return list(infos) if are_few else [msgspec.structs.replace(info, labels={}) for info in infos]


def class_counts(manifest: Manifest, labels: Labels) -> dict[str, int]:
    """Rows of each class, by its name if it has one; empty where there is no column `labels` of one number a row.

    As counted in the manifest; where they are not, `labels` reads that column of all slices, and raises.
    """
    code = _code_of(manifest)
    if not code:
        return {}
    counts: Counter[int] = Counter()
    for info in manifest.slices:
        counts.update(info.labels or array(code, labels(info)))
    names = manifest.classes.get(LABELS, [])
    return {
        names[number] if 0 <= number < len(names) else str(number): count for number, count in sorted(counts.items())
    }


def class_problems(manifest: Manifest, labels: Labels) -> list[str]:
    """Slices that have other rows of a class than the manifest counts, in words. Those that cannot be read are not
    among them."""
    code = _code_of(manifest)
    problems: list[str] = []
    for info in manifest.slices:
        if not info.labels:
            continue
        with contextlib.suppress(HyphaError):
            found = Counter(array(code, labels(info))) if code else {}
            if found != info.labels:
                problems.append(f"{info.name}: it has other rows of each class than the manifest says")
    return problems


def _code_of(manifest: Manifest) -> str:
    """The array code of the column `labels`, one number a row; empty where there is none."""
    kind, _, shape = manifest.schema.get(LABELS, "").partition("[")
    return _CODES.get(kind, "") if shape == "]" else ""


def place_of_labels(header: Header) -> tuple[int, int]:
    """Where the column `labels` lies in a slice: its first byte, and the one after its last."""
    entry = header.tensors.get(LABELS)
    if entry is None:
        raise DatasetError(f"a slice has no column {LABELS}")
    return header.data_start + entry.start, header.data_start + entry.end


def labels_in(dataset: Dataset) -> Labels:
    """Reads the column from the slices of a folder."""

    def read(info: SliceInfo) -> bytes:
        path = dataset.path_of(info)
        start, end = place_of_labels(read_header(path))
        try:
            with path.open("rb", buffering=0) as file:
                return os.pread(file.fileno(), end - start, start)
        except OSError as error:
            raise DatasetError(f"{path} cannot be read: {error.strerror}") from error

    return read
