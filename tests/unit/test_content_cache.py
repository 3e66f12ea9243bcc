"""The cache of files by digest: fetched once, never taken from who uses it, never over its limit."""

from __future__ import annotations

import asyncio
import hashlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from node.errors import CacheTooSmall, DiskFull, PeerProtocol
from node.network.cache import ContentCache, copy_file
from node.network.partfile import PartFile

pytestmark = pytest.mark.asyncio


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


class Origin:
    """Writes contents and counts how often."""

    def __init__(self) -> None:
        self.fetched: list[bytes] = []
        self.may_go_on = asyncio.Event()
        self.may_go_on.set()

    def of(self, content: bytes):  # type: ignore[no-untyped-def]
        async def fetch(path: Path) -> None:
            self.fetched.append(content)
            await self.may_go_on.wait()
            path.write_bytes(content)

        return fetch


async def get(cache: ContentCache, origin: Origin, content: bytes) -> bytes:
    async with cache.pinned(digest(content), len(content), origin.of(content)) as path:
        return path.read_bytes()


async def test_a_file_that_many_want_at_once_is_fetched_once_and_kept(tmp_path: Path) -> None:
    cache, origin = ContentCache(tmp_path / "cache", 100), Origin()
    assert await asyncio.gather(*(get(cache, origin, b"abc") for _ in range(5))) == [b"abc"] * 5
    assert await get(ContentCache(tmp_path / "cache", 100), origin, b"abc") == b"abc", "after a restart, too"
    assert origin.fetched == [b"abc"]
    assert cache.has(digest(b"abc")) and not cache.has(digest(b"other"))


async def test_the_longest_unused_goes_first_and_what_is_in_use_stays(tmp_path: Path) -> None:
    cache, origin = ContentCache(tmp_path, 30), Origin()
    for number, content in enumerate((b"a" * 10, b"b" * 10, b"c" * 10)):
        await get(cache, origin, content)
        os.utime(tmp_path / digest(content), (1000 + number, 1000 + number))
    async with cache.pinned(digest(b"a" * 10), 10, origin.of(b"a" * 10)):
        os.utime(tmp_path / digest(b"a" * 10), (1, 1))
        assert len(await get(cache, origin, b"d" * 10)) == 10
        assert cache.has(digest(b"a" * 10)) and not cache.has(digest(b"b" * 10)) and cache.has(digest(b"c" * 10))
        with pytest.raises(DiskFull, match=r"it needs 25 bytes, 20 are free"):
            await get(cache, origin, b"e" * 25)
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 30
    assert len(await get(cache, origin, b"e" * 25)) == 25
    with pytest.raises(CacheTooSmall, match=r"may hold 30 bytes, one file needs 31; .*\[cache\] size"):
        await get(cache, origin, b"f" * 31)


async def test_what_another_process_uses_is_not_taken_from_it(tmp_path: Path) -> None:
    cache, origin = ContentCache(tmp_path, 10), Origin()
    await get(cache, origin, b"x" * 10)
    path = str(tmp_path / digest(b"x" * 10))
    code = f"import fcntl, sys; file = open({path!r}); fcntl.flock(file, 1); print(1, flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None and await asyncio.to_thread(other.stdout.readline) == b"1\n"
        with pytest.raises(DiskFull):
            await get(cache, origin, b"y" * 10)
        other.kill()
        other.wait()
    assert len(await get(cache, origin, b"y" * 10)) == 10


async def test_the_room_that_the_disk_is_to_keep_is_kept(tmp_path: Path) -> None:
    cache = ContentCache(tmp_path, 1 << 60, keep_free_bytes=1 << 60)
    with pytest.raises(DiskFull, match="needs 3 bytes, 0 are free"):
        await get(cache, Origin(), b"abc")


