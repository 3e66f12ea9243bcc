"""A file on its way to its final name: written and hashed in threads, shown only when whole and verified."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import hashlib
import os
import secrets
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from node.errors import DiskFull

T = TypeVar("T")

DISK_THREADS = 8
IOV_MAX = 512
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


@cache
def disk_pool() -> ThreadPoolExecutor:
    """The threads of bulk transfers, apart from `asyncio.to_thread`'s, so that neither waits for the other."""
    return ThreadPoolExecutor(DISK_THREADS, thread_name_prefix="bulk")


class PartFile:
    """A unique temporary file beside `target`, locked. Leave by `commit` or `discard`; both are safe after a
    cancellation."""

    def __init__(self, target: Path, size_bytes: int) -> None:
        self.target = target
        self.size_bytes = size_bytes
        self.written = 0
        self._path = target.with_name(f".{target.name[:200]}.{secrets.token_hex(6)}.part")
        self._hash = hashlib.sha256()
        self._fd = -1
        self._jobs: list[Future[Any]] = []

    @classmethod
    async def create(cls, target: Path, size_bytes: int) -> PartFile:
        """Make the temporary file and claim its room; raises `DiskFull` where there is not enough."""
        part = cls(target, size_bytes)
        try:
            await part._run(part._open)
        except BaseException:
            await part.discard()
            raise
        return part

    async def append(self, pieces: Sequence[bytes | memoryview]) -> None:
        """Write and hash `pieces`; returns once the pieces before these are through, so that both overlap receiving."""
        size = sum(map(len, pieces))
        await self._settle()
        offset, self.written = self.written, self.written + size
        self._jobs = [disk_pool().submit(self._keep, pieces, offset)]

    def put(self, piece: memoryview) -> None:
        """`append` for a thread, which does it all itself: small pieces are still in its processor's cache then."""
        try:
            self._keep([piece], self.written)
        except OSError as error:
            raise self._explained(error) from error
        self.written += len(piece)

    async def restart(self) -> None:
        """Forget what was written; begin again at byte 0."""
        await self._settle()
        self.written = 0
        self._hash = hashlib.sha256()

    async def digest(self) -> str:
        """The SHA-256 of all that was appended."""
        await self._settle()
        return self._hash.hexdigest()

    async def commit(self, *, durable: bool = True) -> None:
        """Show the file under its final name, in place of any file there.

        `durable`: it is on the disk first. Files that are fetched again after a power cut can do without the wait.
        """
        await self._settle()
        await self._run(lambda: self._publish(durable))

    async def discard(self) -> None:
        """Remove the temporary file; a committed file stays. Happens even where the caller is cancelled meanwhile."""
        jobs = [job for job in self._jobs if not job.done()]
        self._jobs = []

        def remove() -> None:
            for job in jobs:
                if not job.cancelled():
                    job.exception()
            self._close()
            self._path.unlink(missing_ok=True)

        await asyncio.shield(asyncio.wrap_future(disk_pool().submit(remove)))

    async def _settle(self) -> None:
        jobs, self._jobs = self._jobs, []
        try:
            for job in jobs:
                await asyncio.shield(asyncio.wrap_future(job))
        except OSError as error:
            raise self._explained(error) from error
        finally:
            self._jobs = [job for job in jobs if not job.done()]

    async def _run(self, function: Callable[[], T]) -> T:
        job = disk_pool().submit(function)
        self._jobs.append(job)
        try:
            return await asyncio.shield(asyncio.wrap_future(job))
        except OSError as error:
            raise self._explained(error) from error

    def _open(self) -> None:
        room = shutil.disk_usage(self.target.parent).free
        if room < self.size_bytes:
            raise DiskFull(self.target, self.size_bytes, room)
        while self._fd < 0:
            self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            # The kernel drops the lock when this process dies: whoever can take it may remove the file.
            fcntl.flock(self._fd, fcntl.LOCK_EX)
            if not os.fstat(self._fd).st_nlink:
                self._close()
        if self.size_bytes and hasattr(os, "posix_fallocate"):
            try:
                os.posix_fallocate(self._fd, 0, self.size_bytes)
            except OSError as error:
                if error.errno in _NO_ROOM:
                    raise

    def _keep(self, pieces: Sequence[bytes | memoryview], offset: int) -> None:
        self._write(pieces, offset)
        self._update(pieces)

    def _write(self, pieces: Sequence[bytes | memoryview], offset: int) -> None:
        for first in range(0, len(pieces), IOV_MAX):
            batch: list[bytes | memoryview] = list(pieces[first : first + IOV_MAX])
            while batch:
                done = os.pwritev(self._fd, batch, offset)
                offset += done
                while batch and done >= len(batch[0]):
                    done -= len(batch.pop(0))
                if done:
                    batch[0] = memoryview(batch[0])[done:]

    def _update(self, pieces: Sequence[bytes | memoryview]) -> None:
        for piece in pieces:
            self._hash.update(piece)

    def _publish(self, durable: bool) -> None:
        os.ftruncate(self._fd, self.written)
        if durable:
            os.fsync(self._fd)
        self._path.replace(self.target)
        self._close()
        if durable:
            sync_directory(self.target.parent)

    def _close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def _explained(self, error: OSError) -> OSError | DiskFull:
        if error.errno in _NO_ROOM:
            room = shutil.disk_usage(self.target.parent).free
            return DiskFull(self.target, self.size_bytes, room)
        return error


def sync_directory(path: Path) -> None:
    """Make a rename in `path` survive a power cut."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
