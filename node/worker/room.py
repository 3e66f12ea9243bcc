"""What a full disk does to a task: it waits, and says so once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import ParamSpec, TypeVar

from node.errors import DiskFull
from node.worker.context import TaskContext
from node.worker.transfers import Transfers

FULL_WAIT_S = 5.0

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")


async def when_there_is_room(
    context: TaskContext,
    transfers: Transfers,
    work: Callable[P, Awaitable[T]],
    *args: P.args,
    **kwargs: P.kwargs,
) -> T:
    """What `work` answers, tried again as long as the disk is full. Nothing is lost by waiting: the lease and the
    round's deadline say how long the task is waited for."""
    is_told = False
    while True:
        try:
            return await work(*args, **kwargs)
        except DiskFull as error:
            if not is_told:
                is_told = True
                log.warning("task.waits_for_room task=%s %s", context.task_id, error)
                text = f"task {context.task_id} waits for room: {error}"
                transfers.blocked(text, task=context.task_id, job=context.job_id)
        await asyncio.sleep(FULL_WAIT_S)
