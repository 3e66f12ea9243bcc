"""A training task: its executor, its bridge, and the loops that carry its progress, updates and steps."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import random
import signal
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from node.errors import DiskFull, HyphaError, PeerError, PeerProtocol, Refused
from node.network import bulk
from node.wire import ExportedFile, Measure, Progress, TrainTask, UpdateHeader
from node.worker.beneath import take
from node.worker.bridge import Arrivals, Bridge
from node.worker.bridge_state import Phase, TaskProgress
from node.worker.context import TaskContext
from node.worker.digest import sha256_of
from node.worker.fetch import Fetcher
from node.worker.logfile import LogFile, tail
from node.worker.process import GRACE_S, ExecutorProcess
from node.worker.references import BridgeError, Peers, Reference, Weights, folder
from node.worker.retrying import new_backoff
from node.worker.transfers import Transfers
from node.worker.versions import Version, describe, step_path

if TYPE_CHECKING:
    from node.network.overlay import Overlay

log = logging.getLogger(__name__)

REPORT_EVERY_S = 0.25
ASK_AGAIN_S = 1.0
CALL_S = 5.0
UPLOAD_STALL_S = 120.0
BROKEN_ALLOWED = 8
"""So often in a row a parameter server may answer with a fault of its own before the task is given up."""
TAIL_LINES = 50
INCOMING = "incoming"


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a task ended."""

    state: str
    detail: str = ""
    exit_code: int | None = None
    tail: list[str] = field(default_factory=list)
    exported: list[ExportedFile] = field(default_factory=list)


