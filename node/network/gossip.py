"""Passing records on: to a bounded set of neighbours, each record once, coalesced; an exchange repairs what was lost.

Pure: `Gossip` says what to send to whom, the overlay sends it.
"""

from __future__ import annotations

from node.network.membership import Membership
from node.network.records import MAX_SENT, News, Opened, Records
from node.wire import Passed, PeerRecord

DEGREE = 8
GATEWAY_DEGREE = 16
MAX_HOPS = 16
MAX_WAITING = 2_048
MAX_PASSED_ON = 64
"""News of one exchange beyond this is not passed on: whoever has just joined must not repeat the whole cluster."""


class Gossip:
    """What waits to be sent to each neighbour."""

    def __init__(self, records: Records, membership: Membership, *, degree: int = DEGREE) -> None:
        self._records = records
        self._membership = membership
        self._degree = degree
        self._waiting: dict[str, dict[str, None]] = {}

    def receive(self, opened: Opened, source: str, now: float, *, passes_on: bool = True) -> News:
        """Take a record from `source` (this node's own id for its own); news is queued for the neighbours if it
        `passes_on`."""
        news = self._records.merge(opened, now)
        if not news.is_news:
            return news
        record = opened.record
        if isinstance(record, PeerRecord):
            self._membership.changed(record, now)
        if passes_on and opened.hops < MAX_HOPS:
            key = opened.key
            for peer_id in self._membership.neighbours(self._degree):
                if peer_id not in (source, record.peer_id):
                    self.queue(peer_id, [key])
        return news

    def queue(self, peer_id: str, keys: list[str]) -> None:
        """Send these records to a peer soon. The oldest waiting ones give way when it does not keep up."""
        waiting = self._waiting.setdefault(peer_id, {})
        for key in keys:
            waiting.pop(key, None)
            waiting[key] = None
        while len(waiting) > MAX_WAITING:
            del waiting[next(iter(waiting))]

    def waiting(self) -> list[str]:
        """Peers for whom something waits; what waits for unreachable ones is dropped."""
        for peer_id in [peer_id for peer_id in self._waiting if not self._membership.is_reachable(peer_id)]:
            del self._waiting[peer_id]
        return list(self._waiting)

    def take(self, peer_id: str, now: float) -> list[Passed]:
        """The records to send to a peer now, each in its newest form. More may wait after that."""
        waiting = self._waiting.pop(peer_id, {})
        keys = list(waiting)
        if len(keys) > MAX_SENT:
            self._waiting[peer_id] = dict.fromkeys(keys[MAX_SENT:])
        return self._records.select(keys[:MAX_SENT], now)


def refresh_s(members: int) -> float:
    """How often a peer renews its record: less often in a large cluster, so that records cost each node about the
    same. A record lives three times as long."""
    return min(300.0, max(30.0, 0.3 * members))
