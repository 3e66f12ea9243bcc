"""Having a round committed: the scheduler's word, asked for until it is given."""

from __future__ import annotations

import asyncio
import logging
import random
from typing import TYPE_CHECKING

from node.board import Board
from node.errors import HyphaError, PeerError, PeerUntrusted, Refused
from node.network.backoff import Backoff
from node.wire import CommitRound
from node.worker.context import TaskContext

if TYPE_CHECKING:
    from node.network.overlay import Overlay

log = logging.getLogger(__name__)

COMMIT_S = 8.0
"""The scheduler fetches the delta before it answers; where that takes longer, it is asked again."""
AGAIN_FIRST_S = 0.05
AGAIN_MOST_S = 1.0
WAITED_FOR = ("busy", "unknown", "full")
"""It fetches still, is starting again, or has no room."""
TOLD_AFTER = 5


class EpochOver(HyphaError):
    """The scheduler goes on with another parameter server."""


async def commit(overlay: Overlay, context: TaskContext, board: Board, request: CommitRound) -> None:
    """Returns when the scheduler has committed this round. Raises `EpochOver` where it never will."""
    backoff = Backoff(random.Random(), first_s=AGAIN_FIRST_S, most_s=AGAIN_MOST_S)
    while True:
        try:
            await overlay.call(context.scheduler, request, timeout_s=COMMIT_S)
            return
        except Refused as error:
            if error.code == "stale":
                raise EpochOver(f"round {request.round} is not committed: {error.message}") from error
            if error.code not in WAITED_FOR:
                raise
            problem: Exception = error
        except PeerUntrusted:
            raise
        except (PeerError, TimeoutError) as error:
            problem = error
        log.warning("round.not_committed job=%s round=%s reason=%s", context.job_id, request.round, problem)
        wait_s = backoff.failed()
        if backoff.failures == TOLD_AFTER:
            text = f"round {request.round} waits for the scheduler: {problem or 'no answer'}"
            board.happened("round.blocked", text, level="warning", job=context.job_id, task=context.task_id)
        await asyncio.sleep(wait_s)
