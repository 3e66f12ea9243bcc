"""The overlay: what every role sees of the network. One per process; roles share it."""

from __future__ import annotations

import asyncio
import importlib
import logging
import random
import ssl
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

import aiohttp
import msgspec
from aiohttp import web

from node.addresses import Address, parse
from node.board import Board
from node.config import NodeConfig
from node.errors import PeerError, PeerProtocol, PeerUnreachable, PeerUntrusted, Refused
from node.identity.caller import Caller
from node.identity.credentials import Identity
from node.network import listeners
from node.network.addressbook import AddressBook
from node.network.announcer import Announcer, Offering
from node.network.bootstrap import Bootstrap
from node.network.client import Answer, Client, is_definite
from node.network.connecting import Connector
from node.network.knowledge import Knowledge
from node.network.membership import KnownPeer
from node.network.probe import ProbeResult
from node.network.rpc import RpcTable
from node.network.server import Server
from node.store import Store
from node.wire import (
    MAX_MESSAGE_BYTES,
    UNDECODABLE,
    Advertisement,
    Exchange,
    FindProviders,
    Gossip,
    Hello,
    Message,
    PeerRecord,
    ProviderRecord,
    Request,
    Resources,
)

log = logging.getLogger(__name__)

A = TypeVar("A", bound=Message)

TRUST_TICK_S = 10.0
LAN_DELAY_S = 0.5
ASKED = 3

__all__ = ["KnownPeer", "Overlay", "ProbeResult"]


