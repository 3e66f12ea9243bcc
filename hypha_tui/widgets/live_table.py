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
from textual.strip import Strip

from hypha_tui.keys.keymap import keys_of
from hypha_tui.store import text
from hypha_tui.store.cluster import Changes
from hypha_tui.store.columns import Column, Look
from hypha_tui.store.marks import Marks
from hypha_tui.store.plans import Plan, plan, wide_plan
from hypha_tui.store.rows import Rows
from hypha_tui.widgets.drawing import Drawing, Line
from hypha_tui.widgets.drawn_rows import DrawnRows
from hypha_tui.widgets.kept_lines import KeptLines
from hypha_tui.widgets.remembered import Remembered
from hypha_tui.widgets.table_filter import TableFilter
from hypha_tui.widgets.table_line import GAP, SIGNS, heading, shifted, signs, width_of
from node.views import AnyView

HOLD_ORDER_S: Final = 2.0
SORT_EVERY_S: Final = 1.0


class LiveTable(KeptLines, can_focus=True):
    """A table of one kind of object."""

    BINDINGS = [Binding(key.keys, key.action, key.label, id=key.id, show=False) for key in keys_of("table")]
    DEFAULT_CSS = "LiveTable { scrollbar-size: 0 0; overflow-x: hidden; }"

    class About(Message):
        """Something about one of its rows."""

        def __init__(self, kind: str, object_id: str) -> None:
            super().__init__()
            self.kind = kind
            self.object_id = object_id

    class Opened(About):
        """Enter, or a double click, on a row."""

    class Moved(About):
        """The cursor is on another row."""

    class Lost(About):
        """The row under the cursor is gone; the cursor went to its neighbour."""

    class Arranged(Message):
        """Sorted, filtered, marked or frozen otherwise: the status line has another text."""

    class Asked(Message):
        """A list to choose from is wanted: `sort` or `columns`."""

        def __init__(self, table: LiveTable, what: str) -> None:
            super().__init__()
            self.table = table
            self.what = what

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
        self.columns = columns
        self.cursor_id: str | None = None
        self.marks = Marks()
        self.is_wide = False
        self.is_following = False
        self.hidden: set[str] = set()
        self.plan: Plan[AnyView] = []
        self._planned_for = 0
        self.rows = Rows(kind, columns, next((one for one in columns if one.key == sort), columns[0]), where)
        self._drawing = drawing
        self._present = look
        self._empty = empty
        self._drawn = DrawnRows(drawing)
        self._frozen: Look | None = None
        self.filtering = TableFilter(self, self._show_order)
        self._sorted_at = -1e9
        self._key_at = -1e9
        self._order_is_old = True
        self.remembered = Remembered(self)

    # ---- what others ask ------------------------------------------------------------------------------

    @property
    def order(self) -> list[str]:
        """The ids that are shown, from the top."""
        return self.rows.order

    @property
    def rows_painted(self) -> int:
        """How often a row was painted; one that only stands elsewhere now is not."""
        return self._drawn.painted

    @property
    def total(self) -> int:
        """Objects of this kind, whether the filter shows them or not."""
        return self.rows.total

    @property
    def filter_text(self) -> str:
        """The filter in force."""
        return self.rows.filter_text

    @property
    def is_frozen(self) -> bool:
        """Whether order and values are held."""
        return self._frozen is not None

    def look(self) -> Look:
        """What is shown: the present, or the moment it was frozen at."""
        return self._frozen or self._present()

    @property
    def state_line(self) -> str:
        """Counts, sort order, marks and freeze, for the status line; or what is wrong with a filter."""
        if self.filtering.problem:
            return self.filtering.problem
        glyphs = self._drawing.glyphs
        arrow = glyphs.down if self.rows.is_reversed else glyphs.up
        shown = f"{len(self.order):,} of {self.total:,}" if self.filter_text else f"{self.total:,}"
        parts = [f"{shown} {self.kind}{'' if shown == '1' else 's'}", f"sort {self.rows.sort_column.title}{arrow}"]
        if self.marks:
            parts.append(f"{len(self.marks):,} marked")
        if self.marks.anchor is not None:
            parts.append("range..")
        if self.is_following:
            parts.append("following")
        if self._frozen is not None:
            parts.append(f"FROZEN {text.age(self._present().now - self._frozen.now)}")
        return "  ".join(parts)

    @property
    def marked(self) -> list[str]:
        """The marked ids, also those that a filter hides."""
        self.marks.keep(self.look().store.items(self.kind))
        reached = self.marks.reached(self.order, self.rows.row_of, self.cursor_id)
        return self.marks.of(self.order) if not reached else [*dict.fromkeys([*self.marks.of(self.order), *reached])]

    def sync(self, changes: Changes | None) -> None:
        """Bring the screen up to date. `changes` None: anything may have changed."""
        if self.size.width != self._planned_for:
            self.replan()  # Textual tells a widget of its first size only if nobody asked where it is before
        if self.is_frozen:
            return
        look = self._present()
        if changes is None:
            self.filtering.apply(look)
            self._arrange(look)
            self._check(self._visible(), look)
            return
        dirty = changes.dirty.get(self.kind, set())
        if dirty:
            self.rows.retest(dirty, look)
        if self.kind in changes.members or (dirty and self.filter_text):
            self._order_is_old = True
        may_sort = look.now - self._sorted_at >= SORT_EVERY_S and look.now - self._key_at >= HOLD_ORDER_S
        moved = bool(dirty) and self.rows.sort_column.sort is not None
        if changes.second and self.rows.is_live and may_sort and self.size:
            self.filtering.apply(look)
            moved = True
        if may_sort and (self._order_is_old or moved):
            self._arrange(look)
        elif self._order_is_old:
            self._arrange(look, hold=True)
        visible = self._visible()
        self._check(visible if changes.second else [id_ for id_ in visible if id_ in dirty], look)

    def set_filter(self, words: str, otherwise: str | None = None) -> None:
        """Show only rows that match (see `store/filters.py`). Where that cannot be understood, those that match
        `otherwise`, or what is shown already."""
        self.filtering.set(words, self.look(), otherwise)

    def select(self, object_id: str) -> None:
        """Put the cursor on an object, if it is shown."""
        if object_id in self.rows.row_of:
            self._move_to(self.rows.row_of[object_id])

    # ---- drawing --------------------------------------------------------------------------------------

    def render_line(self, y: int) -> Strip:
        """Line 0 is the heading, the others rows from the scroll position on."""
        width, base = self.size.width, self.base_style
        left = self.scroll_offset.x
        if y == 0:
            titles = heading(self.plan, self.rows.sort_column, self._drawing.glyphs, is_reversed=self.rows.is_reversed)
            return self._drawing.strip([("  ", "dim"), *shifted(titles, left, width - SIGNS)], width, base)
        row = self.scroll_offset.y + y - 1
        if row >= len(self.order):
            line: Line = [(f"  {self._empty_text()}", "dim")] if row == 0 else []
            return self._drawing.strip(line, width, base)
        id_ = self.order[row]
        has_cursor = id_ == self.cursor_id
        is_marked = id_ in self.marks or id_ in self.marks.reached(self.order, self.rows.row_of, self.cursor_id)
        if not has_cursor and not is_marked:
            return self._drawn.strip(id_, self.kind, self.plan, self.look(), left=left, width=width, base=base)
        line = [
            *signs(self._drawing.glyphs, has_cursor=has_cursor, is_marked=is_marked),
            *shifted(self._drawn.line(id_, self.kind, self.plan, self.look()), left, width - SIGNS),
        ]
        return self._drawing.strip(line, width, base, cursor=has_cursor and self.has_focus)

    def _empty_text(self) -> str:
        if self.total and self.filter_text:
            return f"no {self.kind} matches {self.filter_text!r} (esc clears the filter)"
        return self._empty

    def _visible(self) -> list[str]:
        top = self.scroll_offset.y
        return self.order[top : top + max(self.size.height - 1, 0)]

    def _check(self, ids: list[str], look: Look) -> None:
        """Repaint those of these rows whose text is another."""
        for id_ in ids:
            if self._drawn.update(id_, self.kind, self.plan, look):
                self._refresh_row(self.rows.row_of[id_])

    def _refresh_row(self, row: int) -> None:
        self.refresh(Region(0, row - self.scroll_offset.y + 1, self.size.width, 1))

    def replan(self) -> None:
        """Choose the columns for the width there is."""
        self._planned_for = self.size.width
        room = self._planned_for - SIGNS
        choose = wide_plan if self.is_wide else plan
        self.plan = choose(self.columns, room, gap=len(GAP), hidden=self.hidden)
        self._drawn.clear()
        self._resize()
        self.refresh()

    def _resize(self) -> None:
        width = max(width_of(self.plan) + SIGNS, self.size.width) if self.is_wide else self.size.width
        self.virtual_size = Size(width, len(self.order) + 1)
        if not self.is_wide and self.scroll_offset.x:
            self.scroll_to(x=0, animate=False, force=True)

    # ---- order ----------------------------------------------------------------------------------------

    def _arrange(self, look: Look, *, hold: bool = False) -> None:
        """Sort and show. `hold`: rows that stay keep their order, new ones follow at the foot."""
        had = len(self.order)
        before = self.rows.row_of.get(self.cursor_id or "", 0)
        self._order_is_old = hold
        if not hold:
            self._sorted_at = look.now
        if self.rows.arrange(look, hold=hold):
            self._drawn.keep(self.rows.row_of)
            if len(self.order) != had:
                self._resize()
            if self.order:
                self.remembered.go_back()
            self._keep_cursor(before)
            self.refresh()
        elif not self.order:
            self.refresh()  # the reason why there is none may be another

    def _show_order(self) -> None:
        """The filter is another, or its long pass is over."""
        self._arrange(self.look())
        self.post_message(self.Arranged())

    def _keep_cursor(self, before: int) -> None:
        lost = self.cursor_id
        if lost is not None and lost in self.rows.row_of:
            row = self.rows.row_of[lost]
            if self.is_following and row != before:
                self.scroll_to(y=max(self.scroll_offset.y + row - before, 0), animate=False, force=True)
            self._scroll_to_row(row)
            return
        self.cursor_id = self.order[min(before, len(self.order) - 1)] if self.order else None
        if lost is not None and lost not in self.look().store.items(self.kind):
            self.is_following = False
            self.post_message(self.Lost(self.kind, lost))
        if self.cursor_id is not None:
            self.post_message(self.Moved(self.kind, self.cursor_id))
            self._scroll_to_row(self.rows.row_of[self.cursor_id])

    # ---- keys -----------------------------------------------------------------------------------------

    def on_key(self, event: Key) -> None:
        """Hold the order while keys are pressed."""
        self._key_at = self._present().now

    def on_resize(self, event: Resize) -> None:
        """Choose the columns for the new width."""
        self.replan()
        if self.cursor_id in self.rows.row_of:
            self._scroll_to_row(self.rows.row_of[self.cursor_id])

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
        self._move_to(self.rows.row_of.get(self.cursor_id or "", 0) + by)

    def action_row(self, number: int) -> None:
        """Move to a row by its number, from 1 on."""
        self._move_to(number - 1)

    def action_edge(self, end: int) -> None:
        """Move to the first (-1) or last (1) row."""
        self._move_to(0 if end < 0 else len(self.order) - 1)

    def action_page(self, by: int) -> None:
        """Move by pages."""
        self.action_cursor(by * max(self.size.height - 2, 1))

    def action_half_page(self, by: int) -> None:
        """Move by half pages."""
        self.action_cursor(by * max((self.size.height - 1) // 2, 1))

    def action_sideways(self, by: int) -> None:
        """Move so many columns to the side. Where columns were left out for want of room, all are laid out."""
        if not self.is_wide:
            self.action_wide()
        starts = [0]
        for _, size in self.plan[:-1]:
            starts.append(starts[-1] + size + len(GAP))
        left = self.scroll_offset.x
        at = max(number for number, start in enumerate(starts) if start <= left) if left else 0
        self.scroll_to(x=starts[min(max(at + by, 0), len(starts) - 1)], animate=False, force=True)

    def action_side(self, end: int) -> None:
        """Move to the first (-1) or last (1) columns."""
        self.scroll_to(x=0 if end < 0 else self.max_scroll_x, animate=False, force=True)

    def action_inspect(self) -> None:
        """Open the row under the cursor."""
        if self.cursor_id is not None:
            self.post_message(self.Opened(self.kind, self.cursor_id))

    def action_ask(self, what: str) -> None:
        """A list to choose from: the column to sort by (`sort`), or those to show (`columns`)."""
        self.post_message(self.Asked(self, what))

    def action_sort_beside(self, by: int) -> None:
        """Sort by the next column that is shown, or the one before."""
        shown = [column for column, _ in self.plan]
        at = shown.index(self.rows.sort_column) if self.rows.sort_column in shown else -1
        if shown:
            self.sort_by(shown[(at + by) % len(shown)].key)

    def sort_by(self, key: str) -> None:
        """Sort by a column; by the present one: the other way round."""
        rows = self.rows
        rows.is_reversed = not rows.is_reversed if rows.sort_column.key == key else False
        rows.sort_column = next((column for column in self.columns if column.key == key), rows.sort_column)
        self._show_order()
        self.refresh()

    def action_reverse(self) -> None:
        """Turn the order round."""
        self.sort_by(self.rows.sort_column.key)

    def action_wide(self) -> None:
        """All columns, to be looked at sideways, or those that fit."""
        self.is_wide = not self.is_wide
        self.replan()

    def hide(self, key: str) -> None:
        """Take a column off or put it back; one always stays."""
        hidden = self.hidden ^ {key}
        if len(hidden) < len(self.columns):
            self.hidden = hidden
            self.replan()

    def action_freeze(self) -> None:
        """Hold order and values, or let them go on."""
        if self._frozen is None:
            present = self._present()
            self._frozen = Look(present.store.held(), present.now, present.glyphs)
        else:
            self._frozen = None
            self.sync(None)
        self.post_message(self.Arranged())

    def action_follow(self) -> None:
        """Keep the row under the cursor where it is on the screen when the order changes, or no longer."""
        self.is_following = not self.is_following
        self.post_message(self.Arranged())

    def action_mark(self) -> None:
        """Mark or unmark the row under the cursor, and go to the next."""
        if self.cursor_id is not None:
            self.marks.toggle(self.cursor_id)
            self._refresh_cursor()
            self.action_cursor(1)
            self.post_message(self.Arranged())

    def action_mark_range(self) -> None:
        """Begin a range at the cursor; the second time, mark everything in it."""
        if self.marks.anchor is None:
            self.marks.anchor = self.cursor_id
        else:
            self.marks.add(self.marks.reached(self.order, self.rows.row_of, self.cursor_id))
            self.marks.anchor = None
        self._repaint_marks()

    def action_mark_all(self) -> None:
        """Mark everything that the filter shows."""
        self.marks.add(self.order)
        self._repaint_marks()

    def action_unmark(self) -> None:
        """Unmark everything."""
        self.marks.clear()
        self._repaint_marks()

    def _repaint_marks(self) -> None:
        self.refresh()
        self.post_message(self.Arranged())

    def _move_to(self, row: int) -> None:
        self._key_at = self._present().now
        if not self.order:
            return
        row = min(max(row, 0), len(self.order) - 1)
        if self.order[row] != self.cursor_id:
            self._refresh_cursor()
            self.cursor_id = self.order[row]
            self._scroll_to_row(row)
            self._refresh_cursor()
            if self.marks.anchor is not None:
                self.refresh()
            self.post_message(self.Moved(self.kind, self.cursor_id))
        else:
            self._scroll_to_row(row)

    def _refresh_cursor(self) -> None:
        if self.cursor_id in self.rows.row_of:
            self._refresh_row(self.rows.row_of[self.cursor_id])

    def _scroll_to_row(self, row: int) -> None:
        height = max(self.size.height - 1, 1)
        top = self.scroll_offset.y
        if row < top:
            self.scroll_to(y=row, animate=False, force=True)
        elif row >= top + height:
            self.scroll_to(y=row - height + 1, animate=False, force=True)
