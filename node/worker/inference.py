"""An inference task: its executor, its bridge, its slices, and the results that go back for them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec

from node.network import bulk
from node.views import ModelView
from node.wire import InferTask
from node.worker.beneath import new_name, put, take
from node.worker.bridge import Arrivals, Bridge
from node.worker.bridge_state import Destination, TaskProgress, Totals
from node.worker.context import TaskContext
from node.worker.fetch import Entry, Fetcher, entry_of
from node.worker.job_json import inference_json
from node.worker.logfile import LogFile, tail
from node.worker.process import GRACE_S
from node.worker.references import BridgeError, JobFiles, NextSliceOf, Peers, Reference, inside
from node.worker.reports import Reports
from node.worker.results import Results
from node.worker.rows import count
from node.worker.running import exit_text, run_executor
from node.worker.slices import Slice, SliceFeed
from node.worker.training import TAIL_LINES, Outcome
from node.worker.transfers import Transfers

if TYPE_CHECKING:
    from node.network.overlay import Overlay


class RowProgress(TaskProgress):
    """One round that never ends; rows add up over all slices."""

    def __init__(self) -> None:
        super().__init__(1, Destination(0, ""))
        self._answered = 0

    def finish_slice(self) -> None:
        """The slice in hand has its result."""
        self.rows.finish()
        self._answered += count(self.rows.open)
        self.rows.open = []

    def totals(self) -> Totals:
        """Batches and rows since the task began."""
        return Totals(0, self.batches, self._answered + count(self.rows.open), self.batch_s, None)


class InferenceTask:
    """Runs one executor until there are no slices left; the work behind its bridge."""

    def __init__(
        self, context: TaskContext, task: InferTask, overlay: Overlay, transfers: Transfers, socket_path: Path
    ) -> None:
        self.work_dir = context.work_dir
        self._rows = RowProgress()
        self.progress: TaskProgress = self._rows
        self.arrivals = Arrivals()
        self.grace_s = GRACE_S
        self._context = context
        self._task = task
        self._overlay = overlay
        self._transfers = transfers
        self._socket_path = socket_path
        self._reports = Reports(context, overlay, self.progress, lambda: None)
        self._results = Results(context, overlay, transfers, self._fail)
        self._fetcher: Fetcher | None = None
        self._feed: SliceFeed | None = None
        self._tasks: asyncio.TaskGroup | None = None
        self._lock = asyncio.Lock()
        self._in_hand: Slice | None = None
        self._is_out = False
        self._problem = ""
        self._has_problem = asyncio.Event()

    def description(self) -> str:
        """`{JOB_JSON}` for the executor."""
        return inference_json(self._context, self._task)

    @property
    def is_done(self) -> bool:
        """Whether nothing is lost when the executor is ended now."""
        return self._in_hand is None

    async def run(
        self, command: list[str], environment: dict[str, str], started: Callable[[int], Awaitable[None]]
    ) -> Outcome:
        """Start the executor; returns when it is over, with nothing of it left."""
        context = self._context
        with LogFile(context.log_path) as output:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                rows = self.progress.rows
                self._feed = SliceFeed(context, self._overlay, self._transfers, self._task.dataset, rows, tasks)
                self._fetcher = Fetcher(context, self._overlay, self._transfers, tasks, feed=self._feed)
                reports = tasks.create_task(self._reports.run())
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
                    await self._results.flush()
                finally:
                    reports.cancel()
                    self._results.close()
                    self._fetcher.close()
        return await self._outcome(code)

    async def _outcome(self, code: int) -> Outcome:
        if self._is_out and code == 0 and not self._problem:
            return Outcome("finished", exit_code=code)
        lines = await asyncio.to_thread(tail, self._context.log_path, TAIL_LINES)
        problem = self._problem or ("the executor ended before its slices were done" if code == 0 else exit_text(code))
        return Outcome("failed", problem, code, lines)

    # ---- what the bridge asks for -----------------------------------------------------------------

    async def fetch(self, reference: Reference, out_dir: str) -> list[dict[str, Any]]:
        """Bring files into the work directory; no file where there are no slices left. Raises `BridgeError`."""
        assert self._fetcher is not None
        if isinstance(reference, NextSliceOf):
            return await self._next_slice(reference.dataset)
        if isinstance(reference, JobFiles) and self._task.model_job:
            return await self._fetcher.translated(self._trained(out_dir))
        return await self._fetcher.fetch(reference, out_dir)

    async def send(self, peers: Peers, path: Path) -> None:
        """Take the result of the slice in hand. It goes to the scheduler while the executor goes on."""
        assert self._tasks is not None
        async with self._lock:
            if self._in_hand is None:
                # The answer to the first time was lost.
                return
            # A name of our own, so that what is read is what was checked.
            source = await asyncio.to_thread(take, path, self.work_dir)
            await self._results.put(self._in_hand.grant, source, self._tasks)
            self._in_hand = None
            self._rows.finish_slice()
        self.changed()

    def knows(self, peers: Peers) -> bool:
        """Nobody sends files to this task."""
        return False

    def codec(self) -> str | None:
        """There are no updates."""
        return None

    def changed(self) -> None:
        """The progress moved on."""
        self._reports.changed()

    def measured(self, round_: int, metrics: dict[str, float]) -> None:
        """Pass metrics on to the scheduler."""
        self._reports.measured(0, metrics)

    async def _next_slice(self, dataset: str) -> list[Entry]:
        assert self._feed is not None
        if dataset != self._task.dataset:
            raise BridgeError(404, "unknown", f"dataset {dataset!r} is not of this task")
        async with self._lock:
            # Asked for again before its result is here: the answer to the first time was lost.
            if self._in_hand is None:
                try:
                    self._in_hand = await self._feed.next()
                except BridgeError as error:
                    if error.code != "stale":
                        raise
                    self._is_out = True
                    return []
            found = self._in_hand
        entry = entry_of(self._context, found.path, found.size_bytes, found.sha256, "scheduler")
        entry["metadata"].update(index=found.grant.index, first_row=found.grant.first_row, rows=found.grant.rows)
        return [entry]

    async def _trained(self, out_dir: str) -> list[Entry]:
        """The files of the earlier job's final model."""
        context = self._context
        path = f"/bulk/jobs/{self._task.model_job}/trained"
        async with self._overlay.open(context.scheduler, "GET", path) as answer:
            model = msgspec.json.decode(await answer.read(), type=ModelView)
        entries = []
        for file in model.files:
            target = inside(self.work_dir, f"{out_dir}/{file.name}")
            staged = await asyncio.to_thread(new_name, self.work_dir)
            with self._transfers.show(
                "artifact", file.name, context.job_id, context.scheduler, context.peer_id, file.size_bytes
            ) as transfer:
                await bulk.download(
                    self._overlay,
                    [context.scheduler],
                    f"{path}/{quote(file.name)}",
                    staged,
                    sha256=file.sha256,
                    size_bytes=file.size_bytes,
                    on_progress=transfer.progress,
                    durable=False,
                )
            await asyncio.to_thread(put, staged, self.work_dir, target)
            entries.append(entry_of(context, target, file.size_bytes, file.sha256, "job"))
        return entries

    def _fail(self, problem: str) -> None:
        self._problem = problem
        self._has_problem.set()
