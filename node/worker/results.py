"""Results of an inference task on their way to its scheduler: one behind the executor's back, in order."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from node.errors import PeerError, PeerProtocol, Refused
from node.network import bulk
from node.wire import ResultHeader, SliceGrant
from node.worker.context import TaskContext
from node.worker.digest import sha256_of
from node.worker.references import BridgeError
from node.worker.retrying import new_backoff
from node.worker.transfers import Transfers

if TYPE_CHECKING:
    from node.network.overlay import Overlay

log = logging.getLogger(__name__)

UPLOAD_STALL_S = 120.0
BROKEN_ALLOWED = 8
"""So often in a row a scheduler may answer with a fault of its own before the task is given up."""
PASSES = ("busy", "full", "unknown")
"""A scheduler that has no room, or has just started and does not know us yet. The lease bounds the wait."""


class Results:
    """The uploads of one task. `failed` is told once that one cannot be delivered."""

    def __init__(
        self, context: TaskContext, overlay: Overlay, transfers: Transfers, failed: Callable[[str], None]
    ) -> None:
        self._context = context
        self._overlay = overlay
        self._transfers = transfers
        self._failed = failed
        self._under_way: asyncio.Task[None] | None = None

    async def put(self, grant: SliceGrant, source: Path, tasks: asyncio.TaskGroup) -> None:
        """Take a result over, once the one before is delivered. `source` is removed when it is."""
        await self.flush()
        size, sha256 = await asyncio.to_thread(sha256_of, source)
        header = ResultHeader(
            task_id=self._context.task_id, index=grant.index, rows=grant.rows, sha256=sha256, size_bytes=size
        )
        self._under_way = tasks.create_task(self._deliver(header, source), name=f"result:{self._context.task_id}")

    async def flush(self) -> None:
        """Wait until what was taken over is delivered, or the task has failed."""
        if self._under_way is not None:
            await asyncio.shield(self._under_way)

    def close(self) -> None:
        """Deliver nothing any more."""
        if self._under_way is not None:
            self._under_way.cancel()

    async def _deliver(self, header: ResultHeader, source: Path) -> None:
        try:
            await self._try(header, source)
        except (BridgeError, PeerError, OSError) as error:
            self._failed(f"the result of slice {header.index} was not taken: {error}")
        finally:
            await asyncio.to_thread(source.unlink, missing_ok=True)

    async def _try(self, header: ResultHeader, source: Path) -> None:
        backoff = new_backoff()
        broken = 0
        reason: PeerError
        while True:
            try:
                await self._upload(header, source)
                return
            except Refused as error:
                if error.code == "stale":
                    log.info("result.late task=%s slice=%s reason=%s", header.task_id, header.index, error)
                    return
                if error.code not in PASSES:
                    raise
                reason = error
            except PeerProtocol as error:
                broken += 1
                if broken > BROKEN_ALLOWED:
                    raise
                reason = error
            except PeerError as error:
                broken = 0
                reason = error
            log.warning("result.not_sent task=%s slice=%s reason=%s", header.task_id, header.index, reason)
            await asyncio.sleep(backoff.failed())

    async def _upload(self, header: ResultHeader, source: Path) -> None:
        job_id, scheduler = self._context.job_id, self._context.scheduler
        name = f"slice {header.index}"
        with self._transfers.show(
            "result", name, job_id, self._context.peer_id, scheduler, header.size_bytes
        ) as transfer:
            await bulk.upload(
                self._overlay,
                scheduler,
                f"/bulk/jobs/{job_id}/results/{header.index}",
                source,
                headers={"Hypha-Result": msgspec.json.encode(header).decode()},
                on_progress=transfer.progress,
                stall_s=UPLOAD_STALL_S,
            )
