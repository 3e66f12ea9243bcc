"""The live table: rows of the store as painted lines. It holds no row, only an order of ids and a cursor id.

A change of a row that is on screen repaints one line; one that is not costs nothing. The row under the cursor never
changes by itself: the cursor is an id, and the order is held while keys are pressed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from textual.binding import Binding
from textual.events import Click, Key, Resize
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from hypha_tui.keymap import keys_of
from hypha_tui.store import text
from hypha_tui.store.cluster import Changes
from hypha_tui.store.columns import Cell, Column, Look, plan
from hypha_tui.widgets.drawing import Drawing, Line
from node.views import AnyView

HOLD_ORDER_S: Final = 2.0
SORT_EVERY_S: Final = 1.0
GAP: Final = "  "
LONG_IDS: Final = frozenset({"id", "digest", "task"})
ID_PART: Final = 6
"""Random ids contain every short word: only so many characters of one are looked for in it."""


class LiveTable(ScrollView, can_focus=True):
    """A table of one kind of object."""

    BINDINGS = [Binding(key.keys, key.action, key.label, id=key.id, show=False) for key in keys_of("table")]
    DEFAULT_CSS = "LiveTable { scrollbar-size: 0 0; overflow-x: hidden; }"

    class Opened(Message):
        """Enter, or a double click, on a row."""

        def __init__(self, kind: str, object_id: str) -> None:
            super().__init__()
            self.kind = kind
            self.object_id = object_id

    class Moved(Message):
        """The cursor is on another row."""

        def __init__(self, kind: str, object_id: str) -> None:
            super().__init__()
            self.kind = kind
            self.object_id = object_id

    class Arranged(Message):
        """It is sorted otherwise, frozen or thawed: the status line has another text."""

    class Lost(Message):
        """The row under the cursor is gone; the cursor went to its neighbour."""

        def __init__(self, kind: str, object_id: str) -> None:
            super().__init__()
            self.kind = kind
            self.object_id = object_id

    def __init__(
        self,
        kind: str,
        columns: list[Column[AnyView]],
        drawing: Drawing,
        look: Callable[[], Look],
        *,
        sort: str = "name",
        empty: str = "nothing here",
        id: str | None = None,
        where: Callable[[AnyView], bool] | None = None,
    ) -> None:
        super().__init__(id=id)
        self.kind = kind
        self.cursor_id: str | None = None
        self.filter_text = ""
        self.order: list[str] = []
        self.total = 0
        self.lines_rendered = 0
        self.is_reversed = False
        self.sort_column = next((column for column in columns if column.key == sort), columns[0])
        self._columns = columns
        self._drawing = drawing
        self._look = look
        self._where = where
        self._empty = empty
        self._row_of: dict[str, int] = {}
        self._plan: list[tuple[Column[AnyView], int]] = []
        self._drawn: dict[str, list[Cell]] = {}
        self._frozen: dict[str, list[Cell]] | None = None
        self._sorted_at = -1e9
        self._key_at = -1e9
        self._order_is_old = True

    # ---- what others ask ------------------------------------------------------------------------------

    @property
    def is_frozen(self) -> bool:
        """Whether order and values are held."""
        return self._frozen is not None

    @property
    def state_line(self) -> str:
        """Counts, sort order and freeze, for the status line."""
        glyphs = self._drawing.glyphs
        arrow = glyphs.down if self.is_reversed else glyphs.up
        shown = f"{len(self.order):,} of {self.total:,}" if self.filter_text else f"{self.total:,}"
        frozen = "  FROZEN" if self.is_frozen else ""
        plural = "" if shown == "1" else "s"
        return f"{shown} {self.kind}{plural}  sort {self.sort_column.title}{arrow}{frozen}"

    def sync(self, changes: Changes | None) -> None:
        """Bring the screen up to date. `changes` None: anything may have changed."""
        if self.is_frozen:
            return
        look = self._look()
        if changes is None or self.kind in changes.members:
            self._order_is_old = True
        may_sort = look.now - self._sorted_at >= SORT_EVERY_S and look.now - self._key_at >= HOLD_ORDER_S
        is_volatile = self.sort_column.sort is not None and changes is not None and self.kind in changes.dirty
        if changes is None or (may_sort and (self._order_is_old or is_volatile)):
            self._reorder(look)
        elif self._order_is_old:
            self._reorder(look, hold=True)
        for y, id_ in enumerate(self._visible()):
            if self._drawn.get(id_) != self._cells(id_, look):
                self._refresh_row(y + self.scroll_offset.y)

    def set_filter(self, words: str) -> None:
        """Show only rows that have every word in them; `!word` for rows without it."""
        self.filter_text = words.strip()
        self._frozen = None
        self._reorder(self._look())

    def select(self, object_id: str) -> None:
        """Put the cursor on an object, if it is shown."""
        if object_id in self._row_of:
            self._move_to(self._row_of[object_id])

    # ---- drawing --------------------------------------------------------------------------------------

    def render_line(self, y: int) -> Strip:
        """Line 0 is the heading, the others rows from the scroll position on."""
        self.lines_rendered += 1
        width = self.size.width
        base = self.rich_style
        if y == 0:
            return self._drawing.strip(self._heading(), width, base)
        row = self.scroll_offset.y + y - 1
        if row >= len(self.order):
            line: Line = [(f"  {self._empty_text()}", "dim")] if row == 0 else []
            return self._drawing.strip(line, width, base)
        id_ = self.order[row]
        cells = self._cells(id_, self._look())
        self._drawn[id_] = cells
        has_cursor = id_ == self.cursor_id
        mark = self._drawing.glyphs.cursor if has_cursor else " "
        line = [(f"{mark} ", "title")]
        for (column, size), (value, tone) in zip(self._plan, cells, strict=False):
            line.append((text.fit(value, size, right=column.right, mark=self._drawing.glyphs.cut), tone))
            line.append((GAP, "text"))
        return self._drawing.strip(line, width, base, cursor=has_cursor and self.has_focus)

    def _heading(self) -> Line:
        line: Line = [("  ", "dim")]
        glyphs = self._drawing.glyphs
        for column, size in self._plan:
            title = column.title
            if column.key == self.sort_column.key and len(title) < size:
                title += glyphs.down if self.is_reversed else glyphs.up
            line.append((text.fit(title, size, right=column.right), "title" if column is self.sort_column else "dim"))
            line.append((GAP, "text"))
        return line

    def _empty_text(self) -> str:
        if self.total and self.filter_text:
            return f"no {self.kind} matches {self.filter_text!r} (esc clears the filter)"
        return self._empty

    def _cells(self, id_: str, look: Look) -> list[Cell]:
        if self._frozen is not None and id_ in self._frozen:
            return self._frozen[id_]
        item = look.store.items(self.kind).get(id_)
        if item is None:
            return [("", "dim") for _ in self._plan]
        return [column.cell(item.view, look) for column, _ in self._plan]

    def _visible(self) -> list[str]:
        top = self.scroll_offset.y
        return self.order[top : top + max(self.size.height - 1, 0)]

    def _refresh_row(self, row: int) -> None:
        self.refresh(Region(0, row - self.scroll_offset.y + 1, self.size.width, 1))

    # ---- order ----------------------------------------------------------------------------------------

    def _reorder(self, look: Look, *, hold: bool = False) -> None:
        """Filter and sort. `hold`: rows that stay keep their order, new ones follow at the foot."""
        items = look.store.items(self.kind)
        views = [item.view for item in items.values() if self._where is None or self._where(item.view)]
        self.total = len(items)
        if self.filter_text:
            views = [view for view in views if self._matches(view, look)]
        views.sort(key=lambda view: view.id)
        views.sort(key=lambda view: self.sort_column.sort_key(view, look), reverse=self.is_reversed)
        order = [view.id for view in views]
        if hold:
            here = set(order)
            order = [id_ for id_ in self.order if id_ in here] + [id_ for id_ in order if id_ not in self._row_of]
        else:
            self._sorted_at = look.now
        self._order_is_old = hold
        if order == self.order:
            if not order:
                self.refresh()  # the reason why there is none may be another
            return
        before = self._row_of.get(self.cursor_id or "", 0)
        self.order = order
        self._row_of = {id_: row for row, id_ in enumerate(order)}
        self._drawn = {id_: cells for id_, cells in self._drawn.items() if id_ in self._row_of}
        self.virtual_size = Size(self.size.width, len(order) + 1)
        self._keep_cursor(before)
        self.refresh()

    def _keep_cursor(self, before: int) -> None:
        lost = self.cursor_id
        if lost is not None and lost in self._row_of:
            self._scroll_to_row(self._row_of[lost])
            return
        self.cursor_id = self.order[min(before, len(self.order) - 1)] if self.order else None
        if lost is not None and lost not in self._look().store.items(self.kind):
            self.post_message(self.Lost(self.kind, lost))
        if self.cursor_id is not None:
            self.post_message(self.Moved(self.kind, self.cursor_id))
            self._scroll_to_row(self._row_of[self.cursor_id])

    def _matches(self, view: AnyView, look: Look) -> bool:
        hay = " ".join(column.cell(view, look)[0] for column in self._columns if column.key not in LONG_IDS).lower()
        for word in self.filter_text.lower().split():
            if word.startswith("!") and len(word) > 1:
                if word[1:] in hay:
                    return False
            elif word not in hay and not (len(word) >= ID_PART and word in view.id.lower()):
                return False
        return True

    # ---- keys -----------------------------------------------------------------------------------------

    def on_key(self, event: Key) -> None:
        """Hold the order while keys are pressed."""
        self._key_at = self._look().now

    def on_resize(self, event: Resize) -> None:
        """Choose the columns for the new width."""
        self._plan = plan(self._columns, self.size.width - 2, gap=len(GAP))
        self.virtual_size = Size(self.size.width, len(self.order) + 1)
        self._drawn.clear()
        if self.cursor_id in self._row_of:
            self._scroll_to_row(self._row_of[self.cursor_id])
        self.refresh()

    def on_focus(self) -> None:
        """The cursor is drawn stronger in the pane that has the focus."""
        self._refresh_cursor()

    def on_blur(self) -> None:
        """And weaker in the others."""
        self._refresh_cursor()

    def on_click(self, event: Click) -> None:
        """A click moves the cursor, a double click opens."""
        row = self.scroll_offset.y + event.y - 1
        if event.y >= 1 and row < len(self.order):
            self._move_to(row)
            if event.chain == 2:
                self.action_inspect()

    def action_cursor(self, by: int) -> None:
        """Move the cursor by rows."""
        self._move_to(self._row_of.get(self.cursor_id or "", 0) + by)

    def action_edge(self, end: int) -> None:
        """Move to the first (-1) or last (1) row."""
        self._move_to(0 if end < 0 else len(self.order) - 1)

    def action_page(self, by: int) -> None:
        """Move by pages."""
        self.action_cursor(by * max(self.size.height - 2, 1))

    def action_half_page(self, by: int) -> None:
        """Move by half pages."""
        self.action_cursor(by * max((self.size.height - 1) // 2, 1))

    def action_inspect(self) -> None:
        """Open the row under the cursor."""
        if self.cursor_id is not None:
            self.post_message(self.Opened(self.kind, self.cursor_id))

    def action_sort(self) -> None:
        """Sort by the next column that is shown."""
        shown = [column for column, _ in self._plan]
        at = shown.index(self.sort_column) if self.sort_column in shown else -1
        self.sort_column = shown[(at + 1) % len(shown)] if shown else self.sort_column
        self._arrange()

    def action_reverse(self) -> None:
        """Turn the order round."""
        self.is_reversed = not self.is_reversed
        self._arrange()

    def action_freeze(self) -> None:
        """Hold order and values, or let them go on."""
        if self._frozen is None:
            look = self._look()
            self._frozen = {id_: self._cells(id_, look) for id_ in self.order}
        else:
            self._frozen = None
            self.sync(None)
        self.post_message(self.Arranged())

    def _arrange(self) -> None:
        if not self.is_frozen:
            self._reorder(self._look())
        self.refresh()
        self.post_message(self.Arranged())

    def _move_to(self, row: int) -> None:
        if not self.order:
            return
        row = min(max(row, 0), len(self.order) - 1)
        if self.order[row] != self.cursor_id:
            self._refresh_cursor()
            self.cursor_id = self.order[row]
            self._scroll_to_row(row)
            self._refresh_cursor()
            self.post_message(self.Moved(self.kind, self.cursor_id))
        else:
            self._scroll_to_row(row)

    def _refresh_cursor(self) -> None:
        if self.cursor_id in self._row_of:
            self._refresh_row(self._row_of[self.cursor_id])

    def _scroll_to_row(self, row: int) -> None:
        height = max(self.size.height - 1, 1)
        top = self.scroll_offset.y
        if row < top:
            self.scroll_to(y=row, animate=False, force=True)
        elif row >= top + height:
            self.scroll_to(y=row - height + 1, animate=False, force=True)
