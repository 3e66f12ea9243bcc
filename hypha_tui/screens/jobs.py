"""Jobs: a table, and the job under the cursor with its tasks."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import Binding, BindingType

from hypha_tui.keys.keymap import keys_of
from hypha_tui.screens.table_view import TableView
from hypha_tui.store.cluster import Changes


class JobsView(TableView):
    """Jobs, each with its tasks, which have the room that the table does not need."""

    scopes = ("table", "jobs")
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(key.keys, f"screen.{key.action}", key.label, id=key.id, show=False) for key in keys_of("jobs")
    ]
    _table_height = 0

    def sync(self, changes: Changes | None) -> None:
        """As tall a table as it has rows, up to two fifths of the screen."""
        super().sync(changes)
        rows = max(min(len(self.table.order) + 1, self.size.height * 2 // 5), 3)
        height = 0 if self.screen.has_class("-wide") or self.has_class("-zoomed") else rows
        if height != self._table_height:
            self._table_height = height
            self.table.styles.height = height or "1fr"
