"""Hundreds of nodes' membership and gossip in one process: a fake clock and a seeded network that loses, delays and
repeats messages, and can be cut in two."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable

import msgspec

from node.identity.caller import Caller
from node.network.gossip import DEGREE, GATEWAY_DEGREE, Gossip
from node.network.knowledge import EARLY_EXCHANGES_S, EXCHANGE_EVERY_S
from node.network.membership import Membership
from node.network.records import Opened, Records
from node.wire import Advertisement, ExecutorKind, Passed, PeerRecord, Record, Resources, Signed

COALESCE_S = 0.01
RETRY_S = 1.0


class SimulatedNode:
    """One node: the same pure parts as the real one, and a shell of callbacks."""

    def __init__(self, cluster: Cluster, peer_id: str, *, is_gateway: bool) -> None:
        self.cluster = cluster
        self.peer_id = peer_id
        self.roles = ["gateway"] if is_gateway else ["worker"]
        self.is_up = True
        self.records = Records()
        self.membership = Membership(peer_id, self.records, cluster.rng)
        self.gossip = Gossip(self.records, self.membership, degree=GATEWAY_DEGREE if is_gateway else DEGREE)
        self.adverts: list[tuple[str, float]] = []
        self.sent = 0
        self._seq = 0
        self._is_flushing = False

    def own(self, make: Callable[[int], Record]) -> Passed:
        self._seq += 1
        record = make(self._seq)
        signed = Signed(payload=msgspec.msgpack.encode(record), signature=b"", chain=[])
        self.cluster.signed[signed.payload] = record
        self.take([Passed(signed=signed, remaining_s=record.ttl_s, hops=-1)], self.peer_id)
        return Passed(signed=signed, remaining_s=record.ttl_s)

    def introduce(self) -> Passed:
        return self.own(
            lambda seq: PeerRecord(
                peer_id=self.peer_id, seq=seq, name=self.peer_id, roles=self.roles, addresses=[], ttl_s=60.0
            )
        )

    def advertise(self, advert_id: str) -> None:
        self.own(
            lambda seq: Advertisement(
                peer_id=self.peer_id,
                seq=seq,
                advert_id=advert_id,
                job_id="j",
                executor=ExecutorKind(class_="train"),
                resources=Resources(),
                bid=1.0,
                count=1,
                ttl_s=20.0,
            )
        )

    def take(self, passed: list[Passed], source: str) -> int:
        fresh = 0
        now = self.cluster.now
        for item in passed:
            record = self.cluster.signed[item.signed.payload]
            if record.peer_id == self.peer_id and source != self.peer_id:
                continue
            if not self.records.judge(record, item.remaining_s).is_news:
                continue
            origin = Caller(peer_id=record.peer_id, role="node", name="", expires_at=0.0)
            opened = Opened(record, item.signed, origin, item.remaining_s, item.hops + 1)
            if self.gossip.receive(opened, source, now).is_news:
                fresh += 1
                if isinstance(record, Advertisement):
                    self.adverts.append((record.advert_id, now))
        if fresh:
            self.flush_soon()
        return fresh

    def flush_soon(self) -> None:
        if not self._is_flushing:
            self._is_flushing = True
            self.cluster.after(COALESCE_S, self._flush)

    def _flush(self) -> None:
        self._is_flushing = False
        for peer_id in self.gossip.waiting():
            records = self.gossip.take(peer_id, self.cluster.now)
            self.sent += 1
            self.cluster.send(self, peer_id, self._bringing(records))

    def _bringing(self, records: list[Passed]) -> Callable[[SimulatedNode], object]:
        return lambda node: node.take(records, self.peer_id)

    def join(self, gateway: str) -> None:
        """Say hello until somebody answers, then exchange."""
        answered: list[bool] = []

        def hello(node: SimulatedNode) -> None:
            node.take([introduction], self.peer_id)
            welcome = node.records.select([f"peer:{gateway}"], self.cluster.now)
            self.cluster.send(node, self.peer_id, welcomed_by(welcome))

        def welcomed_by(welcome: list[Passed]) -> Callable[[SimulatedNode], None]:
            def arrive(_: SimulatedNode) -> None:
                self.take(welcome, gateway)
                if not answered:
                    answered.append(True)
                    for delay_s in EARLY_EXCHANGES_S:
                        self.cluster.after(delay_s, self.exchange)

            return arrive

        def attempt() -> None:
            if not answered and self.is_up:
                self.cluster.send(self, gateway, hello)
                self.cluster.after(RETRY_S, attempt)

        introduction = self.introduce()
        attempt()
        self.cluster.every(EXCHANGE_EVERY_S, self.exchange)
        self.cluster.every(20.0, self.introduce)
        self.cluster.every(2.0, self.expire)

    def exchange(self) -> None:
        partner = self.membership.partner() if self.is_up else None
        if partner is None:
            return
        known = self.records.known()

        def ask(node: SimulatedNode) -> None:
            records, wanted = node.records.compare(known, self.cluster.now)
            self.cluster.send(node, self.peer_id, answer(records, wanted))

        def answer(records: list[Passed], wanted: list[str]) -> Callable[[SimulatedNode], None]:
            def arrive(_: SimulatedNode) -> None:
                self.take(records, partner)
                self.gossip.queue(partner, wanted)
                self.flush_soon()

            return arrive

        self.cluster.send(self, partner, ask)

    def expire(self) -> None:
        for record in self.records.expire(self.cluster.now):
            if isinstance(record, PeerRecord):
                self.membership.forget(record.peer_id)

    def members(self) -> set[str]:
        return {peer.record.peer_id for peer in self.membership.peers()}


class Cluster:
    """The clock, the network and all nodes."""

    def __init__(self, seed: int, *, drop: float = 0.0, duplicate: float = 0.0, delay_s: float = 0.2) -> None:
        self.rng = random.Random(seed)
        self.now = 0.0
        self.drop = drop
        self.duplicate = duplicate
        self.delay_s = delay_s
        self.signed: dict[bytes, Record] = {}
        self.nodes: dict[str, SimulatedNode] = {}
        self.side_of: Callable[[str], int] = lambda peer_id: 0
        self._events: list[tuple[float, int, Callable[[], object]]] = []
        self._order = itertools.count()

    def add(self, peer_id: str, *, is_gateway: bool = False) -> SimulatedNode:
        node = SimulatedNode(self, peer_id, is_gateway=is_gateway)
        self.nodes[peer_id] = node
        return node

    def after(self, delay_s: float, action: Callable[[], object]) -> None:
        heapq.heappush(self._events, (self.now + delay_s, next(self._order), action))

    def every(self, period_s: float, action: Callable[[], object]) -> None:
        def again() -> None:
            action()
            self.after(period_s * self.rng.uniform(0.8, 1.2), again)

        self.after(period_s * self.rng.uniform(0.0, 1.0), again)

    def send(self, source: SimulatedNode, target: str, arrive: Callable[[SimulatedNode], object]) -> None:
        if not source.is_up:
            return
        for _ in range(2 if self.rng.random() < self.duplicate else 1):
            if self.rng.random() >= self.drop:
                self.after(self.rng.uniform(0.001, self.delay_s), lambda: self._arrive(source, target, arrive))

    def _arrive(self, source: SimulatedNode, target: str, arrive: Callable[[SimulatedNode], object]) -> None:
        node = self.nodes[target]
        if node.is_up and self.side_of(source.peer_id) == self.side_of(target):
            arrive(node)

    def run_until(self, end: float, holds: Callable[[], bool] | None = None) -> bool:
        """Go on to `end`, or until something holds (looked at every 0.1 s)."""
        next_look = self.now
        while self._events and self._events[0][0] <= end:
            self.now, _, action = heapq.heappop(self._events)
            if holds is not None and self.now >= next_look:
                next_look = self.now + 0.1
                if holds():
                    return True
            action()
        self.now = end
        return holds is None or holds()

    def agree(self, expected: set[str]) -> bool:
        return all(node.members() == expected for node in self.nodes.values() if node.is_up)
