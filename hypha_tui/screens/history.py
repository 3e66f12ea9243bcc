"""Where the operator has been: a list of places with a present one. No I/O, no widgets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

LONGEST: Final = 100


@dataclass(frozen=True, slots=True)
class Visit:
    """A place: the screen, its filter, the object under the cursor, or the one that is inspected."""

    screen: str
    filter_text: str = ""
    target: tuple[str, str] | None = None
    inspected: bool = False


class History:
    """Back, forward, and the last place. A jump drops what was ahead."""

    def __init__(self, first: Visit) -> None:
        self._visits = [first]
        self._at = 0
        self._last = 0

    @property
    def present(self) -> Visit:
        """Where we are."""
        return self._visits[self._at]

    @property
    def is_at_root(self) -> bool:
        """Whether there is nothing to go back to."""
        return self._at == 0

    def note(self, present: Visit) -> None:
        """How the present place looks as it is left."""
        self._visits[self._at] = present

    def visit(self, place: Visit) -> None:
        """Go to a new place."""
        del self._visits[self._at + 1 :]
        self._visits.append(place)
        del self._visits[:-LONGEST]
        self._last, self._at = len(self._visits) - 2, len(self._visits) - 1

    def undo(self) -> Visit:
        """Take the last `visit` back, as if it had not been."""
        if self._at:
            del self._visits[self._at :]
            self._at -= 1
            self._last = max(self._at - 1, 0)
        return self.present

    def step(self, by: int) -> Visit | None:
        """Back (-1) or forward (1); None at the end."""
        at = self._at + by
        return self._go(at) if 0 <= at < len(self._visits) else None

    def last(self) -> Visit | None:
        """The place before this one, wherever it is in the list; None when there is no other."""
        return self._go(self._last) if self._last != self._at else None

    def _go(self, at: int) -> Visit:
        self._last, self._at = self._at, at
        return self.present
