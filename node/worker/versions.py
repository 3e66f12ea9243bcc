"""Versions of a job's weights, as its parameter server tells them to members. Asking waits for what is to come."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import msgspec

from node.errors import PeerError, PeerProtocol, PeerUntrusted, Refused
from node.wire import UNDECODABLE, VersionFile, WholeVersion
from node.worker.retrying import new_backoff

if TYPE_CHECKING:
    from node.network.overlay import Overlay

log = logging.getLogger(__name__)

ASK_S = 20.0
WHOLE_S = 60.0
PATIENCE = 20
ANSWER_LIMIT_BYTES = 1 << 20


class Version(msgspec.Struct, frozen=True, kw_only=True):
    """A version of the weights, and the files that belong to it: `weights`, `momentum`, and the `delta` that leads to
    it from the version before. Version 0 has weights alone.

    A version that is only prepared may be fetched, and is used by nobody: it may never come to be. `newest` is the
    highest committed number, as of this answer. `content` says what the delta holds, `step` or `gradient`.
    `contributors` are the updates in it: which task's, and trained in which round.
    """

    number: int
    newest: int
    committed: bool
    epoch: int
    files: list[VersionFile]
    content: str = ""
    contributors: list[tuple[str, int]] = []

    def file(self, kind: str) -> VersionFile | None:
        """Its file of this kind, if it has one."""
        return next((file for file in self.files if file.kind == kind), None)

    @property
    def weights(self) -> VersionFile:
        """The whole weights, which every version has."""
        found = self.file("weights")
        if found is None:
            raise PeerProtocol(f"version {self.number} is described without its weights")
        return found


def file_path(job_id: str, file: VersionFile) -> str:
    """Where the parameter server serves a file of a version."""
    return f"/bulk/jobs/{job_id}/{file.kind}/{file.number}"


def journal_path(job_id: str, file: VersionFile) -> str:
    """Where the scheduler serves a file that it keeps of a version."""
    return f"/bulk/jobs/{job_id}/journal/{file.kind}/{file.number}"


async def describe(
    overlay: Overlay, peer: str, job_id: str, number: int | None = None, *, state: str = "committed"
) -> Version:
    """Version `number` once it is committed (or at least prepared), or the newest that is committed. Waits as long as
    it takes: the lease bounds a task's life.

    Raises `Refused` with `stale` for a version that is not held any more, with other codes where this peer may not ask.
    """
    which = "latest" if number is None else str(number)
    backoff = new_backoff()
    while True:
        try:
            return await _ask(overlay, peer, f"/bulk/jobs/{job_id}/versions/{which}?wait_s={ASK_S:g}&state={state}")
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


async def whole(overlay: Overlay, peer: str, job_id: str, number: int) -> list[VersionFile]:
    """The files that a version is fetched whole by, waited for. Raises `Refused` as `describe` does."""
    backoff = new_backoff()
    while True:
        try:
            answer = await overlay.call(peer, WholeVersion(job_id=job_id, number=number), timeout_s=WHOLE_S)
            return answer.files
        except Refused as error:
            if error.code != "busy":
                raise
        except (PeerProtocol, PeerUntrusted):
            raise
        except (PeerError, TimeoutError) as error:
            log.warning("version.not_whole job=%s peer=%s reason=%s", job_id, peer, error)
        await asyncio.sleep(backoff.failed())


async def _ask(overlay: Overlay, peer: str, path: str) -> Version:
    async with (
        asyncio.timeout(ASK_S + 10),
        overlay.open(peer, "GET", path, stall_s=ASK_S + 5) as answer,
    ):
        body = b""
        async for piece in answer.content.iter_any():
            body += piece
            if len(body) > ANSWER_LIMIT_BYTES:
                raise PeerProtocol(f"{peer} described a version in more than {ANSWER_LIMIT_BYTES:,} bytes")
    try:
        return msgspec.json.decode(body, type=Version)
    except UNDECODABLE as error:
        raise PeerProtocol(f"{peer} described a version unreadably: {error}") from error
