"""Metrics for an outside tool: each value POSTed as JSON to `http://<status_bridge>/status`.

It can never disturb training: values wait in a bounded queue that drops the oldest, and a sink that is slow, broken or
gone only costs values.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque

import aiohttp

from node.network.ownsocket import own_socket
from node.telemetry import metrics
from node.views import Point

log = logging.getLogger(__name__)

SINK = "status_bridge"
QUEUE_LIMIT = 1_000
POST_TIMEOUT_S = 3.0
PAUSE_FIRST_S = 0.5
PAUSE_LIMIT_S = 30.0


class StatusBridge:
    """The way to one sink; without an address it takes values and forgets them."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._queue: deque[Point] = deque(maxlen=QUEUE_LIMIT)
        self._has_values = asyncio.Event()

    def put(self, point: Point) -> None:
        """Queue a value; never blocks."""
        if self._address:
            if len(self._queue) == QUEUE_LIMIT:
                metrics().values_dropped(SINK, 1)
            self._queue.append(point)
            self._has_values.set()

    async def run(self) -> None:
        """Send values until cancelled."""
        if not self._address:
            return
        pause_s = PAUSE_FIRST_S
        connector = aiohttp.TCPConnector(socket_factory=own_socket)
        timeout = aiohttp.ClientTimeout(total=POST_TIMEOUT_S)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
            while True:
                await self._has_values.wait()
                if not self._queue:
                    self._has_values.clear()
                    continue
                try:
                    await self._post(session, self._queue.popleft())
                    metrics().values_exported(SINK, 1)
                    pause_s = PAUSE_FIRST_S
                except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
                    metrics().values_dropped(SINK, 1)
                    log.warning(
                        "status_bridge.failed address=%s reason=%s", self._address, error or type(error).__name__
                    )
                    await asyncio.sleep(pause_s)
                    pause_s = min(PAUSE_LIMIT_S, pause_s * 2)

    async def _post(self, session: aiohttp.ClientSession, point: Point) -> None:
        body = {
            "worker_id": point.worker or point.job_id,
            "round": point.round,
            "metric_name": point.name,
            "value": point.value,
        }
        async with session.post(f"http://{self._address}/status", json=body) as answer:
            answer.raise_for_status()
