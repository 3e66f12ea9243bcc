"""Which columns of a table are laid out, and how wide."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TypeVar

from hypha_tui.store.columns import Column
from node.views import AnyView

V = TypeVar("V", bound=AnyView)
Plan = list[tuple[Column[V], int]]
"""Columns with their widths."""


def plan(columns: Sequence[Column[V]], width: int, *, gap: int = 2, hidden: Collection[str] = ()) -> Plan[V]:
    """The columns that fit into `width` cells, each with its width; spare cells go to those that grow."""
    level = 2 if width >= 160 else 1 if width >= 110 else 0
    fitting: set[str] = set()
    used = -gap
    for column in sorted(columns, key=lambda column: not column.vital):
        if column.key not in hidden and column.level <= level and used + gap + column.width <= width:
            fitting.add(column.key)
            used += gap + column.width
    return _spread([column for column in columns if column.key in fitting], width - used)


def wide_plan(columns: Sequence[Column[V]], width: int, *, gap: int = 2, hidden: Collection[str] = ()) -> Plan[V]:
    """Every column that is not hidden, whether they fit or not."""
    chosen = [column for column in columns if column.key not in hidden]
    return _spread(chosen, width - sum(column.width + gap for column in chosen) + gap)


def _spread(chosen: list[Column[V]], spare: int) -> Plan[V]:
    growing = [column for column in chosen if column.grow]
    spare = min(max(spare, 0), 30 * len(growing))
    widths = []
    for column in chosen:
        extra = 0
        if column.grow:
            extra = spare // len(growing)
            if column is growing[0]:
                extra += spare % len(growing)
        widths.append((column, column.width + extra))
    return widths
