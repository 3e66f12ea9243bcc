"""Datasets built from files: cut into slices, split into training and validation, the same for the same input."""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from node.data.building import building, show
from node.data.datasets import MANIFEST, Dataset, load_manifest, make_manifest, name_of, write_file
from node.data.tables import Column, JsonTable, NumpyTable, Table, TextTable
from node.errors import DatasetError
from node.network.partfile import sync_directory
from node.tensorfile import write_tensors

Format = Literal["text", "jsonl", "numpy"]
PATTERNS: dict[Format, str] = {"text": "*", "jsonl": "*.jsonl", "numpy": "*.np[yz]"}
ROWS_PER_SLICE = 4_096
SEQUENCE_LENGTH = 128

Report = Callable[[int], None]
"""Called with the number of rows written so far."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """What to build a dataset from, and how."""

    sources: Sequence[Path]
    format: Format
    glob: str = ""
    fields: Sequence[str] = ()
    sequence_length: int = SEQUENCE_LENGTH
    rows_per_slice: int = ROWS_PER_SLICE
    validation_fraction: float = 0.0
    seed: int = 0
    max_bytes: int | None = None


def build(recipe: Recipe, out: Path, *, force: bool = False, report: Report | None = None) -> list[Dataset]:
    """Build `out`, and `<out>-validation` where a fraction is for validation. Nothing is seen there before it is whole.

    Raises `DatasetError`; with `force` datasets that are there already are replaced, other folders never.
    """
    if recipe.sequence_length < 1 or recipe.rows_per_slice < 1 or not 0 <= recipe.validation_fraction < 1:
        raise DatasetError("lengths are at least 1, and the validation fraction is from 0 to below 1")
    targets = [out]
    if recipe.validation_fraction:
        targets.append(out.with_name(f"{out.name}-validation"))
    for target in targets:
        name_of(target)
        _check_target(target, force)
    table = _table_of(recipe)
    if not table.units:
        raise DatasetError("the sources are empty")
    units_of = _split(table.units, recipe)
    try:
        with contextlib.ExitStack() as stack:
            parts = [stack.enter_context(building(target)) for target in targets]
            for part, target, units in zip(parts, targets, units_of, strict=True):
                _write(part, target.name, table, units, recipe, report)
            for part, target in zip(parts, targets, strict=True):
                show(part, target)
            sync_directory(out.parent)
    except OSError as error:
        raise DatasetError(f"{out} cannot be built: {error.strerror}") from error
    return [dataset for target in targets if (dataset := load_manifest(target)) is not None]


def files_of(sources: Iterable[Path], pattern: str) -> list[Path]:
    """The files named, and those below folders whose name matches `pattern`; each folder in path order.

    Hidden files and folders, links, and the caches of the Python interpreter are left out of folders.
    """
    files: list[Path] = []
    for source in sources:
        if source.is_dir():
            files += sorted(_walk(source, pattern))
        elif source.exists():
            files.append(source)
        else:
            raise DatasetError(f"{source} does not exist")
    if not files:
        raise DatasetError(f"no file matches {pattern!r} in {', '.join(map(str, sources))}", hint="see --glob")
    return files


def _walk(folder: Path, pattern: str) -> Iterable[Path]:
    for root, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".") and name != "__pycache__"]
        for name in names:
            path = Path(root, name)
            if not name.startswith(".") and path.match(pattern) and path.is_file() and not path.is_symlink():
                yield path


def _table_of(recipe: Recipe) -> Table:
    files = files_of(recipe.sources, recipe.glob or PATTERNS[recipe.format])
    if recipe.format == "text":
        return TextTable(files, recipe.sequence_length, recipe.max_bytes)
    if recipe.format == "jsonl":
        return JsonTable(files, recipe.fields, recipe.sequence_length, recipe.max_bytes)
    return NumpyTable(files, recipe.fields, recipe.max_bytes)


def _split(units: int, recipe: Recipe) -> list[list[int]]:
    """The units of each part, mixed: every slice is a sample of the whole."""
    order = list(range(units))
    random.Random(recipe.seed).shuffle(order)
    if not recipe.validation_fraction:
        return [order]
    held_out = max(1, round(units * recipe.validation_fraction))
    if held_out >= units:
        raise DatasetError(f"{units} pieces are too few to keep {recipe.validation_fraction:g} of them for validation")
    return [order[held_out:], order[:held_out]]


def _write(part: Path, name: str, table: Table, units: list[int], recipe: Recipe, report: Report | None) -> None:
    pending = {column: bytearray() for column in table.columns}
    mix = random.Random(recipe.seed)
    slices = rows = 0

    def flush(count: int) -> None:
        nonlocal slices, rows
        # Neighbours in a file are alike: a batch of them would be a poor sample.
        order = mix.sample(range(count), count)
        tensors = {}
        for key, column in table.columns.items():
            size = count * column.row_bytes
            tensors[key] = (column.dtype, (count, *column.shape), _rows(pending[key], column.row_bytes, order))
            del pending[key][:size]
        write_tensors(part / f"slice-{slices:05d}.safetensors", tensors)
        slices += 1
        rows += count
        if report is not None:
            report(rows)

    for unit in units:
        for key, content in table.read(unit).items():
            pending[key] += content
        while _rows_in(pending, table.columns) >= recipe.rows_per_slice:
            flush(recipe.rows_per_slice)
    if rest := _rows_in(pending, table.columns):
        flush(rest)
    if not rows:
        raise DatasetError(f"{name} would have no rows: the sources hold less than one")
    write_file(part / MANIFEST, make_manifest(part, name))
    sync_directory(part)


def _rows(content: bytearray, row_bytes: int, order: list[int]) -> bytes:
    return b"".join(content[row * row_bytes : (row + 1) * row_bytes] for row in order)


def _rows_in(pending: dict[str, bytearray], columns: dict[str, Column]) -> int:
    return min(len(pending[key]) // max(1, column.row_bytes) for key, column in columns.items())


def _check_target(target: Path, force: bool) -> None:
    if not target.exists():
        return
    if not (target / MANIFEST).is_file() and (not target.is_dir() or any(target.iterdir())):
        raise DatasetError(f"{target} exists and is not a dataset", hint="choose another --out")
    if not force:
        raise DatasetError(f"{target} exists", hint="--force replaces it")
