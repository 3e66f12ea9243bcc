"""`hypha-node dataset`: build datasets, check them, show what is in them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import App, Parameter

from node.errors import DatasetError

app = App(name="dataset", help="Build, verify or show a dataset.")


@app.command
def build(
    *sources: Path,
    out: Annotated[Path, Parameter(help="Folder of the dataset; its name is the dataset's.")],
    format: Annotated[Literal["text", "jsonl", "numpy"], Parameter(help="What the sources are.")] = "text",
    glob: Annotated[str, Parameter(help="Which files of a folder to take, such as '*.py'.")] = "",
    field: Annotated[
        list[str] | None, Parameter(negative="", help="Field of the JSON lines, or array, to take; may be repeated.")
    ] = None,
    sequence_length: Annotated[int, Parameter(help="Tokens (bytes) of a row of text.")] = 128,
    rows_per_slice: Annotated[int, Parameter(help="Rows of a slice.")] = 4096,
    validation_fraction: Annotated[
        float, Parameter(help="Part of the input for a second dataset, <out>-validation.")
    ] = 0.0,
    seed: Annotated[int, Parameter(help="Decides the order of the input and the split.")] = 0,
    max_bytes: Annotated[int | None, Parameter(help="Take no more than this of the input.")] = None,
    force: Annotated[bool, Parameter(negative="", help="Replace datasets that are there already.")] = False,
    json: Annotated[bool, Parameter(negative="", help="Print the result as JSON.")] = False,
) -> int:
    """Build a dataset from files and folders. The same input and settings give the same digests.

    text: the bytes of the files are the tokens. jsonl: the field `text` likewise, or fields of numbers. numpy: arrays.
    """
    from node.data.build import Recipe
    from node.data.build import build as build_dataset

    if not sources:
        raise DatasetError("no sources given", hint="name files or folders before --out")
    recipe = Recipe(
        sources=sources,
        format=format,
        glob=glob,
        fields=tuple(field or ()),
        sequence_length=sequence_length,
        rows_per_slice=rows_per_slice,
        validation_fraction=validation_fraction,
        seed=seed,
        max_bytes=max_bytes,
    )
    made = build_dataset(recipe, out, force=force, report=_progress if sys.stderr.isatty() else None)
    _tell([_summary(dataset) for dataset in made], as_json=json)
    return 0


@app.command
def verify(
    folder: Path, *, json: Annotated[bool, Parameter(negative="", help="Print the result as JSON.")] = False
) -> int:
    """Read every slice and compare it with the manifest. Exit code 1 where something is wrong."""
    from node.data.datasets import verify as verify_dataset

    dataset, problems = verify_dataset(folder)
    if json:
        _tell([_summary(dataset) | {"problems": problems}], as_json=True)
    else:
        for problem in problems:
            sys.stdout.write(f"{problem}\n")
        count = len(dataset.manifest.slices)
        verdict = f"{len(problems)} problems" if problems else "all as the manifest says"
        sys.stdout.write(f"{dataset.name}: {count} slices, {dataset.rows:,} rows: {verdict}\n")
    return 1 if problems else 0


@app.command
def show(
    folder: Path, *, json: Annotated[bool, Parameter(negative="", help="Print the manifest as JSON.")] = False
) -> int:
    """Show a dataset's slices."""
    from node.data.datasets import read_manifest

    dataset = read_manifest(folder)
    if json:
        import msgspec

        content = _summary(dataset) | {"entries": msgspec.to_builtins(dataset.manifest.slices)}
        _tell([content], as_json=True)
        return 0
    from rich.console import Console
    from rich.table import Table

    table = Table("slice", "name", "rows", "bytes", "sha256", box=None)
    for column in (0, 2, 3):
        table.columns[column].justify = "right"
    for index, info in enumerate(dataset.manifest.slices):
        table.add_row(str(index), info.name, f"{info.rows:,}", f"{info.size_bytes:,}", info.sha256[:16])
    Console().print(table)
    _tell([_summary(dataset)], as_json=False)
    return 0


def _summary(dataset: Any) -> dict[str, Any]:
    return {
        "name": dataset.name,
        "path": str(dataset.folder),
        "slices": len(dataset.manifest.slices),
        "rows": dataset.rows,
        "size_bytes": dataset.size_bytes,
        "digest": dataset.digest,
        "schema": dataset.manifest.schema,
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


def _progress(rows: int) -> None:
    sys.stderr.write(f"\r{rows:,} rows")
    sys.stderr.flush()
