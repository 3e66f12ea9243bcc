"""`hypha-node dataset`: build datasets, divide them, check them, show what is in them."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Parameter

from node.errors import DatasetError
from node.storeurl import is_store_url

if TYPE_CHECKING:
    from node.data.build import Report

app = App(name="dataset", help="Build, split, verify or show a dataset.")

Formats = Literal["text", "jsonl", "csv", "parquet", "numpy", "saved", "images", "function", "slices"]
Json = Annotated[bool, Parameter(negative="", help="Print the result as JSON.")]
Force = Annotated[bool, Parameter(negative="", help="Replace datasets that are there already.")]
Place = Annotated[str, Parameter(help="Folder of the dataset, or its address: s3://, gs:// or az://bucket/path/name.")]
Workers = Annotated[int | None, Parameter(help="Processes to share the work; what is built does not depend on them.")]


@app.command
def build(
    *sources: str,
    out: Annotated[Path, Parameter(help="Folder of the dataset; its name is the dataset's.")],
    format: Annotated[Formats, Parameter(help="What the sources are.")] = "text",
    glob: Annotated[str, Parameter(help="Which files of a folder to take, such as '*.py'.")] = "",
    field: Annotated[
        list[str] | None, Parameter(negative="", help="Field, column or array to take; may be repeated.")
    ] = None,
    label: Annotated[str, Parameter(help="Field of classes, by name or number; becomes `labels`.")] = "",
    tokenizer: Annotated[
        Path | None, Parameter(help="Folder of a Hugging Face tokenizer; without it, bytes are the tokens.")
    ] = None,
    sequence_length: Annotated[int, Parameter(help="Tokens of a row of text.")] = 128,
    image_size: Annotated[str, Parameter(help="Pictures become so large: 224, or 240x320.")] = "",
    fit: Annotated[Literal["crop", "stretch"], Parameter(help="How pictures are made to fit.")] = "crop",
    gray: Annotated[bool, Parameter(negative="", help="Pictures have one channel, not three.")] = False,
    rows_per_slice: Annotated[int, Parameter(help="Rows of a slice.")] = 4096,
    slice_bytes: Annotated[int | None, Parameter(help="Bytes of a slice, about, instead of its rows.")] = None,
    validation_fraction: Annotated[
        float, Parameter(help="Part of the input for a second dataset, <out>-validation.")
    ] = 0.0,
    shuffle: Annotated[bool, Parameter(help="Mix the rows of the whole dataset.")] = True,
    seed: Annotated[int, Parameter(help="Decides the order of the rows and the split.")] = 0,
    max_bytes: Annotated[int | None, Parameter(help="Take no more than this of the input.")] = None,
    workers: Workers = None,
    force: Force = False,
    json: Json = False,
) -> int:
    """Build a dataset from files, folders or a function. The same input and settings give the same digests.

    An interrupted build goes on where it was when the same command is given again.
    """
    from node.data.build import build as build_dataset
    from node.data.recipe import Recipe

    if not sources:
        raise DatasetError("no sources given", hint="name files or folders before --out")
    recipe = Recipe(
        sources=sources if format == "function" else [Path(source) for source in sources],
        format=format,
        glob=glob,
        fields=tuple(field or ()),
        label=label,
        tokenizer=tokenizer,
        sequence_length=sequence_length,
        image_size=image_size,
        fit=fit,
        is_gray=gray,
        rows_per_slice=rows_per_slice,
        slice_bytes=slice_bytes,
        validation_fraction=validation_fraction,
        is_shuffled=shuffle,
        seed=seed,
        max_bytes=max_bytes,
    )
    with _progress() as report:
        made = build_dataset(recipe, out, force=force, workers=workers, report=report)
    _tell([_summary(dataset) for dataset in made], as_json=json)
    return 0


@app.command
def split(
    folder: Path,
    *parts: str,
    by: Annotated[
        Literal["rows", "slices"], Parameter(help="What is divided: all rows anew, or whole slices.")
    ] = "rows",
    seed: Annotated[int, Parameter(help="Decides what goes where.")] = 0,
    out: Annotated[Path | None, Parameter(help="Folder to put the parts into; default: beside the dataset.")] = None,
    workers: Workers = None,
    force: Force = False,
    json: Json = False,
) -> int:
    """Divide a dataset into parts, such as train=0.9 validation=0.1: datasets <name>-train and <name>-validation."""
    from node.data.splitting import parse_shares
    from node.data.splitting import split as split_dataset

    shares = parse_shares(parts)
    with _progress() as report:
        made = split_dataset(folder, shares, by=by, seed=seed, out=out, force=force, workers=workers, report=report)
    _tell([_summary(dataset) for dataset in made], as_json=json)
    return 0


@app.command
def verify(dataset: Place, *, json: Json = False) -> int:
    """Read every slice and compare it with the manifest. Exit code 1 where something is wrong."""
    from node.data.contents import class_problems, labels_in

    if is_store_url(dataset):
        from node.data.objects import labels_below, verify_stored
        from node.objectstore import open_bucket

        found, problems = verify_stored(dataset)
        labels = labels_below(open_bucket(dataset))
    else:
        from node.data.datasets import verify as verify_folder

        found, problems = verify_folder(Path(dataset))
        labels = labels_in(found)
    problems += class_problems(found.manifest, labels)
    if json:
        _tell([_summary(found, dataset) | {"problems": problems}], as_json=True)
    else:
        for problem in problems:
            sys.stdout.write(f"{problem}\n")
        count = len(found.manifest.slices)
        verdict = f"{len(problems)} problems" if problems else "all as the manifest says"
        sys.stdout.write(f"{found.name}: {count} slices, {found.rows:,} rows: {verdict}\n")
    return 1 if problems else 0


@app.command
def show(
    dataset: Place,
    *,
    slices: Annotated[bool, Parameter(negative="", help="List the slices.")] = False,
    json: Json = False,
) -> int:
    """Show a dataset's schema, rows, sizes of slices, and how many rows each class has."""
    from node.data.contents import class_counts, histogram, labels_in

    if is_store_url(dataset):
        from node.data.objects import labels_below, read_stored

        found, bucket = read_stored(dataset)
        labels = labels_below(bucket)
    else:
        from node.data.datasets import read_manifest

        found = read_manifest(Path(dataset))
        labels = labels_in(found)
    manifest = found.manifest
    counts = class_counts(manifest, labels)
    if json:
        import msgspec

        content = _summary(found, dataset) | {"classes": counts, "entries": msgspec.to_builtins(manifest.slices)}
        _tell([content], as_json=True)
        return 0
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, markup=False)
    if slices:
        table = Table("slice", "name", "rows", "bytes", "sha256", box=None)
        for column in (0, 2, 3):
            table.columns[column].justify = "right"
        for index, info in enumerate(manifest.slices):
            table.add_row(str(index), info.name, f"{info.rows:,}", f"{info.size_bytes:,}", info.sha256[:16])
        console.print(table)
    _tell([_summary(found, dataset)], as_json=False)
    lines = [f"  {tensor:<20} {kind}" for tensor, kind in manifest.schema.items()]
    lines += ["bytes of slices:", *histogram([info.size_bytes for info in manifest.slices])]
    if counts:
        lines.append("rows of classes:")
        lines += [f"  {name:<20} {count:>12,}" for name, count in counts.items()]
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


