"""What the screens behind the tabs have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec
from textual.app import ComposeResult
from textual.containers import Container
from textual.widget import Widget

from hypha_tui.screens.inspection import InspectorPane
from hypha_tui.store.cluster import Changes
from hypha_tui.store.columns import COLUMNS, Look, screen_columns
from hypha_tui.widgets.drawing import Drawing
from hypha_tui.widgets.live_table import LiveTable
from node.views import AnyView

PANES: Final = "LiveTable, LineLog, SliceField, PickLines"
"""Widgets that take the focus."""

Target = tuple[str, str]
"""Kind and id of an object."""


class View(Container):
    """One screen. `sync` brings it up to date; it is called only while it is shown."""

    scopes: tuple[str, ...] = ()

    def __init__(self, name: str, drawing: Drawing, look: Callable[[], Look]) -> None:
        super().__init__(id=name)
        self.drawing = drawing
        self.look = look

    def sync(self, changes: Changes | None) -> None:
        """Show what changed; None: everything may have."""
        raise NotImplementedError

    @property
    def state_line(self) -> str:
        """For the status line."""
        return ""

    @property
    def filter_text(self) -> str:
        """The filter in force."""
        return ""

    def set_filter(self, words: str) -> None:
        """Narrow what is shown, where that makes sense."""

    @property
    def selected(self) -> Target | None:
        """The object under the cursor."""
        return None

    def select(self, target: Target) -> None:
        """Put the cursor on an object, where it is shown."""

    @property
    def marked(self) -> list[Target]:
        """The marked objects, else the one under the cursor."""
        table = self.active_table
        ids = table.marked if table is not None else []
        if table is not None and ids:
            return [(table.kind, id_) for id_ in ids]
        return [self.selected] if self.selected is not None else []

    @property
    def active_table(self) -> LiveTable | None:
        """The table with the focus, else the first one where the focus is in none."""
        tables = list(self.query(LiveTable))
        return next((table for table in tables if table.has_focus), tables[0] if tables else None)

    def copy_text(self) -> str:
        """The ids of `marked`, one a line."""
        return "\n".join(id_ for _, id_ in self.marked)

    def copy_json(self) -> str:
        """The objects of `marked` as JSON: one as it is, several as an array."""
        store = self.look().store
        items = [store.items(kind).get(id_) for kind, id_ in self.marked]
        views = [item.view for item in items if item is not None]
        if not views:
            return ""
        return msgspec.json.format(msgspec.json.encode(views if len(views) > 1 else views[0]), indent=2).decode()

    def export_rows(self) -> tuple[list[str], list[list[str]]]:
        """What is shown as a heading and rows of text; no rows where there is nothing to write."""
        return [], []

    def set_wide(self, wide: bool) -> None:
        """Wide columns, where there are columns."""
        table = self.active_table
        if table is not None and table.is_wide != wide:
            table.action_wide()

    def on_live_table_asked(self, event: LiveTable.Asked) -> None:
        """A list to choose from for one of the tables."""
        from hypha_tui.screens.arranging import ColumnChooser, SortPicker

        chooser = SortPicker if event.what == "sort" else ColumnChooser
        self.app.push_screen(chooser(event.table, self.drawing.glyphs.up, self.drawing.glyphs.down))

    def panes(self) -> list[Widget]:
        """What tab moves between."""
        return [widget for widget in self.query(PANES).results(Widget) if widget.can_focus and widget.display]

    def focus_first(self) -> None:
        """Focus the main pane."""
        panes = self.panes()
        if panes:
            panes[0].focus()


class TableView(View):
    """A live table, and beside or below it the summary of the row under the cursor where there is room."""

    scopes: tuple[str, ...] = ("table",)

    def __init__(
        self, name: str, kind: str, drawing: Drawing, look: Callable[[], Look], *, sort: str, empty: str
    ) -> None:
        super().__init__(name, drawing, look)
        self.table = LiveTable(kind, screen_columns(kind), drawing, look, sort=sort, empty=empty, id=f"{name}-table")
        self.detail = InspectorPane(drawing)

    def compose(self) -> ComposeResult:
        """Table and detail."""
        with Container(classes="split"):
            yield self.table
            yield self.detail

    def sync(self, changes: Changes | None) -> None:
        """The table, and the row that is told in full."""
        self.table.sync(changes)
        if not self.table.is_frozen:
            self.show_detail()

    def show_detail(self) -> None:
        """Tell the row under the cursor in full."""
        if not self.detail.display:
            return
        self.detail.inspect(*(self.selected or ("", "")))
        self.detail.sync()

    def selected_view(self) -> AnyView | None:
        """The object under the cursor, as it is now."""
        if self.table.cursor_id is None:
            return None
        item = self.look().store.items(self.table.kind).get(self.table.cursor_id)
        return None if item is None else item.view

    def on_live_table_moved(self, _message: LiveTable.Moved) -> None:
        """Another row: another detail."""
        self.show_detail()

    @property
    def state_line(self) -> str:
        """The table's."""
        return self.table.state_line

    @property
    def filter_text(self) -> str:
        """The table's."""
        return self.table.filter_text

    def set_filter(self, words: str) -> None:
        """Filter the table."""
        self.table.set_filter(words)
        self.show_detail()

    @property
    def selected(self) -> Target | None:
        """The table's cursor."""
        return None if self.table.cursor_id is None else (self.table.kind, self.table.cursor_id)

    def select(self, target: Target) -> None:
        """Put the table's cursor on an object."""
        if target[0] == self.table.kind:
            self.table.select(target[1])

    def export_rows(self) -> tuple[list[str], list[list[str]]]:
        """The rows that the filter leaves, in their order, with every column."""
        look, columns = self.look(), COLUMNS[self.table.kind]
        items = look.store.items(self.table.kind)
        views = [items[id_].view for id_ in self.table.order if id_ in items]
        return [column.key for column in columns], [
            [column.cell(view, look)[0] for column in columns] for view in views
        ]
