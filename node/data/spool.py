"""The rows of a build on their way: records in files, one for each chunk and part, and slices made of them."""

from __future__ import annotations

import mmap
import os
import secrets
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from node.data.contents import counted
from node.data.datasets import hash_file
from node.data.permutation import Permutation
from node.data.sources.source import LABELS, Chunk, Column, Reader
from node.errors import DatasetError
from node.tensorfile import write_tensors
from node.wire import SliceInfo


@dataclass(frozen=True, slots=True)
class Parts:
    """Which units go to which part: part n has those that a shuffle puts before its bound and after the one before."""

    units: int
    bounds: tuple[int, ...]
    seed: int


@dataclass(frozen=True, slots=True)
class Spooling:
    """What spooling a chunk needs to know."""

    reader: Reader
    folder: Path
    parts: Parts
    record_bytes: int


@dataclass(frozen=True, slots=True)
class Cutting:
    """What cutting slices needs to know: the part's files with their rows, what is in a record, where slices go.

    `seed`: rows come from the whole part in an order that follows from it; None: in the order of the input.
    """

    files: Sequence[Path]
    rows: Sequence[int]
    columns: dict[str, Column]
    folder: Path
    seed: int | None


@dataclass(frozen=True, slots=True)
class Cut:
    """A slice to be made: rows `start` up to, not including, `end` of the part, in its order."""

    name: str
    start: int
    end: int


def parts_of(units: int, shares: Sequence[float], seed: int) -> Parts:
    """Units divided by shares, each of one unit at least; raises `DatasetError` where there are too few."""
    total = sum(shares)
    bounds: list[int] = []
    at, given = 0, 0.0
    for number, share in enumerate(shares):
        given += share
        at = min(max(at + 1, round(units * given / total)), units - (len(shares) - 1 - number))
        bounds.append(at)
    if units < len(shares):
        raise DatasetError(f"{units} pieces are too few for {len(shares)} parts")
    return Parts(units, tuple(bounds), seed)


def file_of(folder: Path, chunk: int, part: int) -> Path:
    """Where a chunk's rows of a part lie."""
    return folder / f"{chunk:06d}.{part}"


def is_spooled(folder: Path, chunk: int, parts: Parts) -> bool:
    """Whether all rows of a chunk are there: the last part's file is shown last."""
    return file_of(folder, chunk, len(parts.bounds) - 1).exists()


def spool(given: Spooling, task: tuple[int, int, Chunk]) -> int:
    """Write the rows of a chunk, given with its number and that of its first unit; how many whole rows there are."""
    number, first_unit, chunk = task
    parts = given.parts
    names = [file_of(given.folder, number, part) for part in range(len(parts.bounds))]
    made = [path.with_name(f".{path.name}.{secrets.token_hex(6)}.part") for path in names]
    files = [path.open("xb") for path in made]
    rows = 0
    try:
        order = Permutation(parts.units, f"hypha parts {parts.seed}") if len(names) > 1 else None
        for unit, content in enumerate(islice(given.reader.read(chunk), chunk.units), start=first_unit):
            files[bisect_right(parts.bounds, order[unit]) if order else 0].write(content)
        for file in files:
            whole = file.tell() // max(1, given.record_bytes)
            rows += whole
            file.truncate(whole * given.record_bytes)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise DatasetError(f"the rows cannot be written to {given.folder}: {error.strerror}") from error
    finally:
        for file in files:
            file.close()
    for part, path in zip(made, names, strict=True):
        part.replace(path)
    return rows


def cut(given: Cutting, task: Cut) -> SliceInfo:
    """Make a slice of spooled rows. It is for the caller to have it synced: one by one takes longer than all else."""
    total = sum(given.rows)
    order = range(total) if given.seed is None else Permutation(total, f"hypha rows {given.seed}")
    wanted = [order[position] for position in range(task.start, task.end)]
    records = _records(given, wanted)
    tensors = {}
    at = 0
    for name, column in given.columns.items():
        size = column.row_bytes
        content = b"".join([record[at : at + size] for record in records])
        tensors[name] = (column.dtype, (len(records), *column.shape), content)
        at += size
    dtype, (_, *shape), content = tensors.get(LABELS, ("", (0, 0), b""))
    path = given.folder / task.name
    write_tensors(path, tensors, durable=False)
    return SliceInfo(
        name=task.name,
        size_bytes=path.stat().st_size,
        rows=task.end - task.start,
        sha256=hash_file(path),
        labels=counted(dtype, shape, content),
    )


def _records(given: Cutting, wanted: list[int]) -> list[bytes]:
    """The records with these numbers, in this order; every file is opened once at most."""
    size = sum(column.row_bytes for column in given.columns.values())
    ends = []
    end = 0
    for rows in given.rows:
        end += rows
        ends.append(end)
    found = [b""] * len(wanted)
    places = sorted(range(len(wanted)), key=wanted.__getitem__)
    at = 0
    while at < len(places):
        number = bisect_right(ends, wanted[places[at]])
        first = ends[number] - given.rows[number]
        # Mapped, as a call for each row would take longer than the row.
        with (
            given.files[number].open("rb", buffering=0) as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
        ):
            while at < len(places) and wanted[places[at]] < ends[number]:
                place = places[at]
                offset = (wanted[place] - first) * size
                found[place] = content[offset : offset + size]
                at += 1
    if any(len(record) != size for record in found):
        raise DatasetError("the rows were cut short while they were read")
    return found
