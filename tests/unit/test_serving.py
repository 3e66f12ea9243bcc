"""Bodies that pass aiohttp by: read from and written to the connection itself."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import random
import socket
import ssl
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from node.errors import Refused
from node.identity.caller import Caller
from node.identity.credentials import Identity
from node.network import serving
from node.network.bulk import upload
from node.network.filesource import FileSource
from node.network.ranges import Span
from node.network.rpc import RpcTable
from node.network.server import Server
from node.network.serving import receive_file, send_file
from node.network.tls import PUSH_BYTES
from tests.unit.bulk_loopback import loopback
from tests.unit.network_loopback import eventually

pytestmark = pytest.mark.asyncio

SIZE = 3_000_001
BODY = random.Random(2).randbytes(SIZE)


def sha256_of(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


class Files:
    """A server that takes a file by PUT and gives one by GET."""

    def __init__(self, folder: Path) -> None:
        self.source = folder / "source.bin"
        self.source.write_bytes(BODY)
        self.targets = (folder / f"in-{number}" for number in itertools.count())
        self.taken: list[bytes] = []
        self.refused: list[str] = []
        self.started = asyncio.Event()
        self.ended = asyncio.Event()
        self.port = 0

    async def get(self, caller: Caller, request: web.Request) -> web.StreamResponse:
        self.started.set()
        try:
            return await send_file(request, self.source, sha256=sha256_of(BODY))
        finally:
            self.ended.set()

    async def put(self, caller: Caller, request: web.Request) -> web.StreamResponse:
        self.started.set()
        target, size = next(self.targets), int(request.headers["X-Size"])
        try:
            await receive_file(
                request, target, sha256=request.headers["X-Sha"], size_bytes=size, limit_bytes=SIZE, durable=False
            )
        except Refused as error:
            self.refused.append(error.message)
            raise
        finally:
            self.ended.set()
        self.taken.append(target.read_bytes())
        return web.Response(body=b"thanks")

    async def deny(self, caller: Caller, request: web.Request) -> web.StreamResponse:
        raise Refused("denied", "not from you")


@contextlib.asynccontextmanager
async def files_of(identity: Identity, folder: Path) -> AsyncIterator[Files]:
    files = Files(folder)
    server = Server(identity, RpcTable(), lambda caller: None)
    server.route("GET", "/f", files.get, operator=None)
    server.route("PUT", "/f", files.put, operator=None)
    server.route("PUT", "/no", files.deny, operator=None)
    listening = socket.create_server(("127.0.0.1", 0))
    listening.setblocking(False)
    files.port = listening.getsockname()[1]
    async with server.serve([listening]):
        yield files


def dial(identity: Identity, port: int) -> ssl.SSLSocket:
    raw = socket.create_connection(("127.0.0.1", port), timeout=10)
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return identity.client_context().wrap_socket(raw)


def head_of(body: bytes, *, path: str = "/f", more: str = "") -> bytes:
    fields = f"Host: x\r\nX-Size: {len(body)}\r\nX-Sha: {sha256_of(body)}\r\nContent-Length: {len(body)}\r\n{more}"
    return f"PUT {path} HTTP/1.1\r\n{fields}\r\n".encode()


def answered(connection: ssl.SSLSocket) -> bytes:
    """What comes until the connection ends."""
    pieces = []
    while piece := connection.recv(1 << 16):
        pieces.append(piece)
    return b"".join(pieces)


def got(connection: ssl.SSLSocket, size: int = SIZE) -> bytes:
    """The body of an answer of this size; the connection stays open."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += connection.recv(1 << 16)
    body = bytearray(data.partition(b"\r\n\r\n")[2])
    while len(body) < size:
        body += connection.recv(1 << 16)
    return bytes(body)


async def test_a_body_is_whole_wherever_it_is_cut(identity: Identity, tmp_path: Path) -> None:
    """The end of the head, the middle of a record, the last byte: what aiohttp has parsed and what comes later join."""
    body = BODY[:40_000]
    whole = head_of(body) + body
    start = len(whole) - len(body)
    cuts = [start - 1, start, start + 1, start + 16_384, start + 16_385, len(whole) - 1]

    def send(cut: int) -> bytes:
        with dial(identity, files.port) as connection:
            connection.sendall(whole[:cut])
            received.wait(0.02)
            connection.sendall(whole[cut:])
            return got(connection, 6)

    received = threading.Event()
    async with files_of(identity, tmp_path) as files:
        for cut in cuts:
            assert await asyncio.to_thread(send, cut) == b"thanks"
        assert files.taken == [body] * len(cuts)


