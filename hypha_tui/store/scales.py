"""Ends, steps and labels of axes: numbers a person would choose."""

from __future__ import annotations

import math
from typing import Final

from hypha_tui.store import text

_TIME_STEPS: Final = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 14_400, 21_600, 43_200, 86_400)


def step(span: float, most: int, *, is_time: bool = False) -> float:
    """1, 2 or 5 times a power of ten (of time: a usual unit), so that at most `most` steps are in the span."""
    least = span / max(most, 1)
    if least <= 0 or not math.isfinite(least):
        return 1.0
    if is_time and least <= _TIME_STEPS[-1]:
        return float(next(one for one in _TIME_STEPS if one >= least))
    power: float = 10.0 ** math.floor(math.log10(least))
    return next(one * power for one in (1, 2, 5, 10) if one * power >= least * (1 - 1e-9))


def ends(low: float, high: float, most: int = 4) -> tuple[float, float]:
    """The range widened to whole steps, so that a new value rarely moves it."""
    if low == high:
        pad = abs(low) * 0.1 or 1.0
        low, high = low - pad, high + pad
    one = step(high - low, most)
    return math.floor(low / one + 1e-9) * one, math.ceil(high / one - 1e-9) * one


def log_ends(low: float, high: float) -> tuple[float, float]:
    """Likewise for a logarithmic axis: 1, 2 or 5 times a power of ten."""
    below = 10.0 ** math.floor(math.log10(low))
    above = 10.0 ** math.floor(math.log10(high))
    first = next(one * below for one in (5, 2, 1) if one * below <= low * (1 + 1e-9))
    last = next(one * above for one in (1, 2, 5, 10) if one * above >= high * (1 - 1e-9))
    return first, last if last > first else first * 2


def decades(low: float, high: float) -> list[float]:
    """Powers of ten in a range, then twice and five times each."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [one * 10.0**power for one in (1, 2, 5) for power in powers if low <= one * 10.0**power <= high]


def ticks(x0: float, x1: float, one: float) -> list[float]:
    """Multiples of a step in a range."""
    first, last = math.ceil(x0 / one - 1e-9), math.floor(x1 / one + 1e-9)
    return [number * one for number in range(first, last + 1)][:1_000]


def clock(seconds: float) -> str:
    """A moment on a time axis: `45s`, `2:30`, `1:05:00`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes}:{rest:02d}" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


def plain(value: float) -> str:
    """A count on an axis: `128`, `9,216`, `1.2M`."""
    if value != round(value) and abs(value) < 1_000:
        return f"{value:g}"
    return text.number(value, 0) if abs(value) >= 100_000 else f"{round(value):,}"
