"""A long or cut value, whole."""

from __future__ import annotations

import textwrap

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Container
from textual.events import Resize

from hypha_tui.screens.dialogs import Layer, ScrollingLines
from hypha_tui.store import text
from hypha_tui.widgets.drawing import Drawing, Line


class ValueScreen(Layer):
    """Wraps it to the width there is."""

    scopes = ("lines",)

    def __init__(self, drawing: Drawing, name: str, value: str) -> None:
        super().__init__()
        self._lines = ScrollingLines(drawing)
        self._called = name
        self._value = value

    def compose(self) -> ComposeResult:
        """One scrolling box."""
        with Container(classes="box") as box:
            box.border_title = Text(text.clean(self._called))
            yield self._lines

    def on_mount(self) -> None:
        """Keys scroll it."""
        self._lines.focus()
        self.call_after_refresh(self._fill)

    def on_resize(self, event: Resize) -> None:
        """Wrap anew."""
        self.call_after_refresh(self._fill)

    def _fill(self) -> None:
        width = max(self._lines.size.width, 20)
        lines: list[Line] = []
        for line in self._value.split("\n"):
            parts = textwrap.wrap(
                text.clean(line), width, replace_whitespace=False, drop_whitespace=False, break_on_hyphens=False
            )
            lines += [[(part, "text")] for part in parts or [""]]
        self._lines.show(lines)
