"""Connections for threads: to exactly the peer that was meant, and never in anybody's way."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from node.errors import PeerProtocol, PeerUnreachable, PeerUntrusted, Refused
from node.network import connecting
from node.network.addressbook import AddressBook
from node.network.connecting import Connector, in_thread
from node.network.stream import Stream
from tests.support import IdentityFiles, MakeIdentity, make_authority, make_identity_in

pytestmark = pytest.mark.asyncio


@contextlib.asynccontextmanager
async def listener(files: IdentityFiles, received: bytearray, answer: bytes = b"") -> AsyncIterator[str]:
    """Somebody with these certificates who notes what comes and answers once; yields the address."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            received.extend(await reader.read(1 << 16))
            writer.write(answer)
            received.extend(await reader.read())
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0, ssl=files.load().server_context())
    try:
        yield f"/ip4/127.0.0.1/tcp/{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


async def test_nothing_is_sent_to_another_than_the_expected_peer(make_identity: MakeIdentity) -> None:
    received = bytearray()
    impostor, expected, ours = make_identity("impostor"), make_identity("expected"), make_identity()
    book = AddressBook()
    async with listener(impostor, received) as address:
        book.set(expected.peer_id, [address])
        with pytest.raises(PeerUntrusted, match=r"impostor.* answers at .*; nothing was sent to it"):
            await Connector(ours.load(), book).connect(expected.peer_id)
    assert received == b""


async def test_where_somebody_else_listens_the_next_address_is_taken(make_identity: MakeIdentity) -> None:
    received = bytearray()
    impostor, expected = make_identity("impostor"), make_identity("expected")
    book = AddressBook()
    async with listener(impostor, received) as wrong, listener(expected, received) as right:
        book.set(expected.peer_id, [wrong, right])
        connection = await Connector(make_identity().load(), book).connect(expected.peer_id)
        assert right.endswith(f"/{connection.getpeername()[1]}")
        connection.close()


async def test_a_connection_that_was_kept_serves_the_next_request_to_the_same_peer_alone(
    make_identity: MakeIdentity, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no more once the peer has ended it, is not trusted any more, or some time has passed."""
    peer, other = make_identity("peer"), make_identity("other")
    book, identity = AddressBook(), make_identity().load()
    connector = Connector(identity, book)
    async with listener(peer, bytearray()) as place, listener(other, bytearray()) as elsewhere:
        book.set(peer.peer_id, [place])
        book.set(other.peer_id, [elsewhere])
        first = await connector.connect(peer.peer_id)
        connector.keep(peer.peer_id, first)
        to_other = await connector.connect(other.peer_id)
        assert await connector.connect(peer.peer_id) is first
        second = await connector.connect(peer.peer_id)
        assert second is not first, "it is used by one at a time"

        connector.keep(peer.peer_id, first)
        socket.socket.shutdown(first, socket.SHUT_RD)  # as if the peer had ended it
        third = await connector.connect(peer.peer_id)
        assert third is not first and first.fileno() == -1

        connector.keep(peer.peer_id, third)
        with monkeypatch.context() as patch:
            patch.setattr(type(identity.trust), "caller_of", refuse)
            with pytest.raises(PeerUntrusted):
                await connector.connect(peer.peer_id)
        assert third.fileno() == -1

        monkeypatch.setattr(connecting, "IDLE_S", 0.01)
        connector.keep(peer.peer_id, second)
        connector.keep(other.peer_id, to_other)
        async with asyncio.timeout(5):
            while (second.fileno(), to_other.fileno()) != (-1, -1):
                await asyncio.sleep(0.005)
        connector.close()


def refuse(*_: object) -> None:
    raise PeerUntrusted("revoked")


async def test_a_node_of_another_authority_is_not_trusted(make_identity: MakeIdentity, tmp_path: Path) -> None:
    stranger = make_identity_in(make_authority(tmp_path / "other"), "stranger")
    book = AddressBook()
    async with listener(stranger, bytearray()) as address:
        book.set(stranger.peer_id, [address])
        with pytest.raises(PeerUntrusted):
            await Connector(make_identity().load(), book).connect(stranger.peer_id)


async def test_a_peer_that_dies_right_after_the_handshake_is_unreachable(
    make_identity: MakeIdentity, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by kills of data nodes: the error reached the loader, which ended instead of asking again."""

    def shake_hands_and_lose_it(connection: ssl.SSLSocket, peer_id: str) -> None:
        shake_hands(connection, peer_id)
        with contextlib.suppress(OSError):
            connection.recv(1)

    async def die(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()

    shake_hands = connecting._shake_hands
    monkeypatch.setattr(connecting, "_shake_hands", shake_hands_and_lose_it)
    peer, book = make_identity("peer"), AddressBook()
    async with await asyncio.start_server(die, "127.0.0.1", 0, ssl=peer.load().server_context()) as server:
        book.set(peer.peer_id, [f"/ip4/127.0.0.1/tcp/{server.sockets[0].getsockname()[1]}"])
        with pytest.raises(PeerUnreachable):
            await Connector(make_identity().load(), book).connect(peer.peer_id)


async def test_an_operator_is_no_node(make_identity: MakeIdentity) -> None:
    operator = make_identity("olga", role="operator")
    book = AddressBook()
    async with listener(operator, bytearray()) as address:
        book.set(operator.peer_id, [address])
        with pytest.raises(PeerUntrusted, match="operator"):
            await Connector(make_identity().load(), book).connect(operator.peer_id)


async def test_nobody_there_is_told_as_such(make_identity: MakeIdentity) -> None:
    peer, book = make_identity("peer"), AddressBook()
    connector = Connector(make_identity().load(), book)
    with pytest.raises(PeerUnreachable, match="no address is known"):
        await connector.connect(peer.peer_id)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        book.set(peer.peer_id, [f"/ip4/127.0.0.1/tcp/{closed.getsockname()[1]}"])
        with pytest.raises(PeerUnreachable, match="Connection refused"):
            await connector.connect(peer.peer_id)


async def test_a_silent_handshake_ends_at_its_deadline_and_at_once_when_cancelled(
    make_identity: MakeIdentity, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer, book = make_identity("peer"), AddressBook()
    connector = Connector(make_identity().load(), book)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        book.set(peer.peer_id, [f"/ip4/127.0.0.1/tcp/{silent.getsockname()[1]}"])
        started = time.monotonic()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await connector.connect(peer.peer_id)
        assert time.monotonic() - started < connecting.CONNECT_S / 2
        monkeypatch.setattr(connecting, "CONNECT_S", 0.1)
        with pytest.raises(PeerUnreachable, match="for too long"):
            await connector.connect(peer.peer_id)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"what?\r\n\r\n", PeerProtocol),
        (b"HTTP/1.1 503 Busy\r\nContent-Length: 4\r\n\r\nlate", Refused),
        (b"HTTP/1.1 302 Moved\r\nLocation: /x\r\nContent-Length: 0\r\n\r\n", PeerProtocol),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000, PeerProtocol),
    ],
)
async def test_an_answer_that_is_none_of_a_file_is_an_error_of_ours(
    make_identity: MakeIdentity, answer: bytes, error: type[Exception]
) -> None:
    peer, book = make_identity("peer"), AddressBook()
    async with listener(peer, bytearray(), answer) as address:
        book.set(peer.peer_id, [address])
        connection = await Connector(make_identity().load(), book).connect(peer.peer_id)
        stream = Stream(connection, peer.peer_id, 5.0)
        try:
            with pytest.raises(error):
                await in_thread(connection, lambda: stream.ask("/f", {}))
        finally:
            stream.close()
