"""One job's shell: carries out what its state machine wants, and tells it what came of it."""

from __future__ import annotations

import asyncio
import logging
import random
import sqlite3
import time
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from node.errors import DatasetError, HyphaError, PeerError, Refused
from node.scheduler import messages as m
from node.scheduler import records
from node.scheduler.allocation import AcceptOffer, Advertise, Allocation, AllocationEffect, DropOffer, OfferHeld
from node.scheduler.calls import WorkerCalls, is_nobody_there
from node.scheduler.datasets import NO_PROVIDER_WAIT_S, Dataset
from node.scheduler.export import RECORD, pull_model, training_record
from node.scheduler.files import SchedulerFiles, write_json
from node.scheduler.job import Job
from node.scheduler.leases import HeldLeases, LeaseEffect, Renew
from node.scheduler.records import JobRow
from node.scheduler.status_bridge import StatusBridge
from node.telemetry import metrics
from node.views import Point
from node.wire import Advertisement, Decline, NextSlice, Offer, Plan, Progress, SliceGrant

if TYPE_CHECKING:
    from node.board import Board
    from node.network.overlay import Overlay
    from node.store import Store

log = logging.getLogger(__name__)

SHOW_EVERY_S = 0.25
SAVE_POINTS_EVERY_S = 5.0
LOOKUP_FIRST_S = 0.3
LOOKUP_LIMIT_S = 5.0
REFRESH_PROVIDERS_S = 5.0
PULL_AGAIN_S = 2.0
END_S = 3.0
IDLE_S = 1.0


