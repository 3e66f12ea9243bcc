"""Screens that are laid out at the size that the terminal has by now, whichever size they are told of."""

from __future__ import annotations

from textual.geometry import Size
from textual.screen import Screen, ScreenResultType


class NewestSize(Screen[ScreenResultType]):
    """Base of every screen. It comes behind `ModalScreen`, whose style a screen takes only from its first base.

    A layout tells the screen itself of its new size. Where two sizes wait at once, each is told of again behind the
    other, and Textual's own screens are laid out at both in turn, for ever.
    """

    def _screen_resized(self, size: Size) -> None:
        super()._screen_resized(self.app.size)
