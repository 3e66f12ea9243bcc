"""A parameter server: takes the group's updates, closes rounds, serves each version to members and the scheduler.

A round has two phases. When it closes, the next version is *prepared*: made, and there to be fetched. It is *committed*
once the scheduler has written it down, and before that nobody uses it and no other round is open.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import msgspec
from aiohttp import web

from node.board import Board
from node.errors import HyphaError, Refused
from node.network.serving import send_file
from node.wire import (
    AggregateTask,
    AnnounceUpdate,
    CommitRound,
    ExportedFile,
    Member,
    UpdateAnnounced,
    VersionFile,
    WholeFiles,
)
from node.worker import committing
from node.worker.aggregator import Aggregator
from node.worker.arithmetic import Arithmetic, Made
from node.worker.context import TaskContext
from node.worker.fetch import Fetcher
from node.worker.intake import Intake
from node.worker.logfile import LogFile, tail
from node.worker.references import BridgeError
from node.worker.rounds import Closing, Rounds, contributors, without
from node.worker.serving import Shelf
from node.worker.starting import Start, newest_of
from node.worker.training import TAIL_LINES, Outcome
from node.worker.transfers import Transfers
from node.worker.versions import Version

if TYPE_CHECKING:
    from node.network.overlay import Overlay

log = logging.getLogger(__name__)

RETRY_S = 5.0
LONGEST_WAIT_S = 25.0

Ready = Callable[[Sequence[VersionFile]], None]
Exported = Callable[[list[ExportedFile]], None]


class ParameterServer:
    """One job's parameter server. It stays until its task or lease is ended: slow members may still ask."""

    def __init__(
        self, context: TaskContext, task: AggregateTask, overlay: Overlay, transfers: Transfers, board: Board
    ) -> None:
        self.grace_s = 1.0
        self.rounds = Rounds(
            context.job_id,
            context.dispatch.epoch,
            task.rounds,
            task.members,
            task.min_members,
            time.monotonic(),
            first=newest_of(task.start),
            terms=task.aggregation,
            fragments=task.sync.fragments,
        )
        self.shelf = Shelf(context.work_dir / "versions", task.sync.fragments)
        self._context = context
        self._task = task
        self._overlay = overlay
        self._transfers = transfers
        self._board = board
        self._updates = context.work_dir / "updates"
        self._changed = asyncio.Event()
        self._intake = Intake(self.rounds, self.shelf, self._updates, board, self._changed.set)
        self._start = Start(context, task, overlay, transfers, self.shelf)
        self._arithmetic: Arithmetic | None = None
        self._bytes_down = 0
        self._assembling = asyncio.Lock()

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
                aggregator = Aggregator(command, environment, self._context.work_dir, output, started)
                aggregator.grace_s = self.grace_s
                async with aggregator.running(), asyncio.TaskGroup() as tasks:
                    tasks.create_task(aggregator.warm())
                    fetcher = Fetcher(self._context, self._overlay, self._transfers, tasks)
                    await self._serve(aggregator, fetcher, ready, exported)
        except (HyphaError, BridgeError, OSError, BaseExceptionGroup) as error:
            cause = _first(error)
            if isinstance(cause, committing.EpochOver):
                log.info("aggregate.over task=%s reason=%s", self._context.task_id, cause)
                return Outcome("cancelled", str(cause))
            if not isinstance(cause, HyphaError | BridgeError | OSError):
                raise
            log.warning("aggregate.failed task=%s reason=%s", self._context.task_id, cause)
            lines = await asyncio.to_thread(tail, self._context.log_path, TAIL_LINES)
            return Outcome("failed", str(cause), tail=lines)

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

    def announce(self, peer_id: str, update: AnnounceUpdate) -> UpdateAnnounced:
        """An update is about to come."""
        if self._arithmetic is None:
            raise Refused("busy", "the parameter server is still starting")
        return UpdateAnnounced(round=self._intake.announce(peer_id, update))

    async def take_update(self, peer_id: str, task_id: str, sha256: str, request: web.Request) -> web.Response:
        """The bytes of an update: received, checked, counted once."""
        if self._arithmetic is None:
            raise Refused("busy", "the parameter server is still starting")
        taken = await self._intake.take(self._arithmetic, peer_id, task_id, sha256, request)
        return web.json_response(msgspec.to_builtins(taken))

    async def send_version(self, which: str, state: str, wait_s: float) -> web.Response:
        """What there is to know of a version, `latest` or its number, once it is in this state."""
        if state not in ("prepared", "committed"):
            raise Refused("invalid", f"a version is prepared or committed, not {state[:20]!r}")
        number = None if which == "latest" else _number(which)
        version = await self.shelf.version(number, state, min(max(0.0, wait_s), LONGEST_WAIT_S))
        return web.json_response(msgspec.to_builtins(version))

    async def whole(self, number: int) -> WholeFiles:
        """Whole files of a version, put together where it lies here in fragments."""
        async with self._assembling:
            files = self.shelf.whole(number)
            if files is None:
                if self._arithmetic is None:
                    raise Refused("busy", "the parameter server is still starting")
                files = (await self._arithmetic.assemble(number)).files
                self.shelf.keep_whole(number, files)
        return WholeFiles(files=files)

    async def send_version_file(self, kind: str, which: str, request: web.Request) -> web.StreamResponse:
        """A file of a version."""
        file = self.shelf.file(kind, _number(which))
        return await self._send(self.shelf.path(kind, file.number), file.sha256, request)

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

    # ---- rounds ---------------------------------------------------------------------------------

    async def _serve(self, aggregator: Aggregator, fetcher: Fetcher, ready: Ready, exported: Exported) -> NoReturn:
        arithmetic = Arithmetic(aggregator, self._task, self.shelf.folder, self._start.artifacts)
        first = await self._start.first(arithmetic, fetcher)
        self.shelf.prepare(self._version(first, self._task.contributors))
        self.shelf.commit(first.number)
        self.rounds.begin(time.monotonic())
        self._arithmetic = arithmetic
        ready([file for file in first.files if file.kind != "delta"])
        while not self.rounds.is_over:
            await self._close_round(arithmetic, await self._next_closing())
        await self._start.fetch_artifacts(fetcher)
        await asyncio.to_thread(shutil.rmtree, self.shelf.export_folder, ignore_errors=True)
        files = await arithmetic.export(self.rounds.round, self.shelf.export_folder, self._start.preprocessor)
        self.shelf.exported = {file.name: file for file in files}
        exported(files)
        while True:
            await asyncio.Event().wait()

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

    async def _close_round(self, arithmetic: Arithmetic, closed: Closing) -> None:
        """Prepare the version that a round leads to, and have it committed. Where the scheduler will not count some of
        its updates, it is prepared again without them."""
        closing, made = await self._make(arithmetic, closed)
        while True:
            self.shelf.prepare(self._version(made, contributors(closing)))
            try:
                await committing.commit(self._overlay, self._context, self._board, self._request(closing, made))
                break
            except Refused as error:
                refused = {label: why for n, label in enumerate(closing.labels()) if (why := error.parts.get(n))}
                if not refused:
                    raise
                log.warning("round.without job=%s round=%s left_out=%s", self._context.job_id, closing.round, refused)
                closing, made = await self._make(arithmetic, without(closing, refused))
        self.rounds.committed(time.monotonic())
        self.shelf.commit(made.number)
        log.info(
            "round.committed job=%s round=%s updates=%s left_out=%s clipped=%s",
            self._context.job_id,
            closing.round,
            len(closing.updates),
            closing.left_out,
            made.clipped,
        )
        await self._intake.remove(closed.updates)
        await self.shelf.remove_old()

    async def _make(self, arithmetic: Arithmetic, closing: Closing) -> tuple[Closing, Made]:
        """The next version, and the round as it counts: without those that are left out."""
        try:
            made = await self._commit(arithmetic, closing)
        except Refused as error:
            # The round must not be lost with its updates: it is void, and everybody goes on from the same weights.
            closing = without(closing, dict.fromkeys(closing.labels(), f"not averaged: {error.message}"))
            made = await self._commit(arithmetic, closing)
        return without(closing, made.left_out), made

    async def _commit(self, arithmetic: Arithmetic, closing: Closing) -> Made:
        is_told = False
        while True:
            try:
                return await arithmetic.commit(closing)
            except Refused as error:
                if error.code != "full":
                    raise
                if not is_told:
                    text = f"round {closing.round} waits for room on the parameter server's disk"
                    self._board.happened("round.blocked", text, level="error", job=self._context.job_id)
                    is_told = True
                log.error("round.blocked job=%s round=%s reason=%s", self._context.job_id, closing.round, error)
            await asyncio.sleep(RETRY_S)

    def _request(self, closing: Closing, made: Made) -> CommitRound:
        return CommitRound(
            task_id=self._context.task_id,
            epoch=self.rounds.epoch,
            round=closing.round,
            weights=made.file("weights"),
            momentum=made.file("momentum"),
            delta=made.file("delta"),
            contributions=[update.contribution for update in closing.updates],
            left_out={name: reason for name, reason in closing.left_out.items() if "@" not in name},
            bytes_up=self._intake.bytes_up,
            bytes_down=self._bytes_down,
        )

    def _version(self, made: Made, whose: Sequence[tuple[str, int]]) -> Version:
        has_delta = any(file.kind == "delta" for file in made.files)
        content = "step" if self._task.sync.codec == "none" else "gradient"
        return Version(
            number=made.number,
            newest=made.number,
            committed=False,
            epoch=self.rounds.epoch,
            files=list(made.files),
            content=content if has_delta else "",
            contributors=list(whose),
        )


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        raise Refused("invalid", f"{text[:20]!r} is not a version")
    return int(text)
