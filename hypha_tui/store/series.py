"""Time series of metrics: a bounded run of points with a pyramid of minima and maxima above it.

Any stretch can be drawn in one pass over a bounded number of blocks, however many points it stands for. Nothing is
forgotten: older points are merged in pairs, in tiers, so that the past gets coarser with age and keeps its extremes.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from typing import Final, NamedTuple

RAW: Final = 1_024
"""The newest points that are kept as they are; at least half of it."""
TIER: Final = 384
"""Blocks of each size above: of two points, of four, .."""
TIERS: Final = 8
CAPACITY: Final = RAW + TIERS * TIER


class Part(NamedTuple):
    """The values of a stretch: extremes (NaN where no value is finite), and whether one is not finite (`odd`)."""

    low: float
    high: float
    odd: bool = False


class _Level:
    """One storey: extremes of blocks that are twice as large as those of the storey below."""

    def __init__(self) -> None:
        self.low = array("d")
        self.high = array("d")
        self.odd = array("B")

    def part(self, at: int) -> Part:
        return Part(self.low[at], self.high[at], bool(self.odd[at]))

    def above(self) -> _Level:
        """The storey above this one."""
        found = _Level()
        if any(self.odd):
            for at in range(len(self.low) // 2):
                found.put(at, _both(self.part(2 * at), self.part(2 * at + 1)))
        else:  # nothing is NaN: the plain way is ten times as fast
            found.low = array("d", map(min, self.low[0::2], self.low[1::2]))
            found.high = array("d", map(max, self.high[0::2], self.high[1::2]))
            found.odd = array("B", bytes(len(found.low)))
        return found

    def put(self, at: int, part: Part) -> None:
        """Set a block, or append it."""
        if at == len(self.low):
            self.low.append(part.low)
            self.high.append(part.high)
            self.odd.append(part.odd)
        else:
            self.low[at], self.high[at], self.odd[at] = part


@dataclass(frozen=True)
class Axis:
    """Where a round lies when x is not the round: the job's time or samples at each commit, straight between them."""

    known: Series

    @property
    def is_known(self) -> bool:
        """Whether any commit is known."""
        return bool(len(self.known))

    def at(self, x: float) -> float:
        """The place of round `x`: that of its commit. Nothing lies before the job began."""
        return max(0.0, _between(self.known.xs, self.known.lows, x))

    def round_at(self, place: float) -> float:
        """The round (and part of one) that lies at a place."""
        return _between(self.known.lows, self.known.xs, place, first=(0.0, -1.0))


def _between(xs: array[float], ys: array[float], x: float, *, first: tuple[float, float] = (-1.0, 0.0)) -> float:
    """y at `x`, on straight lines from `first` through the points and on beyond the last."""
    if not xs:
        return x
    after = bisect_left(xs, x)
    if after < len(xs) and xs[after] == x:
        return ys[after]
    end = min(max(after, 0), len(xs) - 1)
    x0, y0 = (xs[end - 1], ys[end - 1]) if end else first
    x1, y1 = xs[end], ys[end]
    return y1 if x1 <= x0 else y0 + (y1 - y0) * (x - x0) / (x1 - x0)