class TrainingTask:
    """Runs one executor until it ends; the work behind its bridge."""

    def __init__(
        self, context: TaskContext, task: TrainTask, overlay: Overlay, transfers: Transfers, socket_path: Path
    ) -> None:
        self.work_dir = context.work_dir
        self.progress = TaskProgress(task.rounds)
        self.arrivals = Arrivals()
        self.grace_s = GRACE_S
        self._context = context
        self._task = task
        self._overlay = overlay
        self._transfers = transfers
        self._socket_path = socket_path
        self._changed = asyncio.Event()
        self._at_once = asyncio.Event()
        self._reported_round = 0
        self._sent = asyncio.Event()
        self._measures: list[Measure] = []
        self._loads_weights = False
        self._last_sent: Path | None = None
        self._problem = ""
        self._has_problem = asyncio.Event()
        self._fetcher: Fetcher | None = None

    async def run(
        self, command: list[str], environment: dict[str, str], started: Callable[[int], Awaitable[None]]
    ) -> Outcome:
        """Start the executor; returns when it is over, with nothing of it left."""
        with LogFile(self._context.log_path) as output:
            async with asyncio.TaskGroup() as tasks:
                self._fetcher = Fetcher(self._context, self._overlay, self._transfers, tasks)
                loops = [tasks.create_task(self._report()), tasks.create_task(self._receive())]
                try:
                    async with Bridge(self).listening(self._socket_path):
                        code = await self._run_process(tasks, command, environment, started, output)
                finally:
                    for loop in loops:
                        loop.cancel()
                    self._fetcher.close()
        return await self._outcome(code)

    @property
    def is_done(self) -> bool:
        """Whether the executor has been told that the job is done, and only its exit is missing."""
        return self.progress.phase is Phase.DONE

    async def _run_process(
        self,
        tasks: asyncio.TaskGroup,
        command: list[str],
        environment: dict[str, str],
        started: Callable[[int], Awaitable[None]],
        output: LogFile,
    ) -> int:
        process = await ExecutorProcess.start(command, environment, self.work_dir)
        drain = tasks.create_task(process.drain(output))
        ends = [tasks.create_task(process.wait()), tasks.create_task(self._has_problem.wait())]
        try:
            await started(process.pid)
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await process.stop(self.grace_s)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await asyncio.shield(drain)
            for task in (drain, *ends):
                task.cancel()
        return await process.wait()

    async def _outcome(self, code: int) -> Outcome:
        lines = await asyncio.to_thread(tail, self._context.log_path, TAIL_LINES)
        if self.progress.phase is Phase.DONE:
            await self._flush_measures()
            return Outcome("finished", exit_code=code)
        if self._problem:
            return Outcome("failed", self._problem, code, lines)
        if code < 0:
            with contextlib.suppress(ValueError):
                return Outcome("failed", f"the executor was killed by {signal.Signals(-code).name}", code, lines)
        if code == 0:
            return Outcome("failed", f"the executor ended in round {self.progress.round}, before the last", code, lines)
        return Outcome("failed", f"the executor ended with exit code {code}", code, lines)

    # ---- what the bridge asks for -----------------------------------------------------------------

    async def fetch(self, reference: Reference, out_dir: str) -> list[dict[str, Any]]:
        """Bring files into the work directory. Raises `BridgeError`."""
        assert self._fetcher is not None
        entries = await self._fetcher.fetch(reference, out_dir)
        if isinstance(reference, Weights):
            self._loads_weights = True
            self.progress.started_from(int(entries[0]["metadata"]["version"]))
            self.changed()
        return entries

    async def send(self, peers: Peers, path: Path) -> None:
        """Deliver the round's update; returns once the parameter server has it. Raises `BridgeError`."""
        if self.progress.phase not in (Phase.SENDING, Phase.WAITING):
            raise BridgeError(409, "conflict", f"nothing to send while {self.progress.phase.value}")
        known = {self._task.parameter_server}
        targets = [peer for peer in peers.peers if peer in known] if peers.peers else sorted(known)
        if len(targets) < len(peers.peers) or not targets:
            raise BridgeError(404, "unknown", "the peers are not of this job")
        if peers.strategy == "Random":
            targets = [random.choice(targets)]
        problem: BridgeError | None = None
        for target in targets:
            try:
                await self._upload(target, path)
            except BridgeError as error:
                problem = error
                if peers.strategy == "All":
                    break
            else:
                problem = None
                if peers.strategy == "One":
                    break
        if problem is not None:
            raise problem
        if self._last_sent not in (None, path):
            await asyncio.to_thread(self._last_sent.unlink, missing_ok=True)
        self._last_sent = path
        self.progress.sent()
        self._sent.set()

    def changed(self) -> None:
        """The progress moved on: the scheduler is told soon; at once of a new round and of its 1st, 2nd, 4th, 8th..
        batch, so that a round of short batches has its plan in time."""
        self._changed.set()
        batches = self.progress.batches
        is_early = self.progress.target is None and batches > 0 and batches & (batches - 1) == 0
        if self.progress.round != self._reported_round or is_early:
            self._at_once.set()

    def measured(self, round_: int, metrics: dict[str, float]) -> None:
        """Pass metrics on. A validation loss belongs to the version that the executor names, all else to the round."""
        finite = {name: value for name, value in metrics.items() if math.isfinite(value)}
        evaluation = {name: value for name, value in finite.items() if name == "eval_loss"}
        rest = {name: value for name, value in finite.items() if name != "eval_loss"}
        for number, values in ((round_, evaluation), (self.progress.round, rest)):
            if values:
                self._measures.append(Measure(task_id=self._context.task_id, round=number, metrics=values))
        del self._measures[:-100]
        self.changed()

    # ---- to and from the parameter server ----------------------------------------------------------

    async def _upload(self, peer: str, path: Path) -> None:
        # A name of our own, so that what is read is what was checked.
        source = await asyncio.to_thread(take, path, self.work_dir)
        try:
            await self._deliver(peer, source)
        finally:
            await asyncio.to_thread(source.unlink, missing_ok=True)

    async def _deliver(self, peer: str, path: Path) -> None:
        size, sha256 = await asyncio.to_thread(sha256_of, path)
        header = UpdateHeader(
            job_id=self._context.job_id,
            epoch=self._context.dispatch.epoch,
            task_id=self._context.task_id,
            round=self.progress.round,
            samples=self.progress.samples,
            sha256=sha256,
            size_bytes=size,
        )
        backoff = new_backoff()
        broken = 0
        while True:
            try:
                await self._upload_once(peer, path, header)
                return
            except Refused as error:
                if error.code == "stale":
                    log.warning("update.late task=%s round=%s", header.task_id, header.round)
                    return
                if error.code not in ("busy", "full", "unknown"):
                    status = {"denied": 403, "conflict": 409}.get(error.code, 422)
                    raise BridgeError(status, error.code, f"the update was refused: {error}") from error
            except DiskFull as error:
                raise BridgeError(507, "full", error.message) from error
            except PeerProtocol as error:
                broken += 1
                log.warning("update.not_taken task=%s round=%s reason=%s", header.task_id, header.round, error)
                if broken > BROKEN_ALLOWED:
                    raise BridgeError(502, "failed", f"the parameter server takes no update: {error}") from error
            except (PeerError, OSError) as error:
                broken = 0
                log.warning("update.not_sent task=%s round=%s reason=%s", header.task_id, header.round, error)
            # The lease bounds how long a parameter server is waited for.
            await asyncio.sleep(backoff.failed())

    async def _upload_once(self, peer: str, path: Path, header: UpdateHeader) -> None:
        name = f"round {header.round}"
        with self._transfers.show(
            "update", name, header.job_id, self._context.peer_id, peer, header.size_bytes
        ) as transfer:
            await bulk.upload(
                self._overlay,
                peer,
                f"/bulk/jobs/{header.job_id}/updates",
                path,
                headers={"Hypha-Update": msgspec.json.encode(header).decode()},
                on_progress=transfer.progress,
                stall_s=UPLOAD_STALL_S,
            )

    async def _receive(self) -> None:
        """After each update, bring the step that answers it."""
        while True:
            self._sent.clear()
            if self.progress.phase is not Phase.WAITING:
                await self._sent.wait()
            try:
                version, content, path = await self._next_version()
            except (HyphaError, OSError, BridgeError) as error:
                self._problem = f"no new weights after round {self.progress.round}: {error}"
                self._has_problem.set()
                return
            self.progress.arrived(version)
            relative = str(path.relative_to(self.work_dir.resolve()))
            size = (await asyncio.to_thread(path.stat)).st_size
            self.arrivals.add(relative, size, self._task.parameter_server, version=version, content=content)

    async def _next_version(self) -> tuple[int, str, Path]:
        server, job_id, wanted = self._task.parameter_server, self._context.job_id, self.progress.round + 1
        assert self._fetcher is not None
        backoff = new_backoff()
        while True:
            try:
                version = await self._version(server, job_id, wanted)
                target = folder(self.work_dir, INCOMING)
                if version.number != wanted:
                    path = target / f"weights-{version.number}.safetensors"
                    await self._fetcher.download_weights(version, server, path)
                    return version.number, "weights", path
                path = target / f"step-{version.number}.safetensors"
                await self._download_step(version, server, path)
                return version.number, "step", path
            except Refused as error:
                # Another version was made meanwhile and this one is gone: ask again.
                if error.code not in ("stale", "busy", "unknown") or backoff.failures > 5 or not self._loads_weights:
                    raise
            except DiskFull:
                raise
            except PeerError as error:
                if isinstance(error, PeerProtocol) and backoff.failures > BROKEN_ALLOWED:
                    raise
                log.warning("step.not_fetched task=%s version=%s reason=%s", self._context.task_id, wanted, error)
            await asyncio.sleep(backoff.failed())

    async def _version(self, server: str, job_id: str, wanted: int) -> Version:
        """The version this task is to continue from: the next one, or the newest where it fell behind."""
        try:
            version = await describe(self._overlay, server, job_id, wanted)
        except Refused as error:
            if error.code != "stale" or not self._loads_weights:
                raise
            return await describe(self._overlay, server, job_id)
        if version.newest > wanted and self._loads_weights:
            return await describe(self._overlay, server, job_id)
        return version

    async def _download_step(self, version: Version, server: str, path: Path) -> None:
        with self._transfers.show(
            "step", path.name, self._context.job_id, server, self._context.peer_id, version.step_bytes
        ) as transfer:
            await bulk.download(
                self._overlay,
                [server],
                step_path(self._context.job_id, version),
                path,
                sha256=version.step_sha256,
                size_bytes=version.step_bytes,
                on_progress=transfer.progress,
                durable=False,
            )

    # ---- to the scheduler -------------------------------------------------------------------------

    async def _report(self) -> None:
        """Tell the scheduler of changes, four times a second or so, and take in its plan."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(ASK_AGAIN_S):
                    await self._changed.wait()
            self._changed.clear()
            self._at_once.clear()
            self._reported_round = self.progress.round
            pause_ends = time.monotonic() + REPORT_EVERY_S
            await self._report_once()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_ends - time.monotonic()):
                    await self._at_once.wait()

    async def _report_once(self) -> None:
        totals = self.progress.totals()
        request = Progress(
            task_id=self._context.task_id,
            round=totals.round,
            batches=totals.batches,
            samples=totals.samples,
            batch_s=totals.batch_s,
            loss=totals.loss,
        )
        try:
            if self.progress.phase is not Phase.DONE:
                self.progress.plan(await self._overlay.call(self._context.scheduler, request, timeout_s=CALL_S))
            await self._flush_measures()
        except (PeerError, TimeoutError) as error:
            log.warning("progress.not_told task=%s reason=%s", self._context.task_id, error)

    async def _flush_measures(self) -> None:
        while self._measures:
            measure = self._measures[0]
            try:
                await self._overlay.call(self._context.scheduler, measure, timeout_s=CALL_S)
            except Refused as error:
                log.warning("measure.refused task=%s reason=%s", self._context.task_id, error)
            except (PeerError, TimeoutError) as error:
                log.warning("measure.not_told task=%s reason=%s", self._context.task_id, error)
                return
            if self._measures and self._measures[0] is measure:
                self._measures.pop(0)
