"""The scheduler's side of the leases it holds: renewed at 75 %, or sooner when the worker falls silent.

Pure. A renewal counts from when it was *sent*: the worker cannot have heard it earlier, so we never believe in a lease
for longer than its worker does. A call that is not answered never loses a lease. What does: running out, the worker's
refusal, or a worker's machine on which nobody listens any more, for then the process that held the lease is gone.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

LEASE_S = 24.0
"""How long a lease lasts without renewal. The last quarter, 6 s, is what a cut of the network may last."""
SILENT_S = 5.0
"""A worker not heard from for so long is asked to renew, so that one that died is missed long before its lease ends."""
GONE_AFTER_S = 1.0
"""Nobody has listened at the worker's address for so long, each time it was tried: the worker is gone."""
RENEW_AT = 0.75
RETRY_S = (0.2, 0.6)
"""Pause between two attempts, drawn at random."""
RETRY_QUICK_S = (0.05, 0.2)
"""The same, where the worker's machine answers but nobody listens: it may just be starting again."""
RENEW_TIMEOUT_S = 1.5
"""Deadline of one attempt."""


@dataclass(frozen=True, slots=True)
class Renew:
    """Send a renewal now; answer with `renewed`, `failed` or `refused`, and the time it was sent."""

    lease_id: str
    peer_id: str
    duration_s: float


@dataclass(frozen=True, slots=True)
class Lost:
    """The lease is over."""

    lease_id: str
    peer_id: str
    reason: str


LeaseEffect = Renew | Lost


@dataclass(slots=True)
class _Held:
    peer_id: str
    duration_s: float
    expires_at: float
    next_at: float
    heard_at: float
    is_asking: bool = False
    failures: int = 0
    last_error: str = ""
    deserted_since: float | None = None

    @property
    def ask_at(self) -> float:
        """When the next renewal is due; after a failure its pause decides."""
        return self.next_at if self.failures else min(self.next_at, self.heard_at + SILENT_S)


class HeldLeases:
    """All leases of one job."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._leases: dict[str, _Held] = {}

    def __contains__(self, lease_id: object) -> bool:
        return lease_id in self._leases

    def __len__(self) -> int:
        return len(self._leases)

    def all(self) -> list[tuple[str, str]]:
        """Every lease and its worker."""
        return [(lease_id, held.peer_id) for lease_id, held in self._leases.items()]

    def hold(self, sent_at: float, lease_id: str, peer_id: str, duration_s: float) -> None:
        """The first renewal, sent at `sent_at`, was granted."""
        next_at = sent_at + RENEW_AT * duration_s
        self._leases[lease_id] = _Held(peer_id, duration_s, sent_at + duration_s, next_at, sent_at)

    def release(self, lease_id: str) -> None:
        """We let it go."""
        self._leases.pop(lease_id, None)

    def tick(self, now: float) -> list[LeaseEffect]:
        """Renewals that are due, and leases that ran out."""
        effects: list[LeaseEffect] = []
        for lease_id, held in list(self._leases.items()):
            if now >= held.expires_at:
                del self._leases[lease_id]
                why = f": {held.last_error}" if held.last_error else ""
                effects.append(Lost(lease_id, held.peer_id, f"not renewed in {held.duration_s:g} s{why}"))
            elif now >= held.ask_at and not held.is_asking:
                held.is_asking = True
                effects.append(Renew(lease_id, held.peer_id, held.duration_s))
        return effects

    def renewed(self, sent_at: float, lease_id: str, duration_s: float) -> None:
        """A renewal sent at `sent_at` was granted for `duration_s`."""
        held = self._leases.get(lease_id)
        if held is None:
            return
        held.is_asking = False
        held.failures = 0
        held.last_error = ""
        held.deserted_since = None
        held.heard_at = max(held.heard_at, sent_at)
        held.duration_s = duration_s
        held.expires_at = max(held.expires_at, sent_at + duration_s)
        held.next_at = sent_at + RENEW_AT * duration_s

    def failed(self, now: float, lease_id: str, error: str, *, is_nobody_there: bool = False) -> list[LeaseEffect]:
        """No answer: try again after a short random pause. Nobody there, again and again: lost."""
        held = self._leases.get(lease_id)
        if held is None:
            return []
        held.is_asking = False
        held.failures += 1
        held.last_error = error
        held.next_at = now + self._rng.uniform(*(RETRY_QUICK_S if is_nobody_there else RETRY_S))
        if not is_nobody_there:
            held.deserted_since = None
        elif held.deserted_since is None:
            held.deserted_since = now
        elif now - held.deserted_since >= GONE_AFTER_S:
            del self._leases[lease_id]
            return [Lost(lease_id, held.peer_id, f"the worker is gone: {error}")]
        return []

    def refused(self, lease_id: str, reason: str) -> list[LeaseEffect]:
        """The worker says that it does not hold this lease: lost at once."""
        held = self._leases.pop(lease_id, None)
        return [] if held is None else [Lost(lease_id, held.peer_id, reason)]

    def heard(self, now: float, peer_id: str) -> None:
        """This worker called us."""
        for held in self._leases.values():
            if held.peer_id == peer_id:
                held.heard_at = max(held.heard_at, now)

    def check_soon(self, now: float, peer_id: str) -> None:
        """This worker may not know its leases any more (it was away): ask now instead of at 75 %."""
        for held in self._leases.values():
            if held.peer_id == peer_id:
                held.next_at = min(held.next_at, now)

    def next_at(self) -> float | None:
        """When `tick` has something to do."""
        times = [
            held.expires_at if held.is_asking else min(held.expires_at, held.ask_at) for held in self._leases.values()
        ]
        return min(times, default=None)

    def validate(self) -> None:
        """Raise AssertionError where the state contradicts itself."""
        for held in self._leases.values():
            assert held.duration_s > 0
            assert held.failures >= 0
            assert (held.failures > 0) == bool(held.last_error)
