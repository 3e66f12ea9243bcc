"""Events: everything that happened, node by node, as it comes."""

from __future__ import annotations

from collections.abc import Callable

from textual.app import ComposeResult

from hypha_tui.screens.view import View
from hypha_tui.store.cluster import Changes
from hypha_tui.store.columns import Look
from hypha_tui.widgets.drawing import Drawing
from hypha_tui.widgets.event_log import EventLog


class EventsView(View):
    """One log."""

    scopes = ("lines", "log")

    def __init__(self, drawing: Drawing, look: Callable[[], Look], wall: Callable[[], float]) -> None:
        super().__init__("events", drawing, look)
        self.log_lines = EventLog(drawing, look, wall, id="events-log")

    def compose(self) -> ComposeResult:
        """The log."""
        yield self.log_lines

    def sync(self, changes: Changes | None) -> None:
        """New events."""
        self.log_lines.sync(changes is None or changes.events)

    @property
    def state_line(self) -> str:
        """The log's."""
        return self.log_lines.state_line

    @property
    def filter_text(self) -> str:
        """The log's."""
        return self.log_lines.filter_text

    def set_filter(self, words: str, otherwise: str | None = None) -> None:
        """Filter the log."""
        self.log_lines.set_filter(words)
