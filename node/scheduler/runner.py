"""One job's shell: carries out what its state machine wants, and tells it what came of it."""

from __future__ import annotations

import asyncio
import logging
import random
import sqlite3
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from node.errors import DatasetError, HyphaError, PeerError, Refused
from node.scheduler import messages as m
from node.scheduler import records, runs, starting
from node.scheduler.calls import WorkerCalls
from node.scheduler.checkpoints import Checkpoints
from node.scheduler.datasets import NO_PROVIDER_WAIT_S, Dataset
from node.scheduler.destinations import Destination, destination_of
from node.scheduler.export import RECORD, pull_model, training_record
from node.scheduler.files import SchedulerFiles, write_json
from node.scheduler.holdings import END_S, Holdings
from node.scheduler.keeping import Journal
from node.scheduler.machine import Saved
from node.scheduler.machines import machine_of
from node.scheduler.partition import classes_of
from node.scheduler.records import JobRow
from node.scheduler.results import Results
from node.scheduler.saving import Saver
from node.scheduler.wholes import Wholes
from node.telemetry import metrics
from node.views import LeaseHistory, Point
from node.wire import CommitRound, Decline, NextSlice, Offer, Plan, Progress, SliceGrant, VersionFile

if TYPE_CHECKING:
    from node.board import Board
    from node.network.overlay import Overlay
    from node.store import Store

log = logging.getLogger(__name__)

SHOW_EVERY_S = 0.25
LOOKUP_FIRST_S = 0.3
LOOKUP_LIMIT_S = 5.0
REFRESH_PROVIDERS_S = 5.0
PULL_AGAIN_S = 2.0
IDLE_S = 1.0


