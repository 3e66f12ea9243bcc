"""From cells (text and tone) to strips: the one place where tones become colours."""

from __future__ import annotations

from collections.abc import Iterable

from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

from hypha_tui.store.columns import Cell
from hypha_tui.store.glyphs import Glyphs
from hypha_tui.themes import Palette

Line = list[Cell]


class Drawing:
    """What every line widget draws with. The app gives it another palette when the theme changes."""

    def __init__(self, palette: Palette, glyphs: Glyphs) -> None:
        self.palette = palette
        self.glyphs = glyphs

    def strip(self, line: Iterable[Cell], width: int, base: Style, *, cursor: bool = False) -> Strip:
        """A line in exactly `width` cells."""
        segments = [Segment(text, base + self.palette.style(tone, cursor=cursor)) for text, tone in line if text]
        fill = base + self.palette.style("text", cursor=True) if cursor else base
        return Strip(segments).adjust_cell_length(width, fill)


def width_of(line: Iterable[Cell]) -> int:
    """Cells that a line takes."""
    return Strip([Segment(text) for text, _ in line]).cell_length


def spread(left: Line, right: Line, width: int) -> Line:
    """`left` and `right` at the two ends of a line; the right end gives way when there is no room."""
    space = width - width_of(left) - width_of(right)
    return [*left, (" " * space, "text"), *right] if space >= 1 else left
