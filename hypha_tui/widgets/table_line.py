"""One line of a live table: cells in the widths of a plan, the sign of the cursor and of a mark before them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from hypha_tui.store import text
from hypha_tui.store.columns import Cell, Column
from hypha_tui.store.glyphs import Glyphs
from hypha_tui.store.plans import Plan
from hypha_tui.widgets.drawing import Line
from node.views import AnyView

GAP: Final = "  "
MARK: Final = "*"
SIGNS: Final = 2
"""Cells before the first column: the cursor and the mark."""


def width_of(plan: Plan[AnyView]) -> int:
    """Cells that the columns of a plan take, gaps among them."""
    return sum(size for _, size in plan) + len(GAP) * max(len(plan) - 1, 0)


def signs(glyphs: Glyphs, *, has_cursor: bool, is_marked: bool) -> Line:
    """What stands before the first column."""
    return [(glyphs.cursor if has_cursor else " ", "title"), (MARK if is_marked else " ", "key")]


def row(plan: Plan[AnyView], cells: Iterable[Cell], glyphs: Glyphs) -> Line:
    """The cells of a row."""
    line: Line = []
    for (column, size), (value, tone) in zip(plan, cells, strict=False):
        line.append((text.fit(value, size, right=column.right, mark=glyphs.cut) + GAP, tone))
    return line


def heading(plan: Plan[AnyView], sort_column: Column[AnyView], glyphs: Glyphs, *, is_reversed: bool) -> Line:
    """The titles, an arrow on the one that rows are sorted by."""
    line: Line = []
    for column, size in plan:
        title = column.title
        is_sorted = column.key == sort_column.key
        if is_sorted and len(title) < size:
            title += glyphs.down if is_reversed else glyphs.up
        line.append((text.fit(title, size, right=column.right) + GAP, "title" if is_sorted else "dim"))
    return line


def shifted(line: Line, by: int, width: int) -> Line:
    """The part of a line that is seen when `by` cells of it are off to the left."""
    if by <= 0:
        return line
    out: Line = []
    at = 0
    for part, tone in line:
        end = at + text.width(part)
        if end > by and at < by + width:
            out.append((text.from_cell(part, by - at) if at < by else part, tone))
        at = end
    return out