def _summary(dataset: Any, where: str = "") -> dict[str, Any]:
    return {
        "name": dataset.name,
        "path": where or str(dataset.folder),
        "slices": len(dataset.manifest.slices),
        "rows": dataset.rows,
        "size_bytes": dataset.size_bytes,
        "digest": dataset.digest,
        "schema": dataset.manifest.schema,
        "split_of": dataset.manifest.split_of,
    }


def _tell(summaries: list[dict[str, Any]], *, as_json: bool) -> None:
    if as_json:
        import json

        content = summaries[0] if len(summaries) == 1 else summaries
        sys.stdout.write(json.dumps(content, indent=1) + "\n")
        return
    for summary in summaries:
        tensors = ", ".join(f"{name} {kind}" for name, kind in summary["schema"].items())
        sys.stdout.write(
            f"{summary['path']}: {summary['slices']} slices, {summary['rows']:,} rows, "
            f"{summary['size_bytes']:,} bytes, {tensors}, digest {summary['digest'][:16]}\n"
        )


@contextlib.contextmanager
def _progress() -> Iterator[Report | None]:
    """A bar on a terminal, nothing elsewhere."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        tasks: dict[str, Any] = {}

        def report(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what)
            bar.update(tasks[what], completed=done, total=total)

        yield report
