"""A block of prepared lines: headers, panels and inspectors. Only lines that differ are painted again."""

from __future__ import annotations

from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.selection import Selection
from textual.strip import Strip

from hypha_tui.widgets.drawing import Drawing, Line
from hypha_tui.widgets.selection import Extract, extract, selectable


class Lines(ScrollView, can_focus=False):
    """Shows lines; scrolls when they are more than its height."""

    DEFAULT_CSS = "Lines { scrollbar-size: 0 0; overflow-x: hidden; }"

    def __init__(self, drawing: Drawing, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self._drawing = drawing
        self._lines: list[Line] = []

    @property
    def text(self) -> str:
        """What is shown, without styles."""
        return "\n".join("".join(text for text, _ in line) for line in self._lines)

    def show(self, lines: list[Line]) -> None:
        """Replace the lines."""
        before, self._lines = self._lines, lines
        if len(before) != len(lines):
            self.virtual_size = Size(self.size.width, len(lines))
        for number in range(max(len(before), len(lines))):
            old = before[number] if number < len(before) else None
            new = lines[number] if number < len(lines) else None
            if old != new:
                self.refresh_line(number)

    def render_line(self, y: int) -> Strip:
        """One line of the viewport."""
        number = self.scroll_offset.y + y
        line = self._lines[number] if number < len(self._lines) else []
        return selectable(self, self._drawing.strip(line, self.size.width, self.rich_style), number)

    def get_selection(self, selection: Selection) -> Extract:
        """The text that the mouse selected."""
        return extract(self.text.split("\n"), selection)
