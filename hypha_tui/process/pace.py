"""How often the screen is drawn: as often as wanted, less while nobody looks or while drawing is slow. No I/O."""

from __future__ import annotations

from typing import Final

SLOW_S: Final = 0.1
"""A frame that takes longer until it is on its way to the terminal: the link to it is slow."""
CALM_S: Final = 5.0
BLURRED_HZ: Final = 1.0
SLOWEST_HZ: Final = 1.0


class Pace:
    """Frames a second. `wanted` 0: only when asked for."""

    def __init__(self, wanted: float) -> None:
        self.wanted = wanted
        self.is_blurred = False
        self._slow: float | None = None
        self._since = 0.0

    @property
    def hz(self) -> float:
        """Frames a second, now."""
        limit = self.wanted if self._slow is None else min(self.wanted, self._slow)
        return min(limit, BLURRED_HZ) if self.is_blurred else limit

    def drew(self, took_s: float, now: float) -> None:
        """A frame was drawn. Slow ones halve the rate; after some calm seconds it doubles again."""
        if took_s > SLOW_S:
            self._slow = max((self._slow or self.wanted) / 2, min(SLOWEST_HZ, self.wanted))
            self._since = now
        elif self._slow is not None and now - self._since >= CALM_S:
            self._slow = self._slow * 2 if self._slow * 2 < self.wanted else None
            self._since = now
