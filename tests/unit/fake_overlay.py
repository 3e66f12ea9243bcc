"""Stands in for `node.network.overlay.Overlay`: nodes in one process, callers by a header; plain HTTP for operators."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from aiohttp import web
from aiohttp.test_utils import TestServer

from node.errors import PeerUnreachable, Refused
from node.identity.caller import Caller
from node.identity.credentials import Identity
from node.network.accepting import Acceptor
from node.network.membership import KnownPeer
from node.network.rpc import CONTENT_TYPE, decode_refusal, encode_refusal
from node.wire import PeerRecord

CALLER = "X-Caller"


@dataclass
class Network:
    """The nodes of a cluster, and which of them answer."""

    overlays: dict[str, FakeOverlay] = field(default_factory=dict)
    down: set[str] = field(default_factory=set)
    roles: dict[str, list[str]] = field(default_factory=dict)


class FakeOverlay:
    """The part of an overlay that the operator API uses."""

    def __init__(self, network: Network, identity: Identity, name: str, roles: list[str]) -> None:
        self.network = network
        self.identity = identity
        self.peer_id = identity.peer_id
        self.name = name
        self.roles = roles
        self.addresses = ["/ip4/127.0.0.1/tcp/1"]
        self.handlers: dict[type, Callable[[Any], Awaitable[Any]]] = {}
        self.app = web.Application()
        self.server: TestServer | None = None
        self._session: aiohttp.ClientSession | None = None
        self._port = 0
        self._watchers: list[Callable[[], None]] = []
        network.overlays[self.peer_id] = self

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[FakeOverlay]:
        """Serve during the block."""
        connector = aiohttp.TCPConnector(ssl=self.identity.client_context())
        async with TestServer(self.app) as server, aiohttp.ClientSession(connector=connector) as session:
            self.server, self._session = server, session
            assert server.runner is not None
            assert server.runner.server is not None
            acceptor = Acceptor(self.identity.server_context(), server.runner.server)
            listening = socket.create_server(("127.0.0.1", 0))
            listening.setblocking(False)
            self._port = listening.getsockname()[1]
            try:
                async with acceptor.accepting([listening]):
                    yield self
            finally:
                await acceptor.close()
        self.network.down.add(self.peer_id)

    def bulk_route(
        self,
        method: str,
        path: str,
        handler: Callable[[Caller, web.Request], Awaitable[web.StreamResponse]],
        *,
        operator: bool | None = False,
    ) -> None:
        async def call(request: web.Request) -> web.StreamResponse:
            role = request.headers.get(CALLER, "operator")
            caller = Caller("12D3KooWcaller", "node" if role == "node" else "operator", f"a-{role}", time.time() + 1e6)
            if operator is not None and caller.is_operator != operator:
                raise web.HTTPForbidden
            try:
                return await handler(caller, request)
            except Refused as error:
                status, body = encode_refusal(error)
                return web.Response(status=status, body=body, content_type=CONTENT_TYPE)

        self.app.router.add_route(method, path, call)

    def peers(self, role: str | None = None) -> list[KnownPeer]:
        found = []
        for overlay in self.network.overlays.values():
            if role is None or role in overlay.roles:
                record = PeerRecord(
                    peer_id=overlay.peer_id, seq=1, name=overlay.name, roles=overlay.roles, addresses=[], ttl_s=60
                )
                is_up = overlay.peer_id not in self.network.down
                found.append(KnownPeer(record, is_up, 1.0, time.monotonic()))
        return found

    def watch_peers(self, callback: Callable[[], None]) -> None:
        self._watchers.append(callback)

    def find_name(self, text: str) -> str | None:
        found = [id_ for id_, overlay in self.network.overlays.items() if overlay.name == text]
        return found[0] if len(found) == 1 else None

    async def call(self, peer_id: str, request: Any, *, timeout_s: float = 5.0) -> Any:
        overlay = self._reach(peer_id)
        if type(request) not in overlay.handlers:
            raise Refused("unknown", "no such method here")
        return await overlay.handlers[type(request)](request)

    @contextlib.asynccontextmanager
    async def open(
        self, peer_id: str, method: str, path: str, *, headers: Any = None, stall_s: float = 30.0
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        overlay = self._reach(peer_id)
        assert overlay.server is not None
        assert self._session is not None
        url = overlay.server.make_url(path).with_scheme("https").with_port(overlay._port)
        headers = {**(headers or {}), CALLER: "node"}
        try:
            async with self._session.request(method, url, headers=headers) as answer:
                if answer.status >= 300:
                    raise decode_refusal(answer.status, answer.content_type, await answer.read())
                yield answer
        except aiohttp.ClientError as error:
            raise PeerUnreachable(f"the connection to {peer_id} broke: {error}") from error

    def keep(self, peer_id: str, connection: ssl.SSLSocket) -> None:
        """Nothing is kept."""
        connection.close()

    async def connect(self, peer_id: str) -> ssl.SSLSocket:
        """A connection for one file."""
        port = self._reach(peer_id)._port
        context = self.identity.client_context()

        def dial() -> ssl.SSLSocket:
            return context.wrap_socket(socket.create_connection(("127.0.0.1", port), 5))

        return await asyncio.to_thread(dial)

    def _reach(self, peer_id: str) -> FakeOverlay:
        if peer_id in self.network.down or peer_id not in self.network.overlays:
            raise PeerUnreachable(f"cannot connect to {peer_id}")
        return self.network.overlays[peer_id]
