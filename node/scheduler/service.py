"""The scheduler role: takes jobs, runs each, answers their workers, and picks them up again after a restart."""

from __future__ import annotations

import asyncio
import logging
import re
from collections import deque
from typing import TYPE_CHECKING

import msgspec
from aiohttp import web
from msgspec.structs import replace

from node.errors import Refused
from node.jobdocument import document_of
from node.network.serving import send_file
from node.scheduler import messages as m
from node.scheduler import records, runs
from node.scheduler.copies import Copies
from node.scheduler.exporters import Exports
from node.scheduler.files import SchedulerFiles
from node.scheduler.group import Task
from node.scheduler.handover import Handover
from node.scheduler.intake import Intake
from node.scheduler.order import AGGREGATE, INFER, TRAIN
from node.scheduler.records import ENDED_SHOWN, PAUSED, JobRow
from node.scheduler.results import read_result_header
from node.scheduler.runner import JobRunner
from node.scheduler.slicestates import slice_map, slice_map_of_store
from node.scheduler.steer import Steering
from node.views import SubmitResult
from node.wire import (
    Accepted,
    Ack,
    CommitRound,
    Decline,
    HandOver,
    Measure,
    NextSlice,
    Offer,
    Pause,
    Plan,
    Progress,
    Release,
    Resume,
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

RESUMABLE = 20
"""So many of the jobs that ended last can be resumed."""

_TASK_ID = re.compile(r"(?P<job>[A-Za-z0-9_-]+)\.(?P<epoch>\d+)\.(?P<number>\d+)")


class SchedulerService:
    """All jobs of this node."""

    def __init__(self, config: NodeConfig, overlay: Overlay, board: Board, store: Store) -> None:
        self._config = config
        self._overlay = overlay
        self._board = board
        self._store = store
        self._files = SchedulerFiles(config.state_dir)
        self._exports = Exports(config, self._name_of, self._tell)
        self._intake = Intake(config, overlay, store, self._files)
        self._copies = Copies(overlay, self._files)
        self._handover = Handover(overlay, store, self._files, self._intake, self._copies)
        self._runners: dict[str, JobRunner] = {}
        self._steering = Steering(overlay, board, store, self._runners)
        self._ended: deque[str] = deque()
        self._workers: set[str] = set()
        self._tasks: asyncio.TaskGroup | None = None
        self._is_ready = False
        overlay.on(Offer, self._offer)
        overlay.on(Decline, self._decline)
        overlay.on(TaskStatus, self._task_status)
        overlay.on(NextSlice, self._next_slice)
        overlay.on(Progress, self._progress)
        overlay.on(Measure, self._measure)
        overlay.on(CommitRound, self._commit_round)
        overlay.on(RunCommand, self._run_command, operator=True)
        overlay.on(HandOver, self._hand_over)
        overlay.bulk_route("PUT", "/bulk/submissions/{job_id}", self._submission, operator=None)
        overlay.bulk_route("PUT", "/bulk/jobs/{job_id}/results/{index}", self._result)
        overlay.bulk_route("GET", "/bulk/jobs/{job_id}/folder", self._folder)
        overlay.bulk_route("GET", "/bulk/jobs/{job_id}/trained", self._trained)
        overlay.bulk_route("GET", "/bulk/jobs/{job_id}/trained/{name:.+}", self._trained)
        overlay.bulk_route("GET", "/bulk/jobs/{job_id}/journal/{kind}/{number}", self._journal)
        overlay.bulk_route("GET", "/bulk/jobs/{job_id}/spec", self._spec, operator=None)
        overlay.bulk_route("GET", "/bulk/jobs/{job_id}/leases/{lease}", self._lease, operator=None)
        overlay.bulk_route("GET", "/bulk/jobs/{job_id}/slices", self._slices, operator=None)
        overlay.bulk_route("GET", "/bulk/jobs/{job_id}/metrics", self._metrics, operator=None)
        overlay.bulk_route("GET", "/bulk/jobs/{job_id}/rounds", self._rounds, operator=None)

    async def run(self) -> None:
        """Run jobs until cancelled; their leases are kept then, and they go on at the next start."""
        await asyncio.to_thread(self._files.prepare)
        async with asyncio.TaskGroup() as tasks:
            for row in reversed(await records.ended_jobs(self._store)):
                self._board.put(await records.view_of_ended(self._store, row, self._overlay.peer_id))
                self._ended.append(row.job_id)
            self._tasks = tasks
            try:
                for row in await records.unfinished_jobs(self._store):
                    if row.state == PAUSED:
                        self._board.put(await records.view_of_ended(self._store, row, self._overlay.peer_id))
                    await self._start(row)
                self._is_ready = True
                if self._config.scheduler.job is not None:
                    await self._start(await self._intake.take_configured(self._config.scheduler.job))
                self._overlay.watch_peers(self._peers_changed)
                tasks.create_task(self._exports.run())
                tasks.create_task(self._copies.run())
                await asyncio.Event().wait()
            finally:
                self._tasks = None

    # ---- jobs ---------------------------------------------------------------------------------------

    async def _start(self, row: JobRow) -> None:
        if row.job_id in self._runners or row.ended_unix is not None or row.state == PAUSED or self._tasks is None:
            return
        saved = await runs.saved_run(self._store, row.job_id)
        if row.job_id in self._runners or self._tasks is None:
            return
        self._exports.recall(saved.points, row.submitted_unix)
        runner = JobRunner(row, saved, self._overlay, self._board, self._store, self._files, self._exports.put)
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
        if runner.job.state != PAUSED:
            self._exports.ended(row.job_id, runner.job.state)
            await self._has_ended(row.job_id)

    async def _has_ended(self, job_id: str) -> None:
        """What may go goes: the views of jobs long over, and what older ones would need to be resumed."""
        self._ended.append(job_id)
        while len(self._ended) > ENDED_SHOWN:
            old = self._ended.popleft()
            self._runners.pop(old, None)
            self._board.drop("job", old)
        resumable = await records.ended_jobs(self._store)
        for row in resumable[RESUMABLE:]:
            await asyncio.to_thread(self._files.forget, row.job_id)

    async def _mark_failed(self, runner: JobRunner, reason: str) -> None:
        row, job = runner.row, runner.job
        job.abandon(reason)
        self._board.happened("job.failed", f"{row.name}: {reason}", level="error", job=row.job_id)
        self._board.put(job.view(asyncio.get_running_loop().time(), self._overlay.peer_id))
        await self._store.write(
            lambda db: records.update_job(
                db,
                row.job_id,
                state="failed",
                reason=reason,
                epoch=job.epoch,
                model_dir="",
                data_digest=job.data_digest,
            )
        )

    def _tell(self, name: str, text: str, level: str) -> None:
        self._board.happened(name, text, level=level)

    def _name_of(self, peer_id: str) -> str:
        known = (peer.record for peer in self._overlay.peers() if peer.record.peer_id == peer_id)
        return next((record.name for record in known), peer_id[-8:])

    def _peers_changed(self) -> None:
        """Searches that pause go on at once when a worker comes (or comes back)."""
        workers = {peer.record.peer_id for peer in self._overlay.peers("worker") if peer.reachable}
        came, self._workers = workers - self._workers, workers
        for runner in self._runners.values() if came else ():
            runner.workers_came(came)

    def _runner(self, job_id: str) -> JobRunner:
        runner = self._runners.get(job_id)
        if runner is None:
            if not self._is_ready:
                raise Refused("busy", "this scheduler is starting")
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
            raise Refused("unknown", f"no task {task_id} here")
        if task.peer_id != caller.peer_id:
            raise Refused("denied", f"task {task_id} does not run at the caller")
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
        _must_be(task, TRAIN, INFER)
        if not task.is_alive:
            raise Refused("stale", f"task {task.task_id} is over")
        return await runner.next_slice(request)

    async def _progress(self, caller: Caller, report: Progress) -> Plan:
        runner, task = self._runner_of(caller, report.task_id)
        _must_be(task, TRAIN, INFER)
        if min(report.round, report.batches, report.samples) < 0:
            raise Refused("invalid", "negative counts")
        return await runner.progress(report)

    async def _measure(self, caller: Caller, measure: Measure) -> Ack:
        runner, task = self._runner_of(caller, measure.task_id)
        _must_be(task, TRAIN, INFER)
        await runner.take(m.Measured(measure.task_id, measure.round, measure.metrics))
        return Ack()

    async def _commit_round(self, caller: Caller, report: CommitRound) -> Ack:
        runner, task = self._runner_of(caller, report.task_id)
        _must_be(task, AGGREGATE)
        await runner.commit(caller.peer_id, report)
        return Ack()

    async def _result(self, caller: Caller, request: web.Request) -> web.StreamResponse:
        header = read_result_header(request)
        runner, task = self._runner_of(caller, header.task_id)
        _must_be(task, INFER)
        await runner.results.take(request, header)
        return _json(Ack())

    # ---- commands of operators ----------------------------------------------------------------------

    async def _run_command(self, caller: Caller, request: RunCommand) -> Accepted:
        opened = self._intake.open_command(request.signed)
        by, command = opened.by, opened.command
        if isinstance(command, Submit):
            raise Refused("invalid", "a job comes with its body: PUT /bulk/submissions/<job>")
        if isinstance(command, Release):
            if await self._intake.orders.take(opened):
                await self._steering.release(by, command.lease_id, request.worker)
            return Accepted(job_id=command.lease_id, scheduler=self._overlay.peer_id)
        row = await records.find_job(self._store, command.job_id)
        if row is None:
            raise Refused("unknown", f"no job {command.job_id} here")
        if not await self._intake.orders.take(opened):
            return Accepted(job_id=command.job_id, scheduler=self._overlay.peer_id)
        runner = self._runners.get(command.job_id)
        if isinstance(command, Resume):
            await self._resume(by, row)
        elif isinstance(command, Pause):
            await self._steering.pause(by, row, runner)
        elif row.state == PAUSED and (runner is None or runner.job.is_over):
            self._runners.pop(row.job_id, None)
            await self._steering.cancel_paused(by, row)
            await self._has_ended(row.job_id)
        elif runner is not None:
            log.info("job.cancel job=%s by=%s", command.job_id, by)
            await runner.take(m.CancelAsked(by))
        return Accepted(job_id=command.job_id, scheduler=self._overlay.peer_id)

    async def _hand_over(self, caller: Caller, request: HandOver) -> Ack:
        """A worker is being drained."""
        runner = self._runners.get(request.job_id)
        if runner is not None and runner.holds(request.lease_id, caller.peer_id):
            await runner.take(m.HandOverAsked(request.lease_id, request.reason[:200]))
        return Ack()

    async def _resume(self, by: str, row: JobRow) -> None:
        """Go on with a job that is paused or has ended from its last committed round, in a new epoch."""
        if row.ended_unix is None and row.state != PAUSED:
            return
        if row.state == "done":
            raise Refused("conflict", f"job {row.job_id} is done")
        kept = [ended.job_id for ended in (await records.ended_jobs(self._store))[:RESUMABLE]]
        if row.state != PAUSED and row.job_id not in kept:
            raise Refused("unknown", f"job {row.job_id} is too old: its versions are not kept any more")
        runner = self._runners.get(row.job_id)
        if self._tasks is None or (runner is not None and runner.is_running):
            raise Refused("busy", f"job {row.job_id} is ending")
        await runs.resume(self._store, row.job_id, row.epoch + 1)
        self._runners.pop(row.job_id, None)
        if row.job_id in self._ended:
            self._ended.remove(row.job_id)
        text = f"{row.name} goes on from version {row.round}, resumed by {by}"
        self._board.happened("job.resumed", text, job=row.job_id)
        log.info("job.resume job=%s by=%s version=%d", row.job_id, by, row.round)
        again = await records.find_job(self._store, row.job_id)
        if again is not None:
            await self._start(again)

    async def _submission(self, caller: Caller, request: web.Request) -> web.StreamResponse:
        if self._tasks is None:
            raise Refused("busy", "this scheduler is starting or stopping")
        by, command = self._intake.open_header(request)
        row = await self._intake.take_upload(request, by, command)
        await self._start(row)
        return _json(SubmitResult(job_id=row.job_id, scheduler=self._overlay.peer_id))

    # ---- what others fetch --------------------------------------------------------------------------

    async def _folder(self, caller: Caller, request: web.Request) -> web.StreamResponse:
        runner = self._runner(request.match_info["job_id"])
        if not any(task.is_alive and task.peer_id == caller.peer_id for task in runner.job.group.tasks.values()):
            raise Refused("denied", "only the workers of a job may fetch its folder")
        if not runner.row.folder_sha256:
            raise Refused("unknown", "this job has no folder")
        return await send_file(request, self._files.folder(runner.row.job_id), sha256=runner.row.folder_sha256)

    async def _trained(self, caller: Caller, request: web.Request) -> web.StreamResponse:
        """The final model of an earlier job, for the workers of those that run it."""
        job_id = request.match_info["job_id"]
        users = (runner.job.group for runner in self._runners.values() if runner.spec.model_job == job_id)
        if not any(
            task.is_alive and task.peer_id == caller.peer_id for group in users for task in group.tasks.values()
        ):
            raise Refused("denied", "only the workers of a job that runs this model may fetch it")
        model = await self._handover.final(job_id)
        if "name" in request.match_info:
            return await self._handover.send(request, model)
        return await self._handover.describe(job_id, model)

    async def _journal(self, caller: Caller, request: web.Request) -> web.StreamResponse:
        """A file of the journal, for the worker of the job's parameter server alone."""
        runner = self._runner(request.match_info["job_id"])
        server = runner.job.group.server
        if server is None or server.peer_id != caller.peer_id:
            raise Refused("denied", "only the worker of a job's parameter server may fetch its journal")
        number = request.match_info["number"]
        file = runner.job.chain.find(request.match_info["kind"], int(number)) if number.isdecimal() else None
        if file is None:
            raise Refused("unknown", "the journal has no such file")
        return await send_file(request, runner.journal.path(file), sha256=file.sha256)

    async def _spec(self, caller: Caller, request: web.Request) -> web.StreamResponse:
        row = await records.find_job(self._store, await self._known(request))
        assert row is not None
        return _json(document_of(row.job_spec()))

    async def _lease(self, caller: Caller, request: web.Request) -> web.StreamResponse:
        """What a job's scheduler knows of one of its leases."""
        history = self._runner(request.match_info["job_id"]).lease_history(request.match_info["lease"])
        if history is None:
            raise Refused("unknown", "this job has had no such lease since its scheduler began")
        return _json(history)

    async def _slices(self, caller: Caller, request: web.Request) -> web.StreamResponse:
        """Every slice of the present pass over a job's data."""
        job_id = await self._known(request)
        runner = self._runners.get(job_id)
        if runner is not None and runner.job.ledger is not None:
            tasks = runner.job.group.tasks
            peers = {task_id: task.peer_id for task_id, task in tasks.items()}
            return _json(slice_map(job_id, runner.job.dataset, runner.job.ledger, lambda task: peers.get(task, "")))
        row = await records.find_job(self._store, job_id)
        assert row is not None
        return _json(await slice_map_of_store(self._store, job_id, row.job_spec().dataset))

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


def _must_be(task: Task, *roles: str) -> None:
    if task.role not in roles:
        raise Refused("denied", f"task {task.task_id} is not a {' or '.join(roles)} task")


def _json(content: object) -> web.Response:
    return web.Response(body=msgspec.json.encode(content), content_type="application/json")