async def test_a_body_in_records_of_a_byte_is_whole(identity: Identity, tmp_path: Path) -> None:
    body = BODY[:300]

    def send() -> bytes:
        with dial(identity, files.port) as connection:
            connection.sendall(head_of(body))
            for number in range(len(body)):
                connection.sendall(body[number : number + 1])
            return got(connection, 6)

    async with files_of(identity, tmp_path) as files:
        assert await asyncio.to_thread(send) == b"thanks"
        assert files.taken == [body]


async def test_nothing_is_lost_of_what_aiohttps_parser_still_held(identity: Identity, tmp_path: Path) -> None:
    """It stops in the middle of what it was given once a body's buffer is full, and keeps the rest to itself."""

    def send() -> bytes:
        with dial(identity, files.port) as connection:
            connection.sendall(head_of(BODY) + BODY)
            return got(connection, 6)

    async with files_of(identity, tmp_path) as files:
        for _ in range(3):
            assert await asyncio.to_thread(send) == b"thanks"
        assert files.taken == [BODY] * 3


async def test_a_connection_is_used_again_after_a_file_and_after_a_small_upload(
    identity: Identity, tmp_path: Path
) -> None:
    def talk() -> list[bytes]:
        small = BODY[:1000]
        with dial(identity, files.port) as connection:
            found = []
            for _ in range(2):
                connection.sendall(b"GET /f HTTP/1.1\r\nHost: x\r\n\r\n")
                found.append(got(connection))
                connection.sendall(head_of(small) + small)
                found.append(got(connection, 6))
            return found

    async with files_of(identity, tmp_path) as files:
        assert await asyncio.to_thread(talk) == [BODY, b"thanks"] * 2


async def test_an_upload_is_refused_before_it_is_through_and_its_sender_hears_why(
    identity: Identity, tmp_path: Path
) -> None:
    large = tmp_path / "large.bin"
    with large.open("wb") as file:
        file.truncate(256 << 20)
    told: list[int] = [0]

    async def deny(request: web.Request) -> web.StreamResponse:
        raise Refused("denied", "not from you")

    async with loopback(identity) as loop:
        await loop.serve("a", deny)
        with pytest.raises(Refused, match="not from you"):
            await upload(loop, "a", "/no", large, on_progress=told.append, attempts=1)
    assert told[-1] < 256 << 20


async def test_a_cancelled_upload_ends_at_once(identity: Identity, tmp_path: Path) -> None:
    large = tmp_path / "large.bin"
    with large.open("wb") as file:
        file.truncate(256 << 20)
    told: list[int] = []

    async def hang(request: web.Request) -> web.StreamResponse:
        await asyncio.Event().wait()
        return web.Response()

    async with loopback(identity) as loop:
        await loop.serve("a", hang)
        uploading = asyncio.create_task(upload(loop, "a", "/u", large, on_progress=told.append))
        await eventually(lambda: told)
        uploading.cancel()
        async with asyncio.timeout(5):
            await asyncio.wait([uploading])
    assert uploading.cancelled()
    assert open_files(tmp_path) == []


async def test_a_wrong_digest_is_told_and_the_connection_closed(identity: Identity, tmp_path: Path) -> None:
    """Of a body that is more than aiohttp buffers, so that the rest of it goes past aiohttp."""

    def send() -> bytes:
        with dial(identity, files.port) as connection:
            connection.sendall(head_of(BODY) + bytes(SIZE))
            return answered(connection)

    async with files_of(identity, tmp_path) as files:
        assert (await asyncio.to_thread(send)).startswith(b"HTTP/1.1 400")
        assert "has SHA-256" in files.refused[0]
    assert list(tmp_path.glob("*in-*")) == []


async def test_a_body_without_a_length_is_refused(identity: Identity, tmp_path: Path) -> None:
    head = b"PUT /f HTTP/1.1\r\nHost: x\r\nX-Size: 3\r\nX-Sha: 0\r\nTransfer-Encoding: chunked\r\n\r\n"

    def send() -> bytes:
        with dial(identity, files.port) as connection:
            connection.sendall(head + b"3\r\nabc\r\n0\r\n\r\n")
            return connection.recv(1 << 16)

    async with files_of(identity, tmp_path) as files:
        assert (await asyncio.to_thread(send)).startswith(b"HTTP/1.1 400")
        assert files.refused == ["announced as 3 bytes, but Content-Length is missing"]


