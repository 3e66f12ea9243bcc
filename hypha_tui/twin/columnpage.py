"""The table of columns in `docs/scripting.md`, made from the columns: `python -m hypha_tui.twin.columnpage`."""

from __future__ import annotations

import sys
from typing import Final

from hypha_tui.store.records import TABLES

UNITS: Final = {"s": "s", "ms": "ms", "d": "days", "B": "bytes", "B/s": "bytes/s", "%": "share of 1"}


def section() -> str:
    """A line for each command: the keys of its columns, each with its unit, and with its other names."""
    lines = ["| command | columns |", "|---|---|"]
    for command, columns in TABLES.items():
        keys: list[str] = []
        for column in columns:
            others = "".join(f", also `{alias}`" for alias in column.aliases)
            unit = UNITS.get(column.measure, "")
            note = f" ({unit}{others if unit else others[2:]})" if unit or others else ""
            keys.append(f"`{column.key}`{note}")
        lines.append(f"| `{command}` | {', '.join(keys)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(section())
