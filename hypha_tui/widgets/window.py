"""The stretch of a plot's axis that is shown, and the cursor in it. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from hypha_tui.widgets.plot import Curve

LEAST_PART: Final = 1e-6
"""The smallest stretch, as a part of the whole axis."""


class Window:
    """Everything without a cursor, until a key narrows it. A stretch that ends at the newest value moves on with it."""

    def __init__(self) -> None:
        self.stretch: tuple[float, float] | None = None
        self.cursor: float | None = None
        self._whole = (0.0, 1.0)
        self._newest: float | None = None

    def zoom(self, by: int, x0: float, x1: float) -> None:
        """Half (1) or twice (-1) of what is shown, x0..x1, around the cursor or at the right end."""
        if self.stretch is None:
            if by < 0:
                return
            self._whole = (x0, x1)
        span = (x1 - x0) * (0.5 if by > 0 else 2.0)
        whole0, whole1 = self._whole
        if span >= whole1 - whole0:
            self.stretch = None
            return
        if span < (whole1 - whole0) * LEAST_PART:
            return
        end = self._newest if self._newest is not None else x1
        middle = self.cursor if self.cursor is not None else min(x1, end) - span / 2
        start = min(max(middle - span / 2, whole0), max(whole1 - span, whole0))
        self.stretch = (start, start + span)

    def move(self, by: int, cells: int, x0: float, x1: float) -> None:
        """The cursor, so many of `cells` cells; over the edge it takes the stretch with it."""
        step = (x1 - x0) / cells
        at = self.cursor if self.cursor is not None else min(x1, self._newest if self._newest is not None else x1)
        whole0, whole1 = self._whole if self.stretch is not None else (x0, x1)
        at = min(max(at + by * step, whole0), whole1)
        self.cursor = at
        if self.stretch is not None and not x0 <= at <= x1:
            by_x = at - x0 if at < x0 else at - x1
            self.stretch = (x0 + by_x, x1 + by_x)

    def follow(self, curves: Sequence[Curve]) -> None:
        """New values: a stretch that showed the newest one shows the new one."""
        ends = [curve.place(curve.series.last_x) for curve in curves if len(curve.series)]
        newest = max(ends, default=None)
        before, self._newest = self._newest, newest
        if self.stretch is None or newest is None or before is None or newest <= before:
            return
        self._whole = (self._whole[0], max(self._whole[1], newest))
        start, end = self.stretch
        if self.cursor is None and start <= before <= end < newest:
            self.stretch = (start + newest - end, newest)
