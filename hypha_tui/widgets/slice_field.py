"""The map of a job's slices: a field of cells with a cursor that reads out what is under it."""

from __future__ import annotations

from collections.abc import Callable

from textual.binding import Binding
from textual.events import Click, Resize
from textual.geometry import Region, Size
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from hypha_tui.keys.keymap import keys_of
from hypha_tui.store.columns import Look
from hypha_tui.store.slicemap import Grid, holder_of, legend, pass_line, read_out, row_of, whole_states
from hypha_tui.widgets.drawing import Drawing, Line
from node.views import JobView, SliceMap

HEADS = 3
"""Lines above the cells: the pass in numbers, what is under the cursor, and the legend."""


class SliceField(Widget, can_focus=True):
    """Draws a `SliceMap` in whatever room there is."""

    BINDINGS = [Binding(key.keys, key.action, key.label, id=key.id, show=False) for key in keys_of("slices")]

    class Opened(Message):
        """Enter on a slice that a worker has."""

        def __init__(self, peer_id: str) -> None:
            super().__init__()
            self.peer_id = peer_id

    def __init__(self, drawing: Drawing, look: Callable[[], Look], *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._drawing = drawing
        self._look = look
        self._found: SliceMap | None = None
        self._states = ""
        self._grid = Grid(0, 1, 1)
        self._laid_out_for = Size(0, 0)
        self._rows: list[Line] = []
        self._note = ""
        self._job: JobView | None = None
        self.cursor = 0

    @property
    def text(self) -> str:
        """What is shown, without styles."""
        return "\n".join("".join(part for part, _ in line) for line in [*self._heads(), *self._rows])

    @property
    def under_cursor(self) -> str:
        """The peer that has the slice under the cursor."""
        return "" if self._found is None else holder_of(self._found, self._grid.of_cell(self._at))

    def show(self, job: JobView | None, found: SliceMap | None, slices: int, note: str = "") -> None:
        """Another map, of a job's dataset of so many slices; `note` says why there is none."""
        if job != self._job:
            self._job = job
            self.refresh(Region(0, 0, self.size.width, 1))
        states = "" if found is None else whole_states(found, slices)
        is_another = (found, states, note) != (self._found, self._states, self._note)
        if is_another or self.size != self._laid_out_for:  # Textual does not always tell a first size
            self._found, self._states, self._note = found, states, note
            self._lay_out()

    def on_resize(self, event: Resize) -> None:
        """Another room, another grid."""
        self._lay_out()

    def on_focus(self) -> None:
        """The cursor is drawn."""
        self.refresh()

    def on_blur(self) -> None:
        """And not without the focus."""
        self.refresh()

    def on_click(self, event: Click) -> None:
        """A click moves the cursor."""
        self._move_to((event.y - HEADS) * self._grid.width + event.x)

    def render_line(self, y: int) -> Strip:
        """Read-out, legend, cells."""
        width, base = self.size.width, self.rich_style
        heads = self._heads()
        if y < len(heads):
            return self._drawing.strip(heads[y], width, base)
        row = y - len(heads)
        line = self._rows[row] if row < len(self._rows) else []
        strip = self._drawing.strip(line, width, base)
        at = self._at - row * self._grid.width
        if not self.has_focus or not self._grid.cells or not 0 <= at < self._grid.width:
            return strip
        sign = strip.crop(at, at + 1).text
        marked = self._drawing.strip([(sign, "text")], 1, base, cursor=True)
        return Strip.join([strip.crop(0, at), marked, strip.crop(at + 1, width)])

    def action_cell(self, by_x: int, by_y: int) -> None:
        """Move the cursor by cells."""
        self._move_to(self._at + by_x + by_y * self._grid.width)

    def action_cell_edge(self, end: int) -> None:
        """To the first (-1) or last (1) cell."""
        self._move_to(0 if end < 0 else self._grid.cells - 1)

    def action_open(self) -> None:
        """The worker that has the slice under the cursor."""
        if self.under_cursor:
            self.post_message(self.Opened(self.under_cursor))

    @property
    def _at(self) -> int:
        return min(self.cursor // self._grid.share, max(self._grid.cells - 1, 0))

    def _move_to(self, cell: int) -> None:
        if self._grid.cells:
            self.cursor = min(max(cell, 0), self._grid.cells - 1) * self._grid.share
            self.refresh()

    def _heads(self) -> list[Line]:
        if self._job is None:
            return [[("no job has slices yet", "dim")]]
        look = self._look()
        numbers = pass_line(self._job, look, self.size.width)
        if self._found is None or not self._states:
            return [numbers, [(self._note or "none of them was given out yet", "dim")]]
        slices = self._grid.of_cell(self._at)
        return [
            numbers,
            read_out(self._found, self._states, slices, look),
            legend(self._states, self._grid, self._drawing.glyphs),
        ]

    def _lay_out(self) -> None:
        self._laid_out_for = self.size
        width, height = self.size.width, self.size.height - HEADS
        self._grid = Grid.fitting(len(self._states), width, height)
        self._rows = [row_of(self._states, self._grid, row, self._drawing.glyphs) for row in range(self._grid.rows)]
        self.refresh()
