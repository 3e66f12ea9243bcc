"""What a dataset can be built from: text, JSON lines and NumPy arrays, each read in units of a few rows.

A unit is the smallest thing that goes to the training or the validation part as a whole.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Protocol

import msgspec

from node.errors import DatasetError
from node.tensorfile import DTYPE_BYTES, Buffer

TEXT_UNIT_ROWS = 16
TOKENS = "input_ids"
MAX_NUMBER = {False: 1 << 63, True: 3.4e38}
"""Bounds of a whole number (I64) and of a fraction (F32)."""


@dataclass(frozen=True, slots=True)
class Column:
    """A tensor of the dataset: its dtype and the shape of one row."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return prod(self.shape) * DTYPE_BYTES[self.dtype]


class Table(Protocol):
    """Rows by unit. A column's bytes of all units, one after another, are its rows; a rest of less than one is left."""

    columns: dict[str, Column]
    units: int

    def read(self, unit: int) -> dict[str, Buffer]:
        """Each column's bytes of one unit."""
        ...


class TextTable:
    """The bytes of files as tokens: one column of `length` bytes a row. A unit is at most 16 rows of one file."""

    def __init__(self, files: Sequence[Path], length: int, max_bytes: int | None) -> None:
        self.columns = {TOKENS: Column("U8", (length,))}
        self._pieces: list[tuple[Path, int, int]] = []
        left = max_bytes if max_bytes is not None else 1 << 62
        step = TEXT_UNIT_ROWS * length
        for path in files:
            size = min(_size_of(path), left)
            left -= size
            self._pieces += [(path, at, min(step, size - at)) for at in range(0, size, step)]
        self.units = len(self._pieces)

    def read(self, unit: int) -> dict[str, Buffer]:
        """Each column's bytes of one unit."""
        path, at, size = self._pieces[unit]
        return {TOKENS: _read(path, at, size)}


class JsonTable:
    """Objects, one a line. A field of text: its bytes as tokens. Fields of numbers, or of lists of numbers: tensors."""

    def __init__(self, files: Sequence[Path], fields: Sequence[str], length: int, max_bytes: int | None) -> None:
        self._fields = list(fields) or ["text"]
        self._lines: list[tuple[Path, int, int, int]] = []
        self._decode = msgspec.json.Decoder(dict[str, Any]).decode
        self.columns: dict[str, Column] = {}
        self._is_text = False
        left = max_bytes if max_bytes is not None else 1 << 62
        shapes: dict[str, tuple[int, ...]] = {}
        floats: set[str] = set()
        for path, at, number, line in _lines_of(files):
            left -= len(line)
            if left < 0:
                break
            self._look(f"{path}, line {number}", line, shapes, floats)
            self._lines.append((path, at, len(line), number))
        self.units = len(self._lines)
        if self._is_text:
            self.columns = {TOKENS: Column("U8", (length,))}
        else:
            self.columns = {name: Column("F32" if name in floats else "I64", shape) for name, shape in shapes.items()}

    def read(self, unit: int) -> dict[str, Buffer]:
        """Each column's bytes of one unit."""
        path, at, size, number = self._lines[unit]
        values = self._values(f"{path}, line {number}", _read(path, at, size))
        if self._is_text:
            return {TOKENS: values[self._fields[0]].encode() + b"\n"}
        return {
            name: array("f" if column.dtype == "F32" else "q", _flat(values[name])).tobytes()
            for name, column in self.columns.items()
        }

    def _values(self, where: str, line: bytes) -> dict[str, Any]:
        try:
            found = self._decode(line)
        except msgspec.DecodeError as error:
            raise DatasetError(f"{where}: not a JSON object: {error}") from error
        for name in self._fields:
            if name not in found:
                raise DatasetError(
                    f"{where}: no field {name!r}", hint=f"choose with --field from: {', '.join(sorted(found))[:200]}"
                )
        return found

    def _look(self, where: str, line: bytes, shapes: dict[str, tuple[int, ...]], floats: set[str]) -> None:
        values = self._values(where, line)
        is_text = len(self._fields) == 1 and isinstance(values[self._fields[0]], str)
        if not self._lines:
            self._is_text = is_text
        if self._is_text and is_text:
            return
        for name in self._fields:
            value = values[name]
            numbers = _flat(value)
            if self._is_text or not all(type(number) in (int, float) for number in numbers):
                raise DatasetError(f"{where}: field {name!r} is not {'text' if self._is_text else 'numbers'}")
            shape = _shape_of(value)
            if shape is None or shapes.setdefault(name, shape) != shape:
                raise DatasetError(f"{where}: field {name!r} has the shape {shape}, before it was {shapes.get(name)}")
            if any(type(number) is float for number in numbers):
                floats.add(name)
            if not all(abs(number) < MAX_NUMBER[name in floats] for number in numbers):
                raise DatasetError(f"{where}: field {name!r} has a number that does not fit")