async def test_slow_readers_and_senders_do_not_hold_up_others(identity: Identity, tmp_path: Path) -> None:
    """None of them has a thread, and what they do not take yet costs no memory."""
    body = BODY[:50_000]

    def slow(number: int) -> ssl.SSLSocket:
        connection = dial(identity, files.port)
        if number % 2:
            connection.sendall(b"GET /f HTTP/1.1\r\nHost: x\r\n\r\n")
            connection.recv(1)
        else:
            connection.sendall(head_of(body) + body[:100])
        return connection

    def fast() -> bytes:
        with dial(identity, files.port) as connection:
            connection.sendall(b"GET /f HTTP/1.1\r\nHost: x\r\n\r\n")
            return got(connection)

    async with files_of(identity, tmp_path) as files:
        held = [await asyncio.to_thread(slow, number) for number in range(60)]
        async with asyncio.timeout(10):
            assert await asyncio.to_thread(fast) == BODY

        def finish() -> None:
            for number, connection in enumerate(held):
                if not number % 2:
                    connection.sendall(body[100:])
                    assert got(connection, 6) == b"thanks"
                connection.close()

        await asyncio.to_thread(finish)
        assert files.taken == [body] * 30


async def test_transfers_at_the_same_time_do_not_mix(identity: Identity, tmp_path: Path) -> None:
    """They share one piece of memory between two awaits."""
    gate = threading.Barrier(4)

    def fetch(number: int) -> bool:
        start = number * 100_000
        with dial(identity, files.port) as connection:
            gate.wait()
            connection.sendall(f"GET /f HTTP/1.1\r\nHost: x\r\nRange: bytes={start}-\r\n\r\n".encode())
            return got(connection, SIZE - start) == BODY[start:]

    async with files_of(identity, tmp_path) as files:
        assert all(await asyncio.gather(*(asyncio.to_thread(fetch, number) for number in range(4))))


@pytest.mark.parametrize("share", [0.0, 0.5])
async def test_what_is_not_in_memory_is_read_from_the_disk(
    identity: Identity, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: float
) -> None:
    chance = random.Random(3)
    peek = FileSource.peek

    def sometimes(self: FileSource, view: memoryview, at: int) -> int:
        return peek(self, view, at) if chance.random() < share else 0

    monkeypatch.setattr(FileSource, "peek", sometimes)

    def fetch() -> bytes:
        with dial(identity, files.port) as connection:
            connection.sendall(b"GET /f HTTP/1.1\r\nHost: x\r\n\r\n")
            return got(connection)

    async with files_of(identity, tmp_path) as files:
        assert await asyncio.to_thread(fetch) == BODY


@pytest.mark.parametrize("way", ["up", "down"])
async def test_a_server_that_ends_does_not_wait_for_transfers(identity: Identity, tmp_path: Path, way: str) -> None:
    def begin() -> ssl.SSLSocket:
        connection = dial(identity, files.port)
        connection.sendall(head_of(BODY) + BODY[:1000] if way == "up" else b"GET /f HTTP/1.1\r\nHost: x\r\n\r\n")
        return connection

    async with contextlib.AsyncExitStack() as stack:
        async with files_of(identity, tmp_path) as files:
            files.source.write_bytes(BODY * 10)
            stack.enter_context(await asyncio.to_thread(begin))
            await files.started.wait()
            began = asyncio.get_running_loop().time()
        assert asyncio.get_running_loop().time() - began < 3.0
        assert files.ended.is_set()
    assert open_files(tmp_path) == []


def open_files(folder: Path) -> list[Path]:
    found = []
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found.append(path.readlink())
    return [path for path in found if path.is_relative_to(folder)]


async def test_a_client_that_reads_slowly_is_served_and_one_that_makes_no_room_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    now = loop.time()
    monkeypatch.setattr(loop, "time", lambda: now)

    class Link:
        """A transport that takes what it is offered, or nothing, and has room again shortly before the deadline."""

        def __init__(self, waits_s: float) -> None:
            self.scratch = memoryview(bytearray(PUSH_BYTES))
            self.waits_s = waits_s
            self.is_full = True
            self.sent = 0

        def send(self, view: memoryview) -> int:
            self.is_full = not self.is_full
            self.sent += 0 if self.is_full else len(view)
            return 0 if self.is_full else len(view)

        async def writable(self) -> None:
            nonlocal now
            now += self.waits_s
            for _ in range(3):
                await asyncio.sleep(0)

    async def send(link: Any) -> None:
        source = await FileSource.open(path)
        try:
            await serving._send(link, source, Span(0, 1 << 20, is_part=False), 30.0, None)
        finally:
            source.close()

    path = tmp_path / "file.bin"
    path.write_bytes(bytes(1 << 20))
    slow = Link(27.0)
    await send(slow)
    assert slow.sent == 1 << 20
    still = Link(31.0)
    with pytest.raises(ConnectionResetError, match="took nothing for 30 s"):
        await send(still)
    assert still.sent == 0
