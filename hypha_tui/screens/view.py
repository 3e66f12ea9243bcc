"""What the screens behind the tabs have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, cast

import msgspec
from textual.containers import Container
from textual.message import Message
from textual.widget import Widget

from hypha_tui.store.cluster import Changes
from hypha_tui.store.columns import Look
from hypha_tui.widgets.drawing import Drawing
from hypha_tui.widgets.live_table import LiveTable

if TYPE_CHECKING:
    from hypha_tui.screens.app import HyphaApp

PANES: Final = "LiveTable, LineLog, SliceField, PickLines"
"""Widgets that take the focus."""

Target = tuple[str, str]
"""Kind and id of an object."""


class View(Container):
    """One screen. `sync` brings it up to date; it is called only while it is shown."""

    scopes: tuple[str, ...] = ()

    class Ready(Message):
        """Everything in it is there, for the first time."""

        def __init__(self, view: View) -> None:
            super().__init__()
            self.view = view

    def __init__(self, name: str, drawing: Drawing, look: Callable[[], Look]) -> None:
        super().__init__(id=name)
        self.drawing = drawing
        self.look = look

    def on_mount(self) -> None:
        """Tell the main screen."""
        self.post_message(self.Ready(self))

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

    def set_filter(self, words: str, otherwise: str | None = None) -> None:
        """Narrow what is shown, where that makes sense. `otherwise`: the filter that holds where this one is none."""

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

    def on_live_table_moved(self, _event: LiveTable.Moved) -> None:
        """The id under the cursor is in the status line: with the row, not a message and a picture later."""
        cast("HyphaApp", self.app).main.surround.sync_status(self.look())

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
