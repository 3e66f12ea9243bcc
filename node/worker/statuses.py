"""Telling a scheduler how its task is doing."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from node.errors import PeerError, Refused
from node.wire import TaskStatus
from node.worker.context import TaskContext
from node.worker.retrying import new_backoff
from node.worker.training import Outcome

if TYPE_CHECKING:
    from node.network.overlay import Overlay

log = logging.getLogger(__name__)

REPORT_S = 3.0


class Statuses:
    """What the scheduler is to be told of one task, in order, until it has heard it."""

    def __init__(self, overlay: Overlay, context: TaskContext, lease_id: str) -> None:
        self._overlay = overlay
        self._context = context
        self._lease_id = lease_id
        self._waiting: list[TaskStatus] = []
        self._changed = asyncio.Event()
        self._empty = asyncio.Event()

    def add(self, state: str, **fields: Any) -> None:
        """Tell of a state."""
        self._waiting.append(self._status(state, **fields))
        self._empty.clear()
        self._changed.set()

    def add_outcome(self, outcome: Outcome) -> None:
        """Tell how the task ended."""
        self.add(outcome.state, detail=outcome.detail, exit_code=outcome.exit_code, tail=outcome.tail)

    async def flush(self) -> None:
        """Wait until everything is told."""
        await self._empty.wait()

    async def last_word(self, outcome: Outcome) -> None:
        """Try once to tell how the task ended; the worker is stopping. Raises `PeerError`."""
        status = self._status(outcome.state, detail=outcome.detail, exit_code=outcome.exit_code, tail=outcome.tail)
        await self._overlay.call(self._context.scheduler, status, timeout_s=0.5)

    async def run(self) -> None:
        """Tell, until cancelled."""
        backoff = new_backoff()
        while True:
            self._changed.clear()
            if not self._waiting:
                self._empty.set()
                await self._changed.wait()
                continue
            try:
                await self._overlay.call(self._context.scheduler, self._waiting[0], timeout_s=REPORT_S)
            except (PeerError, TimeoutError) as error:
                is_final = isinstance(error, Refused) and error.code != "busy"
                is_over = isinstance(error, Refused) and error.code == "stale"
                level = logging.INFO if is_over else logging.WARNING
                log.log(level, "task.not_told task=%s reason=%s", self._context.task_id, error)
                if not is_final:
                    await asyncio.sleep(backoff.failed())
                    continue
            backoff.succeeded()
            self._waiting.pop(0)

    def _status(self, state: str, **fields: Any) -> TaskStatus:
        return TaskStatus(task_id=self._context.task_id, lease_id=self._lease_id, state=state, **fields)
