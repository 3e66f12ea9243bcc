"""A node for the benchmarks of the terminal: its operator API on a Unix socket, with a generated stream.

    python -m benchmarks.terminal_node SOCKET WORKERS EVENTS_PER_S

WORKERS workers with a lease each. Every 50 ms a frame says what became of some of them: half of the changes renew
leases, the others measure peers anew or are events. 0 events/s: a snapshot, then only pings.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress

import msgspec
from aiohttp import web

from node.views import AnyView, Delta, Event, Snapshot
from tests.terminal.feed import cluster_items, events, fake_client, lease, peers, points

FRAME_S = 0.05
PING_S = 15.0


class Node:
    """What it serves. `workers`: each has a lease."""

    def __init__(self, workers: int, events_per_s: float) -> None:
        self._workers = workers
        self._per_frame = events_per_s * FRAME_S
        self._peers = peers(workers)
        snapshot = Snapshot(seq=1, items=cluster_items(workers), events=events(200))
        self._snapshot = msgspec.json.encode(snapshot)

    def app(self) -> web.Application:
        """The routes that a terminal asks."""
        app = web.Application()
        app.router.add_get("/events", self._stream)
        app.router.add_get("/api/v1/cluster", self._cluster)
        app.router.add_get("/api/v1/jobs/{id}/metrics", self._metrics)
        return app

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b"data: " + self._snapshot + b"\n\n")
        seq, due, number = 1, 0.0, 0
        with suppress(ConnectionError):
            while True:
                if not self._per_frame:
                    await asyncio.sleep(PING_S)
                    await response.write(b": ping\n\n")
                    continue
                await asyncio.sleep(FRAME_S)
                seq, due = seq + 1, due + self._per_frame
                items: list[AnyView] = []
                told: list[Event] = []
                while due >= 1:
                    due, number = due - 1, number + 1
                    at = number * 7_919 % self._workers
                    if number % 4 < 2:
                        renewed = lease(at, remaining_s=10.0)
                        items.append(msgspec.structs.replace(renewed, renewals=20 + number))
                    elif number % 4 == 2:
                        items.append(msgspec.structs.replace(self._peers[3 + at], rtt_ms=float(number % 300)))
                    else:
                        told.append(Event(node=self._peers[3 + at].id, seq=number, name="slice.used", text=str(number)))
                await response.write(
                    b"data: " + msgspec.json.encode(Delta(seq=seq, items=items, events=told)) + b"\n\n"
                )
        return response

    async def _cluster(self, _request: web.Request) -> web.Response:
        return web.Response(body=msgspec.json.encode(await fake_client(4).cluster()))

    async def _metrics(self, request: web.Request) -> web.Response:
        found = [point for point in points() if point.job_id == request.match_info["id"]]
        return web.Response(body=msgspec.json.encode(found))


async def serve(socket: str, workers: int, events_per_s: float) -> None:
    """Serve until it is ended."""
    runner = web.AppRunner(Node(workers, events_per_s).app())
    await runner.setup()
    await web.UnixSite(runner, socket).start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))
