"""What the screens behind the tabs have in common."""

from __future__ import annotations

from collections.abc import Callable

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Container
from textual.widget import Widget

from hypha_tui.store.cluster import Changes
from hypha_tui.store.columns import COLUMNS, Look
from hypha_tui.store.summary import summary, title
from hypha_tui.widgets.drawing import Drawing
from hypha_tui.widgets.lines import Lines
from hypha_tui.widgets.live_table import LiveTable
from node.views import AnyView

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

    def panes(self) -> list[Widget]:
        """What tab moves between."""
        return [widget for widget in self.query("LiveTable, EventLog").results(Widget) if widget.can_focus]

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
        self.table = LiveTable(kind, COLUMNS[kind], drawing, look, sort=sort, empty=empty, id=f"{name}-table")
        self.detail = Lines(drawing, classes="panel detail")
        self._told = ""

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
        look = self.look()
        view = self.selected_view()
        if view is None:
            self._told = ""
            self.detail.border_title = None
            self.detail.show([])
            return
        name = title(view, look)
        if self._told != name:
            self._told = name
            self.detail.border_title = Text(name)
        self.detail.show(summary(view, look))

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
