"""The transport: who may call whom, before and during a connection, and what strangers and vandals can do."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import socket
import ssl
import time
from collections.abc import Callable
from pathlib import Path

import aiohttp
import msgspec
import pytest
from aiohttp import web

from node.addresses import parse
from node.errors import PeerProtocol, PeerUnreachable, PeerUntrusted, Refused
from node.identity import authority
from node.identity.caller import Caller
from node.network.addressbook import AddressBook
from node.network.bulk import upload
from node.network.client import Client
from node.network.overlay import Overlay
from node.network.probe import probe
from node.wire import Ack, CancelTask, Hello, RunCommand, Signed
from tests.support import MakeIdentity, make_authority, make_identity_in
from tests.unit.network_loopback import eventually, overlay_for

pytestmark = pytest.mark.asyncio

CANCEL = CancelTask(task_id="t")


async def closed(writer: asyncio.StreamWriter) -> None:
    """Close a connection and see its transport gone."""
    writer.close()
    with contextlib.suppress(OSError):
        async with asyncio.timeout(2):
            await writer.wait_closed()


async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Say nothing until the other end closes."""
    with contextlib.suppress(OSError):
        await reader.read()
    writer.close()


def answering(calls: list[str]) -> Callable[[Overlay], None]:
    """Lets an overlay answer CancelTask and serve `/bulk/echo`."""

    def prepare(overlay: Overlay) -> None:
        async def cancel(caller: Caller, request: CancelTask) -> Ack:
            calls.append(caller.peer_id)
            return Ack()

        async def echo(caller: Caller, request: web.Request) -> web.StreamResponse:
            return web.Response(body=caller.peer_id.encode() + await request.read())

        async def for_operators(caller: Caller, request: web.Request) -> web.StreamResponse:
            return web.Response(text=caller.name)

        overlay.on(CancelTask, cancel)
        overlay.bulk_route("GET", "/bulk/echo", echo)
        overlay.bulk_route("PUT", "/bulk/echo", echo)
        overlay.bulk_route("GET", "/api/v1/who", for_operators, operator=True)

    return prepare


async def test_a_peer_is_called_and_knows_the_caller(make_identity: MakeIdentity, tmp_path: Path) -> None:
    calls: list[str] = []
    async with (
        overlay_for(make_identity(), tmp_path / "a", prepare=answering(calls)) as server,
        overlay_for(make_identity(), tmp_path / "b", gateway_addresses=server.addresses) as client,
    ):
        await eventually(lambda: len(client.peers()) == 2)
        assert await client.call(server.peer_id, CANCEL) == Ack()
        assert calls == [client.peer_id]
        (tmp_path / "file").write_bytes(b"bytes")
        assert (
            await upload(client, server.peer_id, "/bulk/echo", tmp_path / "file") == client.peer_id.encode() + b"bytes"
        )
        async with client.open(server.peer_id, "GET", "/bulk/echo") as answer:
            assert await answer.read() == client.peer_id.encode()


async def test_a_call_to_oneself_stays_in_the_process_and_a_stream_goes_over_loopback(
    make_identity: MakeIdentity, tmp_path: Path
) -> None:
    calls: list[str] = []
    async with overlay_for(make_identity(), tmp_path, prepare=answering(calls)) as overlay:
        assert await overlay.call(overlay.peer_id, CANCEL) == Ack()
        assert calls == [overlay.peer_id]
        async with overlay.open(overlay.peer_id, "GET", "/bulk/echo") as answer:
            assert await answer.read() == overlay.peer_id.encode()
        with pytest.raises(Refused, match="no method"):
            await overlay.call(overlay.peer_id, RunCommand(signed=Signed(payload=b"", signature=b"", chain=[])))


