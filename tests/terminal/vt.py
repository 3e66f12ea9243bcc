"""A terminal's screen in a few lines: as much of ECMA-48 as Textual writes, and which colours it was told to use."""

from __future__ import annotations

import re
from typing import Final

_SEQUENCE: Final = re.compile(
    r"\x1b\[(?P<csi>[<=>?]?[0-9;:]*)[ -/$]*(?P<final>[@-~])"
    r"|\x1b[\]PX^_].*?(?:\x07|\x1b\\)"
    r"|\x1b[ -/]*[0-~]"
    r"|(?P<control>[\x00-\x1f\x7f])"
    r"|(?P<text>[^\x00-\x1f\x7f]+)",
    re.DOTALL,
)
_PARTIAL: Final = re.compile(r"\x1b(?:\[[<=>?]?[0-9;:]*[ -/$]*|[\]PX^_][^\x07\x1b]*\x1b?|[ -/]*)?\Z")


class Screen:
    """Feed it what a program writes. `styles`: every SGR sequence that came; `modes`: private modes that are set."""

    def __init__(self, width: int, height: int) -> None:
        self.styles: set[str] = set()
        self.modes: set[str] = {"25"}
        self._rest = ""
        self._main: tuple[list[list[str]], int, int] | None = None
        self.resize(width, height)

    def resize(self, width: int, height: int) -> None:
        """Another size; what was there is gone, as after a resize every program draws anew."""
        self.width, self.height = width, height
        self._rows = [[" "] * width for _ in range(height)]
        self._x = self._y = 0

    @property
    def lines(self) -> list[str]:
        """What is on it."""
        return ["".join(row).rstrip() for row in self._rows]

    @property
    def text(self) -> str:
        """The same in one string."""
        return "\n".join(self.lines)

    @property
    def is_restored(self) -> bool:
        """Whether a program gave it back: the first screen, the cursor, no mouse, no pasting mode."""
        return not self.modes & {"1049", "1000", "1003", "1006", "2004", "1004"} and "25" in self.modes

    def feed(self, data: str) -> None:
        """The next piece, wherever it was cut."""
        data = self._rest + data
        partial = _PARTIAL.search(data)
        self._rest = data[partial.start() :] if partial else ""
        for match in _SEQUENCE.finditer(data, 0, len(data) - len(self._rest)):
            if match["text"]:
                self._write(match["text"])
            elif match["control"]:
                self._control(match["control"])
            elif match["final"]:
                self._sequence(match["csi"], match["final"])

    def _write(self, text: str) -> None:
        for character in text:
            if self._x < self.width and self._y < self.height:
                self._rows[self._y][self._x] = character
            self._x += 1

    def _control(self, character: str) -> None:
        if character == "\r":
            self._x = 0
        elif character == "\n":
            if self._y == self.height - 1:
                self._rows = [*self._rows[1:], [" "] * self.width]
            self._y = min(self._y + 1, self.height - 1)
        elif character == "\b":
            self._x = max(self._x - 1, 0)

    def _sequence(self, parameters: str, final: str) -> None:
        if parameters.startswith("?"):
            if final in "hl":
                self._mode(set(parameters[1:].split(";")), on=final == "h")
            return
        numbers = [int(part) if part.isdigit() else 0 for part in parameters.split(";")]
        first = max(numbers[0], 1)
        match final:
            case "H" | "f":
                self._y, self._x = first - 1, max(numbers[1] if len(numbers) > 1 else 1, 1) - 1
            case "A":
                self._y = max(self._y - first, 0)
            case "B":
                self._y = min(self._y + first, self.height - 1)
            case "C":
                self._x += first
            case "D":
                self._x = max(self._x - first, 0)
            case "G":
                self._x = first - 1
            case "J":
                self._rows = [[" "] * self.width for _ in range(self.height)]
            case "K":
                self._rows[self._y][self._x :] = [" "] * max(self.width - self._x, 0)
            case "m":
                self.styles.add(parameters)

    def _mode(self, names: set[str], *, on: bool) -> None:
        if "1049" in names and on and "1049" not in self.modes:
            self._main = (self._rows, self._x, self._y)
            self._rows = [[" "] * self.width for _ in range(self.height)]
        elif "1049" in names and not on and self._main is not None:
            (self._rows, self._x, self._y), self._main = self._main, None
        self.modes = self.modes | names if on else self.modes - names
