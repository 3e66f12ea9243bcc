"""How aiohttp is made to dial peers instead of hosts.

A URL's host is `<key>.peer`; the resolver turns it into the addresses that the peer is known under, and the request
class compares the key that the other end has shown with the expected one before it writes anything.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import socket
import time
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.connector import Connection

from node.addresses import Address
from node.errors import PeerUntrusted
from node.identity.caller import Caller
from node.identity.credentials import Identity
from node.identity.peer_id import peer_id_of_host
from node.network.addressbook import AddressBook, Place
from node.network.congestion import leave_room
from node.network.ownsocket import own_socket

if TYPE_CHECKING:
    from aiohttp.client_reqrep import ClientResponse

DNS_S = 3.0
USER_TIMEOUT_MS = 30_000


class Attempt:
    """What one request has found out about its connection: who answered, and whether the connection was used before."""

    def __init__(self, *, must_be_node: bool = True) -> None:
        self.must_be_node = must_be_node
        self.caller: Caller | None = None
        self.is_reused = False
        self.has_sent = False
        self.has_answer = False
        self.is_someone_else = False


_attempt: contextvars.ContextVar[Attempt | None] = contextvars.ContextVar("attempt", default=None)


@contextlib.contextmanager
def attempt() -> Iterator[Attempt]:
    """Note what the requests made inside the block find out."""
    noted = Attempt()
    token = _attempt.set(noted)
    try:
        yield noted
    finally:
        _attempt.reset(token)


class PeerResolver(AbstractResolver):
    """Resolves peers from the address book, and other names as usual."""

    def __init__(self, book: AddressBook) -> None:
        self._book = book

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """The places to try, best first. Raises OSError where there is none."""
        peer_id = peer_id_of_host(host)
        if peer_id is None:
            found = await _look_up(Address(host, port))
        else:
            addresses = self._book.of(peer_id)
            if not addresses:
                raise OSError(None, "no address is known")
            found = self._book.order(peer_id, await _look_up_all(addresses), time.monotonic())
            if not found:
                raise OSError(None, "none of its addresses is its own any more")
        return [
            ResolveResult(
                hostname=host,
                host=ip,
                port=to,
                family=socket.AF_INET6 if ":" in ip else socket.AF_INET,
                proto=0,
                flags=socket.AI_NUMERICHOST,
            )
            for ip, to in found
        ]

    async def close(self) -> None:
        """Nothing to release."""


async def _look_up_all(addresses: list[Address]) -> list[Place]:
    places: list[Place] = []
    names = []
    for address in addresses:
        if address.is_ip:
            places.append((address.host, address.port))
        else:
            names.append(address)
    # names cost a question to somebody: not as long as there are literal addresses before and behind them
    for found in await asyncio.gather(*map(_look_up, names), return_exceptions=True):
        if not isinstance(found, BaseException):
            places.extend(found)
    return places


async def _look_up(address: Address) -> list[Place]:
    if address.is_ip:
        return [(address.host, address.port)]
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(DNS_S):
            found = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except TimeoutError:
        raise OSError(None, f"no answer about the name {address.host}") from None
    return [(str(where[0]), int(where[1])) for _, _, _, _, where in found]


def make_socket(info: tuple[int, int, int, str, tuple[str, int]]) -> socket.socket:
    """A socket that notices within half a minute when what it sends is not acknowledged, and holds nothing back: what
    follows the end of the handshake would otherwise wait for its delayed acknowledgement, 40 ms."""
    where = info[4]
    made = own_socket(info)
    made.setblocking(False)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, USER_TIMEOUT_MS)
    leave_room(made, str(where[0]))
    return made


def request_class(identity: Identity, book: AddressBook) -> type[aiohttp.ClientRequest]:
    """A request class that sends nothing to anybody but the peer that the URL names."""
    used: weakref.WeakSet[object] = weakref.WeakSet()

    class PeerRequest(aiohttp.ClientRequest):
        """A request to a peer."""

        async def send(self, conn: Connection) -> ClientResponse:
            noted = _attempt.get() or Attempt()
            transport = conn.transport
            protocol = conn.protocol
            ssl_object = transport.get_extra_info("ssl_object") if transport is not None else None
            leaf = ssl_object.getpeercert(True) if ssl_object is not None else None
            if transport is None or not isinstance(leaf, bytes):
                raise PeerUntrusted("the other end has shown no certificate")
            caller = identity.trust.caller_of(leaf)
            noted.caller = caller
            expected = peer_id_of_host(self.url.host or "")
            place = (transport.get_extra_info("peername") or ("", 0))[:2]
            if expected is not None and caller.peer_id != expected:
                noted.is_someone_else = True
                book.is_someone_else(expected, place, time.monotonic())
                raise PeerUntrusted(
                    f"{caller.name} ({caller.peer_id}) answers at {Address(*place)}, expected was {expected}",
                    hint="nothing was sent to it",
                )
            if noted.must_be_node and caller.is_operator:
                raise PeerUntrusted(f"{caller.name} answers with an operator's certificate, a node's was expected")
            book.worked(caller.peer_id, place)
            if protocol is not None:
                noted.is_reused = protocol in used
                used.add(protocol)
            noted.has_sent = True
            return await super().send(conn)

    return PeerRequest
