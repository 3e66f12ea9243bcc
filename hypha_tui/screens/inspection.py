"""An object in full, under tabs: what it is, its life, its events, its JSON, and what its tasks wrote.

The same pane lies beside a table, where it follows the cursor, and in a layer of its own.
"""

from __future__ import annotations

import asyncio
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Final, cast

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Container

from hypha_tui.store import text
from hypha_tui.store.cluster import KINDS, Item
from hypha_tui.store.columns import Look
from hypha_tui.store.mentions import EVENT, find_event, mentions
from hypha_tui.store.summary import event_json, event_summary, json_lines, summary, title
from hypha_tui.store.tasklines import TaskLines
from hypha_tui.store.timeline import job_bar, job_moments, lease_lines, moment_lines, of_events
from hypha_tui.widgets.drawing import Drawing, Line
from hypha_tui.widgets.pick_lines import PickLines
from hypha_tui.widgets.task_log import TaskLog
from hypha_tui.widgets.work import start
from node.errors import HyphaError
from node.views import JobView, LeaseHistory, LeaseView

if TYPE_CHECKING:
    from hypha_tui.screens.app import HyphaApp

SUMMARY: Final = "Summary"
LOG: Final = "Log"
LOG_EVERY_S: Final = 2.0
LOG_LINES: Final = 500
HISTORY_EVERY_S: Final = 5.0
HISTORY_LEAST_S: Final = 1.0
"""A lease that was just renewed is asked about again so soon."""
DEADLINE_S: Final = 8.0


