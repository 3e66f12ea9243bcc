"""The operator API of a node without a node: the made-up cluster of `feed.py`, served on a Unix socket by a thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from aiohttp import web

from node.views import AnyView, Event, Snapshot
from tests.terminal.feed import cluster_items, events, fake_client, points


@dataclass
class FakeNode:
    """What it serves, and what it was asked."""

    socket: Path
    items: list[AnyView] = field(default_factory=lambda: cluster_items(4))
    events: list[Event] = field(default_factory=lambda: events(40))
    changes: list[str] = field(default_factory=list)

    def app(self) -> web.Application:
        """The routes that a terminal asks first; every change is noted and refused."""
        app = web.Application()
        app.router.add_get("/events", self._stream)
        app.router.add_get("/api/v1/cluster", self._cluster)
        app.router.add_get("/api/v1/jobs/{id}/metrics", self._metrics)
        app.router.add_route("*", "/{rest:.*}", self._other)
        return app

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        frame = msgspec.json.encode(Snapshot(seq=1, items=self.items, events=self.events))
        await response.write(b"data: " + frame + b"\n\n")
        with suppress(ConnectionError):
            while True:
                await asyncio.sleep(0.5)
                await response.write(b": ping\n\n")
        return response

    async def _cluster(self, _request: web.Request) -> web.Response:
        return web.Response(body=msgspec.json.encode(await fake_client(4).cluster()))

    async def _metrics(self, request: web.Request) -> web.Response:
        found = [point for point in points() if point.job_id == request.match_info["id"]]
        return web.Response(body=msgspec.json.encode(found))

    async def _other(self, request: web.Request) -> web.Response:
        if request.method != "GET":
            self.changes.append(f"{request.method} {request.path}")
        return web.Response(status=404, body=b'{"error": "unknown", "message": "not here"}')


@contextmanager
def serving(node: FakeNode) -> Iterator[FakeNode]:
    """Serve it until the block ends; its connections are cut then."""
    loop = asyncio.new_event_loop()
    runner = web.AppRunner(node.app(), shutdown_timeout=0.1)

    async def start() -> None:
        await runner.setup()
        await web.UnixSite(runner, str(node.socket)).start()

    async def stop() -> None:
        await runner.cleanup()
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)

    thread = threading.Thread(target=loop.run_forever, name="fake-node")
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(start(), loop).result(5)
        yield node
    finally:
        asyncio.run_coroutine_threadsafe(stop(), loop).result(5)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(5)
        loop.close()
