"""Tables of columns: Parquet files, and folders that `datasets` has saved to disk."""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from node.data.sources.images import IMAGES, Pictures
from node.data.sources.source import CHUNK_BYTES, LABELS, Chunk, Column, Piece, Source, in_chunks
from node.data.sources.tokens import Tokens, token_column
from node.data.sources.values import MAX_CLASSES, class_names
from node.errors import DatasetError

BATCH_ROWS = 1_024


@dataclass(frozen=True, slots=True)
class Choice:
    """What is taken of the columns: those named (all, where none is), a column of classes, and how."""

    fields: Sequence[str]
    label: str
    tokens: Tokens
    length: int
    pictures: Pictures | None


@dataclass(frozen=True, slots=True)
class _Table:
    """`kinds`: of each column that is taken, by field: text, label, picture or numbers."""

    choice: Choice
    kinds: dict[str, str]
    columns: dict[str, Column]
    numbers: dict[str, int]

    def read(self, chunk: Chunk) -> Iterator[bytes]:
        for piece in chunk.pieces:
            row = piece.line
            for batch in _batches(piece, list(self.kinds)):
                found = [self._rows(piece.path, row, name, kind, batch) for name, kind in self.kinds.items()]
                yield from map(b"".join, zip(*found, strict=True))
                row += batch.num_rows

    def _rows(self, path: Path, first: int, name: str, kind: str, batch: Any) -> list[bytes]:
        values = batch.column(batch.schema.get_field_index(name))
        if values.null_count:
            row = next(number for number, value in enumerate(values, start=first) if not value.is_valid)
            raise DatasetError(f"{path}, row {row}: {name!r} is empty")
        if kind == "text":
            return [self.choice.tokens.encode(text, ends=True) for text in values.to_pylist()]
        if kind == "picture":
            assert self.choice.pictures is not None
            cells = values.to_pylist()
            where = [f"{path}, row {number}: {name!r}" for number in range(first, first + len(cells))]
            return [self.choice.pictures.row(_encoded(*pair), pair[1]) for pair in zip(cells, where, strict=True)]
        if kind == "label":
            return [array("q", [self.numbers[str(value)]]).tobytes() for value in values.to_pylist()]
        column = self.columns[LABELS if name == self.choice.label else name]
        return _number_rows(values, column, f"{path}, rows {first} to {first + len(values) - 1}: {name!r}")


def parquet_source(files: Sequence[Path], choice: Choice) -> Source:
    """A source of Parquet files; a row group is read at a time."""
    import pyarrow.parquet as parquet

    pieces: list[tuple[Piece, int, int]] = []
    for path in files:
        row = 1
        try:
            metadata = parquet.ParquetFile(path).metadata
        except Exception as error:  # OSError and ArrowInvalid, which is a ValueError
            raise DatasetError(f"{path} is not a Parquet file that can be used: {error}") from error
        for group in range(metadata.num_row_groups):
            about = metadata.row_group(group)
            pieces.append((Piece(path, group, group + 1, row), about.total_byte_size, about.num_rows))
            row += about.num_rows
    return _source(pieces, choice, {})


def saved_source(folders: Sequence[Path], choice: Choice) -> Source:
    """A source of folders of `datasets.Dataset.save_to_disk`."""
    pieces: list[tuple[Piece, int, int]] = []
    classes: dict[str, list[str]] = {}
    for folder in folders:
        for path in saved_files(folder):
            pieces += _saved_pieces(path)
        try:
            classes |= class_names('{"info":' + (folder / "dataset_info.json").read_text() + "}")
        except OSError:
            pass
    return _source(pieces, choice, classes)


def _saved_pieces(path: Path) -> Iterator[tuple[Piece, int, int]]:
    """Runs of batches: they can only be read from the file's beginning, so there should be few."""
    start, row, size, rows = 0, 1, 0, 0
    number = -1
    for number, batch in enumerate(_stream(path)):
        size += batch.nbytes
        rows += batch.num_rows
        if size >= CHUNK_BYTES:
            yield Piece(path, start, number + 1, row), size, rows
            start, row, size, rows = number + 1, row + rows, 0, 0
    if rows:
        yield Piece(path, start, number + 1, row), size, rows


