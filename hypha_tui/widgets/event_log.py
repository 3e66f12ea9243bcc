"""Events as lines, newest at the foot."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from hypha_tui.store import text
from hypha_tui.store.cluster import SeenEvent
from hypha_tui.store.columns import Look
from hypha_tui.widgets.drawing import Drawing, Line
from hypha_tui.widgets.line_log import LEVELS as ORDER
from hypha_tui.widgets.line_log import LineLog

LEVELS = {"info": ("dim", "dim"), "warning": ("late", "late"), "error": ("lost", "lost")}


class EventLog(LineLog[SeenEvent]):
    """The store's events that match a filter."""

    def __init__(
        self, drawing: Drawing, look: Callable[[], Look], wall: Callable[[], float], *, id: str | None = None
    ) -> None:
        super().__init__(drawing, empty="no events yet", noun="event", id=id)
        self._look = look
        self._wall = wall

    def sync(self, changed: bool) -> None:
        """Take in new events."""
        if changed:
            self.feed(self._look().store.events)

    def line_of(self, record: SeenEvent) -> Line:
        """Time of day, level, node, name, text."""
        return event_line(record, self._look(), self._wall(), self._drawing, self.size.width, has_time=self.has_times)

    def hay_of(self, record: SeenEvent) -> str:
        """Everything that an event says."""
        event = record.event
        store = self._look().store
        words = (store.name_of(event.node), event.name, event.text, store.with_names(event.text), event.level)
        return " ".join((*words, *event.fields.values()))

    def level_of(self, record: SeenEvent) -> str:
        """The event's own; one we do not know is information."""
        return record.event.level if record.event.level in ORDER else "info"


def event_line(
    seen: SeenEvent, look: Look, wall: float, drawing: Drawing, width: int, *, has_time: bool = True
) -> Line:
    """An event as one line: time of day, level, node, name, text."""
    event = seen.event
    at = datetime.fromtimestamp(wall - (look.now - seen.at)).strftime("%H:%M:%S")
    tone, text_tone = LEVELS.get(event.level, LEVELS["info"])
    sign = {"info": " ", "warning": drawing.glyphs.state["late"], "error": drawing.glyphs.state["lost"]}
    mark = drawing.glyphs.cut
    node_width, name_width = (14, 20) if width >= 100 else (10, 15)
    return [
        (f"{at} " if has_time else "", "dim"),
        (f"{sign.get(event.level, ' ')} ", tone),
        (text.fit(look.store.name_of(event.node), node_width, mark=mark) + "  ", "title"),
        (text.fit(event.name, name_width, mark=mark) + "  ", "dim"),
        (text.clean(look.store.with_names(event.text)), text_tone if event.level != "info" else "text"),
    ]
