"""How operators and workers steer a job: the events, and what is due at its next commit. Pure; the machines use it."""

from __future__ import annotations

from dataclasses import dataclass

PAUSE_WITHIN_S = 120.0
"""A job that is to pause waits so long for its next commit. What the open round has is lost then, and done again."""
HAND_OVER_FOR_S = 15.0
"""A worker's wish to hand a task over lapses after so long; it repeats it while it is drained."""


@dataclass(frozen=True, slots=True)
class CancelAsked:
    """An operator ends the job."""

    by: str


@dataclass(frozen=True, slots=True)
class PauseAsked:
    """An operator wants the job to stop at its next commit."""

    by: str


@dataclass(frozen=True, slots=True)
class ReleaseAsked:
    """An operator wants a lease to be let go at once, whatever runs under it."""

    lease_id: str
    by: str


@dataclass(frozen=True, slots=True)
class HandOverAsked:
    """A worker wants what runs under a lease to be moved at the next commit."""

    lease_id: str
    reason: str


SteeringEvent = CancelAsked | PauseAsked | ReleaseAsked | HandOverAsked


@dataclass(frozen=True, slots=True)
class Pausing:
    """A pause that waits for a commit, and until when."""

    by: str
    until: float

    @property
    def text(self) -> str:
        """Why the job is in the state it is in."""
        return f"pausing after the next commit, asked by {self.by}"


@dataclass(frozen=True, slots=True)
class Wish:
    """Why a lease is to go, since when that is wanted, and until when without another word."""

    reason: str
    since: float
    until: float


class Moving:
    """Leases that are to be let go, by their workers' wish."""

    def __init__(self) -> None:
        self._wishes: dict[str, Wish] = {}

    def wish(self, now: float, lease_id: str, reason: str) -> bool:
        """Take a wish in; whether it is a new one."""
        known = self._wishes.get(lease_id)
        self._wishes[lease_id] = Wish(reason, now if known is None else known.since, now + HAND_OVER_FOR_S)
        return known is None

    def live(self, now: float) -> dict[str, Wish]:
        """All wishes, by lease; those that nobody repeated are forgotten."""
        self._wishes = {lease_id: wish for lease_id, wish in self._wishes.items() if now <= wish.until}
        return dict(self._wishes)

    def forget(self, lease_id: str) -> Wish | None:
        """This lease is let go, or gone."""
        return self._wishes.pop(lease_id, None)


def paused_text(by: str) -> str:
    """Why a job is paused."""
    return f"paused by {by}; resume it to go on"
