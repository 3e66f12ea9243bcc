"""A parameter server: takes the group's updates, closes rounds, serves each version to members and the scheduler."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from aiohttp import web

from node.board import Board
from node.errors import HyphaError, JobError, PeerError, Refused
from node.network.serving import receive_file, send_file
from node.wire import Ack, AggregateTask, ExportedFile, Member, RoundCommitted, UpdateHeader
from node.worker.aggregator import Aggregator
from node.worker.context import TaskContext
from node.worker.digest import is_sha256
from node.worker.fetch import Fetcher
from node.worker.logfile import LogFile, tail
from node.worker.references import ARTIFACTS, BridgeError, HubFiles, folder
from node.worker.retrying import new_backoff
from node.worker.rounds import Admission, Closing, Rounds
from node.worker.serving import Shelf
from node.worker.training import TAIL_LINES, Outcome
from node.worker.transfers import Transfers
from node.worker.versions import Version

if TYPE_CHECKING:
    from node.network.overlay import Overlay

log = logging.getLogger(__name__)

RETRY_S = 5.0
CALL_S = 5.0
LONGEST_WAIT_S = 25.0

Ready = Callable[[], None]
Exported = Callable[[list[ExportedFile]], None]


class ParameterServer:
    """One job's parameter server. It stays until its task or lease is ended: slow members may still ask."""

    def __init__(
        self, context: TaskContext, task: AggregateTask, overlay: Overlay, transfers: Transfers, board: Board
    ) -> None:
        self.grace_s = 1.0
        self.rounds = Rounds(
            context.job_id, context.dispatch.epoch, task.rounds, task.members, task.min_members, time.monotonic()
        )
        self.shelf = Shelf(context.work_dir / "versions")
        self._context = context
        self._task = task
        self._overlay = overlay
        self._transfers = transfers
        self._board = board
        self._updates = context.work_dir / "updates"
        self._locks: dict[str, asyncio.Lock] = {}
        self._changed = asyncio.Event()
        self._reports: list[RoundCommitted] = []
        self._has_reports = asyncio.Event()
        self._all_told = asyncio.Event()
        self._aggregator: Aggregator | None = None
        self._bytes_up = 0
        self._bytes_down = 0

    async def run(
        self,
        command: list[str],
        environment: dict[str, str],
        started: Callable[[int], Awaitable[None]],
        ready: Ready,
        exported: Exported,
    ) -> Outcome:
        """Serve until cancelled; returns only where it cannot go on."""
        for path in (self.shelf.folder, self._updates):
            path.mkdir()
        try:
            with LogFile(self._context.log_path) as output:
                self._aggregator = Aggregator(command, environment, self._context.work_dir, output, started)
                self._aggregator.grace_s = self.grace_s
                async with self._aggregator.running(), asyncio.TaskGroup() as tasks:
                    await self._prepare(tasks)
                    ready()
                    reporter = tasks.create_task(self._report())
                    while not self.rounds.is_over:
                        await self._close_round(await self._next_closing())
                    files = await self._export()
                    await self._wait_until_told()
                    exported(files)
                    await reporter
        except (HyphaError, BridgeError, OSError, BaseExceptionGroup) as error:
            cause = _first(error)
            if not isinstance(cause, HyphaError | BridgeError | OSError):
                raise
            log.warning("aggregate.failed task=%s reason=%s", self._context.task_id, cause)
            lines = await asyncio.to_thread(tail, self._context.log_path, TAIL_LINES)
            return Outcome("failed", str(cause), tail=lines)
        return Outcome("failed", "the parameter server ended by itself")

    @property
    def is_done(self) -> bool:
        """Whether all rounds are over and the model is exported: it only serves what it has."""
        return bool(self.shelf.exported)

    def set_members(self, members: list[Member]) -> int:
        """Replace the group; the open round's number."""
        self.rounds.set_members(members)
        self._changed.set()
        return self.rounds.round

    # ---- what members ask for ---------------------------------------------------------------------

    def check_reader(self, peer_id: str) -> None:
        """Refuse whoever is neither a member nor the scheduler."""
        if peer_id != self._context.scheduler and not self.rounds.is_member(peer_id):
            raise Refused("denied", f"not a member of job {self._context.job_id}")

    async def take_update(self, peer_id: str, request: web.Request) -> web.Response:
        """An upload: received, checked, counted once."""
        try:
            header = msgspec.json.decode(request.headers.get("Hypha-Update", ""), type=UpdateHeader)
        except msgspec.DecodeError as error:
            raise Refused("invalid", f"header Hypha-Update: {error}") from error
        if header.job_id != self._context.job_id:
            raise Refused("invalid", f"the update is for job {header.job_id}")
        if not is_sha256(header.sha256):
            raise Refused("invalid", "header Hypha-Update: no SHA-256 in it")
        self.rounds.check_member(header.task_id, peer_id)
        async with self._locks.setdefault(header.task_id, asyncio.Lock()):
            if self.rounds.admit(header, peer_id) is Admission.RECEIVE:
                await self._receive(header, peer_id, request)
        return web.json_response(msgspec.to_builtins(Ack()))

    async def send_version(self, which: str, wait_s: float) -> web.Response:
        """What there is to know of a version; `latest` or its number."""
        number = None if which == "latest" else _number(which)
        version = await self.shelf.version(number, min(max(0.0, wait_s), LONGEST_WAIT_S))
        return web.json_response(msgspec.to_builtins(version))

    async def send_weights(self, which: str, wait_s: float, request: web.Request) -> web.StreamResponse:
        """Whole weights; `latest` or a number."""
        number = None if which == "latest" else _number(which)
        version = await self.shelf.version(number, min(max(0.0, wait_s), LONGEST_WAIT_S))
        return await self._send(self.shelf.weights(version.number), version.weights_sha256, request)

    async def send_step(self, which: str, wait_s: float, request: web.Request) -> web.StreamResponse:
        """The step that leads to a version."""
        version = await self.shelf.version(_number(which), min(max(0.0, wait_s), LONGEST_WAIT_S))
        if not version.step_sha256:
            raise Refused("unknown", "no step leads to version 0")
        return await self._send(self.shelf.step(version.number), version.step_sha256, request)

    async def send_export(self, name: str, request: web.Request) -> web.StreamResponse:
        """A file of the exported model."""
        file = self.shelf.exported.get(name)
        if file is None:
            raise Refused("unknown", f"no exported file {name[:100]!r}")
        return await self._send(self.shelf.export_folder / name, file.sha256, request)

    async def _send(self, path: Path, sha256: str, request: web.Request) -> web.StreamResponse:
        def count(size: int) -> None:
            self._bytes_down += size

        return await send_file(request, path, sha256=sha256, on_bytes=count)

    async def _receive(self, header: UpdateHeader, peer_id: str, request: web.Request) -> None:
        path = self._updates / f"{header.round:06d}-{header.task_id}-{header.sha256[:16]}.safetensors"
        newest = self.shelf.held(self.rounds.round)
        limit = newest.weights_bytes + newest.weights_bytes // 8 + (1 << 20)
        await receive_file(request, path, sha256=header.sha256, size_bytes=header.size_bytes, limit_bytes=limit)
        self._bytes_up += header.size_bytes
        try:
            norm = float((await self._ask("check", path=str(path)))["norm"])
            self.rounds.record(header, peer_id, str(path), norm, time.monotonic())
            log.debug("update.counted task=%s round=%s samples=%s", header.task_id, header.round, header.samples)
        except BaseException as error:
            await asyncio.to_thread(path.unlink, missing_ok=True)
            if isinstance(error, Refused) and error.code == "invalid":
                self.rounds.quarantine(header, error.message)
                text = f"the update of {header.task_id} for round {header.round} is not used: {error.message}"
                self._board.happened("update.refused", text, level="warning", job=header.job_id, task=header.task_id)
                log.warning("update.refused task=%s round=%s reason=%s", header.task_id, header.round, error.message)
            raise
        finally:
            self._changed.set()

    # ---- rounds ---------------------------------------------------------------------------------

    async def _prepare(self, tasks: asyncio.TaskGroup) -> None:
        fetcher = Fetcher(self._context, self._overlay, self._transfers, tasks)
        model = self._task.model
        folder(self._context.work_dir, ARTIFACTS)
        if model.repository:
            files = HubFiles(model.repository, model.revision or "main", model.filenames)
            await fetcher.hub_files(files, ARTIFACTS)
        elif self._context.dispatch.folder_sha256:
            await fetcher.job_files(model.filenames, ARTIFACTS)
        answer = await self._ask("prepare", out=str(self.shelf.folder))
        await self.shelf.add(
            Version(number=0, newest=0, weights_sha256=answer["digest"], weights_bytes=answer["size_bytes"])
        )

    async def _next_closing(self) -> Closing:
        """Wait until the open round is to close, and close it."""
        while True:
            self._changed.clear()
            now = time.monotonic()
            closes_at = self.rounds.closes_at(now)
            if closes_at is not None and closes_at <= now:
                return self.rounds.close()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if closes_at is None else closes_at - now):
                    await self._changed.wait()

    async def _close_round(self, closing: Closing) -> None:
        updates = [{"path": u.path, "weight": u.contribution.samples} for u in closing.updates]
        contributions = [update.contribution for update in closing.updates]
        left_out = dict(closing.left_out)
        try:
            answer = await self._commit(closing.round, updates)
        except Refused as error:
            # The round must not be lost with its updates: it is void, and everybody goes on from the same weights.
            left_out.update({c.task_id: f"not averaged: {error.message}" for c in contributions})
            contributions = []
            answer = await self._commit(closing.round, [])
        self.rounds.committed(time.monotonic())
        await self.shelf.add(
            Version(
                number=answer["version"],
                newest=answer["version"],
                weights_sha256=answer["digest"],
                weights_bytes=answer["weights_bytes"],
                step_sha256=answer["step_digest"],
                step_bytes=answer["step_bytes"],
            )
        )
        await asyncio.to_thread(_remove_before, self._updates, self.rounds.round)
        self._reports.append(
            RoundCommitted(
                task_id=self._context.task_id,
                round=closing.round,
                digest=answer["digest"],
                contributions=contributions,
                left_out=left_out,
                bytes_up=self._bytes_up,
                bytes_down=self._bytes_down,
            )
        )
        self._all_told.clear()
        self._has_reports.set()
        log.info(
            "round.committed job=%s round=%s updates=%s left_out=%s",
            self._context.job_id,
            closing.round,
            len(contributions),
            left_out,
        )

    async def _commit(self, round_: int, updates: list[dict[str, Any]]) -> dict[str, Any]:
        is_told = False
        while True:
            try:
                return await self._ask(
                    "commit",
                    round=round_,
                    updates=updates,
                    learning_rate=self._task.optimizer.learning_rate,
                    momentum=self._task.optimizer.momentum,
                )
            except Refused as error:
                if error.code != "full":
                    raise
                if not is_told:
                    text = f"round {round_} waits for room on the parameter server's disk"
                    self._board.happened("round.blocked", text, level="error", job=self._context.job_id)
                    is_told = True
                log.error("round.blocked job=%s round=%s reason=%s", self._context.job_id, round_, error)
            await asyncio.sleep(RETRY_S)

    async def _export(self) -> list[ExportedFile]:
        await asyncio.to_thread(shutil.rmtree, self.shelf.export_folder, ignore_errors=True)
        answer = await self._ask("export", version=self.rounds.round, out=str(self.shelf.export_folder))
        files = msgspec.convert(answer["files"], list[ExportedFile])
        self.shelf.exported = {file.name: file for file in files}
        return files

    async def _wait_until_told(self) -> None:
        """The scheduler should hear of the last round before it hears of the export; not at any price."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(2 * CALL_S):
                await self._all_told.wait()

    async def _ask(self, do: str, **fields: Any) -> dict[str, Any]:
        if self._aggregator is None:
            raise JobError("the parameter server has not started")
        model = msgspec.to_builtins(self._task.model)
        artifacts = str(self._context.work_dir / ARTIFACTS)
        return await self._aggregator.ask(do, folder=str(self.shelf.folder), artifacts=artifacts, model=model, **fields)

    async def _report(self) -> None:
        """Tell the scheduler of each closed round, in order, until it has acknowledged it."""
        backoff = new_backoff()
        while True:
            self._has_reports.clear()
            if not self._reports:
                await self._has_reports.wait()
                continue
            try:
                await self._overlay.call(self._context.scheduler, self._reports[0], timeout_s=CALL_S)
            except Refused as error:
                if error.code == "busy":
                    await asyncio.sleep(backoff.failed())
                    continue
                log.warning("round.report_refused job=%s reason=%s", self._context.job_id, error)
            except (PeerError, TimeoutError) as error:
                log.warning("round.not_told job=%s reason=%s", self._context.job_id, error)
                await asyncio.sleep(backoff.failed())
                continue
            backoff.succeeded()
            self._reports.pop(0)
            if not self._reports:
                self._all_told.set()


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        raise Refused("invalid", f"{text[:20]!r} is not a version")
    return int(text)


def _remove_before(updates: Path, round_: int) -> None:
    for path in updates.iterdir():
        if path.name.partition("-")[0] < f"{round_:06d}":
            path.unlink(missing_ok=True)
