"""Prepared lines with a cursor: one of them can be opened. Long ones scroll sideways."""

from __future__ import annotations

from textual.binding import Binding
from textual.events import Click
from textual.message import Message
from textual.strip import Strip

from hypha_tui.keys.keymap import keys_of
from hypha_tui.widgets.drawing import Drawing, Line, width_of
from hypha_tui.widgets.lines import Lines
from hypha_tui.widgets.selection import selectable

STEP = 8


class PickLines(Lines, can_focus=True):
    """Lines, one of which is under the cursor."""

    BINDINGS = [Binding(key.keys, key.action, key.label, id=key.id, show=False) for key in keys_of("lines")]

    class Opened(Message):
        """Enter, or a double click, on a line."""

        def __init__(self, words: str) -> None:
            super().__init__()
            self.words = words

    def __init__(self, drawing: Drawing, *, id: str | None = None) -> None:
        super().__init__(drawing, id=id)
        self._cursor = 0
        self._x = 0

    @property
    def line_under_cursor(self) -> str:
        """Its whole text."""
        return "".join(words for words, _ in self._lines[self._cursor]) if self._cursor < len(self._lines) else ""

    def show(self, lines: list[Line]) -> None:
        """Other lines; the cursor stays where it is as far as it can."""
        super().show(lines)
        self._cursor = min(self._cursor, max(len(lines) - 1, 0))

    def home(self) -> None:
        """Back to the first line, for other content."""
        self._cursor = self._x = 0
        self.scroll_to(y=0, animate=False, force=True)

    def render_line(self, y: int) -> Strip:
        """One line; the one under the cursor is drawn so while we have the focus."""
        number = self.scroll_offset.y + y
        line = self._lines[number] if number < len(self._lines) else []
        width = self.size.width
        has_cursor = self.has_focus and number == self._cursor
        strip = self._drawing.strip(line, max(width + self._x, width), self.rich_style, cursor=has_cursor)
        return selectable(self, strip.crop(self._x, self._x + width), number)

    def on_focus(self) -> None:
        """The cursor is drawn."""
        self.refresh()

    def on_blur(self) -> None:
        """And not without the focus."""
        self.refresh()

    def on_click(self, event: Click) -> None:
        """A click moves the cursor, a double click opens."""
        self._move_to(self.scroll_offset.y + event.y)
        if event.chain == 2:
            self.action_open()

    def action_scroll_down(self) -> None:
        """One line down."""
        self._move_to(self._cursor + 1)

    def action_scroll_up(self) -> None:
        """One line up."""
        self._move_to(self._cursor - 1)

    def action_move(self, by: int) -> None:
        """So many lines."""
        self._move_to(self._cursor + by)

    def action_scroll_home(self) -> None:
        """The first line."""
        self._move_to(0)

    def action_follow(self) -> None:
        """The last line."""
        self._move_to(len(self._lines) - 1)

    def action_half_page(self, by: int) -> None:
        """Half a page."""
        self._move_to(self._cursor + by * max(self.size.height // 2, 1))

    def action_page(self, by: int) -> None:
        """A page."""
        self._move_to(self._cursor + by * max(self.size.height - 1, 1))

    def action_sideways(self, by: int) -> None:
        """Scroll sideways."""
        longest = max((width_of(line) for line in self._lines), default=0)
        self._x = min(max(self._x + by * STEP, 0), max(longest - self.size.width, 0))
        self.refresh()

    def action_line_start(self) -> None:
        """The start of the lines."""
        self._x = 0
        self.refresh()

    def action_open(self) -> None:
        """The line in full."""
        if self.line_under_cursor.strip():
            self.post_message(self.Opened(self.line_under_cursor))

    def _move_to(self, number: int) -> None:
        self._cursor = min(max(number, 0), max(len(self._lines) - 1, 0))
        top, height = self.scroll_offset.y, max(self.size.height, 1)
        if self._cursor < top:
            self.scroll_to(y=self._cursor, animate=False, force=True)
        elif self._cursor >= top + height:
            self.scroll_to(y=self._cursor - height + 1, animate=False, force=True)
        self.refresh()
