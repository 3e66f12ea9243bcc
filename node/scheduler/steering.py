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


class Moving:
    """Leases that are to be let go at the next commit."""

    def __init__(self) -> None:
        self._wishes: dict[str, tuple[float, str]] = {}

    def wish(self, now: float, lease_id: str, reason: str) -> bool:
        """Take a wish in; whether it is a new one."""
        is_new = lease_id not in self._wishes
        self._wishes[lease_id] = (now + HAND_OVER_FOR_S, reason)
        return is_new

    def take(self, now: float) -> list[tuple[str, str]]:
        """The leases whose time has come, and why; wishes that nobody repeated are forgotten."""
        due = [(lease_id, reason) for lease_id, (until, reason) in self._wishes.items() if now <= until]
        self._wishes.clear()
        return due

    def take_one(self, now: float, lease_id: str) -> str | None:
        """Why this lease is to go, if it is."""
        until, reason = self._wishes.pop(lease_id, (now - 1.0, ""))
        return reason if now <= until else None


def paused_text(by: str) -> str:
    """Why a job is paused."""
    return f"paused by {by}; resume it to go on"
