"""The listening side: mutual TLS, who calls and whether they may, then the RPC table or a bulk route."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine

from aiohttp import web

from node.errors import HyphaError, PeerProtocol, PeerUntrusted, Refused
from node.identity.caller import Caller
from node.identity.credentials import Identity
from node.network.congestion import leave_room
from node.network.rpc import CONTENT_TYPE, RpcTable, encode_refusal
from node.telemetry import metrics, span
from node.wire import MAX_MESSAGE_BYTES

log = logging.getLogger(__name__)

KEEPALIVE_S = 90.0
"""Longer than the client's, so that the client never sends on a connection that is just being closed."""
HANDSHAKE_S = 5.0
TLS_SHUTDOWN_S = 1.0
BODY_S = 15.0
LINGER_S = 2.0
SHUTDOWN_S = 0.4
MAX_CONNECTIONS = 4_096
MAX_HANDSHAKES = 512
MAX_HANDSHAKES_PER_HOST = 64
MAX_HEADER_BYTES = 64 << 10
ACCEPT_AGAIN_S = 0.5

_CLIENT_LEFT = 499
_CLOSES = web.RequestKey("closes", bool)
"""Mark of a request after which its connection must not be used any more."""

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
        self._tasks: set[asyncio.Task[None]] = set()
        self._handshakes: Counter[str] = Counter()

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
            context = self._identity.server_context()
            async with asyncio.TaskGroup() as tasks:
                for bound in sockets:
                    self._start(tasks, self._accept(bound, context, tasks))
                try:
                    yield
                finally:
                    for task in list(self._tasks):
                        task.cancel()
        finally:
            for bound in sockets:
                bound.close()
            self._runner = None
            await runner.cleanup()

    def _start(self, tasks: asyncio.TaskGroup, coroutine: Coroutine[None, None, None]) -> None:
        task = tasks.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def drop_untrusted(self) -> None:
        """Cut live connections whose certificate is no longer accepted."""
        for connection in self._connections():
            transport = connection.transport
            if transport is None:
                continue
            try:
                self._identity.trust.caller_of(_leaf(transport))
            except PeerUntrusted as error:
                log.warning("connection.cut from=%s reason=%s", transport.get_extra_info("peername"), error)
                if isinstance(transport, asyncio.Transport):
                    transport.abort()

    def _connections(self) -> list[web.RequestHandler]:
        server = self._runner.server if self._runner is not None else None
        return server.connections if server is not None else []

    # ---- connections --------------------------------------------------------------------------------

    async def _accept(self, bound: socket.socket, context: ssl.SSLContext, tasks: asyncio.TaskGroup) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, where = await loop.sock_accept(bound)
            except OSError as error:
                log.error("accept.failed reason=%s", error.strerror)
                await asyncio.sleep(ACCEPT_AGAIN_S)
                continue
            host = str(where[0])
            if self._is_full(host):
                log.debug("connection.refused from=%s reason=too many", host)
                connection.close()
                continue
            leave_room(connection, host)
            self._handshakes[host] += 1
            self._start(tasks, self._shake_hands(connection, host, context))

    def _is_full(self, host: str) -> bool:
        return (
            self._handshakes.total() >= MAX_HANDSHAKES
            or self._handshakes[host] >= MAX_HANDSHAKES_PER_HOST
            or len(self._connections()) >= MAX_CONNECTIONS
        )

    async def _shake_hands(self, connection: socket.socket, host: str, context: ssl.SSLContext) -> None:
        loop = asyncio.get_running_loop()
        server = self._runner.server if self._runner is not None else None
        try:
            if server is None:
                connection.close()
                return
            # from here on the socket is the transport's, which closes it however this ends
            await loop.connect_accepted_socket(
                server,
                connection,
                ssl=context,
                ssl_handshake_timeout=HANDSHAKE_S,
                ssl_shutdown_timeout=TLS_SHUTDOWN_S,
            )
        except OSError as error:
            log.debug("handshake.failed from=%s reason=%s", host, error or type(error).__name__)
        finally:
            self._handshakes[host] -= 1
            if not self._handshakes[host]:
                del self._handshakes[host]

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
            return await handler(caller, request)
        except Refused as error:
            return _refused(request, error)
        except ConnectionError as error:
            log.debug("caller.left path=%s reason=%s", request.path, error or type(error).__name__)
            return web.Response(status=_CLIENT_LEFT)
        except HyphaError as error:
            log.warning("bulk.failed path=%s reason=%s", request.path, error)
            return _refused(request, Refused("failed", error.message, hint=error.hint), status=500)
        except Exception as error:
            log.exception("bulk.broken path=%s", request.path)
            text = f"{request.path} failed inside the peer ({type(error).__name__})"
            return _refused(request, Refused("failed", text), status=500)

    def _caller(self, request: web.Request) -> Caller:
        transport = request.transport
        if transport is None:
            raise Refused("denied", "the connection is gone")
        try:
            return self._identity.trust.caller_of(_leaf(transport))
        except PeerUntrusted as error:
            request[_CLOSES] = True
            log.warning("caller.refused from=%s reason=%s", request.remote, error)
            raise Refused("denied", error.message, hint=error.hint) from error


def _leaf(transport: asyncio.BaseTransport) -> bytes:
    ssl_object = transport.get_extra_info("ssl_object")
    leaf = ssl_object.getpeercert(True) if ssl_object is not None else None
    if not isinstance(leaf, bytes):
        raise PeerUntrusted("the caller has shown no certificate")
    return leaf


async def _body(request: web.Request, name: str) -> bytes:
    try:
        async with asyncio.timeout(BODY_S):
            return await request.read()
    except web.HTTPRequestEntityTooLarge as error:
        request[_CLOSES] = True
        raise Refused("invalid", f"{name}: more than {MAX_MESSAGE_BYTES} bytes") from error
    except (ConnectionError, web.RequestPayloadError) as error:
        request[_CLOSES] = True
        raise Refused("invalid", f"{name}: the request broke off") from error
    except TimeoutError as error:
        request[_CLOSES] = True
        raise Refused("invalid", f"{name}: the request was not whole after {BODY_S:.0f} s") from error


def _refused(request: web.Request, error: Refused, *, status: int | None = None) -> web.Response:
    if request.writer.output_size:
        raise ConnectionError("the answer has begun; its end is missing, which the caller sees")
    of_code, body = encode_refusal(error)
    response = web.Response(status=status or of_code, body=body, content_type=CONTENT_TYPE)
    if _CLOSES in request:
        response.force_close()
    return response
