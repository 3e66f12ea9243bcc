"""Datasets built from files: read into rows, mixed, cut into slices; the same for the same input and settings.

Rows are spooled to disk on the way, so that a dataset may be larger than memory, and everything that is finished is
kept: a build that was killed goes on where it was when it is started again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import msgspec

from node.data.building import building, show
from node.data.contents import with_few_classes
from node.data.datasets import Dataset, encode_manifest, hash_file, load_manifest, name_of, write_file
from node.data.processes import Processes
from node.data.recipe import Recipe
from node.data.sources.source import Source
from node.data.spool import Cut, Cutting, Parts, Spooling, cut, file_of, is_spooled, parts_of, spool
from node.errors import DatasetError
from node.manifest import MANIFEST
from node.network.partfile import sync_directory
from node.wire import UNDECODABLE, Manifest, SliceInfo

WORTH_PROCESSES_BYTES = 32 << 20
"""Less input than this is read sooner than processes have started."""

Report = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and how much there is."""


@dataclass(frozen=True, slots=True)
class _Part:
    """A dataset in the making: where it grows, what it will be called, and its slices that are finished."""

    folder: Path
    name: str
    done: dict[str, SliceInfo]


def build(
    recipe: Recipe,
    out: Path,
    *,
    force: bool = False,
    workers: int | None = None,
    report: Report | None = None,
    split_of: str = "",
) -> list[Dataset]:
    """Build `out`, or the datasets whose names begin with it where the recipe has several. None is seen before all are.

    `workers`: processes (None: as many as are worth it); what is built does not depend on them. Raises `DatasetError`;
    with `force` datasets that are there already are replaced, other folders never.
    """
    recipe.check()
    targets = [out.with_name(out.name + ending) for ending, _ in recipe.parts()]
    for target in targets:
        name_of(target)
        _check_target(target, force)
    files = recipe.files()
    key = recipe.key(files, [target.name for target in targets])
    count = workers if workers is not None else _worth(files)
    tell = report or (lambda *_: None)
    try:
        with building(out, key) as folder, Processes(count) as processes:
            tell("looking", 0, len(files))
            source = recipe.open(files, folder)
            if not source.units or not source.record_bytes:
                raise DatasetError("the sources are empty")
            parts = [_part(folder, number, target.name) for number, target in enumerate(targets)]
            made = parts_of(source.units, [share for _, share in recipe.parts()], recipe.seed)
            _spool(source, folder / "rows", made, processes, tell)
            for number, part in enumerate(parts):
                _cut(recipe, source, folder / "rows", number, part, processes, tell)
                _finish(part, source, split_of)
            for part, target in zip(parts, targets, strict=True):
                show(part.folder, target, key)
            sync_directory(out.parent)
    except OSError as error:
        raise DatasetError(f"{out} cannot be built: {error.strerror}") from error
    return [dataset for target in targets if (dataset := load_manifest(target)) is not None]


def _worth(files: Sequence[Path]) -> int:
    size = 0
    for path in files:
        size += path.stat().st_size
        if size >= WORTH_PROCESSES_BYTES:
            return os.cpu_count() or 1
    return 1


def _part(folder: Path, number: int, name: str) -> _Part:
    """The part's folder, with those of its slices that are what the journal says; everything else goes."""
    made = folder / f"part-{number}"
    made.mkdir(exist_ok=True)
    done: dict[str, SliceInfo] = {}
    journal = _journal(made)
    if journal.exists():
        for line in journal.read_bytes().splitlines():
            try:
                info = msgspec.json.decode(line, type=SliceInfo)
            except UNDECODABLE:  # the line that was being written
                continue
            path = made / info.name
            if path.exists() and hash_file(path) == info.sha256:
                done[info.name] = info
    for path in made.iterdir():
        if path.name not in done:
            path.unlink()
    return _Part(made, name, done)


def _journal(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.slices")


def _spool(source: Source, rows: Path, parts: Parts, processes: Processes, tell: Report) -> None:
    """Write the rows of all chunks that are not there yet."""
    rows.mkdir(exist_ok=True)
    for path in rows.glob(".*.part"):
        path.unlink()
    firsts = accumulate((chunk.units for chunk in source.chunks), initial=0)
    tasks = [
        (number, first, chunk)
        for number, (first, chunk) in enumerate(zip(firsts, source.chunks, strict=False))
        if not is_spooled(rows, number, parts)
    ]
    done = source.units - sum(chunk.units for _, _, chunk in tasks)
    given = Spooling(source.reader, rows, parts, source.record_bytes)
    for (_, _, chunk), _ in processes.each(spool, given, tasks):
        done += chunk.units
        tell("reading", done, source.units)


def _cut(
    recipe: Recipe, source: Source, spooled: Path, number: int, part: _Part, processes: Processes, tell: Report
) -> None:
    """Make the slices of a part that are not there yet."""
    files = [file_of(spooled, chunk, number) for chunk in range(len(source.chunks))]
    rows = [path.stat().st_size // source.record_bytes for path in files]
    total = sum(rows)
    if not total:
        raise DatasetError(f"{part.name} would have no rows: the sources hold less than one")
    step = recipe.rows_per_slice
    if recipe.slice_bytes is not None:
        step = max(1, recipe.slice_bytes // source.record_bytes)
    digits = max(5, len(str(total // step)))
    cuts = [
        Cut(f"slice-{index:0{digits}d}.safetensors", start, min(start + step, total))
        for index, start in enumerate(range(0, total, step))
    ]
    wanted = [task for task in cuts if task.name not in part.done]
    seed = recipe.seed if recipe.is_shuffled else None
    given = Cutting(files, rows, source.columns, part.folder, seed)
    done = total - sum(task.end - task.start for task in wanted)
    with _journal(part.folder).open("ab") as journal:
        journal.write(b"\n")
        for task, info in processes.each(cut, given, wanted):
            journal.write(msgspec.json.encode(info) + b"\n")
            journal.flush()
            part.done[info.name] = info
            done += task.end - task.start
            tell(f"writing {part.name}", done, total)


def _finish(part: _Part, source: Source, split_of: str) -> None:
    schema = {
        name: f"{column.dtype}[{','.join(map(str, column.shape))}]" for name, column in sorted(source.columns.items())
    }
    for name in part.done:
        with (part.folder / name).open("rb") as file:
            os.fsync(file.fileno())
    infos = with_few_classes([info for _, info in sorted(part.done.items())])
    manifest = Manifest(name=part.name, slices=infos, schema=schema, classes=source.classes, split_of=split_of)
    write_file(part.folder / MANIFEST, encode_manifest(manifest))
    sync_directory(part.folder)


def _check_target(target: Path, force: bool) -> None:
    if not target.exists():
        return
    if not (target / MANIFEST).is_file() and (not target.is_dir() or any(target.iterdir())):
        raise DatasetError(f"{target} exists and is not a dataset", hint="choose another --out")
    if not force:
        raise DatasetError(f"{target} exists", hint="--force replaces it")
