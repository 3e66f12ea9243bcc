"""An outside tool for metrics can be slow, broken or gone: it costs values, and nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from node.scheduler import status_bridge
from node.scheduler.status_bridge import QUEUE_LIMIT, StatusBridge
from node.views import Point

pytestmark = pytest.mark.asyncio


def point(number: int) -> Point:
    return Point(job_id="j", name="loss", worker="", round=number, t_s=0.0, value=1.0)


async def stop(task: asyncio.Task[None]) -> None:
    task.cancel()
    async with asyncio.timeout(1):
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def test_a_sink_that_never_answers_blocks_nobody_and_fills_no_memory() -> None:
    """H20."""
    asked = asyncio.Event()

    async def hang(request: web.Request) -> web.Response:
        asked.set()
        await asyncio.sleep(60)
        return web.Response()

    application = web.Application()
    application.router.add_post("/status", hang)
    async with TestServer(application) as sink:
        bridge = StatusBridge(f"{sink.host}:{sink.port}")
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(bridge.run())
            bridge.put(point(0))
            async with asyncio.timeout(5):
                await asked.wait()
            began = time.monotonic()
            for number in range(5 * QUEUE_LIMIT):
                bridge.put(point(number))
            assert time.monotonic() - began < 1
            assert [bridge._queue[0].round, len(bridge._queue)] == [4 * QUEUE_LIMIT, QUEUE_LIMIT], "the oldest are lost"
            await stop(running)


async def test_a_sink_that_fails_is_asked_with_growing_pauses_and_not_in_a_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """H21: a closed stream must not become a busy loop."""
    monkeypatch.setattr(status_bridge, "PAUSE_FIRST_S", 0.02)
    times: list[float] = []

    async def fail(request: web.Request) -> web.Response:
        times.append(time.monotonic())
        return web.Response(status=500)

    application = web.Application()
    application.router.add_post("/status", fail)
    async with TestServer(application) as sink:
        bridge = StatusBridge(f"{sink.host}:{sink.port}")
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(bridge.run())
            for number in range(100):
                bridge.put(point(number))
            async with asyncio.timeout(10):
                while len(times) < 5:
                    await asyncio.sleep(0.01)
            await stop(running)
    pauses = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert all(pause >= 0.02 * 2**number for number, pause in enumerate(pauses))


async def test_without_values_or_an_address_it_does_nothing() -> None:
    """H21."""
    async with asyncio.timeout(1):
        await StatusBridge("").run()
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(StatusBridge("127.0.0.1:1").run())
        before = time.process_time()
        await asyncio.sleep(0.15)
        assert not running.done()
        assert time.process_time() - before < 0.1
        await stop(running)
