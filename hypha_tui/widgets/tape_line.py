"""The line that tells where a recording is."""

from __future__ import annotations

from datetime import datetime
from typing import Protocol

from hypha_tui.store.glyphs import Glyphs
from hypha_tui.store.scales import clock
from hypha_tui.widgets.drawing import Line, width_of


class Position(Protocol):
    """Where a recording is."""

    is_playing: bool
    speed: float

    @property
    def first(self) -> float: ...

    @property
    def last(self) -> float: ...

    def now(self) -> float: ...

    def wall(self) -> float: ...


def tape_line(position: Position, glyphs: Glyphs, width: int) -> Line:
    """State, time of day, a bar, how far of how long."""
    day = datetime.fromtimestamp(position.wall()).strftime("%Y-%m-%d %H:%M:%S")
    state = f"plays {position.speed:g}x" if position.is_playing else "paused"
    left: Line = [(f" {state:<10}", "title" if position.is_playing else "late"), (f"{day}  ", "text")]
    right: Line = [(f"  {clock(position.now())} of {clock(position.last)}  ", "text"), (", . step  P play ", "dim")]
    room = width - width_of(left) - width_of(right)
    if room < 4:
        right = right[:1]
        room = max(width - width_of(left) - width_of(right), 0)
    span = (position.last - position.first) or 1.0
    return [*left, (glyphs.bar((position.now() - position.first) / span, room), "busy"), *right]
