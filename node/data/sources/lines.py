"""Files of lines: JSON objects, or comma-separated values under a head."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from node.data.sources.source import CHUNK_BYTES, Chunk, Piece, Source, in_chunks, read_bytes
from node.data.sources.values import Encoder, Fields
from node.errors import DatasetError
from node.wire import UNDECODABLE

MAX_CELL = 16 << 20


class _Row(NamedTuple):
    """Values by field, the last line they stand in, and the byte after it, counted from where reading began."""

    path: Path
    line: int
    end: int
    values: dict[str, Any]

    @property
    def where(self) -> str:
        return f"{self.path}, line {self.line}"


@dataclass(frozen=True, slots=True)
class _Lines:
    encoder: Encoder
    heads: dict[Path, list[str]] | None
    """The names of the columns of CSV files; None for JSON lines."""
    kinds: dict[str, type]

    def read(self, chunk: Chunk) -> Iterator[bytes]:
        for piece in chunk.pieces:
            content = read_bytes(piece)
            if self.heads is None:
                for row in _objects(piece.path, io.BytesIO(content), piece.line):
                    yield self.encoder.encode(row.values)
            else:
                for row in _cells(piece.path, io.BytesIO(content), piece.line, self.heads[piece.path]):
                    yield self.encoder.encode(_typed(row.values, self.kinds))


def json_source(files: Sequence[Path], fields: Fields, max_bytes: int | None) -> Source:
    """A source of JSON objects, one a line."""
    fields.names = fields.names or ["text"]
    pieces: list[tuple[Piece, int, int]] = []
    left = max_bytes if max_bytes is not None else 1 << 62
    for path in files:
        with _opened(path) as file:
            cut = _Cut(path, 0, 1)
            for row in _objects(path, file, 1):
                if row.end > left:
                    break
                fields.look(row.where, row.values)
                cut.row(row.end, row.line)
            left -= cut.at
            pieces += cut.pieces()
    return _source(pieces, fields, None, {})


def csv_source(files: Sequence[Path], fields: Fields, max_bytes: int | None) -> Source:
    """A source of comma-separated values (`.tsv`: tabs). The first line names the columns; all are taken by default.

    A column is of whole numbers, of fractions, or of text, as all its cells are.
    """
    heads, starts = {}, {}
    for path in files:
        heads[path], starts[path] = _head(path)
    head = heads[files[0]]
    for path in files:
        if heads[path] != head:
            raise DatasetError(f"{path} has other columns than {files[0]}: {', '.join(heads[path])[:200]}")
    fields.names = fields.names or [name for name in head if name != fields.label]
    kinds = _kinds(files, heads, starts, fields)
    pieces: list[tuple[Piece, int, int]] = []
    left = max_bytes if max_bytes is not None else 1 << 62
    for path in files:
        with _opened(path) as file:
            start, line = starts[path]
            file.seek(start)
            cut = _Cut(path, start, line)
            for row in _cells(path, file, line, head):
                if start + row.end > left:
                    break
                fields.look(row.where, _typed(row.values, kinds))
                cut.row(start + row.end, row.line)
            left -= cut.at
            pieces += cut.pieces()
    return _source(pieces, fields, heads, kinds)


class _Cut:
    """Cuts a file into pieces of whole rows."""

    def __init__(self, path: Path, start: int, line: int) -> None:
        self.at = start
        self._path = path
        self._start, self._line, self._rows = start, line, 0
        self._done: list[tuple[Piece, int, int]] = []

    def row(self, end: int, last_line: int) -> None:
        """A row ends here, with this line."""
        self.at = end
        self._rows += 1
        if end - self._start >= CHUNK_BYTES:
            self._close(last_line + 1)

    def pieces(self) -> list[tuple[Piece, int, int]]:
        """The pieces, with sizes and rows."""
        if self._rows:
            self._close(0)
        return self._done

    def _close(self, next_line: int) -> None:
        piece = Piece(self._path, self._start, self.at, self._line)
        self._done.append((piece, self.at - self._start, self._rows))
        self._start, self._line, self._rows = self.at, next_line, 0


def _source(
    pieces: list[tuple[Piece, int, int]], fields: Fields, heads: dict[Path, list[str]] | None, kinds: dict[str, type]
) -> Source:
    if not pieces:
        raise DatasetError("the sources are empty")
    encoder = fields.encoder()
    reader = _Lines(encoder, heads, kinds)
    return Source(reader, encoder.columns, in_chunks(pieces), encoder.is_stream, encoder.classes)


def _opened(path: Path) -> io.BufferedReader:
    try:
        return path.open("rb")
    except OSError as error:
        raise DatasetError(f"{path} cannot be read: {error.strerror}") from error


def _objects(path: Path, lines: Iterable[bytes], first_line: int) -> Iterator[_Row]:
    decode = msgspec.json.Decoder(dict[str, Any]).decode
    at = 0
    for number, line in enumerate(lines, start=first_line):
        at += len(line)
        if not line.strip():
            continue
        try:
            values = decode(line)
        except UNDECODABLE as error:
            raise DatasetError(f"{path}, line {number}: not a JSON object: {error}") from error
        yield _Row(path, number, at, values)


def _cells(path: Path, lines: Iterable[bytes], first_line: int, head: list[str]) -> Iterator[_Row]:
    """The rows, every cell as text; a quoted cell may have several lines."""
    at, number = 0, first_line - 1

    def text() -> Iterator[str]:
        nonlocal at, number
        for line in lines:
            at += len(line)
            number += 1
            yield line.decode()

    csv.field_size_limit(MAX_CELL)
    try:
        for row in csv.reader(text(), delimiter=_delimiter(path), strict=True):
            if not row:
                continue
            if len(row) != len(head):
                raise DatasetError(f"{path}, line {number}: {len(row)} cells, but {len(head)} columns are named")
            yield _Row(path, number, at, dict(zip(head, row, strict=True)))
    except (csv.Error, UnicodeDecodeError) as error:
        raise DatasetError(f"{path}, line {number}: not a row of values: {error}") from error


def _head(path: Path) -> tuple[list[str], tuple[int, int]]:
    """The names of the columns, and where the first row begins: byte and line."""
    with _opened(path) as file:
        line = file.readline(MAX_CELL)
    try:
        names = next(csv.reader([line.decode("utf-8-sig")], delimiter=_delimiter(path), strict=True), [])
    except (csv.Error, UnicodeDecodeError) as error:
        raise DatasetError(f"{path}, line 1: not a line of names: {error}") from error
    if not names or len(set(names)) != len(names):
        raise DatasetError(f"{path}, line 1: the first line must name the columns, each once")
    return names, (len(line), 2)


def _kinds(
    files: Sequence[Path], heads: dict[Path, list[str]], starts: dict[Path, tuple[int, int]], fields: Fields
) -> dict[str, type]:
    """Of each column that is taken: int, float or str, the narrowest that all its cells are."""
    kinds: dict[str, type] = dict.fromkeys((*fields.names, *([fields.label] if fields.label else [])), int)
    for path in files:
        with _opened(path) as file:
            file.seek(starts[path][0])
            for row in _cells(path, file, starts[path][1], heads[path]):
                fields.check(row.where, row.values)
                for name, kind in kinds.items():
                    kinds[name] = _kind_of(row.values[name], kind)
    return kinds


def _kind_of(cell: str, kind: type) -> type:
    for wider in (int, float):
        if kind is wider:
            try:
                kind(cell)
            except ValueError:
                kind = float if kind is int else str
    return kind


def _typed(row: dict[str, Any], kinds: dict[str, type]) -> dict[str, Any]:
    return {name: kind(row[name]) for name, kind in kinds.items()}


def _delimiter(path: Path) -> str:
    return "\t" if path.suffix == ".tsv" else ","