class JobRunner:
    """Runs one job from its row to its end."""

    def __init__(
        self,
        row: JobRow,
        saved: Saved,
        overlay: Overlay,
        board: Board,
        store: Store,
        files: SchedulerFiles,
        plot: Callable[[Point], None],
    ) -> None:
        self.row = row
        self._saved = saved
        self._overlay = overlay
        self._board = board
        self._store = store
        self._files = files
        self._plot = plot
        self.spec = row.job_spec()
        now = time.monotonic()
        age_s = max(0.0, time.time() - row.submitted_unix)
        self.job = machine_of(row, self.spec, saved, now=now, age_s=age_s, name_of=self._name_of)
        rng = random.Random(f"{row.job_id} {time.time_ns()}")
        self._rng = rng
        self._calls = WorkerCalls(overlay, row.job_id, rng)
        self._saver = Saver(store)
        self._holdings = Holdings(
            overlay,
            row.job_id,
            self.job.needs,
            self._calls,
            rng,
            take=self.take,
            spawn=self._spawn,
            wake=self._wake_up,
        )
        wholes = Wholes(overlay, row.job_id, self.spec.sync.fragments)
        self.journal = Journal(
            files.journal(row.job_id),
            overlay,
            row.job_id,
            lambda: self.job.chain,
            lambda: self.job.epoch,
            wholes=wholes,
            take=self.take,
            spawn=self._spawn,
        )
        self._checkpoints = Checkpoints(
            overlay,
            row.job_id,
            to=self.spec.checkpoint.to,
            keep=self.spec.checkpoint.keep,
            own_folder=files.checkpoints(row.job_id),
            staging=files.staging(row.job_id),
            wholes=wholes,
            here=self._in_journal,
            record=self._checkpoint_record,
            tell=self._tell,
        )
        self.results = Results(self.job, self._destination(), store, self.take)
        self._dataset: Dataset | None = None
        self._group: m.SetGroup | None = None
        self._took_s: float | None = None
        self.is_running = True
        """Until nothing of this run is still to come."""
        self._has_start = False
        self._wake = asyncio.Event()
        self._shown_at = 0.0
        self._is_dirty = True
        self._tasks: asyncio.TaskGroup | None = None
        self._running: set[asyncio.Task[None]] = set()
        self._lasting: set[asyncio.Task[None]] = set()

    # ---- life -----------------------------------------------------------------------------------

    async def run(self) -> None:
        """Run until the job is over. Cancelled before that, it keeps its leases, and another run goes on with them."""
        metrics().jobs_changed(1)
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                await self._bring_start()
                if not self.job.is_over:
                    await self._begin()
                while not self.job.is_over:
                    await self._step()
                await self._finish()
        finally:
            self._tasks = None
            await self._holdings.let_go(of_leases=self.job.is_over)
            self._show()
            metrics().job_workers(self.row.job_id, 0)
            metrics().jobs_changed(-1)
            self.is_running = False

    async def _begin(self) -> None:
        await self.journal.prepare()
        if self.spec.is_inference:
            self._spawn(self.results.prepare())
        self._holdings.restore(self._saved.leases)
        self._apply(self.job.begin(time.monotonic()))
        if self.row.state == "pausing":
            self._apply(self.job.handle(time.monotonic(), m.PauseAsked("an operator")))
        self.workers_came({peer.record.peer_id for peer in self._overlay.peers("worker") if peer.reachable})
        await self._saver.flush()

    async def _bring_start(self) -> None:
        """Have the checkpoint here that a job starts from which nobody has run yet, or the job's end."""
        if not self.spec.checkpoint.start_from or self._saved.tasks:
            return
        missing = await self.journal.missing()
        if not missing:
            return
        reason = f"version {missing[0].number} is on its way here from {self.spec.checkpoint.start_from}"
        view = self.job.view(time.monotonic(), self._overlay.peer_id)
        self._board.put(replace(view, state="waiting", reason=reason))
        self._spawn(self._fetch_start(missing))
        while not self._has_start and not self.job.is_over:
            self._wake.clear()
            await self._wake.wait()

    async def _fetch_start(self, missing: list[VersionFile]) -> None:
        place = self.spec.checkpoint.start_from
        try:
            await starting.bring(self._overlay, place, missing, self.journal.path)
        except (HyphaError, OSError) as error:
            await self.take(m.StartFailed(f"start_from {place}: {error}"))
        else:
            self._has_start = True
            self._wake.set()

    async def _step(self) -> None:
        self._wake.clear()
        now = time.monotonic()
        await self._holdings.tick(now)
        self._apply(self.job.handle(now, m.Ticked()))
        again_at = await self._saver.flush_in_time()
        if self.job.is_over:
            return
        if self._is_dirty and now - self._shown_at >= SHOW_EVERY_S:
            self._show()
        shows_at = self._shown_at + SHOW_EVERY_S if self._is_dirty else None
        times = [self._holdings.next_at(), again_at, shows_at]
        soonest = min((at for at in times if at is not None), default=now + IDLE_S)
        try:
            async with asyncio.timeout(min(IDLE_S, max(0.005, soonest - time.monotonic()))):
                await self._wake.wait()
        except TimeoutError:
            pass

    async def _finish(self) -> None:
        """The job is over: write the record, see what is under way through, end the rest."""
        await self._saver.flush()
        if self.job.state == "done" and self.job.model_dir == str(self._files.model(self.row.job_id)):
            await asyncio.to_thread(write_json, Path(self.job.model_dir) / RECORD, await self._record())
        if self.job.state == "done":
            await asyncio.to_thread(self._files.forget, self.row.job_id)
        self._show()
        if self._lasting:
            await asyncio.wait(self._lasting, timeout=END_S)
        for task in self._running | self._lasting:
            task.cancel()
        if self.spec.is_inference:
            await self.results.close()

    # ---- what comes in ---------------------------------------------------------------------------

    def offered(self, peer_id: str, offer: Offer) -> bool:
        """Take an offer; False when it answers none of this job's advertisements."""
        return self._tasks is not None and self._holdings.offered(peer_id, offer)

    def declined(self, peer_id: str, decline: Decline) -> bool:
        """Take a refusal; False when it answers none of this job's advertisements."""
        return self._holdings.declined(peer_id, decline)

    def workers_came(self, peer_ids: set[str]) -> None:
        """These workers are here now, or again."""
        if self._tasks is not None:
            self._holdings.workers_came(peer_ids)

    def holds(self, lease_id: str, peer_id: str = "") -> bool:
        """Whether the job holds this lease (of this peer)."""
        return self._tasks is not None and self._holdings.holds(lease_id, peer_id)

    def lease_history(self, lease_id: str) -> LeaseHistory | None:
        """What this job knows of a lease."""
        return self._holdings.history(lease_id)

    async def take(self, event: m.JobEvent) -> None:
        """Hand the job an event; what it wants saved is on disk when this returns."""
        self._apply(self.job.handle(time.monotonic(), event))
        await self._saver.flush()

    async def commit(self, peer_id: str, report: CommitRound) -> None:
        """A parameter server asks for a round; it is committed when this returns. Raises `Refused`."""
        if self.job.chain.version is not None and not self.job.asks_to_commit(report):
            await self._saver.flush()
            return
        await self.journal.fetch(peer_id, report.delta)
        await self.take(m.Committing(report))
        self.journal.settled(report.delta)

    async def progress(self, report: Progress) -> Plan:
        """A task's report."""
        self._holdings.heard(self.job.group.tasks[report.task_id].peer_id)
        plan, effects = self.job.progress(time.monotonic(), report)
        self._apply(effects)
        self._touch()
        if report.returned:
            await self._saver.flush()
        return plan

    async def next_slice(self, request: NextSlice) -> SliceGrant:
        """A task's next slice; it is written down before it is given."""
        if request.dataset != self.job.dataset:
            raise Refused("unknown", f"this job does not read {request.dataset}")
        nothing = SliceGrant(index=-1, wait_s=NO_PROVIDER_WAIT_S)
        if self._dataset is None:
            return nothing
        span, effects = self.job.next_slice(time.monotonic(), request.task_id, request.number)
        self._apply(effects)
        await self._saver.flush()
        return nothing if span is None else self._dataset.grant(span)

    def points(self) -> list[Point]:
        """Values that are not in the store yet."""
        return self._saver.points()

    # ---- effects ----------------------------------------------------------------------------------

    def _apply(self, effects: list[m.JobEffect]) -> None:
        for effect in effects:
            self._apply_one(effect)
        if effects:
            self._touch()
            self._wake.set()

    def _apply_one(self, effect: m.JobEffect) -> None:
        match effect:
            case m.FindData():
                self._spawn(self._find_data())
            case m.Search(role, wanted):
                self._holdings.search(role, wanted)
            case m.Shun(role, peer_id, never):
                self._holdings.shun(role, peer_id, never=never)
            case m.StartTask():
                self._spawn(self._dispatch(effect))
            case m.SetGroup():
                self._group = effect
                self._spawn(self._set_group(effect))
            case m.ReleaseHeld(lease_id, peer_id, refusal):
                self._holdings.release(lease_id, peer_id, refusal)
            case m.SaveState():
                self._save_state()
            case m.PullBase():
                self._spawn(self.journal.take_base(effect))
            case m.KeepCheckpoint():
                self._spawn(self._checkpoints.take(effect), lasting=True)
            case m.PullExport():
                self._spawn(self._pull(effect))
            case m.StoreIndex():
                self._spawn(self._list_results())
            case m.Plotted(point):
                self._saver.plot(self.job.epoch, point)
                self._board.measured(point)
                self._plot(point)
            case m.Happened(name, text, level, fields):
                self._board.happened(name, text, level=level, **fields)
                log.log(
                    logging.WARNING if level != "info" else logging.INFO, "%s job=%s %s", name, self.row.job_id, text
                )
            case _:
                self._saver.add(lambda db: runs.save(db, self.row.job_id, effect))

    def _save_state(self) -> None:
        job = self.job
        values: dict[str, Any] = {"state": job.state, "reason": job.reason, "epoch": job.epoch}
        values |= {"model_dir": job.model_dir, "data_digest": job.data_digest}

        def write(db: sqlite3.Connection) -> None:
            records.update_job(db, self.row.job_id, **values)

        self._saver.add(write)

    # ---- the longer ones -----------------------------------------------------------------------------

    async def _find_data(self) -> None:
        pause_s = LOOKUP_FIRST_S
        while self._dataset is None:
            try:
                dataset = await Dataset.find(self._overlay, self.job.dataset, self.job.data_digest)
                if self.job.validation_dataset:
                    await Dataset.find(self._overlay, self.job.validation_dataset)
            except HyphaError as error:
                reason = (
                    error.message if isinstance(error, DatasetError) else f"looking for the dataset: {error.message}"
                )
                await self.take(m.DataMissing(reason))
                await asyncio.sleep(pause_s * self._rng.uniform(0.8, 1.2))
                pause_s = min(LOOKUP_LIMIT_S, pause_s * 1.6)
                continue
            self._dataset = dataset
            slices = dataset.manifest.slices
            rows = tuple(info.rows for info in slices)
            await self.take(m.DataFound(rows, dataset.digest, classes_of(slices)))
        while True:
            await asyncio.sleep(REFRESH_PROVIDERS_S)
            try:
                await self._dataset.refresh(self._overlay)
            except HyphaError as error:
                log.info("providers.not_refreshed job=%s reason=%s", self.row.job_id, error)

    async def _dispatch(self, effect: m.StartTask) -> None:
        task_id, lease_id = effect.dispatch.task_id, effect.dispatch.lease_id
        token = ""
        if self.spec.model.repository or self.spec.preprocessor is not None:
            token = await asyncio.to_thread(self._files.read_token, self.row.job_id)
        refusal = await self._calls.dispatch(effect, token, lambda: self._is_alive(task_id))
        if refusal is None:
            return
        if refusal.code in ("unknown", "stale"):
            await self._holdings.refused(lease_id, f"its worker says: {refusal.message}")
        else:
            await self.take(m.DispatchRefused(task_id, refusal.message))

    async def _set_group(self, effect: m.SetGroup) -> None:
        answer = await self._calls.set_group(effect, lambda: self._group is effect and self._is_alive(effect.task_id))
        if answer is not None:
            members = frozenset(member.task_id for member in effect.members)
            await self.take(m.GroupSet(effect.task_id, members, answer.round))

    async def _list_results(self) -> None:
        # The list is made of what is written down.
        await self._saver.flush()
        await self.results.store_index()

    async def _pull(self, effect: m.PullExport) -> None:
        epoch = self.job.epoch
        while self.job.epoch == epoch and not self.job.is_over:
            try:
                record = await self._record()
                model_dir = await pull_model(
                    self._overlay,
                    self._board,
                    self._files,
                    self.row.job_id,
                    effect.peer_id,
                    effect.files,
                    record,
                )
            except PeerError as error:
                log.warning("export.failed job=%s reason=%s", self.row.job_id, error)
                await asyncio.sleep(PULL_AGAIN_S)
            except (OSError, HyphaError) as error:
                await self.take(m.ExportFailed(str(error)))
                return
            else:
                if self.job.epoch == epoch:
                    await self.take(m.ExportPulled(str(model_dir)))
                return

    # ---- small ones ---------------------------------------------------------------------------------

    async def _record(self) -> dict[str, Any]:
        digest = self._dataset.digest if self._dataset else ""
        return await training_record(self._store, self.row, digest, self.points())

    async def _checkpoint_record(self, due: m.KeepCheckpoint) -> dict[str, Any]:
        """Its rounds and curve are those of the version; what came after it is not in it."""
        record = await self._record()
        return {
            **record,
            "version": due.version,
            "files": {file.kind: {"sha256": file.sha256, "size_bytes": file.size_bytes} for file in due.files},
            "ledger": {"pass": due.pass_, "committed": [list(span) for span in _plain(due)]},
            "rounds": [line for line in record["rounds"] if line["round"] < due.version],
            "curve": [point for point in record["curve"] if point["round"] <= due.version],
        }

    def _destination(self) -> Destination:
        job_id = self.row.job_id
        return destination_of(
            self.spec.output.to if self.spec.output is not None else "",
            job_id=job_id,
            own_folder=self._files.results(job_id),
            staging=self._files.staging(job_id),
            overlay=self._overlay,
        )

    def _in_journal(self, file: VersionFile) -> Path | None:
        return self.journal.path(file) if file in self.job.chain.files() else None

    def _tell(self, name: str, text: str, level: str) -> None:
        self._apply_one(m.Happened(name, text, level, {"job": self.row.job_id}))

    def _is_alive(self, task_id: str) -> bool:
        task = self.job.group.tasks.get(task_id)
        return task is not None and task.is_alive

    def _spawn(self, work: Coroutine[None, None, None], *, lasting: bool = False) -> None:
        if self._tasks is None:
            work.close()
            return
        tasks = self._lasting if lasting else self._running
        task = self._tasks.create_task(work)
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    def _wake_up(self) -> None:
        self._wake.set()

    def _touch(self) -> None:
        """The view has changed; it is shown a little later, together with what else changes until then."""
        if not self._is_dirty:
            self._is_dirty = True
            self._wake.set()

    def _show(self) -> None:
        now = time.monotonic()
        self._shown_at = now
        self._is_dirty = False
        view = self.job.view(now, self._overlay.peer_id)
        if self.job.is_over and view.state != records.PAUSED:
            self._took_s = view.age_s if self._took_s is None else self._took_s
            view = replace(view, took_s=self._took_s)
        metrics().job_workers(view.id, view.workers)
        self._board.put(view)

    def _name_of(self, peer_id: str) -> str:
        return next(
            (peer.record.name for peer in self._overlay.peers() if peer.record.peer_id == peer_id), peer_id[-8:]
        )


def _plain(due: m.KeepCheckpoint) -> list[tuple[int, int, int, int]]:
    return [(span.pass_, span.index, span.start, span.end) for span in due.committed]
