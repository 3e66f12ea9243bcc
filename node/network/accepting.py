"""Connections from others: accepted within limits, their handshakes done within a deadline."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import socket
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine

from node.network.congestion import leave_room
from node.network.readiness import Side, shake_hands
from node.network.tls import SCRATCH_BYTES, TlsTransport

log = logging.getLogger(__name__)

HANDSHAKE_S = 5.0
MAX_CONNECTIONS = 4_096
MAX_HANDSHAKES = 512
MAX_HANDSHAKES_PER_HOST = 64
ACCEPT_AGAIN_S = 0.5
LAST_WORDS_S = 0.4


class Acceptor:
    """Accepts connections on listening sockets, and gives each a protocol of its own once its handshake is done."""

    def __init__(self, context: ssl.SSLContext, protocol: Callable[[], asyncio.Protocol]) -> None:
        self._context = context
        self._protocol = protocol
        self._handshakes: Counter[str] = Counter()
        self._transports: set[TlsTransport] = set()
        self._scratch = memoryview(bytearray(SCRATCH_BYTES))
        self._is_empty = asyncio.Event()

    @contextlib.asynccontextmanager
    async def accepting(self, sockets: list[socket.socket]) -> AsyncIterator[None]:
        """Accept during the block. At its end the sockets are closed; connections go on until `close`."""
        tasks: set[asyncio.Task[None]] = set()
        try:
            async with asyncio.TaskGroup() as group:

                def start(coroutine: Coroutine[None, None, None]) -> asyncio.Task[None]:
                    task = group.create_task(coroutine)
                    tasks.add(task)
                    task.add_done_callback(tasks.discard)
                    return task

                for bound in sockets:
                    start(self._accept(bound, start))
                try:
                    yield
                finally:
                    for task in list(tasks):
                        task.cancel()
        finally:
            for bound in sockets:
                bound.close()

    async def close(self) -> None:
        """Close all connections; those that do not hear it in time are cut off."""
        for transport in list(self._transports):
            transport.close()
        self._settle()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORDS_S):
                await self._is_empty.wait()
        for transport in list(self._transports):
            transport.abort()
        await self._is_empty.wait()

    async def _accept(
        self, bound: socket.socket, start: Callable[[Coroutine[None, None, None]], asyncio.Task[None]]
    ) -> None:
        loop = asyncio.get_running_loop()
        someone = Side(loop.add_reader, loop.remove_reader, bound.fileno())
        while True:
            # the loop's own sock_accept loses a connection that it has just taken when it is cancelled
            await someone.ready()
            try:
                connection, where = bound.accept()
            except BlockingIOError:
                continue
            except OSError as error:
                log.error("accept.failed reason=%s", error.strerror)
                await asyncio.sleep(ACCEPT_AGAIN_S)
                continue
            host = str(where[0])
            if self._is_full(host):
                log.debug("connection.refused from=%s reason=too many", host)
                connection.close()
                continue
            self._handshakes[host] += 1
            # a task that is cancelled before it begins has no `finally`
            start(self._take(connection, host)).add_done_callback(functools.partial(self._taken, connection, host))

    def _is_full(self, host: str) -> bool:
        return (
            self._handshakes.total() >= MAX_HANDSHAKES
            or self._handshakes[host] >= MAX_HANDSHAKES_PER_HOST
            or len(self._transports) >= MAX_CONNECTIONS
        )

    async def _take(self, raw: socket.socket, host: str) -> None:
        connection: ssl.SSLSocket | None = None
        try:
            raw.setblocking(False)
            leave_room(raw, host)
            # what follows the end of a handshake would otherwise wait for its delayed acknowledgement
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection = self._context.wrap_socket(raw, server_side=True, do_handshake_on_connect=False)
            async with asyncio.timeout(HANDSHAKE_S):
                await shake_hands(connection)
            transport = TlsTransport(connection, self._scratch, self._lost)
        except (OSError, ValueError) as error:
            log.debug("handshake.failed from=%s reason=%s", host, error or type(error).__name__)
        else:
            connection = None
            self._transports.add(transport)
            transport.start(self._protocol())
        finally:
            if connection is not None:
                connection.close()

    def _taken(self, raw: socket.socket, host: str, _: asyncio.Task[None]) -> None:
        raw.close()
        self._handshakes[host] -= 1
        if not self._handshakes[host]:
            del self._handshakes[host]

    def _lost(self, transport: TlsTransport) -> None:
        self._transports.discard(transport)
        self._settle()

    def _settle(self) -> None:
        if self._transports:
            self._is_empty.clear()
        else:
            self._is_empty.set()
