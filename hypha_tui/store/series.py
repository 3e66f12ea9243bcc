"""Time series of metrics: a bounded run of raw points with pyramids of minima and maxima above it.

Any stretch can be drawn from a bounded number of blocks, however many points it holds.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right

CAPACITY = 4_096
_FAN = 8
_LEVELS = 3
_CHUNK = _FAN**_LEVELS


class _Level:
    """One storey of the pyramid: the extremes of each full block of points below, and the block's first x."""

    def __init__(self) -> None:
        self.x = array("d")
        self.low = array("d")
        self.high = array("d")

    def forget(self, blocks: int) -> None:
        del self.x[:blocks], self.low[:blocks], self.high[:blocks]


class Series:
    """Points (x, y) with rising x. A point with an x already there replaces the value."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = max(capacity, _CHUNK)
        self._x = array("d")
        self._y = array("d")
        self._levels = [_Level() for _ in range(_LEVELS)]

    def __len__(self) -> int:
        return len(self._x)

    @property
    def last(self) -> float | None:
        """The newest value."""
        return self._y[-1] if self._y else None

    @property
    def first_x(self) -> float:
        """The x of the oldest point that is kept; 0 without points."""
        return self._x[0] if self._x else 0.0

    @property
    def last_x(self) -> float:
        """The x of the newest point; 0 without points."""
        return self._x[-1] if self._x else 0.0

    def points(self) -> list[tuple[float, float]]:
        """Every point that is kept, oldest first."""
        return list(zip(self._x, self._y, strict=True))

    def put(self, x: float, y: float) -> None:
        """Add a point. Appending is cheap; a point in the past costs a rebuild."""
        if not self._x or x > self._x[-1]:
            self._x.append(x)
            self._y.append(y)
            self._grow()
            if len(self._x) > self._capacity + _CHUNK:
                self._forget()
            return
        at = bisect_left(self._x, x)
        if self._x[at] == x:
            if self._y[at] == y:
                return
            self._y[at] = y
        elif at == 0 and len(self._x) >= self._capacity:
            return
        else:
            self._x.insert(at, x)
            self._y.insert(at, y)
        self._rebuild()

    def columns(self, x0: float, x1: float, width: int) -> list[tuple[float, float] | None]:
        """The range of values in each of `width` equal parts of x0..x1 (both included), or None where there is none."""
        parts: list[tuple[float, float] | None] = [None] * width
        if width < 1 or not self._x or x1 < x0:
            return parts
        span = (x1 - x0) or 1.0
        x, low, high = self._level_for(x0, x1, width)
        # The block before x0 may reach into the range.
        start = max(bisect_left(x, x0) - (1 if x is not self._x else 0), 0)
        for index in range(start, bisect_right(x, x1)):
            column = min(max(int((x[index] - x0) / span * width), 0), width - 1)
            here = parts[column]
            a, b = low[index], high[index]
            parts[column] = (a, b) if here is None else (min(here[0], a), max(here[1], b))
        if x is not self._x:  # the newest points may not have filled a block yet
            for index in range(len(x) * (len(self._x) // max(len(x), 1)), len(self._x)):
                if x0 <= self._x[index] <= x1:
                    column = min(int((self._x[index] - x0) / span * width), width - 1)
                    here = parts[column]
                    value = self._y[index]
                    parts[column] = (value, value) if here is None else (min(here[0], value), max(here[1], value))
        return parts

    def _level_for(self, x0: float, x1: float, width: int) -> tuple[array[float], array[float], array[float]]:
        if bisect_right(self._x, x1) - bisect_left(self._x, x0) <= 4 * width:
            return self._x, self._y, self._y
        chosen = self._levels[0]
        for level in self._levels:
            if bisect_right(level.x, x1) - bisect_left(level.x, x0) < 2 * width:
                break
            chosen = level
        return chosen.x, chosen.low, chosen.high

    def _grow(self) -> None:
        below_x, below_low, below_high = self._x, self._y, self._y
        for level in self._levels:
            if len(below_x) % _FAN:
                return
            level.x.append(below_x[-_FAN])
            level.low.append(min(below_low[-_FAN:]))
            level.high.append(max(below_high[-_FAN:]))
            below_x, below_low, below_high = level.x, level.low, level.high

    def _forget(self) -> None:
        """Drop the oldest chunk: a whole block on every storey, so that the storeys stay aligned."""
        del self._x[:_CHUNK], self._y[:_CHUNK]
        blocks = _CHUNK
        for level in self._levels:
            blocks //= _FAN
            level.forget(blocks)

    def _rebuild(self) -> None:
        x, y = self._x, self._y
        self._x, self._y = array("d"), array("d")
        self._levels = [_Level() for _ in range(_LEVELS)]
        for a, b in zip(x, y, strict=True):
            self._x.append(a)
            self._y.append(b)
            self._grow()
