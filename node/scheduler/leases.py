"""The scheduler's side of the leases it holds: renewed at a third, or sooner when the worker falls silent.

Pure. A renewal counts from when it was *sent*: the worker cannot have heard it earlier, so we never believe in a lease
for longer than its worker does. A call that is not answered never loses a lease. What does: running out, the worker's
refusal, or a worker's machine on which nobody listens any more, for then the process that held the lease is gone.
"""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass

LEASE_S = 24.0
"""How long a lease lasts without renewal."""
RENEW_AT = 1 / 3
"""When it is renewed. The rest, 16 s, is what a cut of the network may last, and the time in which a scheduler that was
killed can be started again without losing anything."""
SILENT_S = 1.0
"""A worker not heard from for so long is asked to renew, so that one that died is missed long before its lease ends.
Training tasks report four times a second, so this costs nothing while all is well."""
GONE_AFTER_S = 0.6
"""Nobody has listened at the worker's address for so long, each time it was tried: the worker is gone."""
RETRY_S = (0.2, 0.6)
"""Pause between two attempts, drawn at random."""
RETRY_QUICK_S = (0.05, 0.15)
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


@dataclass(frozen=True, slots=True)
class Doubted:
    """Nobody listens at the worker's address: it is likely to be lost soon, so look for another already."""

    lease_id: str


@dataclass(frozen=True, slots=True)
class Trusted:
    """It was a false alarm."""

    lease_id: str


LeaseEffect = Renew | Lost | Doubted | Trusted


@dataclass(slots=True)
class _Held:
    peer_id: str
    duration_s: float
    expires_at: float
    next_at: float
    heard_at: float
    silent_s: float
    is_asking: bool = False
    failures: int = 0
    last_error: str = ""
    deserted_since: float | None = None

    @property
    def ask_at(self) -> float:
        """When the next renewal is due; after a failure its pause decides."""
        return self.next_at if self.failures else min(self.next_at, self.heard_at + self.silent_s)


class HeldLeases:
    """All leases of one job."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._leases: dict[str, _Held] = {}
        self._by_peer: dict[str, set[str]] = defaultdict(set)

    def __contains__(self, lease_id: object) -> bool:
        return lease_id in self._leases

    def __len__(self) -> int:
        return len(self._leases)

    def all(self) -> list[tuple[str, str]]:
        """Every lease and its worker."""
        return [(lease_id, held.peer_id) for lease_id, held in self._leases.items()]

    def hold(
        self, sent_at: float, lease_id: str, peer_id: str, duration_s: float, *, silent_s: float = SILENT_S
    ) -> None:
        """The first renewal, sent at `sent_at`, was granted."""
        next_at = sent_at + RENEW_AT * duration_s
        self._leases[lease_id] = _Held(peer_id, duration_s, sent_at + duration_s, next_at, sent_at, silent_s)
        self._by_peer[peer_id].add(lease_id)

    def release(self, lease_id: str) -> None:
        """We let it go."""
        self._remove(lease_id)

    def _remove(self, lease_id: str) -> _Held | None:
        held = self._leases.pop(lease_id, None)
        if held is not None:
            self._by_peer[held.peer_id].discard(lease_id)
            if not self._by_peer[held.peer_id]:
                del self._by_peer[held.peer_id]
        return held

    def tick(self, now: float) -> list[LeaseEffect]:
        """Renewals that are due, and leases that ran out."""
        effects: list[LeaseEffect] = []
        for lease_id, held in list(self._leases.items()):
            if now >= held.expires_at:
                self._remove(lease_id)
                why = f": {held.last_error}" if held.last_error else ""
                effects.append(Lost(lease_id, held.peer_id, f"not renewed in {held.duration_s:g} s{why}"))
            elif now >= held.ask_at and not held.is_asking:
                held.is_asking = True
                effects.append(Renew(lease_id, held.peer_id, held.duration_s))
        return effects

    def renewed(self, sent_at: float, lease_id: str, duration_s: float) -> list[LeaseEffect]:
        """A renewal sent at `sent_at` was granted for `duration_s`."""
        held = self._leases.get(lease_id)
        if held is None:
            return []
        effects: list[LeaseEffect] = [] if held.deserted_since is None else [Trusted(lease_id)]
        held.is_asking = False
        held.failures = 0
        held.last_error = ""
        held.deserted_since = None
        held.heard_at = max(held.heard_at, sent_at)
        held.duration_s = duration_s
        held.expires_at = max(held.expires_at, sent_at + duration_s)
        held.next_at = sent_at + RENEW_AT * duration_s
        return effects

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
            was_doubted, held.deserted_since = held.deserted_since is not None, None
            return [Trusted(lease_id)] if was_doubted else []
        if held.deserted_since is None:
            held.deserted_since = now
            return [Doubted(lease_id)]
        if now - held.deserted_since < GONE_AFTER_S:
            return []
        self._remove(lease_id)
        return [Lost(lease_id, held.peer_id, f"the worker is gone: {error}")]

    def refused(self, lease_id: str, reason: str) -> list[LeaseEffect]:
        """The worker says that it does not hold this lease: lost at once."""
        held = self._remove(lease_id)
        return [] if held is None else [Lost(lease_id, held.peer_id, reason)]

    def heard(self, now: float, peer_id: str) -> None:
        """This worker called us."""
        for lease_id in self._by_peer.get(peer_id, ()):
            held = self._leases[lease_id]
            held.heard_at = max(held.heard_at, now)

    def check_soon(self, now: float, peer_id: str) -> None:
        """This worker may not know its leases any more (it was away): ask now instead of at a third."""
        for lease_id in self._by_peer.get(peer_id, ()):
            held = self._leases[lease_id]
            held.next_at = min(held.next_at, now)

    def next_at(self) -> float | None:
        """When `tick` has something to do."""
        times = [
            held.expires_at if held.is_asking else min(held.expires_at, held.ask_at) for held in self._leases.values()
        ]
        return min(times, default=None)

    def planned(self, lease_id: str) -> float | None:
        """When a lease is to be renewed, if its worker goes on as it does; None where it is not held."""
        held = self._leases.get(lease_id)
        if held is None:
            return None
        reports = held.heard_at > held.next_at - RENEW_AT * held.duration_s
        return min(held.next_at if reports else held.ask_at, held.expires_at)

    def validate(self) -> None:
        """Raise AssertionError where the state contradicts itself."""
        for held in self._leases.values():
            assert held.duration_s > 0
            assert held.failures >= 0
            assert (held.failures > 0) == bool(held.last_error)
