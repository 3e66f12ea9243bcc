"""Files by their SHA-256, kept for the next one who wants them, within a limit.

Several nodes or processes may share a folder: files appear whole and verified under their digest, and whoever uses one
holds a shared lock on it, which the kernel drops when the process dies. What nobody uses goes first, the longest unused
before the others.

A file whose content has been checked has a time of change that follows from its digest and from this start of the
machine. Any later write gives it another, and then it is read through again before it counts as sound.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import psutil

from node.errors import CacheTooSmall, DiskFull, PeerProtocol
from node.network.partfile import disk_pool

STALE_PART_S: Final = 3600.0
STALE_S: Final = 30 * 86_400.0
PIECE_BYTES: Final = 1 << 20
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_PART: Final = re.compile(r"\.[0-9a-f]{64}\.[0-9a-f]+\.part")
"""A file of the cache on its way; locked by who writes it."""
_OURS: Final = re.compile(r"\.[0-9a-f]{64}\.[a-z0-9.]+")
"""What goes when it is old. Whatever else lies in the folder is somebody's only copy, for all we know."""

Fetch = Callable[[Path], Awaitable[None]]
"""Writes the whole, verified file under the path that it is given, or raises."""


@dataclass(frozen=True, slots=True)
class _Entry:
    path: Path
    size_bytes: int
    used_at: float


class ContentCache:
    """A folder of files named by their digests. One loop uses it; `limit_bytes` is for all files, and so much as
    `keep_free_bytes` is left free on the disk."""

    def __init__(self, folder: Path, limit_bytes: int, keep_free_bytes: int = 0) -> None:
        self.folder = folder
        self.limit_bytes = limit_bytes
        self._keep_free = keep_free_bytes
        self._coming: dict[str, int] = {}
        self._fetching: dict[str, asyncio.Lock] = {}
        self._making_room = asyncio.Lock()

    @contextlib.asynccontextmanager
    async def pinned(self, sha256: str, size_bytes: int, fetch: Fetch) -> AsyncIterator[Path]:
        """The file with this digest; it stays while the block runs. Fetched once, however many ask for it meanwhile.

        Raises `PeerProtocol` for what is no digest, `DiskFull` or `CacheTooSmall` where there is no room,
        and what `fetch` raises.
        """
        self._path(sha256)
        lock = self._fetching.setdefault(sha256, asyncio.Lock())
        try:
            async with lock:
                while (held := await self._held(sha256, size_bytes)) is None:
                    await self._fetch(sha256, size_bytes, fetch)
        finally:
            if not lock.locked():
                self._fetching.pop(sha256, None)
        try:
            yield self._path(sha256)
        finally:
            os.close(held)

    def sweep(self) -> None:
        """Remove what somebody was fetching who has died since. Blocks."""
        if self.folder.is_dir():
            self._entries()

    def has(self, sha256: str) -> bool:
        """Whether a file is there; it may be gone the next moment."""
        return self._path(sha256).exists()

    def _path(self, sha256: str) -> Path:
        """Where a file lies. Digests come from peers: what is none must not name a path elsewhere."""
        if not _DIGEST.fullmatch(sha256):
            raise PeerProtocol(f"{sha256[:80]!r} is not a SHA-256")
        return self.folder / sha256

    @contextlib.asynccontextmanager
    async def room(self, name: str, size_bytes: int) -> AsyncIterator[None]:
        """Room for so many bytes of the file `name` while the block runs. Raises `DiskFull`."""
        async with self._making_room:
            await asyncio.to_thread(self._make_room, size_bytes)
            self._coming[name] = size_bytes
        try:
            yield
        finally:
            del self._coming[name]

    async def adopt(self, sha256: str, path: Path) -> None:
        """Take a file of the folder in, whose digest this is. Raises `DiskFull` where the limit leaves it no room."""
        size_bytes = (await asyncio.to_thread(path.stat)).st_size
        async with self._making_room:
            await asyncio.to_thread(self._make_room, size_bytes, is_on_disk=True)
            await asyncio.to_thread(path.replace, self._path(sha256))
        await asyncio.to_thread(_seal, self._path(sha256), sha256)

    async def _fetch(self, sha256: str, size_bytes: int, fetch: Fetch) -> None:
        path = self._path(sha256)
        async with self.room(sha256, size_bytes):
            await fetch(path)
        await asyncio.to_thread(_seal, path, sha256)

    async def _held(self, sha256: str, size_bytes: int) -> int | None:
        job = asyncio.wrap_future(disk_pool().submit(self._hold, sha256, size_bytes))
        try:
            return await asyncio.shield(job)
        except asyncio.CancelledError:
            job.add_done_callback(_let_go)
            raise

    def _hold(self, sha256: str, size_bytes: int) -> int | None:
        """A descriptor with a shared lock on a sound file, or None where there is none."""
        path = self._path(sha256)
        try:
            held = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            return None
        try:
            fcntl.flock(held, fcntl.LOCK_SH)
            about = os.fstat(held)
            is_present = about.st_nlink > 0 and about.st_size == size_bytes
            if is_present and (about.st_mtime_ns == _seal_of(sha256) or _digest(held) == sha256):
                os.utime(held, ns=(time.time_ns(), _seal_of(sha256)))
                return held
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
        except BaseException:
            os.close(held)
            raise
        os.close(held)
        return None

    def _make_room(self, size_bytes: int, *, is_on_disk: bool = False) -> None:
        if size_bytes > self.limit_bytes:
            raise CacheTooSmall(self.folder, size_bytes, self.limit_bytes)
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        entries = self._entries()
        used = sum(entry.size_bytes for entry in entries) + sum(self._coming.values())
        free = shutil.disk_usage(self.folder).free - self._keep_free - sum(self._coming.values())
        room = self.limit_bytes - used if is_on_disk else min(self.limit_bytes - used, free)
        for entry in sorted(entries, key=lambda entry: entry.used_at):
            if size_bytes <= room:
                return
            if _remove(entry.path):
                room += entry.size_bytes
        if size_bytes > room:
            raise DiskFull(self.folder, size_bytes, max(0, room))

    def _entries(self) -> list[_Entry]:
        found = []
        for entry in os.scandir(self.folder):
            with contextlib.suppress(FileNotFoundError):
                about = entry.stat(follow_symlinks=False)
                if _DIGEST.fullmatch(entry.name):
                    found.append(_Entry(Path(entry.path), about.st_size, about.st_atime))
                elif _PART.fullmatch(entry.name):
                    _remove(Path(entry.path))
                elif _OURS.fullmatch(entry.name) and time.time() - about.st_mtime > (
                    STALE_PART_S if entry.name.endswith(".part") else STALE_S
                ):
                    Path(entry.path).unlink(missing_ok=True)
        return found


