"""Sockets that close their own connection and no other.

uvloop closes the descriptor of a connection that breaks during its handshake, and leaves its number in the socket it
was given (0.23; MagicStack/uvloop#738 mends one way to it). That socket then closes whatever has the number by now:
a peer's connection, a file.
"""

from __future__ import annotations

import os
import socket
from typing import Any


class OwnSocket(socket.socket):
    """A socket that knows its descriptor again."""

    def __init__(self, family: int, kind: int, protocol: int = 0) -> None:
        super().__init__(family, kind, protocol)
        self._own = self._identity()

    def close(self) -> None:
        """Close it, if it is not closed yet."""
        self._let_go()
        super().close()

    def __del__(self) -> None:
        self._let_go()
        super().__del__()  # type: ignore[misc]  # of C, so that what is still open is closed and told

    def _let_go(self) -> None:
        if self.fileno() >= 0 and self._identity() != getattr(self, "_own", None):
            self.detach()

    def _identity(self) -> tuple[int, int] | None:
        try:
            about = os.fstat(self.fileno())
        except OSError:
            return None
        return about.st_dev, about.st_ino


def own_socket(info: tuple[Any, ...]) -> OwnSocket:
    """For aiohttp, which names family, kind and protocol of an address first."""
    return OwnSocket(info[0], info[1], info[2])
