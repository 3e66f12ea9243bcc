"""What a dataset is built from, in the form the builder wants: rows as records of bytes, read in chunks.

A chunk is what one process reads at a time; where chunks end depends on the input alone, so that any number of
processes makes the same dataset. A unit is the smallest thing that goes to one part (training, validation) as a whole.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Protocol

from node.errors import DatasetError
from node.tensorfile import DTYPE_BYTES

CHUNK_BYTES = 8 << 20
LABELS = "labels"


@dataclass(frozen=True, slots=True)
class Column:
    """A tensor of the dataset: its dtype and the shape of one row."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return prod(self.shape) * DTYPE_BYTES[self.dtype]


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes, rows or row groups `start` up to, not including, `end` of a file; `line` is the number of the first."""

    path: Path
    start: int = 0
    end: int = 0
    line: int = 1


@dataclass(frozen=True, slots=True)
class Chunk:
    """Pieces that one process reads at a time, and how many units are in them."""

    pieces: tuple[Piece, ...]
    units: int


class Reader(Protocol):
    """Reads chunks, in any process: it is sent there once."""

    def read(self, chunk: Chunk) -> Iterator[bytes]:
        """The units of a chunk: of a stream its bytes, else one record, the columns' rows one after another."""
        ...


@dataclass(frozen=True, slots=True)
class Source:
    """An input that was looked through: what its rows are, and where they are."""

    reader: Reader
    columns: dict[str, Column]
    chunks: Sequence[Chunk]
    is_stream: bool = False
    """Rows do not end with units: the units' bytes follow one another, and are cut into rows."""
    classes: dict[str, list[str]] = field(default_factory=dict)
    """Names of the classes that a column numbers."""

    @property
    def record_bytes(self) -> int:
        """Bytes of one row of all columns."""
        return sum(column.row_bytes for column in self.columns.values())

    @property
    def units(self) -> int:
        """Units of all chunks."""
        return sum(chunk.units for chunk in self.chunks)


def in_chunks(pieces: Iterable[tuple[Piece, int, int]]) -> list[Chunk]:
    """Pieces, each with its size in bytes and its units, gathered into chunks."""
    chunks: list[Chunk] = []
    gathered: list[Piece] = []
    size = units = 0
    for piece, piece_bytes, piece_units in pieces:
        if gathered and size + piece_bytes > CHUNK_BYTES:
            chunks.append(Chunk(tuple(gathered), units))
            gathered, size, units = [], 0, 0
        gathered.append(piece)
        size += piece_bytes
        units += piece_units
    if gathered:
        chunks.append(Chunk(tuple(gathered), units))
    return chunks


def first_units(chunks: Sequence[Chunk], limit: int) -> list[Chunk]:
    """The chunks with no more than the first `limit` units in them."""
    kept: list[Chunk] = []
    for chunk in chunks:
        units = min(chunk.units, limit)
        if units:
            kept.append(Chunk(chunk.pieces, units))
        limit -= units
    return kept


def row_pieces(path: Path, rows: int, row_bytes: int) -> Iterator[tuple[Piece, int, int]]:
    """Pieces of rows of a file with random access."""
    step = max(1, CHUNK_BYTES // max(1, row_bytes))
    for start in range(0, rows, step):
        end = min(start + step, rows)
        yield Piece(path, start, end), (end - start) * row_bytes, end - start


def files_of(sources: Iterable[Path], pattern: str) -> list[Path]:
    """The files named, and those below folders whose name matches one of `pattern`'s, divided by `|`; in path order.

    Hidden files and folders, links, and the caches of the Python interpreter are left out of folders.
    """
    files: list[Path] = []
    for source in sources:
        if source.is_dir():
            files += sorted(_walk(source, pattern.split("|")))
        elif source.exists():
            files.append(source)
        else:
            raise DatasetError(f"{source} does not exist")
    if not files:
        raise DatasetError(f"no file matches {pattern!r} in {', '.join(map(str, sources))}", hint="see --glob")
    return files


def _walk(folder: Path, patterns: Sequence[str]) -> Iterator[Path]:
    for root, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".") and name != "__pycache__"]
        for name in names:
            path = Path(root, name)
            is_wanted = not name.startswith(".") and any(path.match(pattern) for pattern in patterns)
            if is_wanted and path.is_file() and not path.is_symlink():
                yield path


def size_of(path: Path) -> int:
    """A file's size; raises `DatasetError`."""
    try:
        return path.stat().st_size
    except OSError as error:
        raise DatasetError(f"{path} cannot be read: {error.strerror}") from error


def read_bytes(piece: Piece) -> bytes:
    """The bytes of a piece; raises `DatasetError`."""
    try:
        with piece.path.open("rb", buffering=0) as file:
            file.seek(piece.start)
            content = file.read(piece.end - piece.start)
    except OSError as error:
        raise DatasetError(f"{piece.path} cannot be read: {error.strerror}") from error
    if len(content) != piece.end - piece.start:
        raise DatasetError(f"{piece.path} became shorter while it was read")
    return content