def copy_file(source: Path, target: Path) -> None:
    """A copy that shares the blocks where the file system can; `target` must not exist. Raises `DiskFull`."""
    with source.open("rb") as read:
        size = os.fstat(read.fileno()).st_size
        room = shutil.disk_usage(target.parent).free
        if size > room:
            raise DiskFull(target, size, room)
        with target.open("xb") as write:
            if not hasattr(os, "copy_file_range"):
                shutil.copyfileobj(read, write, PIECE_BYTES)
                return
            at = 0
            while at < size:
                copied = os.copy_file_range(read.fileno(), write.fileno(), size - at, at, at)
                if not copied:
                    raise OSError(f"{source} was cut short while it was copied")
                at += copied


def _let_go(job: asyncio.Future[int | None]) -> None:
    if not job.cancelled() and job.exception() is None and (held := job.result()) is not None:
        os.close(held)


def _seal(path: Path, sha256: str) -> None:
    path.chmod(0o400)
    os.utime(path, ns=(time.time_ns(), _seal_of(sha256)))


def _seal_of(sha256: str) -> int:
    """The time of change, in ns, of a sound file: some moment between 2001 and 2017."""
    told = hashlib.sha256(f"{sha256} {_boot()}".encode()).digest()
    return 10**18 + int.from_bytes(told[:8], "big") % (5 * 10**17)


@cache
def _boot() -> str:
    """This start of the machine: what was written before a power cut may not be what was meant."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return str(int(psutil.boot_time()))


def _digest(held: int) -> str:
    digest = hashlib.sha256()
    at = 0
    while piece := os.pread(held, PIECE_BYTES, at):
        digest.update(piece)
        at += len(piece)
    return digest.hexdigest()


def _remove(path: Path) -> bool:
    """Remove a file that nobody holds; whether it is gone."""
    try:
        held = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink(missing_ok=True)
    except OSError:
        return False
    finally:
        os.close(held)
    return True