async def test_not_one_byte_of_ours_goes_to_a_peer_that_is_not_the_expected_one(
    make_identity: MakeIdentity, tmp_path: Path
) -> None:
    received = bytearray()
    impostor, expected = make_identity("impostor").load(), make_identity("expected")

    async def record(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.extend(await reader.read())
        writer.close()

    server = await asyncio.start_server(record, "127.0.0.1", 0, ssl=impostor.server_context())
    port = server.sockets[0].getsockname()[1]
    book = AddressBook()
    book.set(expected.peer_id, [f"/ip4/127.0.0.1/tcp/{port}"])
    try:
        async with Client(make_identity().load(), book) as client:
            with pytest.raises(PeerUntrusted, match="expected was"):
                await client.call(expected.peer_id, "hello", b"secret", 3.0)
            with pytest.raises((PeerUntrusted, PeerUnreachable)):
                async with client.open(expected.peer_id, "GET", "/bulk/secret", headers=None, stall_s=3.0) as _:
                    pytest.fail("opened")
    finally:
        server.close()
        await asyncio.sleep(0.05)
    assert bytes(received) == b""


async def test_a_wrong_address_does_not_keep_a_peer_from_being_found_at_the_right_one(
    make_identity: MakeIdentity, tmp_path: Path
) -> None:
    calls: list[str] = []
    right = make_identity("right")
    async with (
        overlay_for(make_identity("wrong"), tmp_path / "w") as other,
        overlay_for(right, tmp_path / "r", prepare=answering(calls)) as server,
    ):
        book = AddressBook()
        book.set(right.peer_id, [*other.addresses, *server.addresses])
        async with Client(make_identity().load(), book) as client:
            await client.call(right.peer_id, CANCEL.method, msgspec.msgpack.encode(CANCEL), 3.0)
        assert len(calls) == 1


async def test_a_dead_address_costs_less_than_a_second(make_identity: MakeIdentity, tmp_path: Path) -> None:
    """U7: an address that swallows packets, and one where nobody listens, before the one that works."""
    calls: list[str] = []
    files = make_identity()
    with socket.socket() as full:
        # a listener with a full queue answers no further connection at all
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        dead = full.getsockname()[1]
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.1", dead))
        async with overlay_for(files, tmp_path, prepare=answering(calls)) as server:
            book = AddressBook()
            book.set(files.peer_id, [f"/ip4/127.0.0.1/tcp/{dead}", "/ip4/127.0.0.1/tcp/1", *server.addresses])
            async with Client(make_identity().load(), book) as client:
                started = time.monotonic()
                await client.call(files.peer_id, CANCEL.method, msgspec.msgpack.encode(CANCEL), 5.0)
                assert time.monotonic() - started < 1.0
        for filler in fillers:
            filler.close()


async def test_operators_may_not_call_what_is_for_nodes_nor_nodes_what_is_for_operators(
    make_identity: MakeIdentity, tmp_path: Path
) -> None:
    """H37."""
    calls: list[str] = []
    operator = make_identity("ada", role="operator").load()
    async with overlay_for(make_identity(), tmp_path, prepare=answering(calls)) as server:
        address = parse(server.addresses[0])
        async with Client(operator, AddressBook()) as client:
            for method in ("task/cancel", "exchange", "gossip"):
                with pytest.raises(Refused) as caught:
                    await client.call(address, method, msgspec.msgpack.encode(CANCEL), 3.0)
                assert caught.value.code == "denied"
            with pytest.raises(Refused, match="for nodes"):
                async with client.open(address, "GET", "/bulk/echo", headers=None, stall_s=3.0):
                    pytest.fail("opened")
            async with client.open(address, "GET", "/api/v1/who", headers=None, stall_s=3.0) as answer:
                assert await answer.text() == operator.name
        with pytest.raises(Refused, match="for operators"):
            async with server.open(server.peer_id, "GET", "/api/v1/who"):
                pytest.fail("opened")
    assert calls == []


async def test_a_node_does_not_talk_to_an_operator_that_listens(make_identity: MakeIdentity) -> None:
    operator = make_identity("ada", role="operator").load()
    server = await asyncio.start_server(hold, "127.0.0.1", 0, ssl=operator.server_context())
    try:
        async with Client(make_identity().load(), AddressBook()) as client:
            with pytest.raises(PeerUntrusted, match="operator"):
                await client.call(parse(f"/ip4/127.0.0.1/tcp/{server.sockets[0].getsockname()[1]}"), "hello", b"", 3.0)
    finally:
        server.close()


async def test_a_revoked_certificate_is_refused_on_a_connection_that_is_already_there(tmp_path: Path) -> None:
    """Per request; connections that only receive are cut, and its records are dropped."""
    ca = tmp_path / "ca"
    ca.mkdir()
    make_authority(ca)
    crl = authority.crl_path(ca, "acme")
    calls: list[str] = []
    async with (
        overlay_for(make_identity_in(ca, "a"), tmp_path / "a", prepare=answering(calls), crls=crl) as server,
        overlay_for(make_identity_in(ca, "b"), tmp_path / "b", gateway_addresses=server.addresses) as client,
    ):
        await eventually(lambda: len(client.peers()) == len(server.peers()) == 2)
        await client.call(server.peer_id, CANCEL)
        authority.revoke(ca, ["b"])
        assert await asyncio.to_thread(server.identity.reload)
        with pytest.raises(Refused, match="revoked") as caught:
            await client.call(server.peer_id, CANCEL)
        assert caught.value.code == "denied"
        assert len(calls) == 1
        with pytest.raises(PeerUntrusted, match="revoked"):
            await server.call(client.peer_id, CANCEL)
        server._knowledge.drop_untrusted()
        server._server.drop_untrusted()
        assert len(server.peers()) == 1


async def test_connections_of_the_revoked_are_cut_even_if_they_say_nothing(tmp_path: Path) -> None:
    ca = tmp_path / "ca"
    ca.mkdir()
    make_authority(ca)
    crl = authority.crl_path(ca, "acme")
    revoked = make_identity_in(ca, "b").load()
    async with overlay_for(make_identity_in(ca, "a"), tmp_path / "a", crls=crl) as server:
        address = parse(server.addresses[0])
        reader, writer = await asyncio.open_connection("127.0.0.1", address.port, ssl=revoked.client_context())
        authority.revoke(ca, ["b"])
        await asyncio.to_thread(server.identity.reload)
        server._server.drop_untrusted()
        async with asyncio.timeout(2):
            with pytest.raises((ConnectionError, ssl.SSLError, asyncio.IncompleteReadError)):
                await reader.readexactly(1)
        await closed(writer)


async def test_strangers_get_no_further_than_the_handshake_and_leave_no_traceback(
    make_identity: MakeIdentity, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    (tmp_path / "ca").mkdir()
    stranger = make_identity_in(make_authority(tmp_path / "ca", "other"), "stranger").load()
    async with overlay_for(make_identity(), tmp_path / "a") as server:
        port = parse(server.addresses[0]).port
        book = AddressBook()
        book.set(server.peer_id, server.addresses)
        async with Client(stranger, book) as client:
            with pytest.raises(PeerUntrusted, match="certificate"):
                await client.call(server.peer_id, "hello", b"", 3.0)
        lax = stranger.client_context()
        lax.verify_mode = ssl.CERT_NONE
        with pytest.raises((ConnectionError, ssl.SSLError, asyncio.IncompleteReadError)):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=lax)
            try:
                await reader.readexactly(1)
            finally:
                await closed(writer)
        bare = ssl.create_default_context()
        bare.check_hostname = False
        bare.verify_mode = ssl.CERT_NONE
        with pytest.raises((ConnectionError, ssl.SSLError, asyncio.IncompleteReadError)):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=bare)
            try:
                await reader.readexactly(1)
            finally:
                await closed(writer)
        await eventually(lambda: sum("handshake.failed" in record.getMessage() for record in caplog.records) >= 3, 3.0)
    assert all(record.exc_info is None for record in caplog.records)
    assert not [record for record in caplog.records if record.levelno > logging.INFO]


