"""Text that the mouse can select, for widgets that draw their lines themselves."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from rich.style import Style
from textual.selection import Selection
from textual.strip import Strip
from textual.widget import Widget

MARKED: Final = Style(reverse=True)
Extract = tuple[str, str]


def selectable(widget: Widget, strip: Strip, line: int) -> Strip:
    """A drawn line as one that can be selected from: every cell knows its place, selected ones are marked."""
    if not widget.is_attached:
        return strip
    selection = widget.text_selection
    span = selection.get_span(line) if selection is not None else None
    if span is not None:
        width = strip.cell_length
        start, end = span[0], width if span[1] == -1 else min(span[1], width)
        if start < end:
            marked = strip.crop(start, end).apply_style(MARKED)
            strip = Strip.join([strip.crop(0, start), marked, strip.crop(end)])
    return strip.apply_offsets(0, line)


def extract(lines: Iterable[str], selection: Selection) -> Extract:
    """The selected text, without the blanks that fill a line up, and what parts it from that of other widgets."""
    chosen = selection.extract("\n".join(lines))
    return "\n".join(line.rstrip() for line in chosen.split("\n")), "\n"
