"""A response that goes on: frames to somebody who watches, until he leaves, lags or this node stops."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from aiohttp import web

from node.telemetry import metrics

LOOK_EVERY_S = 0.5
"""aiohttp tells a handler nothing when its client leaves; so often we look."""
WRITE_WITHIN_S = 10.0
PACE_S = 0.25


class Outlet:
    """The sending end of such a response."""

    def __init__(self, request: web.Request, response: web.StreamResponse) -> None:
        self._request = request
        self._response = response
        self._wake = asyncio.Event()
        self._is_closed = False

    @property
    def is_open(self) -> bool:
        """Whether anybody is still there to read."""
        transport = self._request.transport
        return not self._is_closed and transport is not None and not transport.is_closing()

    def notify(self) -> None:
        """There is something to send."""
        self._wake.set()

    def close(self) -> None:
        """End the response soon; the node stops."""
        self._is_closed = True
        self._wake.set()

    async def send(self, data: bytes) -> None:
        """Write, and cut the client off where it does not take it within 10 s. A client that left is no error."""
        try:
            async with asyncio.timeout(WRITE_WITHIN_S):
                await self._response.write(data)
        except TimeoutError:
            self._is_closed = True
            if self._request.transport is not None:
                self._request.transport.abort()
        except ConnectionError:
            self._is_closed = True

    async def wait(self, at_most_s: float) -> None:
        """Wait for news, at least a pace and at most this long; returns early when the outlet is no longer open."""
        await asyncio.sleep(PACE_S)
        loop = asyncio.get_running_loop()
        until = loop.time() + at_most_s - PACE_S
        while self.is_open and not self._wake.is_set() and loop.time() < until:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(LOOK_EVERY_S, max(0.0, until - loop.time()))):
                    await self._wake.wait()
        self._wake.clear()


class Outlets:
    """All outlets of a kind: bounded in number, closed together."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._open: set[Outlet] = set()

    @property
    def is_full(self) -> bool:
        """Whether one more would be too many."""
        return len(self._open) >= self._limit

    async def serve(
        self, request: web.Request, content_type: str, send: Callable[[Outlet], Awaitable[None]]
    ) -> web.StreamResponse:
        """Answer `request` with what `send` writes; it returns when the outlet is no longer open."""
        response = web.StreamResponse(headers={"Content-Type": content_type, "Cache-Control": "no-store"})
        outlet = Outlet(request, response)
        self._open.add(outlet)
        try:
            with metrics().stream():
                await response.prepare(request)
                await send(outlet)
        finally:
            self._open.discard(outlet)
        response.force_close()
        return response

    def close(self) -> None:
        """End them all."""
        for outlet in self._open:
            outlet.close()