class Overlay:
    """The cluster as this node sees it: calls and streams to peers, members, adverts, providers."""

    def __init__(self, config: NodeConfig, identity: Identity, board: Board, store: Store) -> None:
        self.peer_id = identity.peer_id
        self.identity = identity
        self.board = board
        self.listening = asyncio.Event()
        self._config = config
        self._rng = random.Random()
        self._places: list[listeners.Place] = []
        self._watchers: list[Callable[[], None]] = []
        self._subscribers: list[Callable[[Caller, Advertisement], None]] = []
        self._book = AddressBook()
        self._client = Client(identity, self._book)
        self._connector = Connector(identity, self._book)
        self._rpc = RpcTable()
        self._knowledge = Knowledge(identity, self._book, self, self._rng, config.roles)
        self._announcer = Announcer(config, identity, board, store, self._knowledge, self._rng)
        self._bootstrap = Bootstrap(self._knowledge, board, self._rng)
        self._server = Server(identity, self._rpc, self._heard)
        self._answer_all()

    def _answer_all(self) -> None:
        knowledge = self._knowledge
        knowledge.on_advert = self._advertised
        knowledge.on_peer = self._peer_changed
        knowledge.on_change = self._members_changed
        self.on(Hello, knowledge.answer_hello, operator=True)
        self.on(Exchange, knowledge.answer_exchange)
        self.on(Gossip, knowledge.answer_gossip)
        self.on(FindProviders, knowledge.answer_providers)

    @property
    def addresses(self) -> list[str]:
        """This node's own multiaddrs, with real ports; empty until it listens."""
        return self._announcer.addresses

    # ---- life -----------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Listen, join, and keep up with the others, until cancelled; then say goodbye.

        `listening` is set once the ports are bound. Raises HyphaError where one is taken.
        """
        sockets = await asyncio.to_thread(listeners.listen, self._config.listen_addresses)
        async with self._client, self._server.serve(sockets):
            try:
                self._places = listeners.places(sockets)
                self._book.set(self.peer_id, listeners.own_places(self._places))
                await self._announcer.begin(self._places)
                log.info("overlay.listening addresses=%s", ",".join(self.addresses))
                async with asyncio.TaskGroup() as tasks:
                    for coroutine in (
                        self._knowledge.spread(),
                        self._knowledge.keep_exchanging(),
                        self._knowledge.keep_probing(),
                        self._knowledge.keep_expiring(),
                        self._announcer.keep(),
                        self._keep_trust(),
                        self._bootstrap.try_candidates(),
                        self._bootstrap.try_remembered(lambda: self._announcer.remembered),
                    ):
                        tasks.create_task(coroutine)
                    for address in dict.fromkeys(self._config.gateway_addresses):
                        tasks.create_task(self._bootstrap.keep_gateway(address))
                    if self._config.mdns:
                        tasks.create_task(self._discover())
                    self.listening.set()
            finally:
                self.listening.clear()
                await self._announcer.end()
                self._connector.close()

    async def _keep_trust(self) -> None:
        """Cut off peers that have been revoked or have expired since their connections were made."""
        trust = self.identity.trust
        while True:
            await asyncio.sleep(TRUST_TICK_S)
            self._server.drop_untrusted()
            if self.identity.trust is not trust:
                trust = self.identity.trust
                self._knowledge.drop_untrusted()

    async def _discover(self) -> None:
        await asyncio.sleep(LAN_DELAY_S)
        lan = await asyncio.to_thread(importlib.import_module, "node.network.lan")
        texts = listeners.advertised(self._places, listeners.interface_hosts(), [], self._config.exclude_cidr)
        found = [address for address in map(parse, texts) if address.is_ip and ":" not in address.host]
        if found:
            hosts = [address.host for address in found if address.port == found[0].port]
            authority = self.identity.trust.authority
            await lan.Lan(self.peer_id, authority, hosts, found[0].port, self._bootstrap.suggest).run()

    # ---- calls --------------------------------------------------------------------------------------------

    def on(
        self, request: type[Request[A]], handler: Callable[[Caller, Any], Awaitable[A]], *, operator: bool = False
    ) -> None:
        """Let `handler` answer `request`. Only nodes may call it; with `operator`, operators as well."""
        self._rpc.on(request, handler, operator=operator)

    def bulk_route(
        self,
        method: str,
        path: str,
        handler: Callable[[Caller, web.Request], Awaitable[web.StreamResponse]],
        *,
        operator: bool | None = False,
    ) -> None:
        """Serve an HTTP path: to nodes alone, to operators alone (True), or to both (None). Only before `run`."""
        self._server.route(method, path, handler, operator=operator)

    async def call(self, peer_id: str, request: Request[A], *, timeout_s: float = 5.0) -> A:
        """The peer's answer. A call to oneself does not leave the process.

        Raises PeerUnreachable, PeerUntrusted, PeerProtocol or Refused.
        """
        if peer_id != self.peer_id:
            answer, _ = await self.call_address(peer_id, request, timeout_s=timeout_s)
            return answer
        try:
            async with asyncio.timeout(timeout_s):
                return await self._rpc.answer_self(self.identity.caller, request)
        except TimeoutError as error:
            raise PeerUnreachable(f"{request.method} of this node itself took more than {timeout_s:g} s") from error

    async def call_address(
        self, where: str | Address, request: Request[A], *, timeout_s: float = 5.0
    ) -> tuple[A, Answer]:
        """The answer of a peer, or of whichever node listens at an address, and who gave it. Raises as `call`."""
        body = msgspec.msgpack.encode(request)
        if len(body) > MAX_MESSAGE_BYTES:
            raise PeerProtocol(f"{request.method}: a message of {len(body)} bytes, {MAX_MESSAGE_BYTES} are allowed")
        peer_id = where if isinstance(where, str) else ""
        try:
            answer = await self._client.call(where, request.method, body, timeout_s)
        except PeerUnreachable as error:
            self._knowledge.failed(peer_id, error, is_definite=is_definite(error))
            raise
        except PeerUntrusted as error:
            self._knowledge.failed(peer_id, error, is_definite=True)
            raise
        except (Refused, PeerProtocol):
            self._knowledge.answered(peer_id)
            raise
        self._knowledge.answered(answer.caller.peer_id)
        try:
            decoded: A = msgspec.msgpack.decode(answer.body, type=request.answer)  # type: ignore[assignment]
        except UNDECODABLE as error:
            raise PeerProtocol(f"{request.method}: {answer.caller.name} answers something else: {error}") from error
        return decoded, answer

    def open(
        self,
        peer_id: str,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str] | None = None,
        stall_s: float = 30.0,
    ) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        """A request without a body on the pool for bulk; the block reads the answer's. Other than 2xx raises Refused.

        No piece of the answer may take longer than `stall_s`.
        """
        return self._client.open(peer_id, method, path, headers=headers, stall_s=stall_s)

    async def connect(self, peer_id: str) -> ssl.SSLSocket:
        """A connection to a peer for a thread to use: it is the peer, and nothing is on its way on it.

        Raises PeerUnreachable, PeerUntrusted or PeerProtocol.
        """
        return await self._connector.connect(peer_id)

    def keep(self, peer_id: str, connection: ssl.SSLSocket) -> None:
        """Take back a connection whose last answer was read to its end, for the next request to this peer."""
        self._connector.keep(peer_id, connection)

    def _heard(self, caller: Caller) -> None:
        if not caller.is_operator:
            self._knowledge.membership.heard(caller.peer_id, time.monotonic())

    # ---- members --------------------------------------------------------------------------------------------

    def peers(self, role: str | None = None) -> list[KnownPeer]:
        """All members, or those with a role, this node included, by name."""
        return self._knowledge.membership.peers(role)

    def watch_peers(self, callback: Callable[[], None]) -> None:
        """Call `callback` (cheap, on the loop) whenever `peers()` may show something else."""
        self._watchers.append(callback)

    def find_name(self, text: str) -> str | None:
        """The peer with this id or name, or the only one whose id starts or ends so."""
        return self._knowledge.membership.find_name(text)

    def _members_changed(self) -> None:
        for callback in self._watchers:
            callback()

    def _peer_changed(self, record: PeerRecord, what: str) -> None:
        log.info("peer.%s name=%s peer=%s roles=%s", what, record.name, record.peer_id, ",".join(record.roles))
        if "gateway" in self._config.roles:
            text = {"joined": "has joined", "left": "has left", "lost": "has not been heard of, and is dropped"}[what]
            level = "warning" if what == "lost" else "info"
            self.board.happened(f"peer.{what}", f"{record.name} {text}", level=level, peer=record.peer_id)

    # ---- adverts and providers --------------------------------------------------------------------------------

    async def publish(self, advert: Advertisement) -> None:
        """Sign an advertisement and pass it on to everybody, this node's own subscribers included."""
        self._knowledge.add_own(advert)

    def subscribe(self, handler: Callable[[Caller, Advertisement], None]) -> None:
        """Call `handler` (cheap, on the loop) with each advertisement, once for each of its sequence numbers."""
        self._subscribers.append(handler)

    def _advertised(self, caller: Caller, advert: Advertisement) -> None:
        for handler in self._subscribers:
            try:
                handler(caller, advert)
            except Exception:
                log.exception("advert.handler_failed advert=%s", advert.advert_id)

    def next_seq(self) -> int:
        """A number higher than all before it, over restarts too."""
        return self._announcer.next_seq()

    def describe(self, total: Resources | None, free: Resources | None) -> None:
        """What this node has and what of it is free, for whoever looks."""
        self._announcer.describe(total, free)

    def offer(self, offering: Offering) -> None:
        """What this node's worker offers, for whoever looks."""
        self._announcer.offer(offering)

    def mark(self, *, cordoned: bool, draining: bool) -> None:
        """Whether this node's worker is cordoned, and drained, for whoever looks."""
        self._announcer.mark(cordoned=cordoned, draining=draining)

    async def provide(self, dataset: str, digest: str, slices: int, rows: int, size_bytes: int) -> None:
        """Tell the cluster that this node serves a dataset, and go on telling it."""
        self._announcer.provide(dataset, digest, slices, rows, size_bytes)

    async def withdraw(self, dataset: str) -> None:
        """Tell the cluster that this node no longer serves a dataset."""
        self._announcer.withdraw(dataset)

    async def providers(self, dataset: str) -> list[ProviderRecord]:
        """Who serves a dataset, reachable peers first: as known here, else as gateways know."""
        found = self._knowledge.providers(dataset)
        if found:
            return found
        gateways = [peer.record.peer_id for peer in self.peers("gateway") if peer.reachable]
        asked = [peer_id for peer_id in gateways if peer_id != self.peer_id][:ASKED]
        async with asyncio.TaskGroup() as tasks:
            for peer_id in asked:
                tasks.create_task(self._ask_providers(peer_id, dataset))
        return self._knowledge.providers(dataset)

    async def _ask_providers(self, peer_id: str, dataset: str) -> None:
        try:
            answer = await self.call(peer_id, FindProviders(dataset=dataset), timeout_s=3.0)
            await self._knowledge.take(answer.records, peer_id)
        except PeerError as error:
            log.debug("providers.not_asked peer=%s reason=%s", peer_id, error)
