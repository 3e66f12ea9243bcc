"""An executor from its start to its end, with its output in a log."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

from node.worker.logfile import LogFile
from node.worker.process import ExecutorProcess

DRAIN_S = 1.0


async def run_executor(
    command: Sequence[str],
    environment: Mapping[str, str],
    work_dir: Path,
    *,
    output: LogFile,
    tasks: asyncio.TaskGroup,
    started: Callable[[int], Awaitable[None]],
    stop: asyncio.Event,
    grace_s: Callable[[], float],
) -> int:
    """Start the executor and wait until it ends, or until it is to be stopped; its exit code. Nothing of it is left."""
    process = await ExecutorProcess.start(command, environment, work_dir)
    drain = tasks.create_task(process.drain(output))
    ends = [tasks.create_task(process.wait()), tasks.create_task(stop.wait())]
    try:
        await started(process.pid)
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await process.stop(grace_s())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_S):
                await asyncio.shield(drain)
        for task in (drain, *ends):
            task.cancel()
    return await process.wait()


def exit_text(code: int) -> str:
    """How an executor ended that should not have."""
    if code < 0:
        with contextlib.suppress(ValueError):
            return f"the executor was killed by {signal.Signals(-code).name}"
    return f"the executor ended with exit code {code}"
