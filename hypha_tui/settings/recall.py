"""Earlier lines of the command line, kept over restarts in a file of the user's own."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from hypha_tui.settings.folders import write_private

LONGEST: Final = 500
LONGEST_LINE: Final = 1_000
FILE: Final = "commands"


class Recall:
    """Lines, oldest first; the same line twice in a row is one."""

    def __init__(self, file: Path | None = None) -> None:
        self._file = file
        self._lines: list[str] = []
        self._at = 0
        if file is not None:
            try:
                self._lines = file.read_text(encoding="utf-8", errors="replace").splitlines()[-LONGEST:]
            except OSError:
                self._lines = []
        self.rest()

    def add(self, line: str) -> None:
        """A line was run."""
        line = " ".join(line.split())[:LONGEST_LINE]
        if line and self._lines[-1:] != [line]:
            self._lines.append(line)
            del self._lines[:-LONGEST]
        self.rest()

    def rest(self) -> None:
        """Stand after the newest line."""
        self._at = len(self._lines)

    def move(self, by: int) -> str | None:
        """An earlier (-1) or later (1) line; empty after the newest; None when there are none."""
        if not self._lines:
            return None
        self._at = min(max(self._at + by, 0), len(self._lines))
        return self._lines[self._at] if self._at < len(self._lines) else ""

    def save(self) -> None:
        """Write the file; where that fails, the lines are only kept until the end."""
        if self._file is None:
            return
        try:
            write_private(self._file, "".join(f"{line}\n" for line in self._lines))
        except OSError:
            self._file = None
