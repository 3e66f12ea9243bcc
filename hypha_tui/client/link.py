"""The state of the link to a node, and how long to wait before the next try. No I/O."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final, Literal

FIRST_WAIT_S: Final = 0.5
LONGEST_WAIT_S: Final = 5.0

State = Literal["connecting", "live", "stale", "refused"]


@dataclass(frozen=True, slots=True)
class LinkState:
    """How the link is. `stale`: it broke and is tried again in `retry_s`; `refused`: trying again would not help."""

    state: State
    detail: str = ""
    hint: str = ""
    attempt: int = 0
    retry_s: float = 0.0


class Backoff:
    """Growing waits with jitter, so that many terminals do not return to a restarted node in one instant."""

    def __init__(self, random_: random.Random | None = None) -> None:
        self._random = random_ or random.Random()
        self.attempt = 0

    def next_wait_s(self) -> float:
        """The wait before the next try: doubling, at most `LONGEST_WAIT_S`, each between half and all of it."""
        longest = min(LONGEST_WAIT_S, FIRST_WAIT_S * 2.0 ** min(self.attempt, 10))
        self.attempt += 1
        return longest * (0.5 + self._random.random() / 2)

    def reset(self) -> None:
        """A frame came: the next failure starts from the shortest wait."""
        self.attempt = 0
