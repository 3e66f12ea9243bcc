"""What the commands print: JSON, or a plain aligned table. Data to stdout, everything else to stderr."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
from rich.cells import cell_len

from hypha_tui.store.text import clean


def data(value: Any) -> None:
    """One JSON document."""
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n")


def json_line(value: Any) -> None:
    """One JSON document on a line of its own."""
    sys.stdout.write(msgspec.json.encode(value).decode() + "\n")


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


def table(
    head: Sequence[str], rows: Sequence[Sequence[str]], *, has_head: bool = True, least: Sequence[int] = ()
) -> None:
    """Columns two spaces apart, as wide as they must be, and as `least` says."""
    shown = [[clean(cell) for cell in row] for row in (head, *rows)]
    widths = [max(cell_len(row[number]) for row in shown) for number in range(len(head))]
    widths = [max(pair) for pair in zip(widths, least, strict=True)] if least else widths
    for row in shown if has_head else shown[1:]:
        cells = [cell + " " * (width - cell_len(cell)) for cell, width in zip(row, widths, strict=True)]
        sys.stdout.write("  ".join(cells).rstrip() + "\n")
