"""The scheduler role: takes jobs, runs each, answers their workers, and picks them up again after a restart."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import re
from collections import deque
from typing import TYPE_CHECKING

import msgspec
from aiohttp import web
from msgspec.structs import replace

from node.errors import Refused
from node.network.serving import send_file
from node.scheduler import messages as m
from node.scheduler import records
from node.scheduler.files import SchedulerFiles
from node.scheduler.group import Task
from node.scheduler.intake import Intake
from node.scheduler.records import ENDED_SHOWN, JobRow
from node.scheduler.runner import JobRunner
from node.scheduler.status_bridge import StatusBridge
from node.views import SubmitResult
from node.wire import (
    Accepted,
    Ack,
    Decline,
    Measure,
    NextSlice,
    Offer,
    Plan,
    Progress,
    RoundCommitted,
    RunCommand,
    SliceGrant,
    Submit,
    TaskStatus,
)

if TYPE_CHECKING:
    from node.board import Board
    from node.config import NodeConfig
    from node.identity.caller import Caller
    from node.network.overlay import Overlay
    from node.store import Store

log = logging.getLogger(__name__)

_TASK_ID = re.compile(r"(?P<job>[A-Za-z0-9_-]+)\.(?P<epoch>\d+)\.(?P<number>\d+)")


class SchedulerService:
    """All jobs of this node."""

    def __init__(self, config: NodeConfig, overlay: Overlay, board: Board, store: Store) -> None:
        self._config = config
        self._overlay = overlay
        self._board = board
        self._store = store
        self._files = SchedulerFiles(config.state_dir)
        self._bridge = StatusBridge(config.status_bridge)
        self._intake = Intake(config, overlay, store, self._files)
        self._runners: dict[str, JobRunner] = {}
        self._ended: deque[str] = deque()
        self._workers: set[str] = set()
        self._tasks: asyncio.TaskGroup | None = None
        overlay.on(Offer, self._offer)
        overlay.on(Decline, self._decline)
        overlay.on(TaskStatus, self._task_status)
        overlay.on(NextSlice, self._next_slice)
        overlay.on(Progress, self._progress)
        overlay.on(Measure, self._measure)
        overlay.on(RoundCommitted, self._round_committed)
        overlay.on(RunCommand, self._run_command, operator=True)
        overlay.bulk_route("PUT", "/bulk/submissions/{job_id}", self._submission, operator=None)
        overlay.bulk_route("GET", "/bulk/jobs/{job_id}/folder", self._folder)
        overlay.bulk_route("GET", "/bulk/jobs/{job_id}/metrics", self._metrics, operator=None)
        overlay.bulk_route("GET", "/bulk/jobs/{job_id}/rounds", self._rounds, operator=None)

    async def run(self) -> None:
        """Run jobs until cancelled; then their leases are let go, and they go on at the next start."""
        await asyncio.to_thread(self._files.prepare)
        async with asyncio.TaskGroup() as tasks:
            for row in reversed(await records.ended_jobs(self._store)):
                self._board.put(await records.view_of_ended(self._store, row, self._overlay.peer_id))
                self._ended.append(row.job_id)
            self._tasks = tasks
            try:
                for row in await records.unfinished_jobs(self._store):
                    await self._take_up(row)
                if self._config.scheduler.job is not None:
                    self._start(await self._intake.take_configured(self._config.scheduler.job))
                self._overlay.watch_peers(self._peers_changed)
                tasks.create_task(self._bridge.run())
                await asyncio.Event().wait()
            finally:
                self._tasks = None

    # ---- jobs ---------------------------------------------------------------------------------------

    async def _take_up(self, row: JobRow) -> None:
        """Go on with a job of an earlier process. What its workers did then is not known: a new epoch begins."""
        if row.state != "queued":
            epoch = row.epoch + 1
            await self._store.write(
                lambda db: records.update_job(
                    db, row.job_id, state="waiting", reason="", epoch=epoch, round_=0, model_dir=""
                )
            )
            row = dataclasses.replace(row, epoch=epoch, round=0)
        self._start(row)

    def _start(self, row: JobRow) -> None:
        if row.job_id in self._runners or row.ended_unix is not None or self._tasks is None:
            return
        runner = JobRunner(row, self._overlay, self._board, self._store, self._files, self._bridge)
        self._runners[row.job_id] = runner
        text = f"{row.name} from {row.submitted_by}"
        self._board.happened("job.accepted", text, job=row.job_id)
        log.info("job.accepted job=%s by=%s epoch=%d", row.job_id, row.submitted_by, row.epoch)
        self._tasks.create_task(self._supervise(runner))

    async def _supervise(self, runner: JobRunner) -> None:
        """Run a job; a fault of ours in it ends that job and no other."""
        row = runner.row
        try:
            await runner.run()
        except* Exception as group:
            log.exception("job.broken job=%s", row.job_id, exc_info=group)
            error: BaseException = group
            while isinstance(error, BaseExceptionGroup):
                error = error.exceptions[0]
            reason = f"the scheduler failed: {type(error).__name__}: {error}"
            await self._mark_failed(runner, reason)
        self._ended.append(row.job_id)
        while len(self._ended) > ENDED_SHOWN:
            old = self._ended.popleft()
            self._runners.pop(old, None)
            self._board.drop("job", old)

    async def _mark_failed(self, runner: JobRunner, reason: str) -> None:
        row, job = runner.row, runner.job
        job.abandon(reason)
        self._board.happened("job.failed", f"{row.name}: {reason}", level="error", job=row.job_id)
        self._board.put(job.view(asyncio.get_running_loop().time(), self._overlay.peer_id))
        await self._store.write(
            lambda db: records.update_job(
                db, row.job_id, state="failed", reason=reason, epoch=job.epoch, round_=job.round, model_dir=""
            )
        )

    def _peers_changed(self) -> None:
        """Searches that pause go on at once when a worker comes (or comes back)."""
        workers = {peer.record.peer_id for peer in self._overlay.peers("worker") if peer.reachable}
        came, self._workers = workers - self._workers, workers
        for runner in self._runners.values() if came else ():
            runner.workers_came(came)

    def _runner(self, job_id: str) -> JobRunner:
        runner = self._runners.get(job_id)
        if runner is None:
            raise Refused("unknown", f"no job {job_id[:80]!r} runs here")
        return runner

    def _runner_of(self, caller: Caller, task_id: str) -> tuple[JobRunner, Task]:
        """The job of a task, if the caller is the one that runs it."""
        match = _TASK_ID.fullmatch(task_id)
        if match is None:
            raise Refused("unknown", f"no task {task_id[:80]!r} here")
        runner = self._runner(match["job"])
        task = runner.job.group.tasks.get(task_id)
        if task is None:
            if int(match["epoch"]) < runner.job.epoch:
                raise Refused("stale", f"task {task_id} belongs to an epoch that is over")
            raise Refused("unknown", f"no task {task_id} here")
        if task.peer_id != caller.peer_id:
            raise Refused("denied", f"task {task_id} does not run at the caller")
        if task.epoch < runner.job.epoch:
            raise Refused("stale", f"task {task_id} belongs to an epoch that is over")
        return runner, task

    # ---- calls of workers -----------------------------------------------------------------------------

    async def _offer(self, caller: Caller, offer: Offer) -> Ack:
        if not any(runner.offered(caller.peer_id, offer) for runner in list(self._runners.values())):
            raise Refused("stale", "nobody here waits for this offer any more")
        return Ack()

    async def _decline(self, caller: Caller, decline: Decline) -> Ack:
        any(runner.declined(caller.peer_id, decline) for runner in list(self._runners.values()))
        return Ack()

    async def _task_status(self, caller: Caller, status: TaskStatus) -> Ack:
        runner, task = self._runner_of(caller, status.task_id)
        if status.lease_id != task.lease_id:
            raise Refused("stale", f"task {task.task_id} runs under another lease")
        await runner.take(m.TaskReported(replace(status, tail=[line[:2000] for line in status.tail[-50:]])))
        return Ack()

    async def _next_slice(self, caller: Caller, request: NextSlice) -> SliceGrant:
        runner, task = self._runner_of(caller, request.task_id)
        _must_be(task, m.TRAIN)
        if not task.is_alive:
            raise Refused("stale", f"task {task.task_id} is over")
        return runner.next_slice(request)

    async def _progress(self, caller: Caller, report: Progress) -> Plan:
        runner, task = self._runner_of(caller, report.task_id)
        _must_be(task, m.TRAIN)
        if min(report.round, report.batches, report.samples) < 0:
            raise Refused("invalid", "negative counts")
        return runner.progress(report)

    async def _measure(self, caller: Caller, measure: Measure) -> Ack:
        runner, task = self._runner_of(caller, measure.task_id)
        _must_be(task, m.TRAIN)
        await runner.take(m.Measured(measure.task_id, measure.round, measure.metrics))
        return Ack()

    async def _round_committed(self, caller: Caller, report: RoundCommitted) -> Ack:
        runner, task = self._runner_of(caller, report.task_id)
        _must_be(task, m.AGGREGATE)
        await runner.take(m.Committed(report))
        return Ack()

    # ---- commands of operators ----------------------------------------------------------------------

    async def _run_command(self, caller: Caller, request: RunCommand) -> Accepted:
        by, command = self._intake.open_command(request.signed)
        if isinstance(command, Submit):
            raise Refused("invalid", "a job comes with its body: PUT /bulk/submissions/<job>")
        runner = self._runners.get(command.job_id)
        if runner is None:
            if await records.find_job(self._store, command.job_id) is None:
                raise Refused("unknown", f"no job {command.job_id} here")
        else:
            log.info("job.cancel job=%s by=%s", command.job_id, by)
            await runner.take(m.CancelAsked(by))
        return Accepted(job_id=command.job_id, scheduler=self._overlay.peer_id)

    async def _submission(self, caller: Caller, request: web.Request) -> web.StreamResponse:
        if self._tasks is None:
            raise Refused("busy", "this scheduler is starting or stopping")
        by, command = self._intake.open_header(request)
        row = await self._intake.take_upload(request, by, command)
        self._start(row)
        return _json(SubmitResult(job_id=row.job_id, scheduler=self._overlay.peer_id))

    # ---- what others fetch --------------------------------------------------------------------------

    async def _folder(self, caller: Caller, request: web.Request) -> web.StreamResponse:
        runner = self._runner(request.match_info["job_id"])
        if not any(task.is_alive and task.peer_id == caller.peer_id for task in runner.job.group.tasks.values()):
            raise Refused("denied", "only the workers of a job may fetch its folder")
        if not runner.row.folder_sha256:
            raise Refused("unknown", "this job has no folder")
        return await send_file(request, self._files.folder(runner.row.job_id), sha256=runner.row.folder_sha256)

    async def _metrics(self, caller: Caller, request: web.Request) -> web.StreamResponse:
        job_id = await self._known(request)
        points = await records.points_of(self._store, job_id)
        runner = self._runners.get(job_id)
        return _json([*points, *(runner.points() if runner else [])])

    async def _rounds(self, caller: Caller, request: web.Request) -> web.StreamResponse:
        return _json(await records.rounds_of(self._store, await self._known(request)))

    async def _known(self, request: web.Request) -> str:
        job_id = request.match_info["job_id"]
        if await records.find_job(self._store, job_id) is None:
            raise Refused("unknown", f"no job {job_id[:80]!r} here")
        return job_id


def _must_be(task: Task, role: str) -> None:
    if task.role != role:
        raise Refused("denied", f"task {task.task_id} is not a {role} task")


def _json(content: object) -> web.Response:
    return web.Response(body=msgspec.json.encode(content), content_type="application/json")