async def test_a_file_that_has_changed_is_thrown_away_and_fetched_again(tmp_path: Path) -> None:
    """U46, U47: neither rotten nor empty files are taken for the content."""
    cache, origin = ContentCache(tmp_path, 100), Origin()
    for damage in (b"xyz", b"", b"abcd"):
        await get(cache, origin, b"abc")
        path = tmp_path / digest(b"abc")
        path.chmod(0o600)
        path.write_bytes(damage)
        os.utime(path, ns=(time.time_ns(), time.time_ns() + 1))
        assert await get(cache, origin, b"abc") == b"abc"
    assert len(origin.fetched) == 4


async def test_a_fetch_that_fails_leaves_nothing_and_the_next_one_tries_again(tmp_path: Path) -> None:
    cache, origin = ContentCache(tmp_path, 10), Origin()

    async def fail(path: Path) -> None:
        raise ConnectionError("away")

    with pytest.raises(ConnectionError):
        async with cache.pinned(digest(b"x" * 10), 10, fail):
            pass
    stale = tmp_path / f".{digest(b'y')}.part"
    stale.write_bytes(b"left by a process that was killed")
    os.utime(stale, (1, 1))
    assert await get(cache, origin, b"x" * 10) == b"x" * 10
    assert [path.name for path in tmp_path.iterdir()] == [digest(b"x" * 10)]


async def test_what_a_process_was_fetching_when_it_was_killed_is_removed_and_what_others_fetch_is_not(
    tmp_path: Path,
) -> None:
    """Found by seed 1006 of the chaos tests."""
    code = (
        "import asyncio, sys\nfrom pathlib import Path\nfrom node.network.partfile import PartFile\n"
        f"asyncio.run(PartFile.create(Path({str(tmp_path / digest(b'x'))!r}), 1))\n"
        "print(1, flush=True)\nsys.stdin.read()"
    )
    cache = ContentCache(tmp_path, 10)
    part = await PartFile.create(tmp_path / digest(b"y"), 1)
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None and await asyncio.to_thread(other.stdout.readline) == b"1\n"
        cache.sweep()
        assert len(list(tmp_path.iterdir())) == 2
        other.kill()
        other.wait()
    cache.sweep()
    await part.append([b"y"])
    await part.commit()
    assert [path.name for path in tmp_path.iterdir()] == [digest(b"y")]


async def test_what_is_on_its_way_counts_against_the_limit(tmp_path: Path) -> None:
    cache, origin = ContentCache(tmp_path, 15), Origin()
    origin.may_go_on.clear()
    first = asyncio.create_task(get(cache, origin, b"a" * 10))
    while not origin.fetched:
        await asyncio.sleep(0)
        await asyncio.sleep(0.001)
    with pytest.raises(DiskFull, match="5 are free"):
        await get(cache, origin, b"b" * 10)
    origin.may_go_on.set()
    assert len(await first) == 10


@pytest.mark.parametrize("digest_of_a_peer", ["../precious", "", "x" * 64, "A" * 64, "a" * 63 + "/"])
async def test_what_is_no_digest_names_no_file(tmp_path: Path, digest_of_a_peer: str) -> None:
    """A manifest or a grant comes from a peer, and may hold anything."""
    precious = tmp_path / "precious"
    precious.write_bytes(b"not of the cache")
    cache, origin = ContentCache(tmp_path / "cache", 100), Origin()
    (tmp_path / "cache").mkdir()
    with pytest.raises(PeerProtocol, match="is not a SHA-256"):
        async with cache.pinned(digest_of_a_peer, 3, origin.of(b"abc")):
            pass
    with pytest.raises(PeerProtocol):
        cache.has(digest_of_a_peer)
    assert precious.read_bytes() == b"not of the cache" and origin.fetched == []


async def test_a_copy_has_the_same_bytes_and_its_own_life(tmp_path: Path) -> None:
    source = tmp_path / "a"
    source.write_bytes(os.urandom(3 << 20))
    await asyncio.to_thread(copy_file, source, tmp_path / "b")
    with pytest.raises(FileExistsError):
        copy_file(source, tmp_path / "b")
    content = source.read_bytes()
    source.unlink()
    assert (tmp_path / "b").read_bytes() == content
