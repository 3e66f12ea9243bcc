"""Rows of a dataset that is there: to split it, or to cut and mix it anew."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from node.data.datasets import Dataset, check_header
from node.data.sources.source import Chunk, Column, Source, in_chunks, row_pieces
from node.errors import DatasetError
from node.tensorfile import read_header


@dataclass(frozen=True, slots=True)
class _Slices:
    columns: dict[str, Column]

    def read(self, chunk: Chunk) -> Iterator[bytes]:
        for piece in chunk.pieces:
            yield from map(b"".join, zip(*self._rows(piece.path, piece.start, piece.end), strict=True))

    def _rows(self, path: Path, start: int, end: int) -> Iterator[list[bytes]]:
        header = read_header(path)
        with path.open("rb", buffering=0) as file:
            for name, column in self.columns.items():
                size = column.row_bytes
                at = header.data_start + header.tensors[name].start + start * size
                content = os.pread(file.fileno(), (end - start) * size, at)
                if len(content) != (end - start) * size:
                    raise DatasetError(f"{path} became shorter while it was read")
                yield [content[row * size : (row + 1) * size] for row in range(end - start)]


def slice_source(dataset: Dataset) -> Source:
    """A source of the rows of a dataset's slices, in their order. Raises `DatasetError` where a slice is not sound."""
    infos = dataset.manifest.slices
    for info in infos:
        check_header(dataset, info)
    header = read_header(dataset.path_of(infos[0]))
    columns = {name: Column(tensor.dtype, tensor.shape[1:]) for name, tensor in sorted(header.tensors.items())}
    row_bytes = sum(column.row_bytes for column in columns.values())
    pieces = [piece for info in infos for piece in row_pieces(dataset.path_of(info), info.rows, row_bytes)]
    return Source(_Slices(columns), columns, in_chunks(pieces), classes=dict(dataset.manifest.classes))
