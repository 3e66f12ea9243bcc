"""Jump mode: a letter on every pane, and the letter takes the focus there."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Static

LETTERS: Final = "asdfghjklwertyuiopzxcvbnm"


class Jump:
    """The letters over one screen, from when they are shown until the next key."""

    def __init__(self, screen: Screen[None], panes: Iterable[Widget]) -> None:
        self._panes = dict(zip(LETTERS, (pane for pane in panes if pane.region.area), strict=False))
        self._labels: list[Static] = []
        for letter, pane in self._panes.items():
            label = Static(f" {letter} ", classes="jump-label", markup=False)
            label.styles.offset = (pane.region.x, pane.region.y)
            self._labels.append(label)
        screen.mount_all(self._labels)

    def end(self, key: str) -> bool:
        """Take the letters away; whether `key` was one of them and has the focus moved."""
        for label in self._labels:
            label.remove()
        pane = self._panes.get(key)
        if pane is not None:
            pane.focus()
        return pane is not None
