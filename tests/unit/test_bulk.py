"""Files between nodes, over real mutual TLS on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import random
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from node import telemetry
from node.errors import DiskFull, PeerProtocol, PeerUnreachable, Refused
from node.identity.credentials import Identity
from node.network import bulk, partfile
from node.network.bulk import download, download_unknown, upload
from node.network.ranges import etag_of
from node.network.serving import receive_file, send_file
from tests.unit.bulk_loopback import Handler, Loopback, loopback

pytestmark = pytest.mark.asyncio

SIZE = 5_000_003
BODY = random.Random(1).randbytes(SIZE)
SHA = hashlib.sha256(BODY).hexdigest()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source.bin"
    path.write_bytes(BODY)
    return path


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "BACKOFF_FIRST_S", 0.001)


def whole(path: Path, sha256: str = SHA) -> Handler:
    async def handler(request: web.Request) -> web.StreamResponse:
        return await send_file(request, path, sha256=sha256)

    return handler


def cut_after(path: Path, count: int, sha256: str = SHA) -> Handler:
    """Sends the right head, then `count` bytes of the body, then breaks off."""

    async def handler(request: web.Request) -> web.StreamResponse:
        start = request.http_range.start or 0
        body = path.read_bytes()
        response = web.StreamResponse(status=206 if start else 200, headers={"ETag": etag_of(sha256)})
        response.content_length = len(body) - start
        if start:
            response.headers["Content-Range"] = f"bytes {start}-{len(body) - 1}/{len(body)}"
        await response.prepare(request)
        await response.write(body[start : start + count])
        raise ConnectionResetError

    return handler


def ranges_asked(loop: Loopback) -> list[tuple[str, str]]:
    return [(peer, headers.get("Range", "")) for peer, _, headers in loop.asked]


def leftovers(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != "source.bin")


async def test_a_file_arrives_whole_under_its_name_and_progress_is_told(
    identity: Identity, source: Path, tmp_path: Path
) -> None:
    told: list[int] = []
    async with loopback(identity) as loop:
        await loop.serve("a", whole(source))
        await download(loop, ["a"], "/f", tmp_path / "x", sha256=SHA, size_bytes=SIZE, on_progress=told.append)
    assert (tmp_path / "x").read_bytes() == BODY
    assert told == sorted(told)
    assert told[-1] == SIZE
    assert leftovers(tmp_path) == ["x"]


async def test_after_every_break_it_goes_on_at_the_same_byte(identity: Identity, source: Path, tmp_path: Path) -> None:
    """H42: resume."""
    async with loopback(identity) as loop:
        await loop.serve("a", cut_after(source, 1_500_000))
        await download(loop, ["a"], "/f", tmp_path / "x", sha256=SHA, size_bytes=SIZE)
        starts = [int(header[6:-1]) for _, header in ranges_asked(loop)[1:]]
    assert (tmp_path / "x").read_bytes() == BODY
    assert len(starts) >= 3
    assert starts == sorted(set(starts))
    assert starts[0] > 0
    assert all(headers["If-Match"] == etag_of(SHA) for _, _, headers in loop.asked)


async def test_another_provider_goes_on_where_one_broke_off(identity: Identity, source: Path, tmp_path: Path) -> None:
    async with loopback(identity) as loop:
        await loop.serve("a", cut_after(source, 2_000_000))
        await loop.serve("b", whole(source))
        await download(loop, ["gone", "a", "b"], "/f", tmp_path / "x", sha256=SHA, size_bytes=SIZE)
        asked = ranges_asked(loop)
    assert [peer for peer, _ in asked] == ["gone", "a", "b"]
    assert asked[2][1].startswith("bytes=") and asked[2][1] != "bytes=0-"
    assert (tmp_path / "x").read_bytes() == BODY


async def test_a_provider_with_another_content_is_passed_over(identity: Identity, source: Path, tmp_path: Path) -> None:
    async with loopback(identity) as loop:
        await loop.serve("a", whole(source, sha256="00" * 32))
        await loop.serve("b", whole(source))
        await download(loop, ["a", "b"], "/f", tmp_path / "x", sha256=SHA, size_bytes=SIZE)
        assert [peer for peer, _ in ranges_asked(loop)] == ["a", "b"]
        with pytest.raises(Refused) as caught:
            await download(loop, ["a"], "/f", tmp_path / "y", sha256=SHA, size_bytes=SIZE)
    assert caught.value.code == "stale"
    assert leftovers(tmp_path) == ["x"]


async def test_wrong_bytes_are_fetched_again_from_another_node_and_never_shown(
    identity: Identity, source: Path, tmp_path: Path
) -> None:
    """U46, U47: a digest that differs is no file under the final name, and one bad provider does not end the fetch."""
    bad = tmp_path / "bad.bin"
    bad.write_bytes(BODY[:-1] + b"?")
    async with loopback(identity) as loop:
        await loop.serve("bad", whole(bad))
        await loop.serve("good", whole(source))
        await download(loop, ["bad", "good"], "/f", tmp_path / "x", sha256=SHA, size_bytes=SIZE)
        assert ranges_asked(loop) == [("bad", ""), ("good", "")]
        with pytest.raises(PeerProtocol, match=r"expected .*; sent by bad"):
            await download(loop, ["bad"], "/f", tmp_path / "y", sha256=SHA, size_bytes=SIZE)
        assert len(loop.asked) == 2 + bulk.VERIFY_ATTEMPTS
    assert leftovers(tmp_path) == ["bad.bin", "x"]


async def test_it_gives_up_after_so_many_failures_without_a_byte(identity: Identity, tmp_path: Path) -> None:
    async with loopback(identity) as loop:
        with pytest.raises(PeerUnreachable, match="cannot be reached"):
            await download(loop, ["a", "b"], "/f", tmp_path / "x", sha256=SHA, size_bytes=SIZE, attempts=5)
        assert len(loop.asked) == 5
        with pytest.raises(PeerUnreachable, match="nobody provides"):
            await download(loop, [], "/f", tmp_path / "x", sha256=SHA, size_bytes=SIZE)
    assert leftovers(tmp_path) == []


async def test_a_peer_that_trickles_is_left_for_another(identity: Identity, source: Path, tmp_path: Path) -> None:
    """H38: one byte now and then keeps no transfer alive."""

    async def trickle(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"ETag": etag_of(SHA)})
        response.content_length = SIZE
        await response.prepare(request)
        for at in range(SIZE):
            await response.write(BODY[at : at + 1])
            await asyncio.sleep(0.02)
        return response

    async with loopback(identity) as loop:
        await loop.serve("slow", trickle)
        await loop.serve("b", whole(source))
        async with asyncio.timeout(5):
            await download(loop, ["slow", "b"], "/f", tmp_path / "x", sha256=SHA, size_bytes=SIZE, stall_s=0.3)
    assert (tmp_path / "x").read_bytes() == BODY


async def test_a_cancelled_fetch_leaves_nothing(identity: Identity, source: Path, tmp_path: Path) -> None:
    started = asyncio.Event()

    async def stuck(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"ETag": etag_of(SHA)})
        response.content_length = SIZE
        await response.prepare(request)
        await response.write(BODY[:3_000_000])
        started.set()
        await asyncio.sleep(30)
        return response

    async with loopback(identity) as loop:
        await loop.serve("a", stuck)
        async with asyncio.TaskGroup() as tasks:
            fetch = tasks.create_task(download(loop, ["a"], "/f", tmp_path / "x", sha256=SHA, size_bytes=SIZE))
            await started.wait()
            fetch.cancel()
    assert leftovers(tmp_path) == []
    assert open_files(tmp_path) == []


async def test_no_room_is_told_with_path_need_and_room(
    identity: Identity, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """U44: the error names where, what is needed and what is there."""
    async with loopback(identity) as loop:
        await loop.serve("a", whole(source))
        with pytest.raises(DiskFull, match=rf"no room for {tmp_path}/x: it needs .* bytes, .* are free"):
            await download(loop, ["a"], "/f", tmp_path / "x", sha256=SHA, size_bytes=1 << 60)

        def full(*_: object) -> int:
            raise OSError(errno.ENOSPC, "no space left on device")

        monkeypatch.setattr(partfile.os, "pwritev", full)
        with pytest.raises(DiskFull, match="no room"):
            await download(loop, ["a"], "/f", tmp_path / "x", sha256=SHA, size_bytes=SIZE)
    assert leftovers(tmp_path) == []


async def test_two_fetches_of_one_target_do_not_disturb_each_other(
    identity: Identity, source: Path, tmp_path: Path
) -> None:
    """U48: unique temporary names."""
    async with loopback(identity) as loop, asyncio.TaskGroup() as tasks:
        await loop.serve("a", whole(source))
        running = [
            tasks.create_task(download(loop, ["a"], "/f", tmp_path / "x", sha256=SHA, size_bytes=SIZE))
            for _ in range(3)
        ]
        await asyncio.wait(running)
    assert (tmp_path / "x").read_bytes() == BODY
    assert leftovers(tmp_path) == ["x"]


async def test_a_file_of_unknown_size_is_fetched_by_what_the_peer_names(
    identity: Identity, source: Path, tmp_path: Path
) -> None:
    async with loopback(identity) as loop:
        await loop.serve("a", whole(source))
        assert await download_unknown(loop, "a", "/f", tmp_path / "x", limit_bytes=SIZE) == (SIZE, SHA)
        with pytest.raises(PeerProtocol, match="at most"):
            await download_unknown(loop, "a", "/f", tmp_path / "y", limit_bytes=SIZE - 1)
    assert leftovers(tmp_path) == ["x"]


async def test_an_empty_file_is_fetched_too(identity: Identity, tmp_path: Path) -> None:
    empty = tmp_path / "empty.bin"
    empty.touch()
    sha256 = hashlib.sha256(b"").hexdigest()
    async with loopback(identity) as loop:
        await loop.serve("a", whole(empty, sha256))
        assert await download_unknown(loop, "a", "/f", tmp_path / "x", limit_bytes=SIZE) == (0, sha256)
    assert (tmp_path / "x").read_bytes() == b""


async def test_the_loop_stays_free_and_progress_is_told_on_it_while_a_file_arrives(
    identity: Identity, source: Path, tmp_path: Path
) -> None:
    """Threads read, write and hash; what they have is told now and then, on the loop, before the end too."""
    told: list[tuple[int, int]] = []
    gate = asyncio.Event()

    async def halting(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"ETag": etag_of(SHA)})
        response.content_length = SIZE
        await response.prepare(request)
        await response.write(BODY[:3_000_000])
        await gate.wait()
        await response.write(BODY[3_000_000:])
        return response

    def tell(count: int) -> None:
        told.append((count, threading.get_ident()))
        gate.set()

    async with loopback(identity) as loop:
        await loop.serve("a", halting)
        async with asyncio.timeout(5):
            await download(loop, ["a"], "/f", tmp_path / "x", sha256=SHA, size_bytes=SIZE, on_progress=tell)
    assert (tmp_path / "x").read_bytes() == BODY
    assert 0 < told[0][0] < SIZE
    assert told[-1][0] == SIZE
    assert {thread for _, thread in told} == {threading.get_ident()}


async def test_received_bytes_are_counted_once(
    identity: Identity, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[int] = []
    monkeypatch.setattr(telemetry.Metrics, "bytes_received", lambda _, count: counted.append(count))
    async with loopback(identity) as loop:
        await loop.serve("a", cut_after(source, 1_500_000))
        await download(loop, ["a"], "/f", tmp_path / "x", sha256=SHA, size_bytes=SIZE)
    assert sum(counted) == SIZE


async def test_the_server_answers_ranges_and_refuses_what_it_must(
    identity: Identity, source: Path, tmp_path: Path
) -> None:
    link = tmp_path / "link.bin"
    link.symlink_to(source)
    async with loopback(identity) as loop:
        await loop.serve("a", whole(source))
        await loop.serve("link", whole(link))
        await loop.serve("none", whole(tmp_path / "none"))
        async with loop.open("a", "GET", "/f", headers={"Range": "bytes=10-19"}) as answer:
            assert (answer.status, await answer.read()) == (206, BODY[10:20])
            assert answer.headers["Content-Range"] == f"bytes 10-19/{SIZE}"
        async with loop.open("a", "GET", "/f", headers={"Range": "bytes=-7"}) as answer:
            assert await answer.read() == BODY[-7:]
        for peer, headers, code in (
            ("a", {"If-Match": etag_of("00" * 32)}, "stale"),
            ("a", {"Range": "bytes=0-1,5-6"}, "invalid"),
            ("a", {"Range": f"bytes={SIZE}-"}, "invalid"),
            ("link", {}, "unknown"),
            ("none", {}, "unknown"),
        ):
            with pytest.raises(Refused) as caught:
                async with loop.open(peer, "GET", "/f", headers=headers):
                    pass
            assert caught.value.code == code
    assert open_files(tmp_path) == []


async def test_a_reader_that_stops_is_cut_off_and_its_file_closed(identity: Identity, tmp_path: Path) -> None:
    """H38: a silent client holds no handler forever."""
    ended = asyncio.Event()
    large = tmp_path / "large.bin"
    large.write_bytes(bytes(64 << 20))

    async def handler(request: web.Request) -> web.StreamResponse:
        try:
            return await send_file(request, large, sha256=SHA, stall_s=0.2)
        finally:
            ended.set()

    async with loopback(identity) as loop:
        await loop.serve("a", handler)
        async with loop.open("a", "GET", "/f") as answer:
            async with asyncio.timeout(5):
                await ended.wait()
            answer.close()
        assert open_files(tmp_path) == []


class Inbox:
    """Takes uploads of what the headers announce."""

    def __init__(self, target: Path, limit_bytes: int = 1 << 30) -> None:
        self.target = target
        self.limit_bytes = limit_bytes
        self.uploads = 0

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        self.uploads += 1
        size, sha256 = int(request.headers["X-Size"]), request.headers["X-Sha"]
        await receive_file(request, self.target, sha256=sha256, size_bytes=size, limit_bytes=self.limit_bytes)
        return web.Response(body=b"thanks")


async def test_an_upload_larger_than_a_message_arrives_verified(
    identity: Identity, source: Path, tmp_path: Path
) -> None:
    """U63, U64: the body is a stream, no message limit applies."""
    inbox = Inbox(tmp_path / "in.bin")
    told: list[int] = []
    async with loopback(identity) as loop:
        await loop.serve("a", inbox)
        headers = {"X-Size": str(SIZE), "X-Sha": SHA}
        assert await upload(loop, "a", "/u", source, headers=headers, on_progress=told.append) == b"thanks"
    assert inbox.target.read_bytes() == BODY
    assert told[-1] == SIZE


@pytest.mark.parametrize(
    ("size", "sha256", "limit", "code"),
    [(SIZE, "00" * 32, 1 << 30, "invalid"), (SIZE + 1, SHA, 1 << 30, "invalid"), (SIZE, SHA, SIZE - 1, "full")],
)
async def test_an_upload_that_is_not_as_announced_is_refused_and_leaves_nothing(
    identity: Identity, source: Path, tmp_path: Path, size: int, sha256: str, limit: int, code: str
) -> None:
    inbox = Inbox(tmp_path / "in.bin", limit)
    async with loopback(identity) as loop:
        await loop.serve("a", inbox)
        with pytest.raises(Refused) as caught:
            await upload(loop, "a", "/u", source, headers={"X-Size": str(size), "X-Sha": sha256})
    assert caught.value.code == code
    assert inbox.uploads == 1
    assert leftovers(tmp_path) == []


async def test_an_upload_that_breaks_is_sent_again(identity: Identity, source: Path, tmp_path: Path) -> None:
    inbox = Inbox(tmp_path / "in.bin")

    async def flaky(request: web.Request) -> web.StreamResponse:
        if inbox.uploads == 0:
            inbox.uploads += 1
            await request.content.readany()
            assert request.transport is not None
            request.transport.abort()
            raise ConnectionResetError
        return await inbox(request)

    async with loopback(identity) as loop:
        await loop.serve("a", flaky)
        assert await upload(loop, "a", "/u", source, headers={"X-Size": str(SIZE), "X-Sha": SHA}) == b"thanks"
    assert inbox.target.read_bytes() == BODY


async def test_a_body_cut_short_leaves_nothing(identity: Identity, source: Path, tmp_path: Path) -> None:
    problems: list[Refused] = []
    inbox = Inbox(tmp_path / "in.bin")

    async def handler(request: web.Request) -> web.StreamResponse:
        try:
            return await inbox(request)
        except Refused as error:
            problems.append(error)
            raise

    async def half() -> AsyncIterator[bytes]:
        yield BODY[: SIZE // 2]
        raise OSError("the disk of the sender broke")

    async with loopback(identity) as loop:
        await loop.serve("a", handler)
        headers = {"X-Size": str(SIZE), "X-Sha": SHA, "Content-Length": str(SIZE)}
        with contextlib.suppress(OSError, aiohttp.ClientError):
            async with loop.open("a", "PUT", "/u", headers=headers, data=half()):
                pass
        async with asyncio.timeout(5):
            while not problems:
                await asyncio.sleep(0.01)
    assert problems[0].code == "invalid"
    assert leftovers(tmp_path) == []


def open_files(folder: Path) -> list[str]:
    """Files below `folder` that this process holds open, reads that still run in threads aside."""
    partfile.disk_pool().submit(lambda: None).result()
    found = []
    for fd in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found.append(str(fd.readlink()))
    return [name for name in found if name.startswith(str(folder))]
