"""Curves as text: braille dots or ASCII marks in a frame with axes. Pure: series in, lines out."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from hypha_tui.store import text
from hypha_tui.store.columns import Cell
from hypha_tui.store.glyphs import Glyphs
from hypha_tui.store.series import Series

AXIS_WIDTH: Final = 8
_DOTS: Final = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""The bit of each dot of a braille cell, by row and column."""
_MARKS: Final = "*+o=%@&#"


@dataclass(frozen=True, slots=True)
class Curve:
    """One line of a plot."""

    label: str
    series: Series
    tone: str


class _Canvas:
    """Cells with dots in them. The last curve that touches a cell gives it its tone."""

    def __init__(self, width: int, height: int, *, braille: bool) -> None:
        self.across, self.down = (2, 4) if braille else (1, 1)
        self.width, self.height = width, height
        self._braille = braille
        self._bits = [[0] * width for _ in range(height)]
        self._marks = [[" "] * width for _ in range(height)]
        self._tones = [["text"] * width for _ in range(height)]

    def dot(self, x: int, y: int, tone: str, mark: str) -> None:
        if not (0 <= x < self.width * self.across and 0 <= y < self.height * self.down):
            return
        row, column = y // self.down, x // self.across
        self._tones[row][column] = tone
        if self._braille:
            self._bits[row][column] |= _DOTS[y % 4][x % 2]
        else:
            self._marks[row][column] = mark

    def row(self, number: int) -> list[Cell]:
        cells: list[Cell] = []
        for column in range(self.width):
            tone = self._tones[number][column]
            if self._braille:
                bits = self._bits[number][column]
                character = chr(0x2800 + bits) if bits else " "
            else:
                character = self._marks[number][column]
            if cells and cells[-1][1] == tone:
                cells[-1] = (cells[-1][0] + character, tone)
            else:
                cells.append((character, tone))
        return cells


def draw(
    curves: list[Curve], width: int, height: int, glyphs: Glyphs, *, log_y: bool = False, x_title: str = "round"
) -> list[list[Cell]]:
    """The plot in `height` lines of at most `width` cells: legend, canvas, axis."""
    shown = [curve for curve in curves if len(curve.series)]
    if height < 4 or width < AXIS_WIDTH + 8:
        return [[("too small for a curve", "dim")]][:height]
    if not shown:
        return [[("no values yet", "dim")]]
    x0 = min(curve.series.first_x for curve in shown)
    x1 = max(curve.series.last_x for curve in shown)
    x1 = x1 if x1 > x0 else x0 + 1  # a first point alone stands at the left end
    canvas = _Canvas(width - AXIS_WIDTH - 1, height - 3, braille=glyphs.name != "ascii")
    across = canvas.width * canvas.across
    columns = [curve.series.columns(x0, x1, across) for curve in shown]
    low, high = _bounds(columns, log_y)
    for number, (curve, parts) in enumerate(zip(shown, columns, strict=True)):
        _trace(canvas, parts, low, high, log_y, curve.tone, _MARKS[number % len(_MARKS)])
    lines = [_legend(shown, width, glyphs)]
    for row in range(canvas.height):
        label = _label_at(row, canvas.height, low, high, log_y)
        lines.append([(label.rjust(AXIS_WIDTH), "dim"), (glyphs.vertical, "line"), *canvas.row(row)])
    lines.append([(" " * AXIS_WIDTH + glyphs.corner + glyphs.horizontal * canvas.width, "line")])
    lines.append([(_x_axis(x0, x1, canvas.width, x_title), "dim")])
    return lines


def _bounds(columns: list[list[tuple[float, float] | None]], log_y: bool) -> tuple[float, float]:
    values = [value for parts in columns for part in parts if part for value in part if math.isfinite(value)]
    if log_y:
        values = [value for value in values if value > 0]
    if not values:
        return 0.0, 1.0
    low, high = min(values), max(values)
    if low == high:
        pad = abs(low) * 0.1 or 1.0
        return (low * 0.9 if log_y else low - pad), high + pad
    return low, high


def _scale(value: float, low: float, high: float, log_y: bool) -> float | None:
    """Where a value is between low (0) and high (1); None where it cannot be drawn."""
    if not math.isfinite(value) or (log_y and value <= 0):
        return None
    if log_y:
        value, low, high = math.log(value), math.log(low), math.log(high)
    return (value - low) / ((high - low) or 1.0)


def _trace(
    canvas: _Canvas,
    parts: list[tuple[float, float] | None],
    low: float,
    high: float,
    log_y: bool,
    tone: str,
    mark: str,
) -> None:
    top = canvas.height * canvas.down - 1
    before: tuple[int, int] | None = None
    for x, part in enumerate(parts):
        if part is None:
            continue
        ends = [_scale(value, low, high, log_y) for value in part]
        heights = [round((1 - end) * top) for end in ends if end is not None]
        if not heights:
            continue
        for y in range(min(heights), max(heights) + 1):
            canvas.dot(x, y, tone, mark)
        middle = (min(heights) + max(heights)) // 2
        if before is not None:
            _line(canvas, before, (x, middle), tone, mark)
        before = (x, middle)


def _line(canvas: _Canvas, start: tuple[int, int], end: tuple[int, int], tone: str, mark: str) -> None:
    steps = max(end[0] - start[0], abs(end[1] - start[1]))
    for step in range(1, steps):
        part = step / steps
        x = round(start[0] + (end[0] - start[0]) * part)
        y = round(start[1] + (end[1] - start[1]) * part)
        canvas.dot(x, y, tone, mark)


def _legend(curves: list[Curve], width: int, glyphs: Glyphs) -> list[Cell]:
    line: list[Cell] = []
    room = width
    for number, curve in enumerate(curves):
        sign = glyphs.state["ok"] if glyphs.name != "ascii" else _MARKS[number % len(_MARKS)]
        name = text.cut(text.clean(curve.label), 20, mark=glyphs.cut)
        value = text.number(curve.series.last, 3 if abs(curve.series.last or 0.0) < 10 else 1)
        taken = len(name) + len(value) + 6
        if taken > room:
            line.append((f"+{len(curves) - number} more", "dim"))
            break
        room -= taken
        line += [(f"{sign} ", curve.tone), (name, "text"), (f" {value}   ", curve.tone)]
    return line


def _label_at(row: int, height: int, low: float, high: float, log_y: bool) -> str:
    if height > 1 and row not in (0, height - 1) and (height < 7 or row != height // 2):
        return ""
    part = 1 - (row / (height - 1) if height > 1 else 0.0)
    if log_y and low > 0:
        value = math.exp(math.log(low) + (math.log(high) - math.log(low)) * part)
    else:
        value = low + (high - low) * part
    return text.number(value, 2 if abs(value) >= 10 else 3)


def _x_axis(x0: float, x1: float, width: int, title: str) -> str:
    start, end, middle = f"{x0:g}", f"{x1:g}", title
    space = max(width - len(start) - len(end) - len(middle), 2)
    return " " * (AXIS_WIDTH + 1) + start + " " * (space // 2) + middle + " " * (space - space // 2) + end
