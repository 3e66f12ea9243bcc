"""NumPy arrays with one first dimension in common: those of .npz files, or one .npy file for each column."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from node.data.sources.source import Chunk, Column, Source, first_units, in_chunks, row_pieces
from node.errors import DatasetError
from node.tensorfile import DTYPE_BYTES


class _Arrays:
    """The arrays; a process opens them when it first reads."""

    def __init__(self, files: Sequence[Path], fields: Sequence[str]) -> None:
        self._files = list(files)
        self._fields = list(fields)

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "arrays"}

    @cached_property
    def arrays(self) -> dict[str, Any]:
        """The arrays by name."""
        return _arrays_of(self._files, self._fields)

    def read(self, chunk: Chunk) -> Iterator[bytes]:
        """Records of rows."""
        for piece in chunk.pieces:
            columns = [rows_of(value[piece.start : piece.end]) for value in self.arrays.values()]
            yield from map(b"".join, zip(*columns, strict=True))


def numpy_source(files: Sequence[Path], fields: Sequence[str], max_bytes: int | None) -> Source:
    """A source of arrays, no more of their rows than have `max_bytes`."""
    reader = _Arrays(files, fields)
    lengths = {name: len(value) if value.ndim else 0 for name, value in reader.arrays.items()}
    if len(set(lengths.values())) != 1:
        raise DatasetError(f"the arrays differ in their number of rows: {lengths}")
    columns = {
        name: column_of(f"array {name!r}", value.dtype, value.shape[1:]) for name, value in reader.arrays.items()
    }
    rows = next(iter(lengths.values()))
    row_bytes = sum(column.row_bytes for column in columns.values())
    chunks = in_chunks(row_pieces(files[0], rows, row_bytes))
    if max_bytes is not None:
        chunks = first_units(chunks, max_bytes // max(1, row_bytes))
    return Source(reader, columns, chunks)


def rows_of(value: Any) -> list[bytes]:
    """The bytes of each row of an array, little-endian."""
    content = value.astype(value.dtype.newbyteorder("<"), copy=False).tobytes()
    size = len(content) // len(value) if len(value) else 0
    return [content[at : at + size] for at in range(0, len(content), size)] if size else [b""] * len(value)


def column_of(what: str, dtype: Any, shape: Sequence[int]) -> Column:
    """The column of an array's dtype and row shape; raises `DatasetError` where safetensors has no such dtype."""
    letters = {"b": "BOOL", "u": f"U{8 * dtype.itemsize}", "i": f"I{8 * dtype.itemsize}", "f": f"F{8 * dtype.itemsize}"}
    found = letters.get(dtype.kind, "")
    if found not in DTYPE_BYTES:
        raise DatasetError(f"{what} has the dtype {dtype}, which safetensors does not have")
    return Column(found, tuple(shape))


def _arrays_of(files: Sequence[Path], fields: Sequence[str]) -> dict[str, Any]:
    try:
        import numpy
    except ImportError as error:
        raise DatasetError("NumPy files need NumPy", hint="pip install 'hypha-tui[train]'") from error
    arrays: dict[str, Any] = {}
    for path in files:
        try:
            loaded = numpy.load(path, mmap_mode="r", allow_pickle=False)
            found = {path.stem: loaded} if path.suffix == ".npy" else {name: loaded[name] for name in loaded.files}
        except (OSError, ValueError) as error:
            raise DatasetError(f"{path} is not a NumPy file that can be used: {error}") from error
        for name, value in found.items():
            if name in arrays:
                raise DatasetError(f"{path}: there is an array {name!r} already")
            if not fields or name in fields:
                arrays[name] = value
    for name in fields:
        if name not in arrays:
            raise DatasetError(f"no array {name!r} in {', '.join(path.name for path in files)[:200]}")
    return arrays
