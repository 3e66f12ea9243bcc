"""What the commands print: one JSON document, or a plain aligned table. Data to stdout, everything else to stderr."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
from rich.cells import cell_len

from hypha_tui.store.columns import COLUMNS, Look
from hypha_tui.store.text import clean
from node.views import AnyView


def data(value: Any) -> None:
    """One JSON document."""
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n")


def line(text: str) -> None:
    """A line of plain output."""
    sys.stdout.write(clean(text) + "\n")


def note(text: str) -> None:
    """A line about what goes on, not part of the output."""
    sys.stderr.write(clean(text) + "\n")
    sys.stderr.flush()


@contextmanager
def progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on stderr for as long as the block runs, fed with bytes done and bytes in all; none without a terminal."""
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    speed = (TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, *speed, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(clean(what).replace("[", "("), total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Columns two spaces apart, as wide as they must be."""
    shown = [[clean(cell) for cell in row] for row in (head, *rows)]
    widths = [max(cell_len(row[number]) for row in shown) for number in range(len(head))]
    for row in shown:
        cells = [cell + " " * (width - cell_len(cell)) for cell, width in zip(row, widths, strict=True)]
        sys.stdout.write("  ".join(cells).rstrip() + "\n")


def objects(kind: str, views: Sequence[AnyView], look: Look) -> None:
    """A table of objects with the columns of the screen, ids whole."""
    columns = COLUMNS[kind]
    rows = [[column.cell(view, look)[0] for column in columns] for view in views]
    table([column.title for column in columns], rows)
