"""Connections for threads: a TLS socket to a peer whose key has been checked, outside the pools of aiohttp.

A thread that reads a socket moves a file in half of the CPU time that the streams of the event loop take for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import os
import select
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache, cached_property
from typing import TypeVar

import aiohappyeyeballs

from node.addresses import Address
from node.errors import PeerError, PeerProtocol, PeerUnreachable, PeerUntrusted
from node.identity.credentials import Identity
from node.identity.peer_id import dial_host
from node.network.addressbook import AddressBook
from node.network.client import CONNECT_S, NEXT_ADDRESS_S, tls_error
from node.network.dialling import PeerResolver, make_socket

T = TypeVar("T")

THREADS = 64
TICK_S = 0.1
IDLE_S = 2.0
"""So long a connection is kept for the next request: short enough that a peer is as surely there as in mid-transfer."""
IDLE_PER_PEER = 4


class Connector:
    """Connects to peers under the addresses of the book."""

    def __init__(self, identity: Identity, book: AddressBook) -> None:
        self._identity = identity
        self._book = book
        self._resolver = PeerResolver(book)
        self._idle: dict[str, list[ssl.SSLSocket]] = {}

    @cached_property
    def _context(self) -> ssl.SSLContext:
        return self._identity.client_context()

    async def connect(self, peer_id: str) -> ssl.SSLSocket:
        """A connection to exactly this peer, for one thread to use. Nothing is on its way on it.

        Raises PeerUnreachable, PeerUntrusted or PeerProtocol.
        """
        while idle := self._idle.get(peer_id):
            connection = idle.pop()
            with contextlib.suppress(PeerError):
                if _is_quiet(connection) and self._is(peer_id, connection):
                    return connection
            connection.close()
        while True:
            connection = await self._reach(peer_id)
            try:
                await in_thread(connection, lambda: _shake_hands(connection, peer_id))  # noqa: B023 - awaited here
                if self._is(peer_id, connection):
                    return connection
            except BaseException:
                connection.close()
                raise
            connection.close()

    def keep(self, peer_id: str, connection: ssl.SSLSocket) -> None:
        """Take back a connection whose last answer was read to its end, for the next request to this peer."""
        idle = self._idle.setdefault(peer_id, [])
        if len(idle) >= IDLE_PER_PEER:
            connection.close()
            return
        idle.append(connection)
        asyncio.get_running_loop().call_later(IDLE_S, self._drop, peer_id, connection)

    def close(self) -> None:
        """End the connections that nobody uses."""
        for peer_id, idle in list(self._idle.items()):
            for connection in list(idle):
                self._drop(peer_id, connection)

    def _drop(self, peer_id: str, connection: ssl.SSLSocket) -> None:
        idle = self._idle.get(peer_id, [])
        if connection in idle:
            idle.remove(connection)
            connection.close()
        if not idle:
            self._idle.pop(peer_id, None)

    async def _reach(self, peer_id: str) -> ssl.SSLSocket:
        try:
            found = await self._resolver.resolve(dial_host(peer_id))
            infos = [(one["family"], socket.SOCK_STREAM, 0, "", _place(one["host"], one["port"])) for one in found]
            async with asyncio.timeout(CONNECT_S):
                raw = await aiohappyeyeballs.start_connection(
                    infos, happy_eyeballs_delay=NEXT_ADDRESS_S, interleave=1, socket_factory=make_socket
                )
        except ValueError as error:
            raise PeerProtocol(str(error)) from error
        except TimeoutError as error:
            raise PeerUnreachable(f"no connection to peer {peer_id} within {CONNECT_S:g} s") from error
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno else error.strerror or str(error)
            raise PeerUnreachable(f"cannot connect to peer {peer_id}: {reason}") from error
        raw.settimeout(CONNECT_S)
        with translated(peer_id):
            return self._context.wrap_socket(raw, do_handshake_on_connect=False)

    def _is(self, peer_id: str, connection: ssl.SSLSocket) -> bool:
        """Whether this is the peer; if not, its place is left out from now on. Raises where there is no other."""
        with translated(peer_id):  # it may be gone again
            place = connection.getpeername()[:2]
        caller = self._identity.trust.caller_of(connection.getpeercert(True) or b"")
        if caller.is_operator:
            raise PeerUntrusted(f"{caller.name} answers with an operator's certificate, a node's was expected")
        if caller.peer_id == peer_id:
            self._book.worked(peer_id, place)
            return True
        self._book.is_someone_else(peer_id, place, time.monotonic())
        if len(self._book.of(peer_id)) < 2:
            raise PeerUntrusted(
                f"{caller.name} ({caller.peer_id}) answers at {Address(*place)}, expected was {peer_id}",
                hint="nothing was sent to it",
            )
        return False


async def in_thread(connection: ssl.SSLSocket, work: Callable[[], T], tick: Callable[[], None] | None = None) -> T:
    """Let a thread use the connection, and call `tick` meanwhile. Cancelled, it shuts the connection down and waits
    until the thread has noticed: after this nobody uses the connection."""
    job = _threads().submit(work)
    done = asyncio.wrap_future(job)
    try:
        while not done.done():
            await asyncio.wait({done}, timeout=TICK_S if tick else None)
            if tick is not None:
                tick()
        return done.result()
    finally:
        if not done.done() and not job.cancel():
            _shut_down(connection)
            while not done.done():
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait({done})
            done.exception()


@contextlib.contextmanager
def translated(peer_id: str) -> Iterator[None]:
    """Errors of sockets, TLS and HTTP as errors between peers. For a thread that does nothing else in the block."""
    try:
        yield
    except ssl.SSLEOFError as error:
        raise PeerUnreachable(f"peer {peer_id} closed the connection") from error
    except TimeoutError as error:
        raise PeerUnreachable(f"peer {peer_id} sent nothing for too long") from error
    except ssl.SSLError as error:
        raise tls_error(peer_id, error) from error
    except OSError as error:
        raise PeerUnreachable(f"the connection to peer {peer_id} broke: {error.strerror or error}") from error
    except (http.client.HTTPException, ValueError) as error:
        raise PeerProtocol(f"peer {peer_id} does not speak our protocol: {error or type(error).__name__}") from error


def _is_quiet(connection: ssl.SSLSocket) -> bool:
    """Whether nothing has come on it, not even its end."""
    quiet = select.poll()
    quiet.register(connection, select.POLLIN)
    return not quiet.poll(0)


def _shake_hands(connection: ssl.SSLSocket, peer_id: str) -> None:
    with translated(peer_id):
        connection.do_handshake()


def _shut_down(connection: ssl.SSLSocket) -> None:
    # SSLSocket's own would take the TLS state away from under the thread that reads
    with contextlib.suppress(OSError):
        socket.socket.shutdown(connection, socket.SHUT_RDWR)


def _place(host: str, port: int) -> tuple[str, int] | tuple[str, int, int, int]:
    return (host, port, 0, 0) if ":" in host else (host, port)


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(THREADS, thread_name_prefix="stream")
