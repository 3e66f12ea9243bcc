"""Who is in the cluster and who answers. Pure: records come from `Records`, times are monotonic seconds."""

from __future__ import annotations

import bisect
import hashlib
import random
from dataclasses import dataclass

from node.network.backoff import Backoff
from node.network.records import Records
from node.wire import PeerRecord

FAILURES_UNTIL_UNREACHABLE = 2
QUIET_S = 12.0
"""A peer that has answered within this time need not be probed."""
PROBE_FIRST_S = 1.0
PROBE_MOST_S = 20.0
RING_NEIGHBOURS = 2
REMEMBERED = 64


@dataclass(frozen=True, slots=True)
class KnownPeer:
    """A member, as this node knows it. `seen_at` (monotonic) is when it last called or answered, or its record came."""

    record: PeerRecord
    reachable: bool
    rtt_ms: float | None
    seen_at: float


class _Contact:
    __slots__ = ("backoff", "failures", "probe_at", "reachable", "rtt_ms", "score", "seen_at")

    def __init__(self, score: bytes, now: float, rng: random.Random) -> None:
        self.reachable = True
        self.failures = 0
        self.rtt_ms: float | None = None
        self.seen_at = now
        self.probe_at = now + QUIET_S * rng.uniform(0.25, 1.0)
        self.score = score
        self.backoff = Backoff(rng, first_s=PROBE_FIRST_S, most_s=PROBE_MOST_S)


