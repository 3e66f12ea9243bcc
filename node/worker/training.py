"""A training task: its executor, its bridge, and the loops that carry its progress, updates and versions."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from node.errors import TensorFileError
from node.wire import ExportedFile, TrainTask
from node.worker.beneath import new_name, put
from node.worker.bridge import Arrivals, Bridge
from node.worker.bridge_state import Destination, TaskProgress
from node.worker.context import TaskContext
from node.worker.courier import Courier
from node.worker.dialect import in_names_of
from node.worker.fetch import Entry, Fetcher, entry_of
from node.worker.inbound import Incoming, file_of
from node.worker.job_json import job_json
from node.worker.logfile import LogFile, tail
from node.worker.process import GRACE_S
from node.worker.references import BridgeError, Peers, Reference, Weights, folder, inside
from node.worker.reports import Reports
from node.worker.running import exit_text, run_executor
from node.worker.slices import SliceFeed
from node.worker.transfers import Transfers

if TYPE_CHECKING:
    from node.network.overlay import Overlay

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
        destination = Destination(context.dispatch.epoch, task.parameter_server)
        self.progress = TaskProgress(task.rounds, destination, overlaps=task.sync.overlap)
        self.arrivals = Arrivals()
        self.grace_s = GRACE_S
        self._context = context
        self._task = task
        self._overlay = overlay
        self._transfers = transfers
        self._socket_path = socket_path
        self._courier = Courier(context, task, overlay, transfers, self.progress, self._announce, self._fail)
        self._reports = Reports(context, overlay, self.progress, self._courier.moved)
        self._problem = ""
        self._has_problem = asyncio.Event()
        self._fetcher: Fetcher | None = None

    def description(self) -> str:
        """What the executor is told of its task: `{JOB_JSON}`."""
        return job_json(self._context, self._task)

    async def run(
        self, command: list[str], environment: dict[str, str], started: Callable[[int], Awaitable[None]]
    ) -> Outcome:
        """Start the executor; returns when it is over, with nothing of it left."""
        with LogFile(self._context.log_path) as output:
            async with asyncio.TaskGroup() as tasks:
                context, rows = self._context, self.progress.rows
                feed = SliceFeed(context, self._overlay, self._transfers, self._task.dataset, rows, tasks)
                self._fetcher = Fetcher(context, self._overlay, self._transfers, tasks, feed=feed)
                loops = [tasks.create_task(self._reports.run()), tasks.create_task(self._courier.run())]
                try:
                    async with Bridge(self).listening(self._socket_path):
                        code = await run_executor(
                            command,
                            environment,
                            self.work_dir,
                            output=output,
                            tasks=tasks,
                            started=started,
                            stop=self._has_problem,
                            grace_s=lambda: self.grace_s,
                        )
                finally:
                    for loop in loops:
                        loop.cancel()
                    self._fetcher.close()
        return await self._outcome(code)

    @property
    def is_done(self) -> bool:
        """Whether the executor has been told that the job is done, and only its exit is missing."""
        return self.progress.is_done

    async def _outcome(self, code: int) -> Outcome:
        lines = await asyncio.to_thread(tail, self._context.log_path, TAIL_LINES)
        if self.progress.is_done:
            await self._reports.flush()
            return Outcome("finished", exit_code=code)
        if self._problem:
            return Outcome("failed", self._problem, code, lines)
        if code == 0:
            return Outcome("failed", f"the executor ended in round {self.progress.round}, before the last", code, lines)
        return Outcome("failed", exit_text(code), code, lines)

    # ---- what the bridge asks for -----------------------------------------------------------------

    async def fetch(self, reference: Reference, out_dir: str) -> list[dict[str, Any]]:
        """Bring files into the work directory. Raises `BridgeError`."""
        assert self._fetcher is not None
        if isinstance(reference, Weights):
            return await self._fetcher.translated(self._weights(out_dir))
        return await self._fetcher.fetch(reference, out_dir)

    async def send(self, peers: Peers, path: Path) -> None:
        """Deliver the round's update; returns once the parameter server has it. Raises `BridgeError`.

        A job has one parameter server at a time, so that `All`, `One` and `Random` of its peers are the same one.
        """
        if not self._courier.knows(peers.peers):
            raise BridgeError(404, "unknown", "the peers are not of this job")
        await self._courier.send(path)

    def knows(self, peers: Peers) -> bool:
        """Whether files for the executor come from these peers."""
        return self._courier.knows(peers.peers)

    def codec(self) -> str | None:
        """The codec of the update that the executor is about to send, if the job leaves that to us."""
        return self._courier.codec()

    def changed(self) -> None:
        """The progress moved on."""
        self._reports.changed()

    def measured(self, round_: int, metrics: dict[str, float]) -> None:
        """Pass metrics on to the scheduler."""
        self._reports.measured(round_, metrics)

    # ---- what the courier brings ------------------------------------------------------------------

    async def _weights(self, out_dir: str) -> list[Entry]:
        incoming = await self._courier.weights()
        number = incoming.version.number
        placed = await self._place(incoming, out_dir)
        self.progress.started_from(number)
        self.changed()
        entries = []
        for kind, path in placed.items():
            file = file_of(incoming.version, kind)
            entry = entry_of(self._context, path, file.size_bytes, file.sha256, "weights")
            entry["metadata"].update(version=str(number), kind=kind, sha256=file.sha256)
            entries.append(entry)
        return entries

    async def _announce(self, incoming: Incoming) -> None:
        """Hand a committed version over to the executor."""
        version = incoming.version
        if "delta" in incoming.files:
            await self._translate(incoming.files)
        size = await asyncio.to_thread(_size_of, incoming.files.get("delta") or incoming.files["weights"])
        placed = {kind: str(self._relative(path)) for kind, path in (await self._place(incoming, INCOMING)).items()}
        counts = self.progress.arrived(version.number, version.newest, incoming.counted)
        kind = "delta" if "delta" in placed else "weights"
        momentum = {"momentum": placed["momentum"]} if "momentum" in placed else {}
        self.arrivals.add(
            placed[kind],
            size,
            self.progress.destination.server or self._task.parameter_server,
            version=version.number,
            content=version.content if kind == "delta" else "weights",
            sha256=file_of(version, "weights").sha256,
            counted=counts,
            **momentum,
        )
        self.changed()

    async def _translate(self, files: dict[str, Path]) -> None:
        """Put the step into the names that the executor used."""
        step, target = files["delta"], new_name(self.work_dir)
        try:
            if await asyncio.to_thread(in_names_of, self._courier.names, step, target):
                files["delta"] = target
                await asyncio.to_thread(step.unlink)
        except TensorFileError as error:
            self._fail(f"the executor's update names a tensor that the step has not: {error}")

    async def _place(self, incoming: Incoming, out_dir: str) -> dict[str, Path]:
        """Move files from the private folder to where the executor sees them."""
        placed = {}
        folder(self.work_dir, out_dir)
        for kind, source in incoming.files.items():
            target = inside(self.work_dir, f"{out_dir}/{kind}-{incoming.version.number}.safetensors")
            await asyncio.to_thread(put, source, self.work_dir, target)
            placed[kind] = target
        return placed

    def _relative(self, path: Path) -> Path:
        return path.relative_to(self.work_dir.resolve())

    def _fail(self, problem: str) -> None:
        self._problem = problem
        self._has_problem.set()


def _size_of(path: Path) -> int:
    return path.stat().st_size
