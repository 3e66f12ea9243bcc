"""A screen of one live table, with the row under the cursor told in full beside it, and the curves of its run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from textual.app import ComposeResult
from textual.containers import Container

from hypha_tui.screens.inspection import InspectorPane
from hypha_tui.screens.view import Target, View
from hypha_tui.store.cluster import Changes
from hypha_tui.store.columns import COLUMNS, Look, screen_columns
from hypha_tui.widgets.curve_strip import CurveStrip
from hypha_tui.widgets.drawing import Drawing
from hypha_tui.widgets.live_table import LiveTable
from node.views import AnyView, JobView

NOTHING_NEW: Final = Changes()
REST_S: Final = 0.2
"""So long the cursor stays on a row before the curves follow: drawing three of them would make a held key late."""


class TableView(View):
    """A live table; where there is room, the inspector of the row under the cursor, and curves along the foot."""

    scopes: tuple[str, ...] = ("table",)

    def __init__(
        self, name: str, kind: str, drawing: Drawing, look: Callable[[], Look], *, sort: str, empty: str
    ) -> None:
        super().__init__(name, drawing, look)
        self.table = LiveTable(kind, screen_columns(kind), drawing, look, sort=sort, empty=empty, id=f"{name}-table")
        self.detail = InspectorPane(drawing)
        self.curves = CurveStrip(drawing, id=f"{name}-curves")

    def compose(self) -> ComposeResult:
        """Table, detail, curves."""
        with Container(classes="split"):
            yield self.table
            yield self.detail
        yield self.curves

    def sync(self, changes: Changes | None) -> None:
        """The table, and the row that is told in full."""
        self.table.sync(changes)
        if not self.table.is_frozen:
            self.show_detail()
            self.show_curves(changes)

    def show_curves(self, changes: Changes | None = None) -> None:
        """The curves of the run that the row under the cursor is about, else of the most active one."""
        if not self.curves.display:
            return
        look, view = self.look(), self.selected_view()
        job_id = view.id if isinstance(view, JobView) else getattr(view, "job_id", "")
        if not job_id:
            job_id = next((job.id for job in look.store.jobs_by_activity()), "")
        self.curves.sync(look, job_id, changes)

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

    def on_mount(self) -> None:
        """The clock of the curves stands still until the cursor moves."""
        self._rest = self.set_interval(REST_S, self._at_rest, pause=True)

    def on_live_table_moved(self, _message: LiveTable.Moved) -> None:
        """Another row: another detail, and other curves once the cursor rests."""
        self.show_detail()
        if self.curves.display:
            self._rest.reset()
            self._rest.resume()

    def _at_rest(self) -> None:
        self._rest.pause()
        self.show_curves(NOTHING_NEW)

    @property
    def state_line(self) -> str:
        """The table's."""
        return self.table.state_line

    @property
    def filter_text(self) -> str:
        """The table's."""
        return self.table.filter_text

    def set_filter(self, words: str, otherwise: str | None = None) -> None:
        """Filter the table."""
        self.table.set_filter(words, otherwise)
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
