"""Events as lines, newest at the foot. Scrolling up stops following; nothing moves until `G`."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from textual.binding import Binding
from textual.events import Resize
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from hypha_tui.keymap import keys_of
from hypha_tui.store import text
from hypha_tui.store.cluster import SeenEvent
from hypha_tui.store.columns import Look
from hypha_tui.widgets.drawing import Drawing, Line

LEVELS = {"info": ("dim", "dim"), "warning": ("late", "late"), "error": ("lost", "lost")}


class EventLog(ScrollView, can_focus=True):
    """The store's events that match a filter."""

    BINDINGS = [Binding(key.keys, key.action, key.label, id=key.id, show=False) for key in keys_of("log")]
    DEFAULT_CSS = "EventLog { scrollbar-size: 0 0; overflow-x: hidden; }"

    class Changed(Message):
        """Whether it follows has changed."""

    def __init__(
        self, drawing: Drawing, look: Callable[[], Look], wall: Callable[[], float], *, id: str | None = None
    ) -> None:
        super().__init__(id=id)
        self._drawing = drawing
        self._look = look
        self._wall = wall
        self._shown: list[SeenEvent] = []
        self._last = 0
        self.filter_text = ""
        self.follows = True

    @property
    def state_line(self) -> str:
        """For the status line."""
        total = len(self._look().store.events)
        shown = f"{len(self._shown):,} of {total:,}" if self.filter_text else f"{total:,}"
        return f"{shown} event{'' if shown == '1' else 's'}  {'following' if self.follows else 'held (G follows)'}"

    def sync(self, changed: bool) -> None:
        """Take in new events."""
        if not changed:
            return
        events = self._look().store.events
        new = []
        for event in reversed(events):
            if event.number <= self._last:
                break
            new.append(event)
        if not new:
            return
        self._last = new[0].number
        self._shown += [event for event in reversed(new) if self._matches(event)]
        oldest = events[0].number
        forgotten = 0
        while forgotten < len(self._shown) and self._shown[forgotten].number < oldest:
            forgotten += 1
        del self._shown[:forgotten]
        self._resized(-forgotten)

    def set_filter(self, words: str) -> None:
        """Show only events that have every word in them."""
        self.filter_text = words.strip()
        self._shown = [event for event in self._look().store.events if self._matches(event)]
        self.follows = True
        self._resized(0)

    def render_line(self, y: int) -> Strip:
        """One event, or one line of nothing."""
        number = self.scroll_offset.y + y
        if number >= len(self._shown):
            line: Line = [("no events yet", "dim")] if number == 0 else []
            return self._drawing.strip(line, self.size.width, self.rich_style)
        return self._drawing.strip(self._line(self._shown[number]), self.size.width, self.rich_style)

    def action_scroll_up(self) -> None:
        """One line up; stops following."""
        self._move(-1)

    def action_scroll_down(self) -> None:
        """One line down."""
        self._move(1)

    def action_scroll_home(self) -> None:
        """The oldest line."""
        self._move(-len(self._shown))

    def action_half_page(self, by: int) -> None:
        """Half a page."""
        self._move(by * max(self.size.height // 2, 1))

    def action_follow(self) -> None:
        """The newest line, and those that come."""
        self.follows = True
        self._resized(0)
        self.post_message(self.Changed())

    def on_resize(self, event: Resize) -> None:
        """Keep the foot in view."""
        self._resized(0)

    def on_mouse_scroll_up(self) -> None:
        """The wheel stops following as well."""
        self._move(-3)

    def on_mouse_scroll_down(self) -> None:
        """The wheel, downwards."""
        self._move(3)

    def _move(self, by: int) -> None:
        top = max(len(self._shown) - self.size.height, 0)
        target = min(max(self.scroll_offset.y + by, 0), top)
        self.follows = by > 0 and target == top
        self.scroll_to(y=target, animate=False, force=True)
        self.post_message(self.Changed())

    def _resized(self, moved: int) -> None:
        self.virtual_size = Size(self.size.width, len(self._shown))
        if self.follows:
            self.scroll_to(y=max(len(self._shown) - self.size.height, 0), animate=False, force=True)
        elif moved:
            self.scroll_to(y=max(self.scroll_offset.y + moved, 0), animate=False, force=True)
        self.refresh()

    def _line(self, seen: SeenEvent) -> Line:
        return event_line(seen, self._look(), self._wall(), self._drawing, self.size.width)

    def _matches(self, seen: SeenEvent) -> bool:
        event = seen.event
        node = self._look().store.name_of(event.node)
        hay = " ".join((node, event.name, event.text, event.level, *event.fields.values())).lower()
        for word in self.filter_text.lower().split():
            if (word[1:] in hay) if word.startswith("!") and len(word) > 1 else (word not in hay):
                return False
        return True


def event_line(seen: SeenEvent, look: Look, wall: float, drawing: Drawing, width: int) -> Line:
    """An event as one line: time of day, level, node, name, text."""
    event = seen.event
    at = datetime.fromtimestamp(wall - (look.now - seen.at)).strftime("%H:%M:%S")
    tone, text_tone = LEVELS.get(event.level, LEVELS["info"])
    sign = {"info": " ", "warning": drawing.glyphs.state["late"], "error": drawing.glyphs.state["lost"]}
    mark = drawing.glyphs.cut
    node_width, name_width = (14, 20) if width >= 100 else (10, 15)
    return [
        (f"{at} ", "dim"),
        (f"{sign.get(event.level, ' ')} ", tone),
        (text.fit(look.store.name_of(event.node), node_width, mark=mark) + "  ", "title"),
        (text.fit(event.name, name_width, mark=mark) + "  ", "dim"),
        (text.clean(look.store.with_names(event.text)), text_tone if event.level != "info" else "text"),
    ]
