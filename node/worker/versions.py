"""Versions of a job's weights, as its parameter server tells them to members. Asking waits for what is to come."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import msgspec

from node.errors import PeerError, PeerProtocol, PeerUntrusted, Refused
from node.worker.retrying import new_backoff

if TYPE_CHECKING:
    from node.network.overlay import Overlay

log = logging.getLogger(__name__)

ASK_S = 20.0
PATIENCE = 20
ANSWER_LIMIT_BYTES = 1 << 16


class Version(msgspec.Struct, frozen=True, kw_only=True):
    """A version of the weights. The step leads to it from the version before; version 0 has none.

    `newest` is the highest number there is, as of this answer.
    """

    number: int
    newest: int
    weights_sha256: str
    weights_bytes: int
    step_sha256: str = ""
    step_bytes: int = 0


def weights_path(job_id: str, version: Version) -> str:
    """Where the parameter server serves whole weights."""
    return f"/bulk/jobs/{job_id}/weights/{version.number}"


def step_path(job_id: str, version: Version) -> str:
    """Where the parameter server serves the step to a version."""
    return f"/bulk/jobs/{job_id}/steps/{version.number}"


async def describe(overlay: Overlay, peer: str, job_id: str, number: int | None = None) -> Version:
    """Version `number` once it exists, or the newest. Waits as long as it takes: the lease bounds a task's life.

    Raises `Refused` with `stale` for a version that is not held any more, with other codes where this peer may not ask.
    """
    which = "latest" if number is None else str(number)
    backoff = new_backoff()
    while True:
        try:
            return await _ask(overlay, peer, f"/bulk/jobs/{job_id}/versions/{which}?wait_s={ASK_S:g}")
        except Refused as error:
            if error.code not in ("busy", "unknown", "denied"):
                raise
            # Unknown or not a member: the parameter server may be a moment behind the scheduler.
            if error.code == "busy":
                backoff.succeeded()
            elif backoff.failures > PATIENCE:
                raise
        except (PeerProtocol, PeerUntrusted):
            raise
        except (PeerError, TimeoutError) as error:
            log.warning("version.not_told job=%s peer=%s reason=%s", job_id, peer, error)
        await asyncio.sleep(backoff.failed())


async def _ask(overlay: Overlay, peer: str, path: str) -> Version:
    async with (
        asyncio.timeout(ASK_S + 10),
        overlay.open(peer, "GET", path, stall_s=ASK_S + 5) as answer,
    ):
        body = await answer.content.read(ANSWER_LIMIT_BYTES)
    try:
        return msgspec.json.decode(body, type=Version)
    except msgspec.DecodeError as error:
        raise PeerProtocol(f"{peer} described a version unreadably: {error}") from error
