"""A scroll bar for terminals without block characters: spaces, with the thumb told by its background."""

from __future__ import annotations

from textual.scrollbar import ScrollBarRender


class PlainScrollBar(ScrollBarRender):
    """Whole cells only."""

    VERTICAL_BARS = [" "]
    HORIZONTAL_BARS = [" "]
