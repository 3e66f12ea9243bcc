"""Keys that wait for more: rows of keys (`g g`) and numbers before a key (`10j`). No I/O; `now` comes in."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

PENDING_S: Final = 1.5
"""How long a begun row or number waits for the next key."""
SCREEN_DIGIT_S: Final = 0.6
"""How soon after a digit that changed the screen another one makes a number of both."""
LARGEST: Final = 99_999


@dataclass(frozen=True, slots=True)
class Typed:
    """A key or row of keys that is whole. `count` 0: no number was before it. `is_row`: keys were held for it."""

    key: str
    count: int = 0
    is_row: bool = False


@dataclass(frozen=True, slots=True)
class Held:
    """The key waits for others. `undo_screen`: the digit before was no screen but the start of this number."""

    undo_screen: bool = False


class Pending:
    """What was typed and is not whole yet."""

    def __init__(self) -> None:
        self._row = ""
        self._digits = ""
        self._at = 0.0
        self._screen_digit = ""

    @property
    def text(self) -> str:
        """What waits, for the status line; empty when nothing does."""
        return f"{self._digits}{self._row}"

    def clear(self) -> None:
        """Forget it."""
        self._row = self._digits = self._screen_digit = ""

    def feed(self, key: str, live: Collection[str], now: float) -> Typed | Held:
        """One more key; `live` has every key and row of keys that means something in this place."""
        waited_s = now - self._at
        self._at = now
        if waited_s > PENDING_S:
            self.clear()
        screen_digit, self._screen_digit = self._screen_digit, ""
        if key == "escape" and self.text:
            self.clear()
            return Held()
        if len(key) == 1 and key.isdigit() and not self._row:
            if self._digits or (key not in live and key != "0"):
                self._digits = str(min(int(self._digits + key), LARGEST))
                return Held()
            if screen_digit and waited_s <= SCREEN_DIGIT_S and key in "09":
                self._digits = screen_digit + key
                return Held(undo_screen=True)
            self._screen_digit = key if key != "0" else ""
            return Typed(key)
        row = f"{self._row} {key}" if self._row else key
        if any(one.startswith(f"{row} ") for one in live):
            self._row = row
            return Held()
        count, began = int(self._digits or 0), bool(self._row)
        self.clear()
        # a row that leads nowhere is dropped, and its last key means what it means alone
        return Typed(row, count, is_row=True) if began and row in live else Typed(key, 0 if began else count)
