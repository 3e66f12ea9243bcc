"""What this node knows of the cluster, and the conversation that keeps it so: hello, gossip, exchange, probes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar

import msgspec

from node.addresses import Address
from node.errors import PeerError, PeerProtocol, PeerUnreachable, PeerUntrusted, Refused
from node.identity.caller import Caller
from node.identity.credentials import Identity
from node.network.addressbook import AddressBook
from node.network.client import Answer
from node.network.gossip import DEGREE, GATEWAY_DEGREE, MAX_PASSED_ON, Gossip
from node.network.membership import Membership
from node.network.opening import open_record, peek
from node.network.records import Opened, Records, key_of
from node.wire import (
    PROTOCOL,
    Ack,
    Advertisement,
    Exchange,
    Exchanged,
    FindProviders,
    Hello,
    Message,
    Passed,
    PeerRecord,
    ProviderRecord,
    Providers,
    Record,
    Request,
    Welcome,
)
from node.wire import Gossip as GossipMessage

log = logging.getLogger(__name__)

A = TypeVar("A", bound=Message)

COALESCE_S = 0.005
EARLY_EXCHANGES_S = (0.0, 0.3, 1.0, 2.0, 4.0)
"""After joining, exchanges follow quickly: others join at the same moment."""
EXCHANGE_EVERY_S = 10.0
EXCHANGE_ROUNDS = 8
PROBE_EVERY_S = 2.0
PROBE_TIMEOUT_S = 3.0
EXPIRE_EVERY_S = 2.0
CALL_S = 5.0
BREATHE_EVERY = 16
"""Signatures checked before other tasks get their turn."""
MAX_KNOWN = 50_000
MAX_RECEIVED = 2_000


class Calls(Protocol):
    """What knowledge needs of the overlay: calls to peers, and to whoever listens at an address."""

    async def call(self, peer_id: str, request: Request[A], *, timeout_s: float = ...) -> A: ...

    async def call_address(
        self, where: str | Address, request: Request[A], *, timeout_s: float
    ) -> tuple[A, Answer]: ...


class Knowledge:
    """Records, membership and gossip of one node, fed from the wire."""

    def __init__(
        self, identity: Identity, book: AddressBook, calls: Calls, rng: random.Random, roles: list[str]
    ) -> None:
        self._identity = identity
        self._book = book
        self._calls = calls
        self._rng = rng
        self.own_id = identity.peer_id
        self.records = Records()
        self.membership = Membership(self.own_id, self.records, rng)
        degree = GATEWAY_DEGREE if "gateway" in roles else DEGREE
        self.gossip = Gossip(self.records, self.membership, degree=degree)
        self.on_advert: Callable[[Caller, Advertisement], None] = lambda caller, advert: None
        self.on_peer: Callable[[PeerRecord, str], None] = lambda record, what: None
        """A peer has joined, left, or its record has ended (`lost`)."""
        self.on_change: Callable[[], None] = lambda: None
        """Something that `membership.peers()` shows is different."""
        self.on_own: Callable[[Record], None] = lambda record: None
        """Somebody passes on a newer record of ours than we have made: of an earlier life."""
        self._shown = -1
        self._news = asyncio.Event()
        self._kick = asyncio.Event()
        self._sending: set[str] = set()

    # ---- what comes in --------------------------------------------------------------------------------

    async def take(self, passed: Iterable[Passed], source: str, *, passes_on: bool = True) -> int:
        """Check records and take in what is news; how many were. Raises PeerProtocol or PeerUntrusted at the first
        bad one, with the good ones before it kept."""
        fresh = 0
        checked = 0
        try:
            for item in passed:
                record = peek(item)
                if record.peer_id == self.own_id:
                    self._meet_oneself(item, record)
                    continue
                if not self.records.judge(record, item.remaining_s).is_news:
                    continue
                opened = open_record(self._identity.trust, item, record)
                checked += 1
                if checked % BREATHE_EVERY == 0:
                    await asyncio.sleep(0)
                fresh += self._merge(opened, source, passes_on=passes_on and fresh < MAX_PASSED_ON)
        finally:
            self._tell()
        return fresh

    def add_own(self, record: Record) -> Passed:
        """Sign a record of this node's, and pass it on."""
        signed = self._identity.sign(msgspec.msgpack.encode(record))
        self._merge(Opened(record, signed, self._identity.caller, record.ttl_s), self.own_id, passes_on=True)
        self._tell()
        return Passed(signed=signed, remaining_s=record.ttl_s)

    def _merge(self, opened: Opened, source: str, *, passes_on: bool) -> bool:
        record = opened.record
        before = self.membership.record(record.peer_id) if isinstance(record, PeerRecord) else None
        was_alone = self.membership.reachable_count() == 0
        if not self.gossip.receive(opened, source, time.monotonic(), passes_on=passes_on).is_news:
            return False
        self._news.set()
        if isinstance(record, Advertisement):
            self.on_advert(opened.origin, record)
        elif isinstance(record, PeerRecord):
            self._peer_changed(record, before, was_alone=was_alone)
        return True

    def _peer_changed(self, record: PeerRecord, before: PeerRecord | None, *, was_alone: bool) -> None:
        if record.peer_id == self.own_id:
            return
        if record.leaving:
            self._book.drop(record.peer_id)
            if before is not None:
                self.on_peer(record, "left")
            return
        self._book.set(record.peer_id, record.addresses)
        if before is None:
            self.on_peer(record, "joined")
        if was_alone:
            self.kick()

    def _meet_oneself(self, passed: Passed, record: Record) -> None:
        held = self.records.get(key_of(record))
        if held is None or record.seq > held.opened.record.seq:
            open_record(self._identity.trust, passed, record)
            self.on_own(record)

    def _tell(self) -> None:
        if self.membership.version != self._shown:
            self._shown = self.membership.version
            self.on_change()

    # ---- answers to others ----------------------------------------------------------------------------

    async def answer_hello(self, caller: Caller, hello: Hello) -> Welcome:
        """Welcome a node, or answer a probe: one with an empty record, which an operator may send too."""
        _check_protocol(hello.protocol, caller.name)
        if hello.record.signed.payload:
            if caller.is_operator:
                raise Refused("denied", "an operator is not a member")
            await self._take_from(caller, [hello.record])
        own = self.own_record()
        if own is None:
            raise Refused("busy", "this node is still starting")
        return Welcome(record=own)

    async def answer_exchange(self, caller: Caller, exchange: Exchange) -> Exchanged:
        """Say what the caller lacks, and what we want of it."""
        if len(exchange.known) > MAX_KNOWN:
            raise Refused("invalid", f"{len(exchange.known)} keys, {MAX_KNOWN} are allowed")
        self.membership.heard(caller.peer_id, time.monotonic())
        records, wanted = self.records.compare(exchange.known, time.monotonic())
        return Exchanged(records=records, wanted=wanted)

    async def answer_gossip(self, caller: Caller, message: GossipMessage) -> Ack:
        """Take what a neighbour passes on."""
        if len(message.records) > MAX_RECEIVED:
            raise Refused("invalid", f"{len(message.records)} records, {MAX_RECEIVED} are allowed")
        await self._take_from(caller, message.records)
        return Ack()

    async def answer_providers(self, caller: Caller, find: FindProviders) -> Providers:
        """Say who serves a dataset."""
        keys = [f"provider:{record.peer_id}:{record.dataset}" for record in self.providers(find.dataset)]
        return Providers(records=self.records.select(keys, time.monotonic()))

    async def _take_from(self, caller: Caller, passed: list[Passed]) -> None:
        try:
            await self.take(passed, caller.peer_id)
        except (PeerProtocol, PeerUntrusted) as error:
            log.debug("records.refused from=%s reason=%s", caller.peer_id, error)
            raise Refused("invalid", error.message, hint=error.hint) from error
        self.membership.heard(caller.peer_id, time.monotonic())

    def own_record(self) -> Passed | None:
        """This node's own record, once there is one."""
        held = self.records.get(f"peer:{self.own_id}")
        return held.passed(time.monotonic()) if held is not None else None

    def providers(self, dataset: str) -> list[ProviderRecord]:
        """Members that serve a dataset, reachable ones first."""
        found = [
            record
            for record in self.records.of(ProviderRecord)
            if record.dataset == dataset and record.slices > 0 and self.membership.record(record.peer_id) is not None
        ]
        found.sort(key=lambda record: (not self._answers(record.peer_id), record.peer_id))
        return found

    def _answers(self, peer_id: str) -> bool:
        return peer_id == self.own_id or self.membership.is_reachable(peer_id)

    # ---- calls to others --------------------------------------------------------------------------------

    async def greet(self, where: str | Address, *, timeout_s: float = CALL_S) -> str:
        """Say hello to a peer, or to whoever listens at an address; its peer id. Raises PeerError."""
        own = self.own_record()
        if own is None:
            raise PeerUnreachable("this node is still starting")
        if isinstance(where, Address) and where.peer_id is not None:
            self._book.dialled(where.peer_id, where)
            where = where.peer_id
        welcome, answer = await self._calls.call_address(where, Hello(record=own), timeout_s=timeout_s)
        peer_id = answer.caller.peer_id
        if peer_id == self.own_id:
            return peer_id
        _check_protocol(welcome.protocol, answer.caller.name)
        if peek(welcome.record).peer_id != peer_id:
            raise PeerProtocol(f"{answer.caller.name} introduces itself with the record of another peer")
        if isinstance(where, Address):
            self._book.dialled(peer_id, where)
        await self.take([welcome.record], peer_id)
        self.answered(peer_id, answer.seconds * 1000)
        return peer_id

    def answered(self, peer_id: str, rtt_ms: float | None = None) -> None:
        """A call to a peer has succeeded."""
        if self.membership.answered(peer_id, rtt_ms, time.monotonic()):
            log.info("peer.reachable peer=%s", peer_id)
        self._tell()

    def failed(self, peer_id: str, error: PeerError, *, is_definite: bool) -> None:
        """A call to a peer has failed."""
        if self.membership.failed(peer_id, time.monotonic(), is_definite=is_definite):
            log.info("peer.unreachable peer=%s reason=%s", peer_id, error)
        self._tell()

    async def exchange(self, peer_id: str) -> None:
        """Make two nodes' knowledge the same. Raises PeerError."""
        for _ in range(EXCHANGE_ROUNDS):
            answer = await self._calls.call(peer_id, Exchange(known=self.records.known()), timeout_s=2 * CALL_S)
            if answer.wanted:
                self.gossip.queue(peer_id, answer.wanted)
                self._news.set()
            if not await self.take(answer.records, peer_id, passes_on=len(answer.records) <= MAX_PASSED_ON):
                return

    def suggest(self, peer_id: str, addresses: list[str]) -> None:
        """Where a peer may be, for as long as it has not said so itself."""
        if self.membership.record(peer_id) is None:
            self._book.set(peer_id, addresses)

    def kick(self) -> None:
        """This node has just met others: exchange with them at once and a few times more."""
        self._kick.set()

    def drop_untrusted(self) -> None:
        """Forget peers whose certificates are no longer accepted."""
        for held in self.records.all():
            record = held.opened.record
            try:
                self._identity.trust.verify_chain(held.opened.signed.chain)
            except PeerUntrusted as error:
                if isinstance(record, PeerRecord):
                    log.warning("peer.dropped peer=%s reason=%s", record.peer_id, error)
                self.records.drop_origin(record.peer_id, time.monotonic())
                self.membership.forget(record.peer_id)
                self._book.drop(record.peer_id)
        self._tell()

    # ---- loops --------------------------------------------------------------------------------------------

    async def spread(self) -> None:
        """Send what waits, to each neighbour one message at a time, until cancelled."""
        async with asyncio.TaskGroup() as senders:
            while True:
                await self._news.wait()
                self._news.clear()
                await asyncio.sleep(COALESCE_S)
                for peer_id in self.gossip.waiting():
                    if peer_id not in self._sending:
                        self._sending.add(peer_id)
                        senders.create_task(self._send(peer_id))

    async def _send(self, peer_id: str) -> None:
        try:
            while records := self.gossip.take(peer_id, time.monotonic()):
                await self._calls.call(peer_id, GossipMessage(records=records), timeout_s=CALL_S)
        except PeerError as error:
            log.debug("gossip.lost peer=%s reason=%s", peer_id, error)
        finally:
            self._sending.discard(peer_id)

    async def keep_exchanging(self) -> None:
        """Exchange with a member every ten seconds or so, and quickly after joining, until cancelled."""
        early = iter(EARLY_EXCHANGES_S)
        while True:
            pause_s = next(early, None)
            if pause_s is None:
                pause_s = EXCHANGE_EVERY_S * self._rng.uniform(0.8, 1.2)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._kick.wait()
                    self._kick.clear()
                    early = iter(EARLY_EXCHANGES_S)
                    continue
            peer_id = self.membership.partner()
            if peer_id is not None:
                try:
                    await self.exchange(peer_id)
                except PeerError as error:
                    log.debug("exchange.failed peer=%s reason=%s", peer_id, error)

    async def keep_probing(self) -> None:
        """See whether peers answer that have been quiet, and whether unreachable ones do again, until cancelled."""
        while True:
            await asyncio.sleep(PROBE_EVERY_S * self._rng.uniform(0.8, 1.2))
            peer_id = self.membership.due(time.monotonic())
            if peer_id is not None:
                try:
                    await self.greet(peer_id, timeout_s=PROBE_TIMEOUT_S)
                except PeerError as error:
                    log.debug("probe.failed peer=%s reason=%s", peer_id, error)

    async def keep_expiring(self) -> None:
        """Drop records that have ended, until cancelled."""
        while True:
            await asyncio.sleep(EXPIRE_EVERY_S)
            for record in self.records.expire(time.monotonic()):
                if isinstance(record, PeerRecord) and record.peer_id != self.own_id:
                    self.membership.forget(record.peer_id)
                    if not record.leaving:
                        self._book.drop(record.peer_id)
                        self.on_peer(record, "lost")
            self._tell()

    async def flush(self) -> None:
        """Send what waits now and to the end; at the end of `spread`, for the record that says we leave."""
        async with asyncio.TaskGroup() as senders:
            for peer_id in self.gossip.waiting():
                senders.create_task(self._send(peer_id))


def _check_protocol(theirs: int, name: str) -> None:
    if theirs != PROTOCOL:
        raise PeerProtocol(
            f"{name} speaks protocol {theirs}, this node speaks {PROTOCOL}", hint="run the same release on both"
        )
