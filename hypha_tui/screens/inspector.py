"""The inspector: one object told in full, as JSON, and for a job the last lines its tasks wrote."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container

from hypha_tui.screens.dialogs import Layer, ScrollingLines
from hypha_tui.store import text
from hypha_tui.store.columns import Look
from hypha_tui.store.summary import json_lines, summary, title
from hypha_tui.widgets.drawing import Drawing, Line
from node.errors import HyphaError
from node.views import AnyView, LogChunk

ReadLogs = Callable[[str], Awaitable[list[LogChunk]]]


class InspectorScreen(Layer):
    """Tab goes through Summary, JSON and, for a job, Log."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("tab,right,l", "next_tab(1)", show=False, priority=True),
        Binding("shift+tab,left,h", "next_tab(-1)", show=False, priority=True),
        Binding("enter", "close", show=False),
        Binding("L", "show_tab('Log')", show=False),
        Binding("d", "show_tab('JSON')", show=False),
    ]

    def __init__(
        self,
        drawing: Drawing,
        look: Callable[[], Look],
        kind: str,
        object_id: str,
        logs: ReadLogs,
        *,
        tab: str = "Summary",
    ) -> None:
        super().__init__()
        self.kind = kind
        self.object_id = object_id
        self._look = look
        self._read_logs = logs
        self._log: list[Line] = [[("reading...", "dim")]]
        self._tabs = ["Summary", "JSON", "Log"] if kind == "job" else ["Summary", "JSON"]
        self._tab = tab
        self._lines = ScrollingLines(drawing)
        self._box = Container(classes="box")

    def compose(self) -> ComposeResult:
        """One box."""
        with self._box:
            yield self._lines

    def on_mount(self) -> None:
        """Fill it."""
        self._lines.focus()
        self.action_show_tab(self._tab)

    def sync(self) -> None:
        """Bring it up to date; an object that is gone stays as it was."""
        item = self._look().store.items(self.kind).get(self.object_id)
        if item is None:
            self._box.border_subtitle = Text("gone")
            return
        self._box.border_title = Text(f"{title(item.view, self._look())}   {self._tab_names()}")
        self._lines.show(self._content(item.view))

    def action_next_tab(self, by: int) -> None:
        """Another tab."""
        at = (self._tabs.index(self._tab) + by) % len(self._tabs)
        self.action_show_tab(self._tabs[at])

    def action_show_tab(self, tab: str) -> None:
        """A tab by name."""
        if tab not in self._tabs:
            return
        self._tab = tab
        self._lines.scroll_home(animate=False)
        if tab == "Log":
            self.run_worker(self._load_log(), group="log", exclusive=True, exit_on_error=False)
        self.sync()

    def _tab_names(self) -> str:
        return "  ".join(f"[{tab}]" if tab == self._tab else tab for tab in self._tabs)

    def _content(self, view: AnyView) -> list[Line]:
        if self._tab == "JSON":
            return json_lines(view)
        return self._log if self._tab == "Log" else summary(view, self._look())

    async def _load_log(self) -> None:
        try:
            chunks = await self._read_logs(self.object_id)
        except HyphaError as error:
            self._log = [[(text.clean(str(error)), "lost")]]
        else:
            self._log = log_lines(chunks, self._look())
        self.sync()


def log_lines(chunks: list[LogChunk], look: Look) -> list[Line]:
    """Chunks one after the other, each under the name of its task."""
    lines: list[Line] = []
    for chunk in chunks:
        lines.append([(text.clean(chunk.task_id), "title"), (f"  at {look.store.name_of(chunk.peer_id)}", "dim")])
        if chunk.error:
            lines.append([(text.clean(chunk.error), "late")])
        lines += [[(text.clean(line), "text")] for line in chunk.lines]
        lines.append([])
    return lines or [[("nothing was written yet", "dim")]]
