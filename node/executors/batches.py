"""Batches out of slices: rows in the order of the file, never across two slices, the last one smaller."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from node.errors import DatasetError
from node.streaming.slicefile import SliceFile
from node.tensorfile import read_header

Batch = dict[str, torch.Tensor]


class Slice:
    """One safetensors file whose tensors have the rows as first dimension; rows are read when they are needed."""

    def __init__(self, path: Path, input_names: Sequence[str], preprocessor: Any = None) -> None:
        self._label = path.name
        self._preprocessor = preprocessor
        names = read_header(path).tensors.keys()
        missing = sorted(set(input_names) - names - {"labels"})
        if missing and preprocessor is None:
            raise DatasetError(
                f"slice {path.name} has no tensor {missing[0]}", hint=f"it has {', '.join(sorted(names))}"
            )
        wanted = names & (set(input_names) | {"labels"}) if input_names and preprocessor is None else names
        self._file = SliceFile(path, sorted(wanted))
        self.rows = self._file.rows

    def batches(self, size: int) -> Iterator[tuple[int, int]]:
        """(first row, end) of the batches."""
        for start in range(0, self.rows, size):
            yield start, min(start + size, self.rows)

    def read_all(self, size: int) -> Iterator[tuple[Batch, int]]:
        """(batch, rows) of the batches. Where reading takes time, the next one is read while one is trained on."""
        spans = self.batches(size)
        if self._preprocessor is None and not torch.cuda.is_available():
            yield from ((self.read(start, end), end - start) for start, end in spans)
            return
        with ThreadPoolExecutor(1, thread_name_prefix="read") as pool:
            ahead: tuple[Future[Batch], int] | None = None
            for start, end in spans:
                last, ahead = ahead, (pool.submit(self.read, start, end), end - start)
                if last is not None:
                    yield last[0].result(), last[1]
            if ahead is not None:
                yield ahead[0].result(), ahead[1]

    def head(self, rows: int) -> Batch:
        """The first rows."""
        return self.read(0, rows)

    def read(self, start: int, end: int) -> Batch:
        """The model's inputs for these rows: integers as int64, anything else as float32."""
        raw = {name: torch.from_numpy(column) for name, column in self._file.read(slice(start, end)).items()}
        if self._preprocessor is not None:
            raw = _preprocess(self._preprocessor, raw, self._label)
        return {
            name: value.to(torch.float32 if value.is_floating_point() else torch.int64) for name, value in raw.items()
        }


def _preprocess(preprocessor: Any, raw: Batch, label: str) -> Batch:
    """Images through an image processor. Other columns (`labels`) stay as they are."""
    pictures = next((name for name in ("images", "image", "pixel_values") if name in raw), None)
    if pictures is None:
        raise DatasetError(f"slice {label} has no images for the preprocessor", hint="name the tensor `images`")
    made = preprocessor(images=list(raw.pop(pictures)), return_tensors="pt")
    return {**raw, **dict(made)}
