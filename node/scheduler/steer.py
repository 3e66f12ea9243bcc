"""What a scheduler does at an operator's word, beside running jobs: pausing them, and letting leases go."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from node.errors import Refused
from node.scheduler import messages as m
from node.scheduler import records
from node.scheduler.records import JobRow
from node.wire import ReleaseLease

if TYPE_CHECKING:
    from node.board import Board
    from node.network.overlay import Overlay
    from node.scheduler.runner import JobRunner
    from node.store import Store

log = logging.getLogger(__name__)

CALL_S = 3.0


class Steering:
    """Carries commands out that have been checked."""

    def __init__(self, overlay: Overlay, board: Board, store: Store, runners: Mapping[str, JobRunner]) -> None:
        self._overlay = overlay
        self._board = board
        self._store = store
        self._runners = runners

    async def pause(self, by: str, row: JobRow, runner: JobRunner | None) -> None:
        """Have a job stop at its next commit. One that is paused already is; one that has ended cannot be."""
        if row.state == records.PAUSED:
            return
        if runner is None or runner.job.is_over:
            raise Refused("conflict", f"job {row.job_id} is {row.state}: there is nothing to pause")
        log.info("job.pause job=%s by=%s", row.job_id, by)
        await runner.take(m.PauseAsked(by))

    async def cancel_paused(self, by: str, row: JobRow) -> None:
        """End a job that nobody runs."""
        reason = f"cancelled by {by}"
        await self._store.write(lambda db: records.end_job(db, row.job_id, "cancelled", reason))
        again = await records.find_job(self._store, row.job_id)
        assert again is not None
        self._board.put(await records.view_of_ended(self._store, again, self._overlay.peer_id))
        self._board.happened("job.cancelled", f"{row.name}: {reason}", job=row.job_id)
        log.info("job.cancel job=%s by=%s", row.job_id, by)

    async def release(self, by: str, lease_id: str, worker: str) -> None:
        """Let a lease go: its job looks for another. One that no job holds is let go at the worker that shows it."""
        log.info("lease.release lease=%s by=%s", lease_id, by)
        holder = next((runner for runner in self._runners.values() if runner.holds(lease_id)), None)
        if holder is not None:
            await holder.take(m.ReleaseAsked(lease_id, by))
            return
        if not worker:
            raise Refused("unknown", f"no lease {lease_id[:80]!r} is held here")
        await self._overlay.call(worker, ReleaseLease(lease_id=lease_id), timeout_s=CALL_S)
        self._board.happened("lease.let_go", f"a lease that no job holds goes back: released by {by}", lease=lease_id)