async def test_a_refused_certificate_is_told_as_such(make_identity: MakeIdentity, tmp_path: Path) -> None:
    """TLS 1.3 lets the client believe that all is well until it reads."""
    (tmp_path / "ca").mkdir()
    strangers_ca = make_authority(tmp_path / "ca", "other")
    stranger = make_identity_in(strangers_ca, "stranger")
    ours = make_identity()
    # it trusts us, we do not trust it
    both = tmp_path / "both.pem"
    both.write_bytes(stranger.trust.read_bytes() + ours.trust.read_bytes())
    async with overlay_for(ours, tmp_path / "a") as server:
        trusting = stranger._replace(trust=both).load()
        async with Client(trusting, AddressBook()) as client:
            with pytest.raises((PeerUntrusted, PeerUnreachable), match=r"refuses? our certificate"):
                await client.call(parse(server.addresses[0]), "hello", b"", 3.0)


async def test_garbage_and_silence_do_not_disturb_others(
    make_identity: MakeIdentity, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """H38, H39: garbage, silent sockets, half a request, a body that never ends, bodies that cannot be decoded."""
    calls: list[str] = []
    vandal = make_identity("vandal").load()
    async with (
        overlay_for(make_identity(), tmp_path / "a", prepare=answering(calls)) as server,
        overlay_for(make_identity(), tmp_path / "b", gateway_addresses=server.addresses) as friend,
    ):
        await eventually(lambda: len(friend.peers()) == 2)
        address = parse(server.addresses[0])
        writers = []
        for piece in (b"", b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\xff\xff" + b"\0" * 300, b"\xff" * 4096):
            _, writer = await asyncio.open_connection("127.0.0.1", address.port)
            writer.write(piece)
            writers.append(writer)
        for piece in (
            b"POST /rpc/gossip HTTP/1.1\r\nHost: x\r\nX-Slow: ",
            b"POST /rpc/gossip HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\nabc",
            b"\0\xff nonsense\r\n\r\n",
        ):
            _, writer = await asyncio.open_connection("127.0.0.1", address.port, ssl=vandal.client_context())
            writer.write(piece)
            writers.append(writer)
        async with Client(vandal, AddressBook()) as client:
            for method in ("hello", "gossip", "exchange", "providers/find", "task/cancel", "no/such"):
                for body in (b"", b"\xc1", b"\x93" * 3000, b"\0" * 100_000):
                    with pytest.raises(Refused):
                        await client.call(address, method, body, 3.0)
            with pytest.raises((Refused, PeerProtocol, PeerUnreachable)):
                await client.call(address, "gossip", b"\0" * (5 << 20), 5.0)
            started = time.monotonic()
            assert await friend.call(server.peer_id, CANCEL) == Ack()
            assert time.monotonic() - started < 1.0
        for writer in writers:
            await closed(writer)
    assert calls == [friend.peer_id]
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_a_forged_record_is_refused_and_harms_nothing(make_identity: MakeIdentity, tmp_path: Path) -> None:
    async with (
        overlay_for(make_identity(), tmp_path / "a") as server,
        overlay_for(make_identity(), tmp_path / "b", gateway_addresses=server.addresses) as vandal,
    ):
        await eventually(lambda: len(vandal.peers()) == len(server.peers()) == 2)
        own = vandal._knowledge.own_record()
        assert own is not None
        forged = msgspec.structs.replace(
            own, signed=msgspec.structs.replace(own.signed, payload=own.signed.payload.replace(b"worker", b"robber"))
        )
        with pytest.raises(Refused) as caught:
            await vandal.call(server.peer_id, Hello(record=forged))
        assert caught.value.code == "invalid"
        assert len(server.peers()) == 2


async def test_an_upload_nobody_reads_and_an_answer_that_never_comes_are_cut_off(
    make_identity: MakeIdentity, tmp_path: Path
) -> None:
    def prepare(overlay: Overlay) -> None:
        async def hang(caller: Caller, request: web.Request) -> web.StreamResponse:
            await asyncio.sleep(30)
            return web.Response()

        async def stall(caller: Caller, request: web.Request) -> web.StreamResponse:
            response = web.StreamResponse()
            await response.prepare(request)
            await response.write(b"some")
            await asyncio.sleep(30)
            return response

        overlay.bulk_route("PUT", "/bulk/hang", hang)
        overlay.bulk_route("GET", "/bulk/stall", stall)

    large = tmp_path / "large.bin"
    with large.open("wb") as file:
        file.truncate(256 << 20)
    async with overlay_for(make_identity(), tmp_path, prepare=prepare) as overlay:
        with pytest.raises(PeerUnreachable, match="too long"):
            async with asyncio.timeout(10):
                await upload(overlay, overlay.peer_id, "/bulk/hang", large, attempts=1, stall_s=0.3)
        with pytest.raises(PeerUnreachable):
            async with asyncio.timeout(10), overlay.open(overlay.peer_id, "GET", "/bulk/stall", stall_s=0.3) as answer:
                await answer.read()


async def test_a_peer_that_nobody_has_heard_of_is_unreachable(make_identity: MakeIdentity, tmp_path: Path) -> None:
    async with overlay_for(make_identity(), tmp_path) as overlay:
        with pytest.raises(PeerUnreachable, match="no address is known"):
            await overlay.call(make_identity().peer_id, CANCEL)
        with pytest.raises(PeerProtocol):
            await overlay.call("nonsense", CANCEL)


async def test_a_silent_peer_costs_no_more_than_the_deadline(make_identity: MakeIdentity, tmp_path: Path) -> None:
    silent = await asyncio.start_server(hold, "127.0.0.1", 0)
    files = make_identity()
    book = AddressBook()
    book.set(files.peer_id, [f"/ip4/127.0.0.1/tcp/{silent.sockets[0].getsockname()[1]}"])
    async with Client(make_identity().load(), book) as client:
        started = time.monotonic()
        with pytest.raises(PeerUnreachable, match=r"within 0\.3 s"):
            await client.call(files.peer_id, "hello", b"", 0.3)
        assert time.monotonic() - started < 1.0
    silent.close()


async def test_what_does_not_speak_tls_is_told_as_such(make_identity: MakeIdentity) -> None:
    async def shout(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.0 400 Bad Request\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(shout, "127.0.0.1", 0)
    async with Client(make_identity().load(), AddressBook()) as client:
        with pytest.raises(PeerProtocol, match="does not speak TLS"):
            await client.call(parse(f"/ip4/127.0.0.1/tcp/{server.sockets[0].getsockname()[1]}"), "hello", b"", 3.0)
    server.close()


async def test_a_probe_says_who_answers_to_nodes_and_operators(make_identity: MakeIdentity, tmp_path: Path) -> None:
    async with overlay_for(make_identity(), tmp_path, roles=["gateway"]) as server:
        for caller in (make_identity("n").load(), make_identity("ada", role="operator").load()):
            found = await probe(caller, parse(server.addresses[0]))
            assert (found.peer_id, found.roles) == (server.peer_id, ["gateway"])
            assert found.certificate_days > 1
        assert len(server.peers()) == 1, "a probe joins nothing"
        with pytest.raises(PeerUntrusted, match="expected was"):
            await probe(make_identity().load(), parse(server.addresses[0]).pinned(make_identity().peer_id))


async def test_a_call_survives_the_end_of_a_kept_connection(make_identity: MakeIdentity, tmp_path: Path) -> None:
    """U30: the server restarts between two calls."""
    calls: list[str] = []
    files = make_identity()
    body = msgspec.msgpack.encode(CANCEL)
    async with Client(make_identity().load(), AddressBook()) as client:
        async with overlay_for(files, tmp_path, prepare=answering(calls)) as server:
            listen = server.addresses
            await client.call(parse(listen[0]), CANCEL.method, body, 3.0)
        async with overlay_for(files, tmp_path, prepare=answering(calls), listen_addresses=listen):
            await client.call(parse(listen[0]), CANCEL.method, body, 3.0)
    assert len(calls) == 2


async def test_a_renewed_certificate_with_the_same_key_is_the_same_peer(tmp_path: Path) -> None:
    ca = tmp_path / "ca"
    ca.mkdir()
    make_authority(ca)
    files = make_identity_in(ca, "a")
    other = make_identity_in(ca, "b")
    calls: list[str] = []
    async with (
        overlay_for(files, tmp_path / "a", prepare=answering(calls)) as server,
        overlay_for(other, tmp_path / "b", gateway_addresses=server.addresses) as client,
    ):
        await eventually(lambda: len(client.peers()) == 2)
        authority.make_member(ca, "a", renew=True)
        assert await asyncio.to_thread(server.identity.reload)
        assert await client.call(server.peer_id, CANCEL) == Ack()
    shutil.rmtree(ca)
    assert calls == [other.peer_id]


async def test_header_fields_as_long_as_a_signed_command_pass(make_identity: MakeIdentity, tmp_path: Path) -> None:
    async with (
        overlay_for(make_identity(), tmp_path, prepare=answering([])) as overlay,
        overlay.open(overlay.peer_id, "GET", "/bulk/echo", headers={"Hypha-Command": "x" * 20_000}) as answer,
    ):
        assert isinstance(answer, aiohttp.ClientResponse)
        assert await answer.read() == overlay.peer_id.encode()