class JobRunner:
    """Runs one job from its row to its end."""

    def __init__(
        self, row: JobRow, overlay: Overlay, board: Board, store: Store, files: SchedulerFiles, bridge: StatusBridge
    ) -> None:
        self.row = row
        self._overlay = overlay
        self._board = board
        self._store = store
        self._files = files
        self._bridge = bridge
        self._rng = random.Random(f"{row.job_id} {row.epoch} {time.time_ns()}")
        self._spec = row.job_spec()
        order = m.order_of_spec(row.job_id, self._spec, row.folder_sha256)
        age_s = max(0.0, time.time() - row.submitted_unix)
        now = time.monotonic()
        self.job = Job(order, now=now, age_s=age_s, epoch=row.epoch, name_of=self._name_of)
        self._leases = HeldLeases(self._rng)
        self._searches = {
            role: Allocation(need, 0, new_id=self._new_id, rng=self._rng) for role, need in order.needs.items()
        }
        self._took_s: float | None = None
        self._answers = dict.fromkeys(self._searches, "")
        self._calls = WorkerCalls(overlay, row.job_id, self._rng)
        self._dataset: Dataset | None = None
        self._group: m.SetGroup | None = None
        self._points: list[tuple[int, Point]] = []
        self._points_saved_at = now
        self._saves: list[Callable[[sqlite3.Connection], None]] = []
        self._saving = asyncio.Lock()
        self._wake = asyncio.Event()
        self._began_at = now
        self._met: set[str] = set()
        self._shown_at = 0.0
        self._is_dirty = True
        self._tasks: asyncio.TaskGroup | None = None
        self._running: set[asyncio.Task[None]] = set()
        self._releasing: set[asyncio.Task[None]] = set()

    # ---- life -----------------------------------------------------------------------------------

    async def run(self) -> None:
        """Run until the job is over. Cancelled before that, it lets its leases go and the job stays unfinished."""
        metrics().jobs_changed(1)
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                self._apply(self.job.begin(time.monotonic()))
                self.workers_came({peer.record.peer_id for peer in self._overlay.peers("worker") if peer.reachable})
                await self.flush()
                while not self.job.is_over:
                    await self._step()
                await self._finish()
        finally:
            self._tasks = None
            await self._let_go()
            self._show()
            metrics().job_workers(self.row.job_id, 0)
            metrics().jobs_changed(-1)

    async def _step(self) -> None:
        self._wake.clear()
        now = time.monotonic()
        self._tick(now)
        await self.flush()
        if self.job.is_over:
            return
        if self._is_dirty and now - self._shown_at >= SHOW_EVERY_S:
            self._show()
        times = [self._leases.next_at(), *(search.next_at() for search in self._searches.values())]
        times.append(self._shown_at + SHOW_EVERY_S if self._is_dirty else None)
        soonest = min((at for at in times if at is not None), default=now + IDLE_S)
        try:
            async with asyncio.timeout(min(IDLE_S, max(0.005, soonest - time.monotonic()))):
                await self._wake.wait()
        except TimeoutError:
            pass

    def _tick(self, now: float) -> None:
        for effect in self._leases.tick(now):
            self._apply_lease(effect)
        for role, search in self._searches.items():
            for wanted in search.tick(now):
                self._apply_search(role, wanted)
            answers = search.answers()
            if answers != self._answers[role]:
                self._answers[role] = answers
                self._apply(self.job.handle(now, m.SearchAnswered(role, answers)))
        self._apply(self.job.handle(now, m.Ticked()))
        if self._points and now - self._points_saved_at >= SAVE_POINTS_EVERY_S:
            self._saves.append(lambda db: None)

    async def _finish(self) -> None:
        """The job is over: write the record, forget the secret, see the releases through, end the rest."""
        await self.flush()
        if self.job.state == "done":
            path = self._files.model(self.row.job_id) / RECORD
            await asyncio.to_thread(write_json, path, await self._record())
        await asyncio.to_thread(self._files.forget, self.row.job_id)
        self._show()
        if self._releasing:
            await asyncio.wait(self._releasing, timeout=END_S)
        for task in self._running | self._releasing:
            task.cancel()

    async def _let_go(self) -> None:
        offers = [offer for search in self._searches.values() for offer in search.stop()]
        left = [(offer.peer_id, offer.lease_id) for offer in offers if isinstance(offer, DropOffer)]
        left += [(peer_id, lease_id) for lease_id, peer_id in self._leases.all()]
        if left:
            releases = (self._calls.release(peer_id, lease_id) for peer_id, lease_id in left)
            try:
                async with asyncio.timeout(END_S):
                    await asyncio.gather(*releases, return_exceptions=True)
            except TimeoutError:
                log.info("leases.not_released job=%s count=%d", self.row.job_id, len(left))

    # ---- what comes in ---------------------------------------------------------------------------

    def offered(self, peer_id: str, offer: Offer) -> bool:
        """Take an offer; False when it answers none of this job's advertisements."""
        if self._tasks is None:
            return False
        for role, search in self._searches.items():
            if search.knows(offer.advert_id):
                held = OfferHeld(offer.advert_id, offer.lease_id, peer_id, offer.price, offer.resources)
                for effect in search.offered(time.monotonic(), held):
                    self._apply_search(role, effect)
                self._wake.set()
                return True
        return False

    def declined(self, peer_id: str, decline: Decline) -> bool:
        """Take a refusal; False when it answers none of this job's advertisements."""
        for search in self._searches.values():
            if search.knows(decline.advert_id):
                search.declined(decline.advert_id, peer_id, decline.reason[:200])
                self._wake.set()
                return True
        return False

    def workers_came(self, peer_ids: set[str]) -> None:
        """A search that pauses goes on at once, and whoever came back is asked whether its lease still holds."""
        if self._tasks is None:
            return
        now = time.monotonic()
        self._poke()
        for peer_id in peer_ids:
            self._leases.check_soon(now, peer_id)
            if self.row.epoch and peer_id not in self._met:
                self._spawn(self._meet(peer_id))
        self._met |= peer_ids

    async def _meet(self, peer_id: str) -> None:
        """The job is taken up again: its earlier leases must not stand in its own way until they lapse."""
        await self._calls.release_earlier(peer_id, time.monotonic() - self._began_at)
        self._poke()

    def _poke(self) -> None:
        for search in self._searches.values():
            search.poke(time.monotonic())
        self._wake.set()

    async def take(self, event: m.JobEvent) -> None:
        """Hand the job an event from the network; what it wants saved is on disk when this returns."""
        self._apply(self.job.handle(time.monotonic(), event))
        await self.flush()

    def progress(self, report: Progress) -> Plan:
        """A training task's report."""
        now = time.monotonic()
        self._leases.heard(now, self.job.group.tasks[report.task_id].peer_id)
        plan, effects = self.job.progress(now, report)
        self._apply(effects)
        self._touch()
        return plan

    def next_slice(self, request: NextSlice) -> SliceGrant:
        """A training task's next slice."""
        if self._dataset is None or request.dataset != self.job.order.dataset:
            raise Refused("unknown", f"this job does not train on {request.dataset}")
        self._touch()
        grant = self.job.next_slice(request.task_id, request.used)
        if grant is None:
            return SliceGrant(index=-1, wait_s=NO_PROVIDER_WAIT_S)
        return self._dataset.grant(grant.index, grant.pass_)

    def points(self) -> list[Point]:
        """Values that are not in the store yet."""
        return [point for epoch, point in self._points if epoch == self.job.epoch]

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
                search = self._searches[role]
                for dropped in search.stop() if wanted == 0 else []:
                    self._apply_search(role, dropped)
                search.wanted = wanted
            case m.Shun(role, peer_id, never):
                (self._searches[role].exclude if never else self._searches[role].avoid).add(peer_id)
            case m.StartTask():
                self._spawn(self._dispatch(effect))
            case m.SetGroup():
                self._group = effect
                self._spawn(
                    self._calls.set_group(effect, lambda: self._group is effect and self._is_alive(effect.task_id))
                )
            case m.ReleaseHeld(lease_id, peer_id, refusal):
                self._forget_lease(lease_id, refusal)
                self._release(peer_id, lease_id)
            case m.SaveRound():
                self._saves.append(lambda db: records.insert_round(db, self.row.job_id, effect))
            case m.SaveState():
                job = self.job
                values: dict[str, Any] = {"state": job.state, "reason": job.reason, "epoch": job.epoch}
                values |= {"round_": job.round, "model_dir": job.model_dir}
                self._saves.append(lambda db: records.update_job(db, self.row.job_id, **values))
            case m.PullExport():
                self._spawn(self._pull(effect))
            case m.Plotted(point):
                self._points.append((self.job.epoch, point))
                self._board.measured(point)
                self._bridge.put(point)
            case m.Happened(name, text, level, fields):
                self._board.happened(name, text, level=level, **fields)
                log.log(
                    logging.WARNING if level != "info" else logging.INFO, "%s job=%s %s", name, self.row.job_id, text
                )

    def _apply_search(self, role: str, effect: AllocationEffect) -> None:
        match effect:
            case Advertise():
                self._spawn(self._advertise(effect))
            case AcceptOffer(offer):
                self._spawn(self._accept(role, offer))
            case DropOffer(lease_id, peer_id):
                self._release(peer_id, lease_id)

    def _apply_lease(self, effect: LeaseEffect) -> None:
        if isinstance(effect, Renew):
            self._spawn(self._renew(effect))
            return
        log.warning("lease.lost lease=%s peer=%s reason=%s", effect.lease_id, effect.peer_id, effect.reason)
        self._forget_lease(effect.lease_id)
        self._apply(self.job.handle(time.monotonic(), m.LeaseLost(effect.lease_id, effect.reason)))

    async def flush(self) -> None:
        """Write what is to be saved, in order, in one transaction with the values measured since."""
        async with self._saving:
            if not self._saves:
                return
            saves, self._saves = self._saves, []
            points, self._points = self._points, []

            def write(db: sqlite3.Connection) -> None:
                records.insert_points(db, points)
                for save in saves:
                    save(db)

            try:
                await self._store.write(write)
            except BaseException:
                self._saves = saves + self._saves
                self._points = points + self._points
                raise
            self._points_saved_at = time.monotonic()

    # ---- the longer ones -----------------------------------------------------------------------------

    async def _find_data(self) -> None:
        pause_s = LOOKUP_FIRST_S
        while self._dataset is None:
            try:
                dataset = await Dataset.find(self._overlay, self.job.order.dataset)
                if self.job.order.validation_dataset:
                    await Dataset.find(self._overlay, self.job.order.validation_dataset)
            except HyphaError as error:
                reason = (
                    error.message if isinstance(error, DatasetError) else f"looking for the dataset: {error.message}"
                )
                await self.take(m.DataMissing(reason))
                await asyncio.sleep(pause_s * self._rng.uniform(0.8, 1.2))
                pause_s = min(LOOKUP_LIMIT_S, pause_s * 1.6)
                continue
            self._dataset = dataset
            await self.take(m.DataFound(len(dataset.manifest.slices)))
        while True:
            await asyncio.sleep(REFRESH_PROVIDERS_S)
            try:
                await self._dataset.refresh(self._overlay)
            except HyphaError as error:
                log.info("providers.not_refreshed job=%s reason=%s", self.row.job_id, error)

    async def _advertise(self, effect: Advertise) -> None:
        need = effect.need
        await self._overlay.publish(
            Advertisement(
                peer_id=self._overlay.peer_id,
                seq=self._overlay.next_seq(),
                advert_id=effect.advert_id,
                job_id=need.job_id,
                executor=need.executor,
                resources=need.resources,
                bid=need.bid,
                count=effect.count,
                ttl_s=effect.ttl_s,
                exclude=list(effect.exclude),
            )
        )

    async def _accept(self, role: str, offer: OfferHeld) -> None:
        granted = await self._calls.accept(offer)
        search = self._searches[role]
        if granted is None:
            search.not_accepted(time.monotonic(), offer.lease_id)
            self._wake.set()
        elif not search.accepted(offer.lease_id):
            self._release(offer.peer_id, offer.lease_id)
        else:
            metrics().lease_renewed("success")
            sent_at, duration_s = granted
            self._leases.hold(sent_at, offer.lease_id, offer.peer_id, duration_s)
            await self.take(m.LeaseHeld(role, offer.lease_id, offer.peer_id, offer.price))

    async def _renew(self, effect: Renew) -> None:
        sent_at = time.monotonic()
        try:
            answer = await self._calls.renew(effect.peer_id, effect.lease_id, effect.duration_s)
        except Refused as error:
            metrics().lease_renewed("failure")
            for lost in self._leases.refused(effect.lease_id, f"its worker says: {error.message}"):
                self._apply_lease(lost)
            await self.flush()
        except PeerError as error:
            metrics().lease_renewed("failure")
            nobody = is_nobody_there(error)
            for lost in self._leases.failed(time.monotonic(), effect.lease_id, error.message, is_nobody_there=nobody):
                self._apply_lease(lost)
            await self.flush()
        else:
            metrics().lease_renewed("success")
            self._leases.renewed(sent_at, effect.lease_id, answer.duration_s)
        self._wake.set()

    async def _dispatch(self, effect: m.StartTask) -> None:
        task_id, lease_id = effect.dispatch.task_id, effect.dispatch.lease_id
        token = ""
        if self._spec.model.repository or self._spec.preprocessor is not None:
            token = await asyncio.to_thread(self._files.read_token, self.row.job_id)
        refusal = await self._calls.dispatch(effect, token, lambda: self._is_alive(task_id))
        if refusal is None:
            return
        if refusal.code in ("unknown", "stale"):
            for lost in self._leases.refused(lease_id, f"its worker says: {refusal.message}"):
                self._apply_lease(lost)
            await self.flush()
        else:
            await self.take(m.DispatchRefused(task_id, refusal.message))

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

    def _release(self, peer_id: str, lease_id: str) -> None:
        self._spawn(self._calls.release(peer_id, lease_id), into=self._releasing)

    def _forget_lease(self, lease_id: str, refusal: str = "") -> None:
        self._leases.release(lease_id)
        for search in self._searches.values():
            search.lost(time.monotonic(), lease_id, reason=refusal)

    def _is_alive(self, task_id: str) -> bool:
        task = self.job.group.tasks.get(task_id)
        return task is not None and task.is_alive

    def _spawn(self, work: Coroutine[None, None, None], into: set[asyncio.Task[None]] | None = None) -> None:
        if self._tasks is None:
            work.close()
            return
        tasks = self._running if into is None else into
        task = self._tasks.create_task(work)
        tasks.add(task)
        task.add_done_callback(tasks.discard)

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
        if self.job.is_over:
            self._took_s = view.age_s if self._took_s is None else self._took_s
            view = replace(view, took_s=self._took_s)
        metrics().job_workers(view.id, view.workers)
        self._board.put(view)

    def _name_of(self, peer_id: str) -> str:
        return next(
            (peer.record.name for peer in self._overlay.peers() if peer.record.peer_id == peer_id), peer_id[-8:]
        )

    def _new_id(self) -> str:
        return f"{self.row.job_id}:{self._rng.getrandbits(48):012x}"