def saved_files(folder: Path) -> list[Path]:
    """The files of a folder of `save_to_disk`; raises `DatasetError` where it is none."""
    if (folder / "dataset_dict.json").is_file():
        splits = ", ".join(sorted(path.name for path in folder.iterdir() if path.is_dir()))
        raise DatasetError(f"{folder} holds several splits", hint=f"name one of them: {splits}")
    try:
        state = json.loads((folder / "state.json").read_bytes())
        names = [str(entry["filename"]) for entry in state["_data_files"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DatasetError(f"{folder} was not written by save_to_disk: no sound state.json") from error
    if state.get("_indices_data_files") or any("/" in name for name in names):
        raise DatasetError(f"{folder} has its rows in another order than its files", hint="flatten_indices, then save")
    return [folder / name for name in names]


def need_arrow() -> None:
    """Raise `DatasetError` unless pyarrow is there."""
    try:
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise DatasetError("this format needs pyarrow", hint="pip install 'hypha-tui[datasets]'") from error


def _source(pieces: list[tuple[Piece, int, int]], choice: Choice, classes: dict[str, list[str]]) -> Source:
    pieces = [piece for piece in pieces if piece[2]]
    if not pieces:
        raise DatasetError("the sources are empty")
    first = next(_batches(pieces[0][0], []))
    for name in (*choice.fields, *([choice.label] if choice.label else [])):
        if name not in first.schema.names:
            hint = f"choose with --field from: {', '.join(first.schema.names)[:200]}"
            raise DatasetError(f"{pieces[0][0].path}: no column {name!r}", hint=hint)
    classes = classes or class_names((first.schema.metadata or {}).get(b"huggingface", b""))
    names = [name for name in choice.fields or first.schema.names if name != choice.label]
    kinds: dict[str, str] = {}
    columns: dict[str, Column] = {}
    where = str(pieces[0][0].path)
    for name in names:
        values = first.column(first.schema.get_field_index(name))
        kinds[name] = _kind_of(values.type, where, name, is_only=len(names) == 1 and not choice.label)
        if kinds[name] == "picture":
            if choice.pictures is None:
                raise DatasetError(
                    f"{where}: {name!r} is pictures", hint="say with --image-size how large they are to be"
                )
            columns[IMAGES] = choice.pictures.column
        elif kinds[name] == "numbers":
            columns[name] = _column(values, f"{where}: {name!r}")
    if "text" in kinds.values():
        reader = _Table(choice, kinds, token_column(choice.tokens, choice.length), {})
        return Source(reader, reader.columns, in_chunks(pieces), is_stream=True)
    named = {name: found for name, found in classes.items() if name in columns}
    numbers: dict[str, int] = {}
    if choice.label:
        columns[LABELS], found = _label(pieces, first, choice.label, where)
        kinds[choice.label] = "label" if found else "numbers"
        numbers = {name: number for number, name in enumerate(found)}
        if names_of_label := found or classes.get(choice.label, []):
            named[LABELS] = names_of_label
    return Source(_Table(choice, kinds, columns, numbers), columns, in_chunks(pieces), classes=named)


def _kind_of(kind: Any, where: str, name: str, *, is_only: bool) -> str:
    import pyarrow.types as types

    if types.is_string(kind) or types.is_large_string(kind):
        if is_only:
            return "text"
        hint = "take it alone with --field for text, or as classes with --label"
        raise DatasetError(f"{where}: column {name!r} is text", hint=hint)
    if types.is_struct(kind) and {field.name for field in kind} == {"bytes", "path"}:
        return "picture"
    if types.is_binary(kind) or types.is_large_binary(kind):
        return "picture"
    return "numbers"


def _label(pieces: list[tuple[Piece, int, int]], first: Any, label: str, where: str) -> tuple[Column, list[str]]:
    """The column of the classes, and their names where they are named in the rows."""
    import pyarrow.compute as compute
    import pyarrow.types as types

    values = first.column(first.schema.get_field_index(label))
    if not (types.is_string(values.type) or types.is_large_string(values.type)):
        return _column(values, f"{where}: {label!r}"), []
    found: set[str] = set()
    for piece, _, _ in pieces:
        for batch in _batches(piece, [label]):
            found.update(name for name in compute.unique(batch.column(0)).to_pylist() if name is not None)
        if len(found) > MAX_CLASSES:
            raise DatasetError(f"{piece.path}: more than {MAX_CLASSES:,} classes in {label!r}")
    return Column("I64", ()), sorted(found)


def _column(values: Any, what: str) -> Column:
    """The column of an array's numbers, or equal lists of numbers, from its first row."""
    import pyarrow.types as types

    shape: list[int] = []
    while types.is_nested(values.type) and hasattr(values.type, "value_type"):
        inner = values[0].values if len(values) else None
        if inner is None:
            raise DatasetError(f"{what} has an empty list in its first row")
        shape.append(len(inner))
        values = inner
    kind = values.type
    letters = {"uint": "U", "int": "I", "float": "F", "halffloat": "F", "double": "F"}
    name = str(kind)
    if types.is_boolean(kind):
        return Column("BOOL", tuple(shape))
    if types.is_integer(kind) or types.is_floating(kind):
        return Column(f"{letters[name.rstrip('0123456789')]}{kind.bit_width}", tuple(shape))
    raise DatasetError(f"{what} is {name}, not numbers", hint="choose columns with --field")


def _number_rows(values: Any, column: Column, what: str) -> list[bytes]:
    """Each row's bytes; raises `DatasetError` where a row's list has another length than those before."""
    import pyarrow
    import pyarrow.types as types

    rows = len(values)
    count = rows
    for length in column.shape:
        values = values.flatten()
        count *= length
        if len(values) != count or values.null_count:
            raise DatasetError(f"{what} has lists that are not all {list(column.shape)} numbers")
    if types.is_nested(values.type):
        raise DatasetError(f"{what} has lists that are not all {list(column.shape)} numbers")
    if types.is_boolean(values.type):
        values = values.cast(pyarrow.uint8())
    size = values.type.bit_width // 8
    content = values.buffers()[1].to_pybytes()[values.offset * size : (values.offset + count) * size]
    step = column.row_bytes
    return [content[at : at + step] for at in range(0, rows * step, step)] if step else [b""] * rows


def _batches(piece: Piece, columns: list[str]) -> Iterator[Any]:
    """The record batches of a piece; no more of the columns than those named, where any is."""
    try:
        if piece.path.suffix == ".arrow":
            for batch in islice(_stream(piece.path), piece.start, piece.end):
                yield batch.select(columns) if columns else batch
            return
        import pyarrow.parquet as parquet

        groups = list(range(piece.start, piece.end))
        file = parquet.ParquetFile(piece.path)
        yield from file.iter_batches(BATCH_ROWS, row_groups=groups, columns=columns or None, use_threads=False)
    except (OSError, ValueError, KeyError) as error:
        raise DatasetError(f"{piece.path} cannot be read: {error}") from error


def _stream(path: Path) -> Iterator[Any]:
    import pyarrow

    try:
        with pyarrow.memory_map(str(path)) as mapped, pyarrow.ipc.open_stream(mapped) as reader:
            yield from reader
    except (OSError, ValueError) as error:
        raise DatasetError(f"{path} is not a file of record batches: {error}") from error


def _encoded(cell: Any, where: str) -> bytes:
    content = cell.get("bytes") if isinstance(cell, dict) else cell
    if not isinstance(content, bytes):
        raise DatasetError(f"{where}: the picture is not in the file, only named", hint="embed it before saving")
    return content
