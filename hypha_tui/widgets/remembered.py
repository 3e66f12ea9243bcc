"""How a table was left: put back as far as it still fits, its place and marks as soon as there are rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypha_tui.settings.arrangement import MARKS_KEPT, Arrangement

if TYPE_CHECKING:
    from hypha_tui.widgets.live_table import LiveTable


class Remembered:
    """The arrangement of one table, between one start and the next."""

    def __init__(self, table: LiveTable) -> None:
        self._table = table
        self._left: Arrangement | None = None
        """How it was, until there are rows."""

    def note(self) -> Arrangement:
        """How the table is arranged, to be kept."""
        table, rows, left = self._table, self._table.rows, self._left
        at = rows.row_of.get(table.cursor_id or "")
        return Arrangement(
            sort=rows.sort_column.key,
            is_reversed=rows.is_reversed,
            is_wide=table.is_wide,
            hidden=sorted(table.hidden),
            filter=rows.filter_text,
            marks=left.marks if left else [id_ for id_ in table.marked if id_ in table.marks][:MARKS_KEPT],
            selected=left.selected if left else table.cursor_id or "",
            row=left.row if left else 0 if at is None else at - table.scroll_offset.y,
        )

    def restore(self, kept: Arrangement) -> None:
        """Arrange the table as it was; what does not fit any more is left out."""
        table = self._table
        keys = {column.key: column for column in table.columns}
        table.rows.sort_column = keys.get(kept.sort, table.rows.sort_column)
        table.rows.is_reversed = kept.is_reversed
        table.is_wide = kept.is_wide
        table.hidden = set(kept.hidden) & keys.keys()
        table.set_filter(kept.filter)
        table.filtering.problem = ""
        self._left = kept
        table.replan()

    def go_back(self) -> None:
        """There are rows: to the one that the table was left at, where it is still here."""
        left, self._left = self._left, None
        if left is None:
            return
        table = self._table
        table.marks.add(left.marks)
        table.marks.keep(table.look().store.items(table.kind))
        if left.selected in table.rows.row_of:
            table.cursor_id = left.selected
            top = table.rows.row_of[left.selected] - left.row
            table.scroll_to(y=max(top, 0), animate=False, force=True)
            table.post_message(table.Moved(table.kind, left.selected))