class Membership:
    """The other members, which of them can be reached, and which are this node's neighbours for gossip.

    The neighbours are the next two members on either side, in the order of peer ids, which connects everybody, and some
    that a hash of both ids picks, which makes ways short. They change only when members come, go or stop answering.
    """

    def __init__(self, own_id: str, records: Records, rng: random.Random) -> None:
        self.own_id = own_id
        self.version = 0
        """Grows with every change that `peers()` shows, times aside."""
        self._records = records
        self._rng = rng
        self._contacts: dict[str, _Contact] = {}
        self._ring: list[str] = []
        self._ranked: list[tuple[bytes, str]] = []

    def changed(self, record: PeerRecord, now: float) -> None:
        """A peer's record is new or newer. A newer one is a reason to try an unreachable peer again."""
        self.version += 1
        if record.peer_id == self.own_id:
            return
        contact = self._contacts.get(record.peer_id)
        if record.leaving:
            self.forget(record.peer_id)
        elif contact is None:
            score = hashlib.blake2b(f"{self.own_id}{record.peer_id}".encode(), digest_size=8).digest()
            self._contacts[record.peer_id] = contact = _Contact(score, now, self._rng)
            self._link(record.peer_id, contact)
        else:
            contact.seen_at = now
            if not contact.reachable:
                contact.backoff.succeeded()
                contact.probe_at = now

    def forget(self, peer_id: str) -> None:
        """A peer has left, its record has ended, or it is no longer trusted."""
        contact = self._contacts.pop(peer_id, None)
        if contact is not None:
            self.version += 1
            if contact.reachable:
                self._unlink(peer_id, contact)

    def heard(self, peer_id: str, now: float) -> None:
        """A peer has called us: it lives, which does not say that we can call it."""
        contact = self._contacts.get(peer_id)
        if contact is not None:
            contact.seen_at = now
            if not contact.reachable:
                contact.probe_at = min(contact.probe_at, now + PROBE_FIRST_S)

    def answered(self, peer_id: str, rtt_ms: float | None, now: float) -> bool:
        """A call to a peer has succeeded. True when that makes it reachable again."""
        contact = self._contacts.get(peer_id)
        if contact is None:
            return False
        contact.seen_at = now
        contact.probe_at = now + QUIET_S
        contact.failures = 0
        contact.backoff.succeeded()
        if rtt_ms is not None:
            contact.rtt_ms = rtt_ms if contact.rtt_ms is None else 0.7 * contact.rtt_ms + 0.3 * rtt_ms
        if contact.reachable:
            return False
        contact.reachable = True
        self._link(peer_id, contact)
        self.version += 1
        return True

    def failed(self, peer_id: str, now: float, *, is_definite: bool) -> bool:
        """A call to a peer has failed: refused, which is definite, or unanswered. True if that makes it unreachable."""
        contact = self._contacts.get(peer_id)
        if contact is None:
            return False
        contact.failures += 1
        contact.probe_at = now + contact.backoff.failed()
        if not contact.reachable or not (is_definite or contact.failures >= FAILURES_UNTIL_UNREACHABLE):
            return False
        contact.reachable = False
        self._unlink(peer_id, contact)
        self.version += 1
        return True

    def due(self, now: float) -> str | None:
        """The peer whose probe is longest overdue, if any is; its next one is set a little later."""
        found = min(self._contacts.items(), key=lambda item: item[1].probe_at, default=None)
        if found is None or found[1].probe_at > now:
            return None
        found[1].probe_at = now + QUIET_S
        return found[0]

    def neighbours(self, degree: int) -> list[str]:
        """Up to `degree` reachable members to pass records on to, always the same ones while the members stay."""
        at = bisect.bisect_left(self._ring, self.own_id)
        size = len(self._ring)
        near = [self._ring[(at + step) % size] for step in (0, -1, 1, -2)[: min(size, 2 * RING_NEIGHBOURS)]]
        chosen = dict.fromkeys(near[:degree])
        for _, peer_id in self._ranked[:degree]:
            if len(chosen) >= degree:
                break
            chosen[peer_id] = None
        return list(chosen)

    def partner(self) -> str | None:
        """A reachable peer, drawn at random, every second time a gateway, for an exchange."""
        if not self._ring:
            return None
        if self._rng.random() < 0.5:
            gateways = [peer.record.peer_id for peer in self.peers("gateway") if peer.reachable]
            others = [peer_id for peer_id in gateways if peer_id != self.own_id]
            if others:
                return self._rng.choice(others)
        return self._rng.choice(self._ring)

    def is_reachable(self, peer_id: str) -> bool:
        """Whether calls to a peer succeed, as far as known."""
        contact = self._contacts.get(peer_id)
        return contact is not None and contact.reachable

    def record(self, peer_id: str) -> PeerRecord | None:
        """A peer's record, unless it has left."""
        held = self._records.get(f"peer:{peer_id}")
        record = held.opened.record if held is not None else None
        return record if isinstance(record, PeerRecord) and not record.leaving else None

    def peers(self, role: str | None = None) -> list[KnownPeer]:
        """All members, or those with a role, this node included, by name."""
        found = [
            self._known(record)
            for record in self._records.of(PeerRecord)
            if not record.leaving and (role is None or role in record.roles)
        ]
        return sorted(found, key=lambda peer: (peer.record.name, peer.record.peer_id))

    def _known(self, record: PeerRecord) -> KnownPeer:
        contact = self._contacts.get(record.peer_id)
        if contact is None:
            return KnownPeer(record, reachable=record.peer_id == self.own_id, rtt_ms=None, seen_at=0.0)
        return KnownPeer(record, contact.reachable, contact.rtt_ms, contact.seen_at)

    def count(self) -> int:
        """How many other members there are."""
        return len(self._contacts)

    def reachable_count(self) -> int:
        """How many other members answer."""
        return len(self._ring)

    def find_name(self, text: str) -> str | None:
        """The peer with this id or name, or the only one whose id starts or ends so. None if none or several match."""
        records = [record for record in self._records.of(PeerRecord) if not record.leaving]
        for matches in (
            [record for record in records if record.peer_id == text],
            [record for record in records if record.name == text],
            [
                record
                for record in records
                if text and (record.peer_id.startswith(text) or record.peer_id.endswith(text))
            ],
        ):
            if matches:
                return matches[0].peer_id if len(matches) == 1 else None
        return None

    def to_remember(self) -> dict[str, list[str]]:
        """Addresses worth keeping for the next start: of gateways first, then of reachable peers."""
        peers = [peer for peer in self.peers() if peer.record.peer_id != self.own_id and peer.record.addresses]
        peers.sort(key=lambda peer: ("gateway" not in peer.record.roles, not peer.reachable))
        return {peer.record.peer_id: peer.record.addresses for peer in peers[:REMEMBERED]}

    def _link(self, peer_id: str, contact: _Contact) -> None:
        bisect.insort(self._ring, peer_id)
        bisect.insort(self._ranked, (contact.score, peer_id))

    def _unlink(self, peer_id: str, contact: _Contact) -> None:
        self._ring.pop(bisect.bisect_left(self._ring, peer_id))
        self._ranked.pop(bisect.bisect_left(self._ranked, (contact.score, peer_id)))
