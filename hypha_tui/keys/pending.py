"""Keys that wait for more: rows of keys (`g g`) and numbers before a key (`10j`). No I/O; `now` comes in."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

PENDING_S: Final = 1.5
"""How long a begun row or number waits for the next key."""
SCREEN_DIGIT_S: Final = 0.6
"""How soon after digits that changed the screen a motion makes a number of them."""
NEXT_DIGIT_S: Final = 0.3
"""How soon after a digit that changed the screen another one belongs to the same number. Whoever looks at a screen
before going to the next takes longer."""
LARGEST: Final = 99_999


@dataclass(frozen=True, slots=True)
class Typed:
    """A key or row of keys that is whole. `count` 0: no number was before it. `is_row`: keys were held for it.
    `undo_screens`: the digits before were no screens but this number."""

    key: str
    count: int = 0
    is_row: bool = False
    undo_screens: bool = False


@dataclass(frozen=True, slots=True)
class Held:
    """The key waits for others. `undo_screens`: the digits before were no screens but the start of a number."""

    undo_screens: bool = False


class Pending:
    """What was typed and is not whole yet.

    Where digits are screens, each acts at once, and two of them or more that come fast (a 0 in front counts as one)
    are a number after all once a key follows that takes one: `25j`, `05j`.
    """

    def __init__(self) -> None:
        self._row = ""
        self._digits = ""
        self._acted = ""
        self._at = 0.0

    @property
    def text(self) -> str:
        """What waits, for the status line; empty when nothing does."""
        return f"{self._digits}{self._row}" or (self._acted if len(self._acted) > 1 else "")

    @property
    def waits_s(self) -> float:
        """How long it waits for the next key."""
        return SCREEN_DIGIT_S if self._acted else PENDING_S

    @property
    def has_begun(self) -> bool:
        """Whether the last key was the first of digits that act at once and may become a number."""
        return len(self._acted) == 1

    def clear(self) -> None:
        """Forget it."""
        self._row = self._digits = self._acted = ""

    def feed(self, key: str, live: Collection[str], now: float, counted: Collection[str] = ()) -> Typed | Held:
        """One more key; `live` has every key and row of keys that means something in this place, `counted` those that
        take a number where the digits so far began."""
        is_digit = len(key) == 1 and key.isdigit() and not self._row
        waits_s = NEXT_DIGIT_S if self._acted and is_digit else self.waits_s
        if now - self._at > waits_s:
            self.clear()
        self._at = now
        if key == "escape" and (self._digits or self._row):
            self.clear()
            return Held()
        if is_digit:
            return self._digit(key, live)
        acted, self._acted = self._acted, ""
        undo = len(acted) > 1 and int(acted) > 0 and any(one == key or one.startswith(f"{key} ") for one in counted)
        if undo:
            self._digits = _number(acted)
        row = f"{self._row} {key}" if self._row else key
        if any(one.startswith(f"{row} ") for one in (counted if undo else live)):
            self._row = row
            return Held(undo)
        count, began = int(self._digits or 0), bool(self._row)
        self.clear()
        # a row that leads nowhere is dropped, and its last key means what it means alone
        if began and row in live:
            return Typed(row, count, is_row=True)
        return Typed(key, 0 if began else count, undo_screens=undo)

    def _digit(self, key: str, live: Collection[str]) -> Typed | Held:
        if self._digits:
            self._digits = _number(self._digits + key)
            return Held()
        has_screens = bool(self._acted.strip("0"))
        if (key not in live or key == "0") and (key != "0" or has_screens):  # no screen: it can only be a number
            self._digits, self._acted = _number(self._acted + key), ""
            return Held(undo_screens=has_screens)
        self._acted = (self._acted + key).lstrip("0").rjust(2, "0") if self._acted else key
        return Typed(key)


def _number(digits: str) -> str:
    return str(min(int(digits), LARGEST))
