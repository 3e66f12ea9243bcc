"""When a socket that does not block can be read or written."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable

ENDED = "the connection is closed"


class Side:
    """Reading or writing of a socket: who is called, or waits, when it can be done."""

    def __init__(
        self, add: Callable[[int, Callable[[], None]], object], remove: Callable[[int], object], fd: int
    ) -> None:
        self._add, self._remove, self._fd = add, remove, fd
        self._callback: Callable[[], None] | None = None
        self._waiter: asyncio.Future[None] | None = None

    def watch(self, callback: Callable[[], None]) -> None:
        """Call this one from now on, each time."""
        if self._callback != callback:
            self._callback = callback
            self._add(self._fd, callback)

    def unwatch(self) -> None:
        """Call nobody."""
        if self._callback is not None:
            self._callback = None
            self._remove(self._fd)

    async def ready(self) -> None:
        """Wait for it. Nobody is called meanwhile, nor after it."""
        self._waiter = asyncio.get_running_loop().create_future()
        self.watch(self._wake)
        try:
            await self._waiter
        finally:
            if self._callback == self._wake:
                self.unwatch()

    def fail(self) -> None:
        """Whoever waits gets ConnectionResetError."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(ConnectionResetError(ENDED))

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


async def shake_hands(connection: ssl.SSLSocket) -> None:
    """Do the handshake of a socket that does not block. Raises OSError."""
    loop = asyncio.get_running_loop()
    fd = connection.fileno()
    while True:
        try:
            connection.do_handshake()
            return
        except ssl.SSLWantReadError:
            await Side(loop.add_reader, loop.remove_reader, fd).ready()
        except ssl.SSLWantWriteError:
            await Side(loop.add_writer, loop.remove_writer, fd).ready()
