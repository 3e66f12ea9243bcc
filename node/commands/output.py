"""The one place of the daemon's commands that writes to the terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

PROGRAM = "hypha-node"


def say(text: str) -> None:
    """A line of the result."""
    sys.stdout.write(f"{text}\n")


def warn(text: str) -> None:
    """A line beside the result, on stderr."""
    sys.stderr.write(f"{PROGRAM}: {' '.join(text.split())}\n")


def columns(rows: Iterable[Sequence[str]]) -> None:
    """Rows of the result, in columns."""
    rows = list(rows)
    widths = [max(len(row[index]) for row in rows) for index in range(len(rows[0]))] if rows else []
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        say("  ".join(cells).rstrip())
