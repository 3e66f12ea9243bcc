"""Versions on their way from a parameter server into a task's private folder."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from node.errors import DiskFull, PeerError, PeerProtocol, Refused
from node.network import bulk
from node.wire import Sync, VersionFile
from node.worker.beneath import new_name
from node.worker.bridge_state import Destination, TaskProgress
from node.worker.context import TaskContext
from node.worker.retrying import new_backoff
from node.worker.transfers import Transfers
from node.worker.versions import Version, describe, file_path, whole

if TYPE_CHECKING:
    from node.network.overlay import Overlay

log = logging.getLogger(__name__)

BROKEN_ALLOWED = 8
WAITED_FOR = ("busy", "unknown", "denied")
"""What passes: the server is starting, is elsewhere, or has not heard of this member yet. The lease bounds the wait."""
WHATS = {"delta": "step", "weights": "weights", "momentum": "momentum"}


@dataclass(frozen=True, slots=True)
class Incoming:
    """A committed version, by files in the private folder; `counted` are rounds whose update by this task it holds."""

    version: Version
    files: dict[str, Path]
    counted: frozenset[int] = frozenset()


class Inbound:
    """What one task asks a parameter server for. The caller ends a wait when the server is replaced."""

    def __init__(
        self, context: TaskContext, sync: Sync, overlay: Overlay, transfers: Transfers, progress: TaskProgress
    ) -> None:
        self.model_bytes = 0
        self._context = context
        self._sync = sync
        self._overlay = overlay
        self._transfers = transfers
        self._progress = progress

    async def newest(self, destination: Destination, counted: frozenset[int] = frozenset()) -> Incoming:
        """The newest committed version, whole."""
        while True:
            version = await self._describe(destination, None, "committed")
            if version is not None:
                return Incoming(version, await self._whole(version, destination), counted | self._counted(version))

    async def answer_to(self, round_: int, destination: Destination) -> Incoming:
        """The version that this round makes, by its delta; or the newest, whole, where the task fell behind and its
        executor can take that."""
        backoff = new_backoff()
        while True:
            try:
                version = await self._describe(destination, round_ + 1, "prepared")
                if version is not None and version.newest > version.number and self._progress.loads_weights:
                    return await self.newest(destination, self._counted(version))
                incoming = None if version is None else await self._by_delta(version, destination)
                if incoming is not None:
                    return incoming
            except Refused as error:
                if error.code != "stale" or not self._progress.loads_weights or backoff.failures > BROKEN_ALLOWED:
                    raise
                return await self.newest(destination)
            except DiskFull:
                raise
            except PeerError as error:
                if isinstance(error, PeerProtocol) and backoff.failures > BROKEN_ALLOWED:
                    raise
                log.warning("version.not_fetched task=%s reason=%s", self._context.task_id, error)
            await asyncio.sleep(backoff.failed())

    async def _by_delta(self, version: Version, destination: Destination) -> Incoming | None:
        """Fetched while the version is only prepared, and given out once it is committed; None if it never was."""
        delta = file_of(version, "delta")
        path = await self._download(delta, destination)
        is_good = False
        try:
            committed: Version | None = version
            if not version.committed:
                committed = await self._describe(destination, version.number, "committed")
            is_good = committed is not None and file_of(committed, "delta") == delta
            return Incoming(committed, {"delta": path}, self._counted(committed)) if committed and is_good else None
        finally:
            if not is_good:
                path.unlink(missing_ok=True)

    async def _whole(self, version: Version, destination: Destination) -> dict[str, Path]:
        self.model_bytes = file_of(version, "weights").size_bytes
        files = await whole(self._overlay, destination.server, self._context.job_id, version.number)
        if self._sync.codec == "none":
            files = [file for file in files if file.kind == "weights"]
        found: dict[str, Path] = {}
        try:
            for file in files:
                found[file.kind] = await self._download(file, destination)
        except BaseException:
            remove(found.values())
            raise
        return found

    async def _download(self, file: VersionFile, destination: Destination) -> Path:
        path = await asyncio.to_thread(new_name, self._context.work_dir)
        name, job_id, server = f"{file.kind}-{file.number}.safetensors", self._context.job_id, destination.server
        with self._transfers.show(
            WHATS[file.kind], name, job_id, server, self._context.peer_id, file.size_bytes
        ) as transfer:
            await bulk.download(
                self._overlay,
                [server],
                file_path(job_id, file),
                path,
                sha256=file.sha256,
                size_bytes=file.size_bytes,
                on_progress=transfer.progress,
                durable=False,
            )
        return path

    async def _describe(self, destination: Destination, number: int | None, state: str) -> Version | None:
        """A version of this epoch; None where another epoch answers, of which the scheduler will tell us."""
        backoff = new_backoff()
        while True:
            try:
                version = await describe(self._overlay, destination.server, self._context.job_id, number, state=state)
            except Refused as error:
                if error.code not in WAITED_FOR:
                    raise
                log.info("version.waited task=%s version=%s reason=%s", self._context.task_id, number, error)
            else:
                if version.epoch == destination.epoch:
                    return version
                await asyncio.sleep(backoff.failed())
                return None
            await asyncio.sleep(backoff.failed())

    def _counted(self, version: Version) -> frozenset[int]:
        own = self._context.task_id
        return frozenset(from_round for task_id, from_round in version.contributors if task_id == own)


def file_of(version: Version, kind: str) -> VersionFile:
    """One of a version's files. Raises `Refused`."""
    found = version.file(kind)
    if found is None:
        raise Refused("stale", f"version {version.number} has no {kind} any more")
    return found


def remove(paths: Iterable[Path]) -> None:
    """Remove files that nobody got to see."""
    for path in paths:
        path.unlink(missing_ok=True)
