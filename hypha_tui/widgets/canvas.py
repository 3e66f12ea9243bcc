"""Cells with dots in them: braille, quarter blocks, or one ASCII mark a cell."""

from __future__ import annotations

from typing import Final

from hypha_tui.store.columns import Cell
from hypha_tui.store.glyphs import Glyphs

_BRAILLE: Final = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""The bit of each dot of a braille cell, by row and column."""
_QUARTERS: Final = ((1, 2), (4, 8))
_BLOCKS: Final = " ▘▝▀▖▌▞▛▗▚▐▜▄▙▟█"
MARKS: Final = "*+o=%@&#"


class Canvas:
    """A field of dots. The last curve that touches a cell gives it its tone. Rows that nothing touched are kept."""

    def __init__(self, width: int, height: int, level: str) -> None:
        self.across, self.down = {"ascii": (1, 1), "block": (2, 2)}.get(level, (2, 4))
        self.width, self.height = width, height
        self._level = level
        self._bits = [[0] * width for _ in range(height)]
        self._marks = [[" "] * width for _ in range(height)]
        self._tones = [["text"] * width for _ in range(height)]
        self._rows: list[list[Cell] | None] = [None] * height
        self._cursor: int | None = None

    @property
    def dots_across(self) -> int:
        """Dots in a row."""
        return self.width * self.across

    def dot(self, x: int, y: int, tone: str, mark: str) -> None:
        """Set one dot; outside nothing happens."""
        if not (0 <= x < self.width * self.across and 0 <= y < self.height * self.down):
            return
        row, column = y // self.down, x // self.across
        self._rows[row] = None
        self._tones[row][column] = tone
        if self._level == "ascii":
            self._marks[row][column] = mark
        else:
            dots = _QUARTERS if self._level == "block" else _BRAILLE
            self._bits[row][column] |= dots[y % self.down][x % self.across]

    def line(self, start: tuple[int, int], end: tuple[int, int], tone: str, mark: str) -> None:
        """Dots between two dots, without the ends."""
        steps = max(end[0] - start[0], abs(end[1] - start[1]))
        for step in range(1, steps):
            part = step / steps
            x = round(start[0] + (end[0] - start[0]) * part)
            y = round(start[1] + (end[1] - start[1]) * part)
            self.dot(x, y, tone, mark)

    def erase_from(self, x: int) -> None:
        """Empty the cells from the one with dot column `x` to the right end."""
        first = x // self.across
        empty = self.width - first
        for row in range(self.height):
            if any(self._bits[row][first:]) or any(mark != " " for mark in self._marks[row][first:]):
                self._bits[row][first:] = [0] * empty
                self._marks[row][first:] = [" "] * empty
                self._tones[row][first:] = ["text"] * empty
                self._rows[row] = None

    def row(self, number: int, glyphs: Glyphs, cursor: int | None = None) -> list[Cell]:
        """One row as cells; `cursor` is the cell column of a line through what is empty there."""
        if cursor != self._cursor:
            self._cursor = cursor
            self._rows = [None] * self.height
        made = self._rows[number]
        if made is None:
            made = self._rows[number] = self._made(number, glyphs, cursor)
        return made

    def _made(self, number: int, glyphs: Glyphs, cursor: int | None) -> list[Cell]:
        cells: list[Cell] = []
        for column in range(self.width):
            tone = self._tones[number][column]
            character = self._character(number, column)
            if column == cursor and character == " ":
                character, tone = glyphs.vertical, "key"
            if cells and cells[-1][1] == tone:
                cells[-1] = (cells[-1][0] + character, tone)
            else:
                cells.append((character, tone))
        return cells

    def _character(self, row: int, column: int) -> str:
        if self._level == "ascii":
            return self._marks[row][column]
        bits = self._bits[row][column]
        if self._level == "block":
            return _BLOCKS[bits]
        return chr(0x2800 + bits) if bits else " "