class InspectorPane(Container):
    """Shows one object; `inspect` says which, `sync` brings it up to date."""

    def __init__(self, drawing: Drawing, *, id: str | None = None, classes: str = "panel detail") -> None:
        super().__init__(id=id, classes=classes)
        self._lines = PickLines(drawing)
        self._log = TaskLog(drawing, self._look, lambda: self._app.wall())
        self._log.display = False
        self._target = ("", "")
        self._tab = SUMMARY
        self._words = ""
        self._titled: tuple[str, str] = ("", "")
        self._item: Item | None = None
        self._history: LeaseHistory | None = None
        self._told_at = -1e9
        self._asked_at = -1e9
        self._asked_version = 0
        self._problem = ""
        self._task_lines = TaskLines()

    def compose(self) -> ComposeResult:
        """The one or the other."""
        yield self._lines
        yield self._log

    @property
    def target(self) -> tuple[str, str]:
        """Kind and id of what is shown."""
        return self._target

    @property
    def tab(self) -> str:
        """The tab that is shown."""
        return self._tab

    @property
    def text(self) -> str:
        """What is shown, without styles."""
        return self._lines.text

    @property
    def json(self) -> str:
        """The object as JSON."""
        seen = find_event(self._look().store, self._target[1]) if self._target[0] == EVENT else None
        lines = event_json(seen) if seen is not None else json_lines(self._item.view) if self._item is not None else []
        return "\n".join(_plain(line) for line in lines)

    @property
    def body(self) -> PickLines | TaskLog:
        """What keys go to."""
        return self._log if self._tab == LOG else self._lines

    @property
    def tabs(self) -> list[str]:
        """Those that this kind of object has."""
        return [SUMMARY, "Timeline", "Events", "JSON", *([LOG] if self._log_of() is not None else [])]

    def inspect(self, kind: str, id_: str) -> None:
        """Show another object, under the same tab where it has that."""
        if (kind, id_) == self._target:
            return
        self._target = (kind, id_)
        self._item, self._history, self._problem, self._words = None, None, "", ""
        self._told_at = self._asked_at = -1e9
        self._task_lines = TaskLines()
        if self._tab not in self.tabs:
            self._tab = SUMMARY
        self._show_body()
        self._lines.home()
        if not kind:
            self._lines.show([])
            self._titled, self.border_title, self.border_subtitle = ("", ""), None, None
        self.sync()

    def show_tab(self, tab: str) -> None:
        """Another tab, if there is one of this name."""
        if tab not in self.tabs:
            return
        had_focus = self._lines.has_focus or self._log.has_focus
        self._tab, self._words = tab, ""
        self._asked_at = -1e9
        self._log.set_filter("")
        self._show_body()
        self._lines.home()
        if had_focus:
            self.body.focus()
        self.sync()

    def next_tab(self, by: int = 1) -> None:
        """The next tab, or the one before."""
        self.show_tab(self.tabs[(self.tabs.index(self._tab) + by) % len(self.tabs)])

    def find(self, words: str) -> None:
        """Show only lines that have every word in them."""
        self._words = words.strip().lower()
        self._log.set_filter(self._words)
        self.sync()

    def sync(self) -> None:
        """Bring it up to date; an object that is gone stays as it was, and says so."""
        kind, id_ = self._target
        if not kind or not self.display or not self.is_attached:
            return
        look = self._look()
        item = look.store.items(kind).get(id_) if kind in KINDS else None
        is_gone = kind in KINDS and item is None
        self._item = item or self._item
        self._head(look, is_gone)
        if self._tab == LOG:
            self._log.feed(self._task_lines.lines)
        else:
            lines = self._content(look)
            words = self._words.split()
            if words:
                lines = [line for line in lines if all(word in _plain(line).lower() for word in words)]
            self._lines.show(lines)
        self._ask(look)

    # ---- inside -----------------------------------------------------------------------------------------------

    @property
    def _app(self) -> HyphaApp:
        return cast("HyphaApp", self.app)

    def _look(self) -> Look:
        return self._app.look()

    def _show_body(self) -> None:
        self._log.display = self._tab == LOG
        self._lines.display = self._tab != LOG

    def _head(self, look: Look, is_gone: bool) -> None:
        kind, id_ = self._target
        name = title(self._item.view, look) if self._item is not None else f"{kind} {text.short_id(id_)}"
        tabs = "  ".join(f"[{tab}]" if tab == self._tab else tab for tab in self.tabs)
        notes = [note for note in ("gone" if is_gone else "", self._problem, self._state()) if note]
        room = max(self.size.width - len(tabs) - 7, 12)
        titled = (f"{text.cut(name, room, mark=look.glyphs.cut)}   {tabs}", "  ".join(notes))
        if titled != self._titled:
            self._titled = titled
            self.border_title, self.border_subtitle = Text(titled[0]), Text(titled[1])

    def _state(self) -> str:
        if self._tab == LOG:
            return self._log.state_line
        return f"lines with {self._words}" if self._words else ""

    def _content(self, look: Look) -> list[Line]:
        kind, id_ = self._target
        width = max(self._lines.size.width, 40)
        if kind == EVENT:
            return self._event(look, id_)
        if self._item is None:
            return [[("it is gone, and nothing of it is known here", "dim")]]
        view = self._item.view
        if self._tab == "JSON":
            return json_lines(view)
        if self._tab == SUMMARY:
            return summary(view, look)
        events = mentions(look.store, kind, id_)
        if self._tab == "Events":
            return moment_lines(of_events(events, look), self._wall)
        if isinstance(view, LeaseView):
            return lease_lines(view, self._history, look.now - self._told_at, look, self._wall, width)
        if isinstance(view, JobView):
            moments = job_moments(view, events, look)
            return [*job_bar(moments, look, width), *moment_lines(moments, self._wall)]
        return moment_lines(of_events(events, look), self._wall)

    def _event(self, look: Look, number: str) -> list[Line]:
        seen = find_event(look.store, number)
        if seen is None:
            return [[("this event is too old: it is not kept any more", "dim")]]
        if self._tab == "JSON":
            return event_json(seen)
        if self._tab == SUMMARY:
            return event_summary(seen, look, self._wall(look.now - seen.at))
        fields = set(seen.event.fields.values())
        others = [other for other in look.store.events if fields & set(other.event.fields.values())]
        return moment_lines(of_events(others or [seen], look), self._wall)

    def _wall(self, age_s: float) -> str:
        return datetime.fromtimestamp(self._app.wall() - age_s).strftime("%H:%M:%S.%f")[:-5]

    def _log_of(self) -> tuple[str, str] | None:
        """Job and task whose log this object has; no task: all of the job's."""
        kind, id_ = self._target
        if kind == "job":
            return id_, ""
        item = self._item or (self._look().store.items(kind).get(id_) if kind == "lease" and self.is_attached else None)
        view = item.view if item is not None else None
        return (view.job_id, view.task_id) if isinstance(view, LeaseView) and view.task_id else None

    def _ask(self, look: Look) -> None:
        """Ask the node for what the stream does not tell, while it is on screen."""
        kind, id_ = self._target
        waited = look.now - self._asked_at
        if self._tab == LOG:
            log = self._log_of()
            if log is not None and waited >= LOG_EVERY_S:
                self._asked_at = look.now
                start(self, partial(self._load_log, *log), "ask")
        elif self._tab == "Timeline" and kind == "lease" and self._item is not None:
            is_new = self._item.version != self._asked_version
            if waited >= HISTORY_EVERY_S or (is_new and waited >= HISTORY_LEAST_S):
                self._asked_at, self._asked_version = look.now, self._item.version
                start(self, partial(self._load_history, id_), "ask")

    async def _load_history(self, lease_id: str) -> None:
        try:
            async with asyncio.timeout(DEADLINE_S):
                history = await self._app.client.lease_history(lease_id)
        except (HyphaError, TimeoutError) as error:
            self._problem = text.clean(str(error) or "no answer")
        else:
            self._history, self._told_at, self._problem = history, self._look().now, ""
        self.sync()

    async def _load_log(self, job_id: str, task_id: str) -> None:
        try:
            async with asyncio.timeout(DEADLINE_S):
                chunks = await self._app.client.logs(job_id, task_id, LOG_LINES)
        except (HyphaError, TimeoutError) as error:
            self._problem = text.clean(str(error) or "no answer")
        else:
            self._task_lines.take(chunks, self._look().now)
            problems = [f"{self._look().store.with_names(words)}" for words in self._task_lines.problems.values()]
            self._problem = text.clean(problems[0]) if problems else ""
        self.sync()


def _plain(line: Line) -> str:
    return "".join(words for words, _ in line)
