"""A file that is sent: read at once where it lies in memory, by a thread where it does not."""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
from concurrent.futures import Future
from pathlib import Path

from node.network.partfile import disk_pool

AHEAD_BYTES = 4 << 20


class FileSource:
    """An open file. Open it with `FileSource.open`, and `close` it: a read that still runs keeps it open until then."""

    def __init__(self, fd: int, size: int) -> None:
        self.fd = fd
        self.size = size
        self._reading: Future[bytes] | None = None

    @classmethod
    async def open(cls, path: Path) -> FileSource:
        """Open a regular file; its last part may not be a link. Raises `OSError`."""
        opening = asyncio.wrap_future(disk_pool().submit(_open, path))
        try:
            return cls(*await asyncio.shield(opening))
        except asyncio.CancelledError:
            opening.add_done_callback(lambda done: None if done.exception() else os.close(done.result()[0]))
            raise

    def peek(self, view: memoryview, at: int) -> int:
        """Fill `view` from byte `at` on, as far as that needs no disk; how many bytes that was."""
        if hasattr(os, "RWF_NOWAIT"):
            with contextlib.suppress(OSError):
                return os.preadv(self.fd, [view], at, os.RWF_NOWAIT)
        return 0

    async def read(self, size: int, at: int) -> bytes:
        """`size` bytes from byte `at` on, wherever they lie. Raises `ConnectionResetError` where there are none."""
        self._reading = disk_pool().submit(self._read, size, at)
        piece = await asyncio.wrap_future(self._reading)
        if not piece:
            raise ConnectionResetError("the file became shorter while it was sent")
        return piece

    def close(self) -> None:
        """Close the file."""
        fd = self.fd
        if self._reading is None:
            os.close(fd)
        else:
            self._reading.add_done_callback(lambda _: os.close(fd))

    def _read(self, size: int, at: int) -> bytes:
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self.fd, at, AHEAD_BYTES, os.POSIX_FADV_WILLNEED)
        return os.pread(self.fd, size, at)


def _open(path: Path) -> tuple[int, int]:
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        os.close(fd)
        raise OSError(0, "not a regular file")
    return fd, status.st_size
