"""Curves as text: legend, frame, axes, and what came in later drawn where it falls. Series in, lines out; no I/O."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from hypha_tui.store import scales, text
from hypha_tui.store.columns import Cell
from hypha_tui.store.glyphs import Glyphs
from hypha_tui.store.series import Axis, Part, Series
from hypha_tui.widgets.canvas import MARKS, Canvas

AXIS_WIDTH: Final = 8
NAME_WIDTH: Final = 20
_LEAST_WIDTH: Final = AXIS_WIDTH + 8
_LEAST_HEIGHT: Final = 4


@dataclass(frozen=True, slots=True)
class Curve:
    """One line of a plot. `shift` is added to each of its x before the axis; a `faint` one is not in the legend."""

    label: str
    series: Series
    tone: str
    shift: float = 0.0
    axis: Axis | None = None
    faint: bool = False

    def place(self, x: float) -> float:
        """Where an x of the series lies on the axis."""
        return self.axis.at(x + self.shift) if self.axis is not None else x + self.shift


def _number(value: float) -> str:
    return text.number(value, 2 if abs(value) >= 10 else 3)


@dataclass(frozen=True, slots=True)
class Manner:
    """How to draw. `window` is a stretch of x (None: everything), `cursor` an x whose values the legend tells.

    `x_kind`: round, time (seconds) or samples. `rounds` marks the rounds on an axis of another kind.
    """

    log_y: bool = False
    x_kind: str = "round"
    window: tuple[float, float] | None = None
    cursor: float | None = None
    rounds: Axis | None = None
    last_round: float = 0.0
    form: Callable[[float], str] = _number


PLAIN: Final = Manner()


class Plot:
    """A plot that is kept between draws: only the columns in which a value is new are traced again."""

    def __init__(self) -> None:
        self.traced = 0
        """Columns traced so far, over all curves."""
        self.shown: tuple[float, float] = (0.0, 1.0)
        """The stretch of x that was drawn last."""
        self._canvas: Canvas | None = None
        self._frame: tuple[object, ...] = ()
        self._versions: list[tuple[int, int]] = []
        self._parts: list[list[Part | None]] = []

    def lines(
        self, curves: list[Curve], width: int, height: int, glyphs: Glyphs, manner: Manner = PLAIN
    ) -> list[list[Cell]]:
        """The plot in `height` lines of at most `width` cells."""
        shown = [curve for curve in curves if len(curve.series)]
        if height < _LEAST_HEIGHT or width < _LEAST_WIDTH:
            return [[("too small for a curve", "dim")]][: max(height, 0)]
        if not shown:
            return [[("no values yet", "dim")]]
        x0, x1, every = self._range(shown, width, manner)
        self.shown = (x0, x1)
        canvas = self._trace(shown, width - AXIS_WIDTH - 1, height - 3, glyphs, manner)
        low, high = self._frame[2:4]
        assert isinstance(low, float) and isinstance(high, float)
        cursor = _column(manner.cursor, x0, x1, canvas.width) if manner.cursor is not None else None
        labels = _labels(canvas.height, low, high, manner)
        lines = [_legend(shown, width, glyphs, manner)]
        for row in range(canvas.height):
            label = labels.get(row, "")
            lines.append(
                [(label.rjust(AXIS_WIDTH), "dim"), (glyphs.vertical, "line"), *canvas.row(row, glyphs, cursor)]
            )
        lines.append(self._foot(canvas, x0, x1, every, glyphs, manner))
        lines.append([(_x_axis(x0, x1, every, canvas.width, manner), "dim")])
        return lines

    def _range(self, shown: list[Curve], width: int, manner: Manner) -> tuple[float, float, float]:
        """The stretch of x and the step of its labels. It ends at a whole step: a new value rarely moves it."""
        is_time = manner.x_kind == "time"
        most = max((width - AXIS_WIDTH) // 9, 2)
        if manner.window is not None:
            x0, x1 = manner.window
            return x0, x1, scales.step(x1 - x0, most, is_time=is_time)
        x0 = min(curve.place(curve.series.first_x) for curve in shown)
        x1 = max(curve.place(curve.series.last_x) for curve in shown)
        if manner.x_kind != "round":
            x0 = 0.0
        every = scales.step((x1 - x0) or 1.0, most, is_time=is_time)
        every = max(every, 1.0) if manner.x_kind == "round" else every
        return x0, max(math.ceil(x1 / every - 1e-9) * every, x0 + every), every

    def _trace(self, shown: list[Curve], width: int, height: int, glyphs: Glyphs, manner: Manner) -> Canvas:
        """The canvas, up to date; `_frame` tells what it is drawn for."""
        x0, x1 = self.shown
        fixed = (width, height, glyphs.name, manner.log_y, tuple((id(curve.series), curve.tone) for curve in shown))
        versions = [(curve.series.version, id(curve.axis) if curve.axis is not None else 0) for curve in shown]
        is_same = self._canvas is not None and self._frame[:2] == (x0, x1) and self._frame[4:] == fixed
        across = width * Canvas(0, 0, glyphs.name).across
        start, parts = across, []
        for number, curve in enumerate(shown):
            is_new = curve.axis is not None or not is_same or versions[number] != self._versions[number]
            found = curve.series.columns(x0, x1, across, curve.axis, curve.shift) if is_new else self._parts[number]
            parts.append(found)
            if is_same and is_new:
                start = min(start, _first_difference(found, self._parts[number]))
        low, high = _bounds(parts, manner.log_y)
        if not is_same or self._frame[2:4] != (low, high) or self._canvas is None:
            self._canvas, start = Canvas(width, height, glyphs.name), 0
        canvas = self._canvas
        self._frame, self._versions, self._parts = (x0, x1, low, high, *fixed), versions, parts
        if start < across:
            start -= start % canvas.across
            canvas.erase_from(start)
            for number, curve in sorted(enumerate(shown), key=lambda pair: not pair[1].faint):
                self._draw(
                    canvas, parts[number], start, low, high, manner.log_y, curve.tone, MARKS[number % len(MARKS)]
                )
        return canvas

    def _draw(
        self,
        canvas: Canvas,
        parts: list[Part | None],
        start: int,
        low: float,
        high: float,
        log_y: bool,
        tone: str,
        mark: str,
    ) -> None:
        """A curve from dot column `start` on; a value that is not finite leaves a gap."""
        top = canvas.height * canvas.down - 1
        before: tuple[int, int] | None = None
        first = start
        while first > 0 and before is None:  # where the line comes from
            first -= 1
            part = parts[first]
            if part is not None:
                ends = _heights(part, top, low, high, log_y)
                if ends is None:
                    break
                before = (first, sum(ends) // 2)
        for x in range(start, len(parts)):
            part = parts[x]
            if part is None:
                continue
            self.traced += 1
            ends = _heights(part, top, low, high, log_y)
            if ends is None:
                before = None
                continue
            for y in range(ends[0], ends[1] + 1):
                canvas.dot(x, y, tone, mark)
            middle = (ends[0] + ends[1]) // 2
            if before is not None:
                _connect(canvas, before, (x, middle), start, tone, mark)
            before = None if part.odd else (x, middle)

    def _foot(self, canvas: Canvas, x0: float, x1: float, every: float, glyphs: Glyphs, manner: Manner) -> list[Cell]:
        """The axis: marks at rounds, and a cross where a value is not finite."""
        cells = [glyphs.horizontal] * canvas.width
        tick = "+" if glyphs.name == "ascii" else "┴"
        for x in _round_marks(x0, x1, every, canvas.width, manner):
            column = _column(x, x0, x1, canvas.width)
            if column is not None:
                cells[column] = tick
        line: list[Cell] = [(" " * AXIS_WIDTH + glyphs.corner, "line")]
        odd = {x // canvas.across for parts in self._parts for x, part in enumerate(parts) if part and part.odd}
        for column, character in enumerate(cells):
            cell = (glyphs.state["lost"], "lost") if column in odd else (character, "line")
            if line[-1][1] == cell[1]:
                line[-1] = (line[-1][0] + cell[0], cell[1])
            else:
                line.append(cell)
        return line


def draw(curves: list[Curve], width: int, height: int, glyphs: Glyphs, *, log_y: bool = False) -> list[list[Cell]]:
    """A plot over rounds that is drawn once."""
    return Plot().lines(curves, width, height, glyphs, Manner(log_y=log_y))


def _connect(
    canvas: Canvas, start: tuple[int, int], end: tuple[int, int], erased_from: int, tone: str, mark: str
) -> None:
    """A line whose left part may stand already; dots that are there do no harm."""
    if start[0] >= erased_from - 2 * canvas.across:
        canvas.line(start, end, tone, mark)
        return
    at = erased_from - canvas.across
    part = (at - start[0]) / (end[0] - start[0])
    canvas.line((at, round(start[1] + (end[1] - start[1]) * part)), end, tone, mark)


def _first_difference(one: list[Part | None], other: list[Part | None]) -> int:
    for at, (a, b) in enumerate(zip(one, other, strict=True)):
        if a != b and not (a is not None and b is not None and repr(a) == repr(b)):  # NaN differs from itself
            return at
    return len(one)


def _bounds(columns: list[list[Part | None]], log_y: bool) -> tuple[float, float]:
    values = [value for parts in columns for part in parts if part for value in part[:2] if math.isfinite(value)]
    if log_y:
        values = [value for value in values if value > 0]
    if not values:
        return (0.1, 1.0) if log_y else (0.0, 1.0)
    return scales.log_ends(min(values), max(values)) if log_y else scales.ends(min(values), max(values))


def _heights(part: Part, top: int, low: float, high: float, log_y: bool) -> tuple[int, int] | None:
    """The dots (upper, lower) that a part takes; None where nothing of it can be drawn."""
    scaled = [_scale(value, low, high, log_y) for value in part[:2]]
    found = [round((1 - one) * top) for one in scaled if one is not None]
    return (min(found), max(found)) if found else None


def _scale(value: float, low: float, high: float, log_y: bool) -> float | None:
    """Where a value is between low (0) and high (1); None where it cannot be drawn."""
    if not math.isfinite(value) or (log_y and value <= 0):
        return None
    if log_y:
        value, low, high = math.log(value), math.log(low), math.log(high)
    return (value - low) / ((high - low) or 1.0)


def _column(x: float, x0: float, x1: float, width: int) -> int | None:
    """The cell in which an x lies."""
    at = int((x - x0) / ((x1 - x0) or 1.0) * width)
    return min(at, width - 1) if x0 <= x <= x1 else None


def _legend(curves: list[Curve], width: int, glyphs: Glyphs, manner: Manner) -> list[Cell]:
    """Names with the newest values, or those at the cursor."""
    line: list[Cell] = []
    room = width
    if manner.cursor is not None:
        where = f"{manner.x_kind} {_x_label(round(manner.cursor), manner)}   "
        line, room = [(where, "key")], width - len(where)
    named = [(number, curve) for number, curve in enumerate(curves) if not curve.faint]
    for at, (number, curve) in enumerate(named):
        sign = MARKS[number % len(MARKS)] if glyphs.name == "ascii" else glyphs.state["ok"]
        name = text.cut(text.clean(curve.label), NAME_WIDTH, mark=glyphs.cut)
        value = _value(curve, manner)
        taken = len(name) + len(value) + 6
        if taken > room:
            line.append((f"+{len(named) - at} more", "dim"))
            break
        room -= taken
        line += [(f"{sign} ", curve.tone), (name, "text"), (f" {value}   ", curve.tone)]
    return line


def _value(curve: Curve, manner: Manner) -> str:
    if manner.cursor is None:
        value = curve.series.last
        return manner.form(value) if value is not None else "-"
    part = curve.series.nearest(manner.cursor, curve.axis, curve.shift)
    if part is None or part.low != part.low:
        return "not finite" if part is not None and part.odd else "-"
    return manner.form(part.low) if part.low == part.high else f"{manner.form(part.low)}..{manner.form(part.high)}"


def _labels(height: int, low: float, high: float, manner: Manner) -> dict[int, str]:
    """What stands beside which row: round values, as many as leave two rows free between them."""
    if manner.log_y:
        wanted = [low, high, *scales.decades(low, high)]
    else:
        wanted = [low, high, *scales.ticks(low, high, scales.step(high - low, max(height // 3, 1)))]
    rows: dict[int, str] = {}
    for value in wanted:
        part = _scale(value, low, high, manner.log_y)
        row = round((1 - (part or 0.0)) * (height - 1))
        if not any(abs(row - other) < 3 for other in rows):
            rows[row] = manner.form(value)[: AXIS_WIDTH - 1]
    return rows


def _round_marks(x0: float, x1: float, every: float, width: int, manner: Manner) -> list[float]:
    """Where marks stand on the axis: at the labels, or where x is not the round, at rounds."""
    if manner.rounds is None:
        return scales.ticks(x0, x1, every)
    step = max(scales.step(manner.last_round + 1, max(width // 4, 1)), 1.0)
    return [manner.rounds.at(number) for number in scales.ticks(0, manner.last_round, step)]


def _x_label(x: float, manner: Manner) -> str:
    return scales.clock(x) if manner.x_kind == "time" else scales.plain(x)


def _x_axis(x0: float, x1: float, every: float, width: int, manner: Manner) -> str:
    """Labels under their marks; the last one ends at the right end, with what x is before it."""
    cells = [" "] * width
    title = f"{manner.x_kind} "
    end = _x_label(x1, manner)
    last = title + end
    free = width - len(last)
    cells[free:] = last
    for x in scales.ticks(x0, x1, every):
        label = _x_label(x, manner)
        at = max(round((x - x0) / ((x1 - x0) or 1.0) * width) - len(label) // 2, 0)
        if at + len(label) < free and not "".join(cells[max(at - 1, 0) : at + len(label) + 1]).strip():
            cells[at : at + len(label)] = label
    return " " * (AXIS_WIDTH + 1) + "".join(cells)
