"""A loopback stand-in for the overlay: the real server over mutual TLS 1.3, one for each "peer"."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import aiohttp
from aiohttp import web
from yarl import URL

from node.errors import PeerUnreachable
from node.identity.caller import Caller
from node.identity.credentials import Identity
from node.network.rpc import RpcTable, decode_refusal
from node.network.server import Server

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Loopback:
    """Peers by name, each a handler of its own behind mutual TLS, and `open` as the overlay has it."""

    def __init__(self, identity: Identity, session: aiohttp.ClientSession) -> None:
        self._identity = identity
        self._session = session
        self._serving = AsyncExitStack()
        self.bases: dict[str, str] = {}
        self.asked: list[tuple[str, str, dict[str, str]]] = []

    async def serve(self, peer: str, handler: Handler) -> None:
        """Answer every request to `peer` with `handler`."""

        async def answer(caller: Caller, request: web.Request) -> web.StreamResponse:
            self.asked.append((peer, request.path, dict(request.headers)))
            return await handler(request)

        server = Server(self._identity, RpcTable(), lambda caller: None)
        server.route("*", "/{path:.*}", answer, operator=None)
        listening = socket.create_server(("127.0.0.1", 0))
        listening.setblocking(False)
        self.bases[peer] = f"https://127.0.0.1:{listening.getsockname()[1]}"
        await self._serving.enter_async_context(server.serve([listening]))

    @asynccontextmanager
    async def open(
        self,
        peer_id: str,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str] | None = None,
        data: Any = None,
        stall_s: float = 30.0,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """A request to `peer_id`."""
        self._find(peer_id)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=5, sock_read=stall_s)
        url = self.bases[peer_id] + path
        async with self._session.request(method, url, headers=headers, data=data, timeout=timeout) as answer:
            if answer.status >= 300:
                raise decode_refusal(answer.status, answer.content_type, await answer.read())
            yield answer

    def keep(self, peer_id: str, connection: ssl.SSLSocket) -> None:
        """Nothing is kept."""
        connection.close()

    async def connect(self, peer_id: str) -> ssl.SSLSocket:
        """A connection to `peer_id`."""
        base = URL(self._find(peer_id))

        def dial() -> ssl.SSLSocket:
            raw = socket.create_connection((base.host, base.port), timeout=5)
            return self._identity.client_context().wrap_socket(raw)

        return await asyncio.to_thread(dial)

    def _find(self, peer_id: str) -> str:
        if peer_id not in self.bases:
            self.asked.append((peer_id, "", {}))
            raise PeerUnreachable(f"{peer_id} cannot be reached")
        return self.bases[peer_id]

    async def close(self) -> None:
        """Stop all peers."""
        await self._serving.aclose()


@asynccontextmanager
async def loopback(identity: Identity) -> AsyncIterator[Loopback]:
    """A `Loopback` that ends with the block."""
    connector = aiohttp.TCPConnector(ssl=identity.client_context())
    async with aiohttp.ClientSession(connector=connector) as session:
        made = Loopback(identity, session)
        try:
            yield made
        finally:
            await made.close()
