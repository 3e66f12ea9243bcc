"""Updates on their way into a parameter server: received, verified, checked, counted once."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from aiohttp import web

from node.board import Board
from node.errors import Refused
from node.network.serving import receive_file
from node.wire import AnnounceUpdate, UpdateTaken
from node.worker.arithmetic import Arithmetic
from node.worker.digest import is_sha256
from node.worker.rounds import Rounds, Update
from node.worker.serving import Shelf

log = logging.getLogger(__name__)


class Intake:
    """Takes one job's updates. A file is never written to once it has its name. `changed` follows each decision."""

    def __init__(
        self,
        rounds: Rounds,
        shelf: Shelf,
        folder: Path,
        board: Board,
        changed: Callable[[], None],
    ) -> None:
        self.bytes_up = 0
        self._rounds = rounds
        self._shelf = shelf
        self._folder = folder
        self._board = board
        self._changed = changed
        self._locks: dict[str, asyncio.Lock] = {}
        self._announced: dict[str, AnnounceUpdate] = {}
        self._is_full = False

    def announce(self, peer_id: str, header: AnnounceUpdate) -> int | None:
        """An update is about to come: the round in which it counts already, or None where its bytes are wanted. Raises
        `Refused` with the reason why it does not count."""
        if header.job_id != self._rounds.job_id:
            raise Refused("invalid", f"the update is for job {header.job_id}")
        if not is_sha256(header.sha256):
            raise Refused("invalid", "the update is announced without a SHA-256")
        counted = self._rounds.admit(header, peer_id, time.monotonic())
        if counted is None:
            self._announced[header.task_id] = header
        return counted

    async def take(
        self, arithmetic: Arithmetic, peer_id: str, task_id: str, sha256: str, request: web.Request
    ) -> UpdateTaken:
        """Take the bytes of an update. Raises `Refused` with the reason why it does not count."""
        self._rounds.check_member(task_id, peer_id)
        header = self._announced.get(task_id)
        if header is None or header.sha256 != sha256:
            raise Refused("unknown", f"task {task_id} has not announced this update")
        async with self._locks.setdefault(header.task_id, asyncio.Lock()):
            counted = self._rounds.admit(header, peer_id, time.monotonic())
            if counted is None:
                counted = await self._receive(arithmetic, header, peer_id, request)
        return UpdateTaken(round=counted)

    async def remove(self, updates: Iterable[Update]) -> None:
        """Remove the files of a round that is over."""
        await asyncio.to_thread(_remove, [Path(update.path) for update in updates])
        members = {member.task_id for member in self._rounds.members()}
        for task_id in [task_id for task_id, lock in self._locks.items() if not lock.locked()]:
            if task_id not in members:
                del self._locks[task_id]
        self._announced = {task_id: header for task_id, header in self._announced.items() if task_id in members}

    async def _receive(self, arithmetic: Arithmetic, header: AnnounceUpdate, peer_id: str, request: web.Request) -> int:
        path = self._folder / f"{header.task_id}-{header.round}-{header.sha256[:16]}.safetensors"
        model = self._shelf.held(self._rounds.round).weights.size_bytes
        try:
            await receive_file(
                request,
                path,
                sha256=header.sha256,
                size_bytes=header.size_bytes,
                limit_bytes=model + model // 8 + (1 << 20),
                durable=False,
            )
        except Refused as error:
            if error.code == "full":
                self._blocked(header, error)
            raise
        self._is_full = False
        self.bytes_up += header.size_bytes
        try:
            return await self._count(arithmetic, header, peer_id, path)
        finally:
            if self._rounds.path_of(header) != str(path):
                await asyncio.to_thread(_remove, [path])
            self._changed()

    async def _count(self, arithmetic: Arithmetic, header: AnnounceUpdate, peer_id: str, path: Path) -> int:
        try:
            norm = await arithmetic.check(path, header.round)
        except Refused as error:
            if error.code == "invalid":
                self._rounds.quarantine(header, error.message)
                text = f"the update of {header.task_id} for round {header.round} is not used: {error.message}"
                self._board.happened("update.refused", text, level="warning", job=header.job_id, task=header.task_id)
                log.warning("update.refused task=%s round=%s reason=%s", header.task_id, header.round, error.message)
            raise
        before = self._rounds.path_of(header)
        counted = self._rounds.record(header, peer_id, str(path), norm, time.monotonic())
        if before not in ("", str(path)):
            await asyncio.to_thread(_remove, [Path(before)])
        log.debug("update.counted task=%s round=%s in=%s", header.task_id, header.round, counted)
        return counted

    def _blocked(self, header: AnnounceUpdate, error: Refused) -> None:
        if not self._is_full:
            self._is_full = True
            text = f"round {header.round} waits for room for an update: {error.message}"
            self._board.happened("round.blocked", text, level="error", job=header.job_id, task=header.task_id)
        log.error("round.blocked job=%s round=%s reason=%s", header.job_id, header.round, error.message)


def _remove(paths: Iterable[Path]) -> None:
    for path in paths:
        path.unlink(missing_ok=True)
