"""A slice as NumPy arrays over the mapped file: nothing is copied until a row is used."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from node.errors import DatasetError
from node.tensorfile import Header, TensorInfo, read_header

Array: TypeAlias = "NDArray[Any]"
Columns = dict[str, Array]

DTYPES: Final = {
    "BOOL": "?", "U8": "u1", "I8": "i1", "U16": "<u2", "I16": "<i2", "F16": "<f2", "U32": "<u4", "I32": "<i4",
    "F32": "<f4", "U64": "<u8", "I64": "<i8", "F64": "<f8", "C64": "<c8", "BF16": "<u2",
}  # fmt: skip
"""NumPy has no bfloat16: its bits are read as integers, and widened to float32 where they are used."""


class Rows(Protocol):
    """Rows of a slice, by their numbers in it."""

    row_bytes: int

    @property
    def is_viewed(self) -> bool:
        """Whether reading a slice of rows copies nothing."""

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""

    def read(self, rows: slice | NDArray[np.int64]) -> Columns:
        """These rows of every column: views for a slice, copies for a list of rows."""


class SliceFile:
    """The columns of a safetensors file whose tensors have the rows as first dimension. Raises `DatasetError`.

    The file must not change while it is open; it may be removed.
    """

    def __init__(self, path: Path, columns: Sequence[str] = ()) -> None:
        header = read_header(path)
        infos = columns_of(header, path.name, columns)
        self.name = path.name
        self.rows = next(iter(infos.values())).shape[0]
        with path.open("rb") as file:
            size = header.size_bytes
            # A private copy of each page that is written to, as PyTorch wants memory that it may write to.
            self._map = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY)
        self._columns = {name: self._column(info, header.data_start) for name, info in infos.items()}
        self.row_bytes = max(1, sum(info.end - info.start for info in infos.values()) // max(1, self.rows))
        self._bfloat16 = frozenset(name for name, info in infos.items() if info.dtype == "BF16")

    @property
    def is_viewed(self) -> bool:
        """Whether reading a slice of rows copies nothing."""
        return not self._bfloat16

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        return list(self._columns)

    def read(self, rows: slice | NDArray[np.int64]) -> Columns:
        """These rows of every column: views of the file for a slice, copies for a list of rows."""
        return {
            name: widened(column[rows]) if name in self._bfloat16 else column[rows]
            for name, column in self._columns.items()
        }

    def _column(self, info: TensorInfo, data_start: int) -> Array:
        dtype = np.dtype(DTYPES[info.dtype])
        count = (info.end - info.start) // dtype.itemsize
        whole = np.frombuffer(self._map, dtype=dtype, count=count, offset=data_start + info.start)
        return whole.reshape(info.shape)


def columns_of(header: Header, name: str, columns: Sequence[str] = ()) -> dict[str, TensorInfo]:
    """The tensors that are wanted of a slice, all with the same number of rows; raises `DatasetError`."""
    missing = sorted(set(columns) - header.tensors.keys())
    if missing:
        raise DatasetError(f"slice {name} has no column {missing[0]!r}", hint=_has(header.tensors))
    infos = {column: header.tensors[column] for column in columns or sorted(header.tensors)}
    rows = {column: info.shape[0] if info.shape else 0 for column, info in infos.items()}
    if len(set(rows.values())) != 1 or 0 in rows.values():
        raise DatasetError(f"slice {name}: its tensors have different numbers of rows, or none: {rows}")
    unknown = next((info.dtype for info in infos.values() if info.dtype not in DTYPES), None)
    if unknown is not None:
        raise DatasetError(f"slice {name} has a column of the type {unknown}, which cannot be read")
    return infos


def widened(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    """bfloat16 as float32, exactly."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def _has(names: dict[str, TensorInfo]) -> str:
    return f"it has {', '.join(sorted(names)[:10])}"
