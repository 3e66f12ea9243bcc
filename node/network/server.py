"""The listening side: mutual TLS, who calls and whether they may, then the RPC table or a bulk route."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable

from aiohttp import web

from node.errors import HyphaError, PeerProtocol, PeerUntrusted, Refused
from node.identity.caller import Caller
from node.identity.credentials import Identity
from node.network.accepting import Acceptor
from node.network.rpc import CONTENT_TYPE, RpcTable, encode_refusal
from node.network.serving import CLOSES, BrokenOff
from node.network.tls import TlsTransport
from node.telemetry import metrics, span
from node.wire import MAX_MESSAGE_BYTES

log = logging.getLogger(__name__)

KEEPALIVE_S = 90.0
"""Longer than the client's, so that the client never sends on a connection that is just being closed."""
BODY_S = 15.0
LINGER_S = 2.0
SHUTDOWN_S = 0.4
MAX_HEADER_BYTES = 64 << 10

_CLIENT_LEFT = 499

BulkHandler = Callable[[Caller, web.Request], Awaitable[web.StreamResponse]]


class Server:
    """Serves the RPC table and the bulk routes on all listening sockets."""

    def __init__(self, identity: Identity, rpc: RpcTable, heard: Callable[[Caller], None]) -> None:
        self._identity = identity
        self._rpc = rpc
        self._heard = heard
        self._app = web.Application(client_max_size=MAX_MESSAGE_BYTES)
        self._app.router.add_post("/rpc/{method:.+}", self._answer)
        self._runner: web.AppRunner | None = None

    def route(self, method: str, path: str, handler: BulkHandler, *, operator: bool | None) -> None:
        """Serve `path`, to operators alone where `operator` is true, to nodes alone where it is false.

        With None the handler itself decides. Only before `serve`.
        """

        async def guarded(request: web.Request) -> web.StreamResponse:
            return await self._bulk(request, handler, operator=operator)

        self._app.router.add_route(method, path, guarded)

    @contextlib.asynccontextmanager
    async def serve(self, sockets: list[socket.socket]) -> AsyncIterator[None]:
        """Accept connections during the block. The sockets are closed at its end, open requests cut off soon after."""
        self._runner = runner = web.AppRunner(
            self._app,
            access_log=None,
            keepalive_timeout=KEEPALIVE_S,
            shutdown_timeout=SHUTDOWN_S,
            lingering_time=LINGER_S,
            max_field_size=MAX_HEADER_BYTES,
        )
        try:
            await runner.setup()
            assert runner.server is not None, "it is set up"
            acceptor = Acceptor(self._identity.server_context(), runner.server)
            try:
                async with acceptor.accepting(sockets):
                    yield
            finally:
                self._runner = None
                await runner.cleanup()
                await acceptor.close()
        finally:
            for bound in sockets:
                bound.close()

    def drop_untrusted(self) -> None:
        """Cut live connections whose certificate is no longer accepted."""
        for connection in self._connections():
            transport = connection.transport
            if not isinstance(transport, TlsTransport):
                continue
            try:
                self._identity.trust.caller_of(_leaf(transport))
            except PeerUntrusted as error:
                log.warning("connection.cut from=%s reason=%s", transport.get_extra_info("peername"), error)
                transport.abort()

    def _connections(self) -> list[web.RequestHandler]:
        server = self._runner.server if self._runner is not None else None
        return server.connections if server is not None else []

    # ---- requests -----------------------------------------------------------------------------------

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["method"]
        try:
            caller = self._caller(request)
            body = await _body(request, name)
            with span(f"answer /rpc/{name}", carrier=request.headers):
                answer = await self._rpc.answer(caller, name, body)
        except Refused as error:
            return _refused(request, error)
        except PeerProtocol as error:
            return _refused(request, Refused("failed", error.message), status=500)
        self._heard(caller)
        metrics().bytes_received(len(body))
        metrics().bytes_sent(len(answer))
        return web.Response(body=answer, content_type=CONTENT_TYPE)

    async def _bulk(self, request: web.Request, handler: BulkHandler, *, operator: bool | None) -> web.StreamResponse:
        try:
            caller = self._caller(request)
            if operator is not None and caller.is_operator != operator:
                kind, other = ("an operator", "nodes") if caller.is_operator else ("a node", "operators")
                raise Refused("denied", f"{request.path} is for {other}, {caller.name} is {kind}")
            response = await handler(caller, request)
        except Refused as error:
            return _refused(request, error)
        except ConnectionError as error:
            log.debug("caller.left path=%s reason=%s", request.path, error or type(error).__name__)
            return BrokenOff() if request.writer.output_size else web.Response(status=_CLIENT_LEFT)
        except HyphaError as error:
            log.warning("bulk.failed path=%s reason=%s", request.path, error)
            return _refused(request, Refused("failed", error.message, hint=error.hint), status=500)
        except Exception as error:
            log.exception("bulk.broken path=%s", request.path)
            text = f"{request.path} failed inside the peer ({type(error).__name__})"
            return _refused(request, Refused("failed", text), status=500)
        if CLOSES in request:
            response.force_close()
        return response

    def _caller(self, request: web.Request) -> Caller:
        transport = request.transport
        if transport is None:
            raise Refused("denied", "the connection is gone")
        try:
            return self._identity.trust.caller_of(_leaf(transport))
        except PeerUntrusted as error:
            request[CLOSES] = True
            log.warning("caller.refused from=%s reason=%s", request.remote, error)
            raise Refused("denied", error.message, hint=error.hint) from error


def _leaf(transport: asyncio.BaseTransport) -> bytes:
    leaf = transport.leaf if isinstance(transport, TlsTransport) else None
    if leaf is None:
        raise PeerUntrusted("the caller has shown no certificate")
    return leaf


async def _body(request: web.Request, name: str) -> bytes:
    try:
        async with asyncio.timeout(BODY_S):
            return await request.read()
    except web.HTTPRequestEntityTooLarge as error:
        request[CLOSES] = True
        raise Refused("invalid", f"{name}: more than {MAX_MESSAGE_BYTES} bytes") from error
    except (ConnectionError, web.RequestPayloadError) as error:
        request[CLOSES] = True
        raise Refused("invalid", f"{name}: the request broke off") from error
    except TimeoutError as error:
        request[CLOSES] = True
        raise Refused("invalid", f"{name}: the request was not whole after {BODY_S:.0f} s") from error


def _refused(request: web.Request, error: Refused, *, status: int | None = None) -> web.Response:
    if request.writer.output_size:
        return BrokenOff()
    of_code, body = encode_refusal(error)
    response = web.Response(status=status or of_code, body=body, content_type=CONTENT_TYPE)
    if CLOSES in request:
        response.force_close()
    return response
