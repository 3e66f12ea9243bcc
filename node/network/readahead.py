"""A file read in pieces on threads, one piece ahead of whoever sends it."""

from __future__ import annotations

import asyncio
import os
import stat
from concurrent.futures import Future
from pathlib import Path

from node.network.partfile import disk_pool

PIECE_BYTES = 256 << 10


class ReadAhead:
    """An open file. Open it with `ReadAhead.open`, and `close` it: a read that still runs keeps it open until then."""

    def __init__(self, fd: int, size: int) -> None:
        self._fd = fd
        self.size = size
        self._at = 0
        self._end = 0
        self._ahead: Future[bytes] | None = None

    @classmethod
    async def open(cls, path: Path) -> ReadAhead:
        """Open a regular file; its last part may not be a link. Raises `OSError`."""
        opening = asyncio.wrap_future(disk_pool().submit(_open, path))
        try:
            return cls(*await asyncio.shield(opening))
        except asyncio.CancelledError:
            opening.add_done_callback(lambda done: None if done.exception() else os.close(done.result()[0]))
            raise

    def seek(self, start: int, end: int) -> None:
        """What follows from `next` are the bytes `start` up to, not including, `end`."""
        self._at, self._end = start, end
        self._ahead = self._read()

    async def next(self) -> bytes:
        """The next piece; empty after the last. Raises `ConnectionResetError` where the file has become shorter."""
        if self._ahead is None:
            return b""
        piece = await asyncio.wrap_future(self._ahead)
        if not piece:
            raise ConnectionResetError("the file became shorter while it was sent")
        self._at += len(piece)
        self._ahead = self._read()
        return piece

    def close(self) -> None:
        """Close the file."""
        fd = self._fd
        if self._ahead is None:
            os.close(fd)
        else:
            self._ahead.add_done_callback(lambda _: os.close(fd))

    def _read(self) -> Future[bytes] | None:
        if self._at >= self._end:
            return None
        return disk_pool().submit(os.pread, self._fd, min(PIECE_BYTES, self._end - self._at), self._at)


def _open(path: Path) -> tuple[int, int]:
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        os.close(fd)
        raise OSError(0, "not a regular file")
    return fd, status.st_size
