"""The cells of the rows that are on the screen: what was drawn last, to tell which lines must be painted again."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from typing import Final

from rich.style import Style
from textual.strip import Strip

from hypha_tui.store.columns import Cell, Look
from hypha_tui.store.glyphs import Glyphs
from hypha_tui.store.plans import Plan
from hypha_tui.widgets.drawing import Drawing, Line
from hypha_tui.widgets.table_line import SIGNS, row, shifted, signs
from node.views import AnyView

MOST: Final = 256
"""Four viewports of 60 lines; what scrolled away is forgotten."""
FRESH_S: Final = 1.0
"""Ages and remaining times are brought up to date once a second."""


@dataclass(slots=True)
class Drawn:
    """One row as it was drawn, of which version of its object, and when."""

    version: int
    at: float
    cells: list[Cell]
    line: Line
    strip: Strip | None = None
    """The line without cursor and mark, painted for `shape`: a row that moves on the screen is not painted anew."""
    shape: tuple[object, ...] = ()


class DrawnRows:
    """Rows by id. A row that is not on the screen has nothing here."""

    def __init__(self, drawing: Drawing) -> None:
        self._drawing = drawing
        self._glyphs: Glyphs = drawing.glyphs
        self._rows: dict[str, Drawn] = {}
        self.painted = 0
        """Strips made so far."""

    def __len__(self) -> int:
        return len(self._rows)

    def clear(self) -> None:
        """The columns are others."""
        self._rows.clear()

    def keep(self, ids: Container[str]) -> None:
        """Forget all but these."""
        self._rows = {id_: drawn for id_, drawn in self._rows.items() if id_ in ids}

    def strip(
        self, id_: str, kind: str, plan: Plan[AnyView], look: Look, *, left: int, width: int, base: Style
    ) -> Strip:
        """A row without cursor and mark, whose first `left` cells are off to the side."""
        drawn = self._drawn(id_, kind, plan, look)
        shape = (left, width, base, self._drawing.palette)
        if drawn.strip is None or drawn.shape != shape:
            line = [*signs(self._glyphs, has_cursor=False, is_marked=False), *shifted(drawn.line, left, width - SIGNS)]
            self.painted += 1
            drawn.strip, drawn.shape = self._drawing.strip(line, width, base), shape
        return drawn.strip

    def line(self, id_: str, kind: str, plan: Plan[AnyView], look: Look) -> Line:
        """A row to draw."""
        return self._drawn(id_, kind, plan, look).line

    def _drawn(self, id_: str, kind: str, plan: Plan[AnyView], look: Look) -> Drawn:
        """From here, if its object is the same and it is no older than a second."""
        if self._glyphs is not self._drawing.glyphs:
            self._glyphs = self._drawing.glyphs
            self._rows.clear()
        drawn = self._rows.get(id_)
        item = look.store.items(kind).get(id_)
        if drawn is None or item is None or drawn.version != item.version or not -1 < look.now - drawn.at < FRESH_S:
            self.update(id_, kind, plan, look)
            drawn = self._rows[id_]
        return drawn

    def update(self, id_: str, kind: str, plan: Plan[AnyView], look: Look) -> bool:
        """Make a row's cells anew; whether they differ from those that were drawn."""
        item = look.store.items(kind).get(id_)
        if item is None:
            cells: list[Cell] = [("", "dim") for _ in plan]
        else:
            cells = [column.cell(item.view, look) for column, _ in plan]
        version = -1 if item is None else item.version
        before = self._rows.get(id_)
        if before is not None and before.cells == cells:
            before.version, before.at = version, look.now
            return False
        if before is None and len(self._rows) >= MOST:
            del self._rows[next(iter(self._rows))]
        self._rows[id_] = Drawn(version, look.now, cells, row(plan, cells, self._drawing.glyphs))
        return True
