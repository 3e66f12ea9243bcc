"""From cells (text and tone) to strips: the one place where tones become colours."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

from hypha_tui.store.columns import Cell
from hypha_tui.store.glyphs import Glyphs
from hypha_tui.themes import Palette

Line = list[Cell]
MOST_STYLES: Final = 1_000


class Drawing:
    """What every line widget draws with. The app gives it another palette when the theme changes."""

    def __init__(self, palette: Palette, glyphs: Glyphs) -> None:
        self.palette = palette
        self.glyphs = glyphs
        self._styles: dict[tuple[str, bool, Style, Palette], Style] = {}

    def strip(self, line: Iterable[Cell], width: int, base: Style, *, cursor: bool = False) -> Strip:
        """A line in exactly `width` cells."""
        segments = [Segment(text, self._style(tone, cursor, base)) for text, tone in line if text]
        fill = self._style("text", True, base) if cursor else base
        return Strip(segments).adjust_cell_length(width, fill)

    def _style(self, tone: str, cursor: bool, base: Style) -> Style:
        """A tone on a background. Adding two styles costs more than looking their sum up; there are few of them."""
        key = (tone, cursor, base, self.palette)
        style = self._styles.get(key)
        if style is None:
            if len(self._styles) > MOST_STYLES:
                self._styles.clear()
            style = self._styles[key] = base + self.palette.style(tone, cursor=cursor)
        return style


def width_of(line: Iterable[Cell]) -> int:
    """Cells that a line takes."""
    return Strip([Segment(text) for text, _ in line]).cell_length


def spread(left: Line, right: Line, width: int) -> Line:
    """`left` and `right` at the two ends of a line; the right end gives way when there is no room."""
    space = width - width_of(left) - width_of(right)
    return [*left, (" " * space, "text"), *right] if space >= 1 else left
