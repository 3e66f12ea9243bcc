"""Rows that a Python function of the user's yields: `path.py:function`, called without arguments."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from node.data.sources.arrays import column_of, rows_of
from node.data.sources.lines import json_source
from node.data.sources.source import Chunk, Column, Piece, Source, in_chunks, read_bytes, row_pieces
from node.data.sources.values import Fields
from node.errors import DatasetError

ROWS = "function.rows"
COLUMNS = "function.json"


@dataclass(frozen=True, slots=True)
class _Records:
    record_bytes: int

    def read(self, chunk: Chunk) -> Iterator[bytes]:
        for piece in chunk.pieces:
            size = self.record_bytes
            content = read_bytes(Piece(piece.path, piece.start * size, piece.end * size))
            yield from (content[at : at + size] for at in range(0, len(content), size))


def file_and_name(text: str) -> tuple[Path, str]:
    """The parts of `path.py:function`; raises `DatasetError`."""
    path, _, name = text.rpartition(":")
    if not path or not name.isidentifier():
        raise DatasetError(f"{text!r} names no function", hint="write path.py:function")
    if not Path(path).is_file():
        raise DatasetError(f"{path} does not exist")
    return Path(path), name


def function_source(text: str, fields: Fields, folder: Path, max_bytes: int | None) -> Source:
    """A source of the rows of a function, which are kept in `folder`: it is called once, and not again on resuming.

    A row is a dict: of numbers, lists and text, or of arrays. Raises `DatasetError` naming the row that is unlike.
    """
    rows, about = folder / ROWS, folder / COLUMNS
    if not about.exists():
        part = folder / f"{ROWS}.part"
        columns = _keep(text, part, max_bytes)
        part.replace(rows)
        about.write_text(json.dumps(columns))
    columns = json.loads(about.read_bytes())
    if columns is None:
        if not fields.names:
            with rows.open("rb") as file:
                fields.names = [name for name in json.loads(file.readline() or "{}") if name != fields.label]
        try:
            return json_source([rows], fields, None)
        except DatasetError as error:
            message = error.message.replace(f"{rows}, line", f"{text}, row")
            raise DatasetError(message, hint=error.hint) from error
    made = {name: Column(dtype, tuple(shape)) for name, (dtype, shape) in columns.items()}
    size = sum(column.row_bytes for column in made.values())
    count = rows.stat().st_size // max(1, size)
    return Source(_Records(size), made, in_chunks(row_pieces(rows, count, size)))


def _keep(text: str, target: Path, max_bytes: int | None) -> dict[str, tuple[str, tuple[int, ...]]] | None:
    """Write all rows, as records of arrays, or as JSON lines; the columns of the arrays, None of JSON lines."""
    columns: dict[str, tuple[str, tuple[int, ...]]] | None = None
    written = 0
    with target.open("wb") as file:
        for number, row in enumerate(_rows(text), start=1):
            where = f"{text}, row {number}"
            if not isinstance(row, dict) or not row:
                raise DatasetError(f"{where} is not a dict of columns")
            has_arrays = any(hasattr(value, "dtype") for value in row.values())
            if number == 1 and has_arrays:
                columns = _columns_of(where, row)
            record = _line(where, row) if columns is None else _record(where, row, columns)
            written += len(record)
            if max_bytes is not None and written > max_bytes:
                break
            file.write(record)
    if not written:
        raise DatasetError(f"{text} yields no rows")
    return columns


def _rows(text: str) -> Iterator[Any]:
    path, name = file_and_name(text)
    spec = importlib.util.spec_from_file_location(f"_rows_of_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise DatasetError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
        yield from getattr(module, name)()
    except DatasetError:
        raise
    except Exception as error:  # whatever the user's code raises
        line = error.__traceback__
        while line is not None and line.tb_next is not None:
            line = line.tb_next
        at = f" (line {line.tb_lineno} of {line.tb_frame.f_code.co_filename})" if line is not None else ""
        raise DatasetError(f"{text} failed: {type(error).__name__}: {error}{at}") from error
    finally:
        del sys.modules[spec.name]


def _line(where: str, row: dict[str, Any]) -> bytes:
    try:
        return json.dumps(row, allow_nan=False).encode() + b"\n"
    except (TypeError, ValueError) as error:
        raise DatasetError(f"{where}: {error}") from error


def _columns_of(where: str, row: dict[str, Any]) -> dict[str, tuple[str, tuple[int, ...]]]:
    import numpy

    columns = {}
    for name, value in row.items():
        made = numpy.asarray(value)
        column = column_of(f"{where}: {name!r}", made.dtype, made.shape)
        columns[str(name)] = (column.dtype, column.shape)
    return columns


def _record(where: str, row: dict[str, Any], columns: dict[str, tuple[str, tuple[int, ...]]]) -> bytes:
    import numpy

    if row.keys() != columns.keys():
        raise DatasetError(f"{where} has the columns {', '.join(map(str, row))}, before it was {', '.join(columns)}")
    record = b""
    for name, (dtype, shape) in columns.items():
        made = numpy.asarray(row[name])
        column = column_of(f"{where}: {name!r}", made.dtype, made.shape)
        if (column.dtype, column.shape) != (dtype, shape):
            raise DatasetError(f"{where}: {name!r} is {column.dtype}{list(column.shape)}, not {dtype}{list(shape)}")
        record += rows_of(made[None])[0]
    return record