class Series:
    """Points (x, y) with rising x. A point with an x already there replaces the value."""

    def __init__(self) -> None:
        self.xs = array("d")
        """The x of each point, or of the first of those merged into it. Do not change it."""
        self._base = _Level()
        self._levels: list[_Level] = [self._base]
        self._last = math.nan
        self._tiers = [0] * (TIERS + 1)
        """How many points are in each tier, the newest first."""
        self.version = 0
        """Counts changes."""
        self.rebuilt_at = 0
        """The version since which points were only added, or the last one replaced."""

    def __len__(self) -> int:
        return len(self.xs)

    @property
    def lows(self) -> array[float]:
        """The value of each point; the lowest of those merged into it. Do not change it."""
        return self._base.low

    @property
    def last(self) -> float | None:
        """The newest value."""
        return self._last if self.xs else None

    @property
    def first_x(self) -> float:
        """The x of the oldest point; 0 without points."""
        return self.xs[0] if self.xs else 0.0

    @property
    def last_x(self) -> float:
        """The x of the newest point; 0 without points."""
        return self.xs[-1] if self.xs else 0.0

    def points(self, since: float = -math.inf) -> list[tuple[float, float]]:
        """Every point from `since` on, oldest first; of merged ones the middle."""
        low, high = self._base.low, self._base.high
        return [
            (self.xs[at], low[at] if low[at] == high[at] else (low[at] + high[at]) / 2)
            for at in range(bisect_left(self.xs, since), len(self.xs))
        ]

    def put(self, x: float, y: float) -> None:
        """Add a point. To append or to replace the newest is cheap; a point in the past costs a rebuild."""
        part = Part(y, y) if math.isfinite(y) else Part(math.nan, math.nan, odd=True)
        count = len(self.xs)
        if not count or x >= self.xs[-1]:
            if count and x == self.xs[-1]:
                count -= 1
                if self._last == y:
                    return
            else:
                self.xs.append(x)
                self._tiers[0] += 1
            self.version += 1
            self._last = y
            self._set(count, part)
            if self._tiers[0] > RAW:
                self._merge()
            return
        at = bisect_left(self.xs, x)
        if self.xs[at] == x:
            if self._base.part(at)[:2] == part[:2]:
                return
            self._base.put(at, part)
        else:
            self.xs.insert(at, x)
            for values, value in zip((self._base.low, self._base.high), part[:2], strict=True):
                values.insert(at, value)
            self._base.odd.insert(at, part.odd)
            self._tiers[self._tier_of(at)] += 1
        self.version += 1
        self._rebuild()
        if self._tiers[0] > RAW:
            self._merge()

    def nearest(self, x: float, axis: Axis | None = None, shift: float = 0.0) -> Part | None:
        """The point nearest to place `x` of the axis."""
        own = (axis.round_at(x) if axis is not None else x) - shift
        after = bisect_left(self.xs, own)
        around = [at for at in (after - 1, after) if 0 <= at < len(self.xs)]
        return self._base.part(min(around, key=lambda at: abs(self.xs[at] - own))) if around else None

    def columns(
        self, x0: float, x1: float, width: int, axis: Axis | None = None, shift: float = 0.0
    ) -> list[Part | None]:
        """The values in each of `width` equal parts of x0..x1 (both included), or None where there is none.

        With an axis, x0 and x1 are places on it; `shift` is added to each x before. However many points there are, a
        part costs a few whole blocks.
        """
        parts: list[Part | None] = [None] * width
        if width < 1 or not self.xs or x1 < x0:
            return parts
        step = (x1 - x0) / width
        start = self._index(x0, axis, shift)
        for column in range(width):
            if column == width - 1:
                stop = self._index(x1, axis, shift, after=True)
            else:
                stop = max(self._index(x0 + (column + 1) * step, axis, shift), start)
            if stop > start:
                parts[column] = self.extremes(start, stop)
                start = stop
        return parts

    def extremes(self, start: int, stop: int) -> Part:
        """The extremes of points start..stop, from the largest blocks that fit."""
        found = Part(math.nan, math.nan)
        for level in self._levels:
            if start >= stop:
                break
            if start & 1:
                found = _both(found, level.part(start))
                start += 1
            if stop & 1:
                stop -= 1
                found = _both(found, level.part(stop))
            start, stop = start >> 1, stop >> 1
        return found

    def _index(self, place: float, axis: Axis | None, shift: float, *, after: bool = False) -> int:
        own = (axis.round_at(place) if axis is not None else place) - shift
        return bisect_right(self.xs, own) if after else bisect_left(self.xs, own)

    def _set(self, at: int, part: Part) -> None:
        """Set or append a point, and every whole block above it."""
        self._base.put(at, part)
        level = 0
        while at & 1:
            below = self._levels[level]
            part = _both(below.part(at - 1), below.part(at))
            at >>= 1
            level += 1
            if level == len(self._levels):
                self._levels.append(_Level())
            self._levels[level].put(at, part)

    def _merge(self) -> None:
        """Merge the older half of each tier that is full in pairs, into the next; of the last tier, in place."""
        for tier in range(TIERS + 1):
            room = TIER if tier else RAW
            if self._tiers[tier] <= room:
                break
            pairs = (self._tiers[tier] - room // 2) // 2
            start = sum(self._tiers[tier + 1 :])
            stop = start + 2 * pairs
            self.xs[start:stop] = self.xs[start:stop:2]
            parts = [_both(self._base.part(at), self._base.part(at + 1)) for at in range(start, stop, 2)]
            self._base.low[start:stop] = array("d", [part.low for part in parts])
            self._base.high[start:stop] = array("d", [part.high for part in parts])
            self._base.odd[start:stop] = array("B", [part.odd for part in parts])
            self._tiers[tier] -= 2 * pairs
            self._tiers[min(tier + 1, TIERS)] += pairs
        self._rebuild()

    def _tier_of(self, at: int) -> int:
        """The tier of a point that was put in at `at`."""
        newer = len(self.xs) - 1 - at
        for tier, count in enumerate(self._tiers):
            newer -= count
            if newer <= 0:
                return tier
        return TIERS

    def _rebuild(self) -> None:
        self.rebuilt_at = self.version
        self._levels = [self._base]
        while len(self._levels[-1].low) > 1:
            self._levels.append(self._levels[-1].above())


class Average:
    """An exponential average of a series; `series()` takes in what is new. `weight` 0.9 looks back ten points."""

    def __init__(self, source: Series, weight: float) -> None:
        self._source = source
        self._weight = weight
        self._version = -1
        self._averaged = Series()
        self._state = self._before = (0.0, 0.0)

    def series(self) -> Series:
        """The average, up to date."""
        source = self._source
        if self._version == source.version:
            return self._averaged
        if self._version < source.rebuilt_at:
            self._averaged, self._state, self._before = Series(), (0.0, 0.0), (0.0, 0.0)
            since = -math.inf
        else:
            since = self._averaged.last_x if len(self._averaged) else -math.inf
        for x, y in source.points(since):
            if x > since:
                self._before = self._state
            total, norm = self._before
            if math.isfinite(y):
                total = total * self._weight + y * (1 - self._weight)
                norm = norm * self._weight + 1 - self._weight
            self._state = (total, norm)
            self._averaged.put(x, total / norm if norm and math.isfinite(y) else math.nan)
        self._version = source.version
        return self._averaged


def _both(one: Part, other: Part) -> Part:
    odd = one.odd or other.odd
    if one.low != one.low:
        return Part(other.low, other.high, odd)
    if other.low != other.low:
        return Part(one.low, one.high, odd)
    return Part(min(one.low, other.low), max(one.high, other.high), odd)
