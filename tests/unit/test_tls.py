"""The transport over TLS sockets: what it promises protocols, and how connections end."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from node.identity.credentials import Identity
from node.network import accepting, tls
from node.network.accepting import Acceptor
from node.network.tls import TlsTransport
from tests.unit.network_loopback import eventually

pytestmark = pytest.mark.asyncio

LARGE = bytes(range(256)) * (32 << 10)
"""More than the sockets of both ends hold."""


class Noting(asyncio.Protocol):
    """Notes what it is told."""

    def __init__(self) -> None:
        self.received = bytearray()
        self.happened: list[str] = []
        self.transport: TlsTransport | None = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received += data

    def eof_received(self) -> None:
        self.happened.append("eof")

    def pause_writing(self) -> None:
        self.happened.append("paused")

    def resume_writing(self) -> None:
        self.happened.append("resumed")

    def connection_lost(self, error: Exception | None) -> None:
        self.happened.append("lost")


class Place:
    """An acceptor with its port and the protocols of its connections."""

    def __init__(self, identity: Identity, listening: socket.socket) -> None:
        self.identity = identity
        self.port = listening.getsockname()[1]
        self.made: list[Noting] = []
        self.acceptor = Acceptor(identity.server_context(), self._make)

    def _make(self) -> Noting:
        self.made.append(Noting())
        return self.made[-1]

    async def connect(self) -> tuple[ssl.SSLSocket, Noting, TlsTransport]:
        """A client's socket, and the server's ends of its connection."""
        count = len(self.made)
        connection = await asyncio.to_thread(self._dial)
        await eventually(lambda: len(self.made) > count and self.made[-1].transport)
        transport = self.made[-1].transport
        assert transport is not None
        return connection, self.made[-1], transport

    def _dial(self) -> ssl.SSLSocket:
        raw = socket.create_connection(("127.0.0.1", self.port), timeout=10)
        return self.identity.client_context().wrap_socket(raw, suppress_ragged_eofs=False)


@contextlib.asynccontextmanager
async def place_of(identity: Identity) -> AsyncIterator[Place]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        place = Place(identity, listening)
        try:
            async with place.acceptor.accepting([listening]):
                yield place
        finally:
            await place.acceptor.close()


def read_all(connection: ssl.SSLSocket) -> bytes:
    pieces = []
    while piece := connection.recv(1 << 20):
        pieces.append(piece)
    return b"".join(pieces)


async def test_a_slow_reader_gets_all_and_the_protocol_is_asked_to_wait(identity: Identity) -> None:
    async with place_of(identity) as place:
        connection, protocol, transport = await place.connect()
        transport.write(LARGE)
        transport.writelines([b"a", bytearray(b"b"), memoryview(b"c")])
        assert transport.get_write_buffer_size() > tls.HIGH_WATER_BYTES
        assert protocol.happened == ["paused"]
        transport.close()
        assert await asyncio.to_thread(read_all, connection) == LARGE + b"abc"
        connection.close()
        await eventually(lambda: protocol.happened == ["paused", "resumed", "lost"])


async def test_what_is_written_later_may_change_in_the_writers_hands(identity: Identity) -> None:
    async with place_of(identity) as place:
        connection, _, transport = await place.connect()
        data = bytearray(LARGE)
        transport.write(data)
        data[:] = bytes(len(data))
        transport.close()
        assert await asyncio.to_thread(read_all, connection) == LARGE
        connection.close()


async def test_what_comes_while_reading_is_paused_comes_later(identity: Identity) -> None:
    async with place_of(identity) as place:
        connection, protocol, transport = await place.connect()
        transport.pause_reading()
        await asyncio.to_thread(connection.sendall, b"a" * 50_000)
        assert not transport.is_reading() and not protocol.received
        transport.resume_reading()
        await eventually(lambda: len(protocol.received) == 50_000)
        connection.close()


async def test_a_borrower_reads_to_the_byte_and_the_protocol_gets_the_rest(identity: Identity) -> None:
    """What a record still holds is not forgotten, though the socket has nothing to read any more."""
    async with place_of(identity) as place:
        connection, protocol, transport = await place.connect()
        transport.borrow_reading()
        await asyncio.to_thread(connection.sendall, b"0123456789")
        view, count = memoryview(bytearray(4)), 0
        while count < len(view):
            count += transport.receive(view[count:])
            if count < len(view):
                await transport.readable()
        assert bytes(view) == b"0123"
        await transport.readable()
        transport.return_reading()
        await eventually(lambda: protocol.received == b"456789")
        connection.close()


async def test_an_end_is_told_to_the_protocol_and_to_a_borrower(identity: Identity) -> None:
    async with place_of(identity) as place:
        connection, protocol, _ = await place.connect()
        connection.close()
        await eventually(lambda: protocol.happened == ["eof", "lost"])
        connection, protocol, transport = await place.connect()
        transport.borrow_reading()
        connection.close()
        with pytest.raises(ConnectionResetError):
            async with asyncio.timeout(5):
                while not transport.receive(memoryview(bytearray(9))):
                    await transport.readable()
        transport.close()
        await eventually(lambda: protocol.happened == ["lost"])


async def test_a_close_says_goodbye(identity: Identity) -> None:
    """Without it, the end of an answer could not be told from a cut."""
    async with place_of(identity) as place:
        connection, protocol, transport = await place.connect()
        transport.write(b"end")
        transport.close()
        assert await asyncio.to_thread(read_all, connection) == b"end"
        connection.close()
        await eventually(lambda: "lost" in protocol.happened)


async def test_the_last_words_arrive_though_the_other_end_still_sends(identity: Identity) -> None:
    """A socket closed with bytes unread resets the connection, and with it what was sent last."""
    async with place_of(identity) as place:
        connection, _, transport = await place.connect()
        transport.pause_reading()

        def send() -> bytes:
            with contextlib.suppress(OSError):
                for _ in range(64):
                    connection.sendall(bytes(1 << 16))
            return connection.recv(100)

        sending = asyncio.create_task(asyncio.to_thread(send))
        transport.write(b"not from you")
        transport.close()
        assert await sending == b"not from you"
        connection.close()


@pytest.mark.parametrize(
    ("limit", "prepare"), [("FLUSH_S", lambda transport: transport.write(LARGE)), ("GOODBYE_S", lambda _: None)]
)
async def test_an_end_that_the_other_one_does_not_hear_has_a_deadline(
    identity: Identity, monkeypatch: pytest.MonkeyPatch, limit: str, prepare: Callable[[TlsTransport], None]
) -> None:
    monkeypatch.setattr(tls, limit, 0.05)
    async with place_of(identity) as place:
        connection, protocol, transport = await place.connect()
        prepare(transport)
        transport.close()
        await eventually(lambda: "lost" in protocol.happened)
        connection.close()


async def test_an_abort_wakes_whoever_waits_and_is_told_once(identity: Identity) -> None:
    async with place_of(identity) as place:
        connection, protocol, transport = await place.connect()
        transport.write(LARGE)
        transport.borrow_reading()

        async def fails(waiting: Any) -> None:
            with pytest.raises(ConnectionResetError):
                await waiting

        async with asyncio.timeout(5), asyncio.TaskGroup() as tasks:
            tasks.create_task(fails(transport.writable()))
            tasks.create_task(fails(transport.readable()))
            await asyncio.sleep(0)
            transport.abort()
            transport.abort()
            transport.close()
        with pytest.raises(ConnectionResetError):
            transport.send(memoryview(b"x"))
        transport.write(b"x")
        await eventually(lambda: protocol.happened == ["paused", "lost"])
        connection.close()


async def test_nothing_follows_half_a_body(identity: Identity) -> None:
    """OpenSSL holds a record of it that nobody will complete."""
    ends: list[Callable[[TlsTransport], None]] = [lambda transport: transport.write(b"x"), TlsTransport.close]
    for end in ends:
        async with place_of(identity) as place:
            connection, protocol, transport = await place.connect()
            assert 0 < transport.send(memoryview(LARGE)) < len(LARGE)
            end(transport)
            await eventually(lambda: "lost" in protocol.happened)  # noqa: B023 - awaited here
            with pytest.raises(OSError):
                await asyncio.to_thread(read_all, connection)
            connection.close()


async def test_a_protocol_that_fails_loses_its_connection_alone(
    identity: Identity, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: Noting, data: bytes) -> None:
        if data == b"bad":
            raise ValueError("cannot read that")
        self.received += data

    monkeypatch.setattr(Noting, "data_received", fail)
    async with place_of(identity) as place:
        bad, failing, _ = await place.connect()
        good, protocol, _ = await place.connect()
        await asyncio.to_thread(bad.sendall, b"bad")
        await eventually(lambda: failing.happened == ["lost"])
        await asyncio.to_thread(good.sendall, b"good")
        await eventually(lambda: protocol.received == b"good")
        bad.close()
        good.close()


async def test_handshakes_have_a_deadline_and_a_limit_for_each_host(
    identity: Identity, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accepting, "HANDSHAKE_S", 0.2)
    monkeypatch.setattr(accepting, "MAX_HANDSHAKES_PER_HOST", 3)
    async with place_of(identity) as place:
        silent = [await asyncio.open_connection("127.0.0.1", place.port) for _ in range(5)]
        async with asyncio.timeout(5):
            for reader, writer in silent:
                assert await reader.read() == b""
                writer.close()
        connection, _, _ = await place.connect()
        connection.close()


async def test_connections_end_with_their_acceptor(identity: Identity) -> None:
    async with place_of(identity) as place:
        quiet, told, _ = await place.connect()
        full, cut, transport = await place.connect()
        transport.write(LARGE)
    assert told.happened == ["lost"]
    assert "lost" in cut.happened
    quiet.close()
    full.close()


@pytest.mark.parametrize("ticks", range(6))
async def test_a_connection_that_comes_at_the_end_is_closed_wherever_it_has_got_to(
    identity: Identity, ticks: int
) -> None:
    async with place_of(identity) as place:
        arriving = socket.create_connection(("127.0.0.1", place.port), timeout=10)
        for _ in range(ticks):
            await asyncio.sleep(0)
    with arriving, contextlib.suppress(ConnectionResetError):
        assert arriving.recv(1) == b""
    gc.collect()  # a socket that nobody closed is reported
