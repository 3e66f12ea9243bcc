"""The calls a scheduler makes to workers for one job, each with its deadline and its way of trying again."""

from __future__ import annotations

import asyncio
import errno
import logging
import random
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec.structs import replace

from node.errors import HyphaError, PeerError, PeerUntrusted, Refused
from node.scheduler.allocation import OfferHeld
from node.scheduler.leases import LEASE_S, RENEW_TIMEOUT_S
from node.scheduler.messages import SetGroup, StartTask
from node.wire import LeaseRenewed, MembersSet, ReleaseLease, RenewLease, SetMembers

if TYPE_CHECKING:
    from node.network.overlay import Overlay

log = logging.getLogger(__name__)

ACCEPT_ATTEMPTS = 3
RELEASE_ATTEMPTS = 3
CALL_S = 5.0
PAUSE_S = (0.2, 0.5)


class WorkerCalls:
    """Calls to the workers of one job."""

    def __init__(self, overlay: Overlay, job_id: str, rng: random.Random) -> None:
        self._overlay = overlay
        self._job_id = job_id
        self._rng = rng

    async def accept(self, offer: OfferHeld) -> tuple[float, float] | None:
        """Renew for the first time; answers with when that was sent and how long it holds, or None."""
        for _ in range(ACCEPT_ATTEMPTS):
            sent_at = time.monotonic()
            try:
                answer = await self.renew(offer.peer_id, offer.lease_id, LEASE_S)
            except (Refused, PeerUntrusted) as error:
                log.info("offer.not_accepted lease=%s peer=%s reason=%s", offer.lease_id, offer.peer_id, error)
                return None
            except PeerError:
                await self._pause()
                continue
            return sent_at, answer.duration_s
        return None

    async def renew(self, peer_id: str, lease_id: str, duration_s: float) -> LeaseRenewed:
        """One renewal, tried once."""
        request = RenewLease(lease_id=lease_id, job_id=self._job_id, duration_s=duration_s)
        return await self._overlay.call(peer_id, request, timeout_s=RENEW_TIMEOUT_S)

    async def release(self, peer_id: str, lease_id: str) -> None:
        """Let a lease go. Where that does not get through, silence does it."""
        for _ in range(RELEASE_ATTEMPTS):
            try:
                await self._overlay.call(peer_id, ReleaseLease(lease_id=lease_id), timeout_s=1.0)
            except (Refused, PeerUntrusted):
                return
            except PeerError:
                await self._pause()
                continue
            return

    async def dispatch(self, effect: StartTask, token: str, is_wanted: Callable[[], bool]) -> Refused | None:
        """Start a task, trying again while `is_wanted`; answers with why the worker does not want it, if so."""
        message = replace(effect.dispatch, token=token) if token else effect.dispatch
        while is_wanted():
            try:
                await self._overlay.call(effect.peer_id, message, timeout_s=CALL_S)
            except Refused as error:
                if error.code != "busy":
                    return error
                await self._pause()
            except PeerUntrusted as error:
                return Refused("denied", error.message)
            except PeerError as error:
                log.info("task.dispatch_failed task=%s reason=%s", effect.dispatch.task_id, error)
                await self._pause()
            else:
                return None
        return None

    async def set_group(self, effect: SetGroup, is_wanted: Callable[[], bool]) -> MembersSet | None:
        """Tell the parameter server its members, trying again while `is_wanted`; answers with its open round."""
        request = SetMembers(task_id=effect.task_id, members=list(effect.members))
        while is_wanted():
            try:
                return await self._overlay.call(effect.peer_id, request, timeout_s=CALL_S)
            except HyphaError as error:
                # `unknown`, too: the task's dispatch may still be on its way.
                log.debug("group.not_set task=%s reason=%s", effect.task_id, error)
                await self._pause()
        return None

    async def _pause(self) -> None:
        await asyncio.sleep(self._rng.uniform(*PAUSE_S))


def is_nobody_there(error: BaseException | None) -> bool:
    """Whether a call failed because the machine answers but nothing listens there: the node's process is gone."""
    while error is not None:
        code = getattr(getattr(error, "os_error", error), "errno", None)
        if code == errno.ECONNREFUSED:
            return True
        error = error.__cause__ or error.__context__
    return False
