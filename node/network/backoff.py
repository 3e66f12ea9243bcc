"""When to try again: exponential back-off with jitter and a cap. Pure."""

from __future__ import annotations

import random


class Backoff:
    """Delays between attempts; `succeeded` starts over. The jitter keeps many nodes from coming back at once."""

    def __init__(self, rng: random.Random, *, first_s: float, most_s: float) -> None:
        self._rng = rng
        self._first_s = first_s
        self._most_s = most_s
        self.failures = 0

    def failed(self) -> float:
        """Note a failure; how long to wait before the next attempt, between half and all of the doubled delay."""
        delay_s = min(self._most_s, self._first_s * 2.0 ** min(self.failures, 30))
        self.failures += 1
        return delay_s * self._rng.uniform(0.5, 1.0)

    def succeeded(self) -> None:
        """Note a success."""
        self.failures = 0


class Allowance:
    """At most `burst` at once and one every `every_s` seconds after that."""

    def __init__(self, *, burst: int, every_s: float) -> None:
        self._burst = burst
        self._every_s = every_s
        self._left = float(burst)
        self._at: float | None = None

    def wait_s(self, now: float) -> float:
        """Use one up; how long to wait until it may be used."""
        if self._at is not None:
            self._left = min(float(self._burst), self._left + (now - self._at) / self._every_s)
        self._at = now
        self._left -= 1.0
        return max(0.0, -self._left * self._every_s)