class NumpyTable:
    """Arrays with one first dimension in common: those of .npz files, or one .npy file for each column."""

    def __init__(self, files: Sequence[Path], fields: Sequence[str], max_bytes: int | None) -> None:
        self._arrays = _arrays_of(files, fields)
        lengths = {name: len(value) if value.ndim else 0 for name, value in self._arrays.items()}
        if len(set(lengths.values())) != 1:
            raise DatasetError(f"the arrays differ in their number of rows: {lengths}")
        self.columns = {name: Column(_dtype_of(name, value), value.shape[1:]) for name, value in self._arrays.items()}
        rows = next(iter(lengths.values()))
        if max_bytes is not None:
            rows = min(rows, max_bytes // max(1, sum(column.row_bytes for column in self.columns.values())))
        self._rows = rows
        self._step = max(1, min(256, rows // 200))
        self.units = -(-rows // self._step)

    def read(self, unit: int) -> dict[str, Buffer]:
        """Each column's bytes of one unit."""
        rows = slice(unit * self._step, min((unit + 1) * self._step, self._rows))
        return {
            name: value[rows].astype(value.dtype.newbyteorder("<"), copy=False).tobytes()
            for name, value in self._arrays.items()
        }


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


def _dtype_of(name: str, value: Any) -> str:
    kind, size = value.dtype.kind, value.dtype.itemsize
    letters = {"b": "BOOL", "u": f"U{8 * size}", "i": f"I{8 * size}", "f": f"F{8 * size}"}
    dtype = letters.get(kind, "")
    if dtype not in DTYPE_BYTES:
        raise DatasetError(f"array {name!r} has the dtype {value.dtype}, which safetensors does not have")
    return dtype


def _lines_of(files: Sequence[Path]) -> Iterator[tuple[Path, int, int, bytes]]:
    for path in files:
        at = 0
        try:
            with path.open("rb") as file:
                for number, line in enumerate(file, start=1):
                    if line.strip():
                        yield path, at, number, line
                    at += len(line)
        except OSError as error:
            raise DatasetError(f"{path} cannot be read: {error.strerror}") from error


def _flat(value: Any) -> list[Any]:
    if not isinstance(value, list):
        return [value]
    return [number for item in value for number in _flat(item)]


def _shape_of(value: Any) -> tuple[int, ...] | None:
    """The shape of nested lists; None where they are ragged."""
    if not isinstance(value, list):
        return ()
    shapes = {_shape_of(item) for item in value}
    inner = shapes.pop() if len(shapes) == 1 else None
    return None if inner is None else (len(value), *inner)


def _size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as error:
        raise DatasetError(f"{path} cannot be read: {error.strerror}") from error


def _read(path: Path, at: int, size: int) -> bytes:
    try:
        with path.open("rb", buffering=0) as file:
            file.seek(at)
            content = file.read(size)
    except OSError as error:
        raise DatasetError(f"{path} cannot be read: {error.strerror}") from error
    if len(content) != size:
        raise DatasetError(f"{path} became shorter while it was read")
    return content
