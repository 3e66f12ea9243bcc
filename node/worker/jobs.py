"""The tasks of this worker: started under a lease, watched, reported, ended with everything they left."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import shutil
import sqlite3
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from node.board import Board
from node.errors import HyphaError, Refused
from node.network.cache import ContentCache
from node.socketfolder import socket_path_fits
from node.store import Store
from node.telemetry import metrics
from node.wire import AggregateTask, Dispatch, ExportedFile, InferTask, TrainTask, VersionFile
from node.worker import orphans
from node.worker.aggregator import COMMAND
from node.worker.beneath import staging_of
from node.worker.context import TaskContext, check_id
from node.worker.environment import arguments, environment
from node.worker.inference import InferenceTask
from node.worker.kinds import executors_of
from node.worker.leases import Lease
from node.worker.orphans import ExecutorRow
from node.worker.parameter_server import ParameterServer
from node.worker.sandbox import Mount, Sandbox
from node.worker.sockets import Sockets
from node.worker.statuses import Statuses
from node.worker.stores import Stores
from node.worker.training import Outcome, TrainingTask
from node.worker.transfers import Transfers
from node.worker.web import Web

if TYPE_CHECKING:
    from node.config import ExecutorConfig, NodeConfig
    from node.network.overlay import Overlay

log = logging.getLogger(__name__)

REPORT_FOR_S = 60.0
REPORT_ENDED_FOR_S = 5.0
REPORT_STOPPING_FOR_S = 0.5
STOPPING_GRACE_S = 1.0
LOGS = "hypha-logs"

Work = TrainingTask | InferenceTask | ParameterServer


class Job:
    """One task on this worker, from its dispatch until nothing of it is left."""

    def __init__(
        self, context: TaskContext, lease: Lease, work: Work, socket_path: Path, mounts: Sequence[Mount]
    ) -> None:
        self.context = context
        self.lease = lease
        self.work = work
        self.socket_path = socket_path
        self.mounts = mounts
        self.ending: Outcome | None = None
        self.runner: asyncio.Task[None] | None = None

    def end(self, outcome: Outcome) -> None:
        """End it now, for this reason; the first reason counts."""
        if self.ending is None and self.runner is not None:
            self.ending = outcome
            self.runner.cancel()


class Jobs:
    """All tasks of this worker."""

    def __init__(self, config: NodeConfig, overlay: Overlay, board: Board, store: Store, transfers: Transfers) -> None:
        self.sandbox = Sandbox("refuse", "the worker is still starting")
        self._config = config
        self._overlay = overlay
        self._board = board
        self._store = store
        self._transfers = transfers
        self._jobs: dict[str, Job] = {}
        self._over: dict[str, str] = {}
        self._is_stopping = False
        self._sockets = Sockets(config.state_dir)
        self._boot_id = orphans.boot_id()
        self._logs = config.jobs_dir / LOGS
        self._cache = ContentCache(config.cache_dir, *config.cache_limits)
        self._web = Web(self._cache, config.fetch)
        self._stores = Stores(config.fetch.stores)

    async def prepare(self) -> None:
        """Clear away what an earlier life of this node left."""
        self._config.jobs_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._logs.mkdir(exist_ok=True, mode=0o700)
        rows = [ExecutorRow(*row) for row in await self._store.read("SELECT * FROM executors")]
        for row in rows:
            killed = await asyncio.to_thread(orphans.sweep, row)
            log.warning("executor.swept task=%s pid=%s was_running=%s", row.task_id, row.pid, killed)
            if killed:
                text = f"ended the executor of task {row.task_id}, left by a node that died"
                self._board.happened("executor.swept", text, level="warning", task=row.task_id)
            await self._store.write(functools.partial(orphans.forget, row.task_id))
        await asyncio.to_thread(orphans.prune, self._config.jobs_dir, self._logs)
        await asyncio.to_thread(self._cache.sweep)

    def start(self, tasks: asyncio.TaskGroup, dispatch: Dispatch, lease: Lease, mounts: Sequence[Mount] = ()) -> None:
        """Begin a task; the same task again is no second one. Raises `Refused`."""
        task_id = check_id("task id", dispatch.task_id)
        check_id("job id", dispatch.job_id)
        known = self._jobs.get(task_id)
        if known is not None:
            if known.lease.lease_id != lease.lease_id:
                raise Refused("conflict", f"task {task_id} runs under another lease")
            return
        if task_id in self._over:
            raise Refused("stale", f"task {task_id} is over: {self._over[task_id]}")
        for other in self._jobs.values():
            if other.lease.lease_id == lease.lease_id:
                raise Refused("conflict", f"lease {lease.lease_id} already runs task {other.context.task_id}")
        if dispatch.runs_job_code:
            self.sandbox.check()
        context = TaskContext(
            peer_id=self._overlay.peer_id,
            scheduler=lease.scheduler,
            dispatch=dispatch,
            work_dir=(self._config.jobs_dir / f"hypha-{task_id}").resolve(),
            log_path=self._logs / f"{task_id}.log",
            cache=self._cache,
            web=self._web,
            stores=self._stores,
            token=dispatch.token,
        )
        socket_path = self._sockets.next()
        work = self._work(context, socket_path)
        job = Job(context, lease, work, socket_path, mounts)
        self._jobs[task_id] = job
        job.runner = tasks.create_task(self._run(job), name=f"task:{task_id}")

    def task_of(self, lease_id: str) -> str:
        """The task that runs under a lease, if any."""
        return next((job.context.task_id for job in self._jobs.values() if job.lease.lease_id == lease_id), "")

    def end_lease(self, lease: Lease) -> None:
        """A lease is over: its task ends."""
        for job in self._jobs.values():
            if job.lease.lease_id == lease.lease_id:
                is_done = lease.state == "released" and job.work.is_done
                job.end(Outcome("finished") if is_done else Outcome("cancelled", f"the lease is {lease.state}"))

    def cancel(self, task_id: str, scheduler: str) -> None:
        """The scheduler wants it ended. Raises `Refused` for another's task."""
        job = self._jobs.get(task_id)
        if job is not None:
            if job.context.scheduler != scheduler:
                raise Refused("denied", f"task {task_id} is another scheduler's")
            job.end(Outcome("cancelled", "the scheduler cancelled it"))

    def parameter_server(self, job_id: str) -> ParameterServer:
        """The parameter server of a job, if it runs here. Raises `Refused`."""
        for job in self._jobs.values():
            if job.context.job_id == job_id and isinstance(job.work, ParameterServer):
                return job.work
        raise Refused("unknown", f"no parameter server of job {job_id} here")

    def parameter_server_task(self, task_id: str, scheduler: str) -> ParameterServer:
        """The parameter server with this task id. Raises `Refused`."""
        job = self._jobs.get(task_id)
        if job is None or not isinstance(job.work, ParameterServer) or job.context.scheduler != scheduler:
            raise Refused("unknown", f"no parameter server {task_id} here")
        return job.work

    def log_path(self, task_id: str) -> Path:
        """Where a task's output is, while it runs and for a while after. Raises `Refused`."""
        path = self._logs / f"{check_id('task id', task_id)}.log"
        if not path.exists():
            raise Refused("unknown", f"no log of task {task_id} here")
        return path

    def stopping(self) -> None:
        """The node stops: executors get less time to end, and schedulers to hear of it."""
        self._is_stopping = True
        for job in self._jobs.values():
            job.work.grace_s = min(job.work.grace_s, STOPPING_GRACE_S)

    def close(self) -> None:
        """Nothing runs any more."""
        self._sockets.close()

    # ---- one task -----------------------------------------------------------------------------------

    def _work(self, context: TaskContext, socket_path: Path) -> Work:
        match context.dispatch.task:
            case TrainTask() as task:
                return TrainingTask(context, task, self._overlay, self._transfers, socket_path)
            case AggregateTask() as task:
                return ParameterServer(context, task, self._overlay, self._transfers, self._board)
            case InferTask() as task:
                return InferenceTask(context, task, self._overlay, self._transfers, socket_path)

    async def _run(self, job: Job) -> None:
        context = job.context
        statuses = Statuses(self._overlay, context, job.lease.lease_id)
        statuses.add("starting")
        text = f"task {context.task_id} of job {context.job_id} starts"
        self._board.happened("task.started", text, task=context.task_id, job=context.job_id)
        log.info("task.started task=%s job=%s lease=%s", context.task_id, context.job_id, job.lease.lease_id)
        metrics().tasks_changed(1)
        outcome = Outcome("cancelled", "the worker is stopping")
        try:
            async with asyncio.TaskGroup() as tasks:
                teller = tasks.create_task(statuses.run())
                try:
                    outcome = await self._carry_out(job, statuses)
                    self._told(job, outcome)
                    statuses.add_outcome(outcome)
                    await self._clear(job, outcome)
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(self._report_for_s(job)):
                            await statuses.flush()
                finally:
                    teller.cancel()
        except asyncio.CancelledError:
            if job.ending is None:
                outcome = Outcome("cancelled", "the worker is stopping")
            await self._clear(job, outcome)
            with contextlib.suppress(HyphaError, TimeoutError):
                await statuses.last_word(outcome)
            if job.ending is None:
                raise
        finally:
            metrics().tasks_changed(-1)
            self._jobs.pop(context.task_id, None)
            self._over[context.task_id] = outcome.detail or outcome.state
            while len(self._over) > 500:
                del self._over[next(iter(self._over))]

    def _report_for_s(self, job: Job) -> float:
        if self._is_stopping:
            return REPORT_STOPPING_FOR_S
        return REPORT_FOR_S if job.ending is None else REPORT_ENDED_FOR_S

    async def _carry_out(self, job: Job, statuses: Statuses) -> Outcome:
        """Run the work to its end, whatever that is."""
        try:
            return await self._start(job, statuses)
        except asyncio.CancelledError:
            runner = asyncio.current_task()
            if job.ending is None or runner is None:
                raise
            runner.uncancel()
            return job.ending
        except HyphaError as error:
            return Outcome("failed", str(error))
        except OSError as error:
            return Outcome("failed", f"{error.strerror or error}: {error.filename or ''}".rstrip(": "))
        except Exception as error:
            log.exception("task.broken task=%s", job.context.task_id)
            return Outcome("failed", f"the worker failed to run it: {type(error).__name__}: {error}")

    async def _start(self, job: Job, statuses: Statuses) -> Outcome:
        context = job.context
        await asyncio.to_thread(_make_work_dir, context.work_dir)
        await self._remember(job, 0)

        if isinstance(job.work, ParameterServer):
            return await self._start_server(job, job.work, statuses)

        async def started(pid: int) -> None:
            await self._remember(job, pid)
            statuses.add("running")

        if not socket_path_fits(job.socket_path):
            raise Refused("invalid", f"{job.socket_path} is too long for a socket", hint="set XDG_RUNTIME_DIR")
        executor = self._executor(context.dispatch.executor.class_, context.dispatch.executor.name)
        filled = arguments(executor.args, job.socket_path, context.work_dir, job.work.description())
        command = [executor.cmd or sys.executable, *filled]
        variables = environment(context.task_id, context.work_dir, job.lease.resources, command[0])
        return await job.work.run(self._wrapped(job, command, job.socket_path), variables, started)

    async def _start_server(self, job: Job, server: ParameterServer, statuses: Statuses) -> Outcome:
        context = job.context
        command = [*COMMAND, str(context.work_dir)]
        variables = environment(context.task_id, context.work_dir, job.lease.resources, command[0])

        async def started(pid: int) -> None:
            await self._remember(job, pid)

        def ready(files: Sequence[VersionFile]) -> None:
            statuses.add("ready", files=list(files))

        def exported(files: list[ExportedFile]) -> None:
            statuses.add("exported", exported=files)

        return await server.run(self._wrapped(job, command, None), variables, started, ready, exported)

    def _executor(self, class_: str, name: str) -> ExecutorConfig:
        for executor in executors_of(self._config):
            if executor.class_ == class_ and name in ("", executor.name):
                return executor
        raise Refused("unknown", f"no executor {class_}/{name}")

    def _wrapped(self, job: Job, command: list[str], socket_path: Path | None) -> list[str]:
        work_dir = job.context.work_dir
        if not job.context.dispatch.runs_job_code:
            return self.sandbox.view(command, work_dir, job.mounts)
        hidden = [self._config.state_dir, self._logs, *(path for path in (self._config.key_pem,) if path is not None)]
        return self.sandbox.wrap(command, work_dir, socket_path, hidden, job.mounts)

    async def _remember(self, job: Job, pid: int) -> None:
        row = ExecutorRow(
            task_id=job.context.task_id,
            pid=pid,
            start_ticks=orphans.start_ticks(pid) if pid else 0,
            boot_id=self._boot_id,
            work_dir=str(job.context.work_dir),
            socket_path=str(job.socket_path),
        )
        await self._store.write(functools.partial(orphans.remember, row))

    def _told(self, job: Job, outcome: Outcome) -> None:
        context = job.context
        log.info("task.%s task=%s detail=%s", outcome.state, context.task_id, outcome.detail)
        level = "error" if outcome.state == "failed" else "info"
        text = f"task {context.task_id} {outcome.state}" + (f": {outcome.detail}" if outcome.detail else "")
        self._board.happened(f"task.{outcome.state}", text, level=level, task=context.task_id, job=context.job_id)

    async def _clear(self, job: Job, outcome: Outcome) -> None:
        """Remove what is left; the work directory of a failed task is kept for a while."""
        context = job.context

        def clear() -> None:
            job.socket_path.unlink(missing_ok=True)
            if outcome.state == "failed" and context.work_dir.is_dir():
                kept = context.work_dir.with_name(f"failed-{context.task_id}")
                shutil.rmtree(kept, ignore_errors=True)
                with contextlib.suppress(OSError):
                    context.work_dir.rename(kept)
                    os.utime(kept)
            shutil.rmtree(context.work_dir, ignore_errors=True)
            shutil.rmtree(staging_of(context.work_dir), ignore_errors=True)
            orphans.prune(self._config.jobs_dir, self._logs)

        try:
            await asyncio.to_thread(clear)
            await self._store.write(functools.partial(orphans.forget, context.task_id))
        except (OSError, sqlite3.Error):
            # The row stays, so that the next start tries again.
            log.exception("task.not_cleared task=%s", context.task_id)


def _make_work_dir(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)
    shutil.rmtree(staging_of(path), ignore_errors=True)
    path.mkdir(mode=0o700)
    (path / "tmp").mkdir()
