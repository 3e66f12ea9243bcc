"""A widget whose lines keep what Textual has made of them, wherever they stand.

Textual keeps lines by their place, and so makes each anew when a widget scrolls, asking all parents for the style of
each: for a table of 60 lines that scrolls 30 times a second, 8 % of a core more.
"""

from __future__ import annotations

from typing import Self

from rich.style import Style
from textual.geometry import Region
from textual.scroll_view import ScrollView
from textual.strip import Strip


class KeptLines(ScrollView):
    """`render_line` may answer with a strip that it has answered with before, for any line."""

    def __init__(self, *, id: str | None = None) -> None:
        self.base_style = Style()
        """That of the widget and its parents, for `render_line`."""
        self._lines: dict[int, Strip] = {}
        super().__init__(id=id)

    def render_lines(self, crop: Region) -> list[Strip]:
        """The lines in a part of the widget."""
        self.base_style = self.rich_style
        if self.gutter.totals != (0, 0) or self.styles.text_opacity < 1:
            return super().render_lines(crop)
        filters, (_, background) = self.get_line_filters(), self.background_colors
        strips = []
        for y in crop.line_range:
            strip = self._lines.get(y)
            if strip is None or strip.cell_length != self.size.width:
                strip = self.render_line(y)
                for line_filter in filters:
                    strip = strip.apply_filter(line_filter, background)
                self._lines[y] = strip
            strips.append(strip if crop.width == self.size.width else strip.crop(*crop.column_span))
        return strips

    def refresh(self, *regions: Region, **how: bool) -> Self:
        """What is to be painted anew; without regions, all of it."""
        if not regions:
            self._lines.clear()
        for y in {y for region in regions for y in region.line_range}:
            self._lines.pop(y, None)
        return super().refresh(*regions, **how)
