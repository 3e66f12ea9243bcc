"""How many transfers run at once: a limit for all, a smaller one for each peer, and a queue with an end."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator

from node.errors import Refused


class Admission:
    """Places for transfers. One peer that is slow, or many of its requests, cannot take the places of all."""

    def __init__(self, *, places: int, per_peer: int, queue: int, wait_s: float) -> None:
        self._free = asyncio.Semaphore(places)
        self._per_peer = per_peer
        self._queue = queue
        self._wait_s = wait_s
        self._waiting = 0
        self._held: Counter[str] = Counter()

    @contextlib.asynccontextmanager
    async def place(self, peer_id: str) -> AsyncIterator[None]:
        """Hold a place for the length of the block. Raises `Refused` with code `busy` where there is none in time."""
        if self._held[peer_id] >= self._per_peer:
            raise Refused("busy", f"{self._per_peer} transfers to you are running or waiting here")
        if self._waiting >= self._queue:
            raise Refused("busy", f"{self._queue} requests are waiting here")
        self._held[peer_id] += 1
        try:
            self._waiting += 1
            try:
                async with asyncio.timeout(self._wait_s):
                    await self._free.acquire()
            except TimeoutError as error:
                raise Refused("busy", f"no transfer ended within {self._wait_s:g} s") from error
            finally:
                self._waiting -= 1
            try:
                yield
            finally:
                self._free.release()
        finally:
            self._held[peer_id] -= 1
            if not self._held[peer_id]:
                del self._held[peer_id]
