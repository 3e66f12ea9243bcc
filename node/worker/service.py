"""The worker: answers advertisements, keeps leases, runs tasks, and lets members reach its parameter servers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import uuid
from collections.abc import Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from aiohttp import web

from node import resources
from node.board import Board
from node.errors import PeerError, Refused
from node.leasehistory import LeaseHistories
from node.network.announcer import Offering
from node.objectstore import is_installed
from node.store import Store
from node.telemetry import metrics
from node.views import LeaseHistory, LeaseView, LogChunk
from node.wire import (
    Ack,
    Advertisement,
    AnnounceUpdate,
    CancelTask,
    Decline,
    Dispatch,
    Dispatched,
    ExecutorKind,
    LeaseRenewed,
    MembersSet,
    Offer,
    ReleaseLease,
    RenewLease,
    Resources,
    SetMembers,
    UpdateAnnounced,
    WholeFiles,
    WholeVersion,
)
from node.worker.arbiter import HEEDED, Answer, Arbiter, Terms
from node.worker.cordon import Cordon
from node.worker.jobs import Jobs
from node.worker.kinds import executors_of
from node.worker.leases import OFFER_TTL_S, Lease, Ledger
from node.worker.logfile import tail
from node.worker.mounts import Mounts
from node.worker.sandbox import find_sandbox
from node.worker.transfers import KEEP_S, Transfers

if TYPE_CHECKING:
    from node.config import NodeConfig
    from node.identity.caller import Caller
    from node.network.overlay import Overlay

log = logging.getLogger(__name__)

CALL_S = 3.0
TICK_S = 1.0
MAX_LOG_LINES = 5_000


class WorkerService:
    """The worker role of a node."""

    def __init__(self, config: NodeConfig, overlay: Overlay, board: Board, store: Store) -> None:
        self._config = config
        self._overlay = overlay
        self._board = board
        self._transfers = Transfers(board)
        self._jobs = Jobs(config, overlay, board, store, self._transfers)
        self._ledger = Ledger(Resources())
        kinds = [ExecutorKind(class_=item.class_, name=item.name) for item in executors_of(config)]
        terms = Terms(config.offer.price, config.offer.floor, config.offer.strategy)
        self._mounts = Mounts(config, self._jobs.sandbox)
        self._stores = config.fetch.stores if is_installed() else []
        self._arbiter = Arbiter(
            overlay.peer_id,
            kinds,
            terms,
            unmountable=lambda wanted: self._mounts.objection(wanted),
            stores=self._stores,
        )
        self._tasks: asyncio.TaskGroup | None = None
        self._wake = asyncio.Event()
        self._ended: dict[str, float] = {}
        self._cordon = Cordon(config, overlay, board, store, lambda: self._ledger.live)
        self._lives = LeaseHistories()
        self.is_ready = False
        overlay.on(RenewLease, self._renew)
        overlay.on(ReleaseLease, self._release)
        overlay.on(Dispatch, self._dispatch)
        overlay.on(CancelTask, self._cancel)
        overlay.on(SetMembers, self._set_members)
        overlay.on(AnnounceUpdate, self._announce_update)
        overlay.on(WholeVersion, self._whole_version)
        overlay.bulk_route("PUT", "/bulk/jobs/{job}/updates/{task}/{sha256}", self._take_update)
        overlay.bulk_route("GET", "/bulk/jobs/{job}/versions/{version}", self._send_version)
        overlay.bulk_route("GET", "/bulk/jobs/{job}/{kind:weights|momentum|delta}/{version}", self._send_version_file)
        overlay.bulk_route("GET", "/bulk/jobs/{job}/export/{name:.+}", self._send_export)
        overlay.bulk_route("GET", "/bulk/tasks/{task}/log", self._send_log)
        overlay.bulk_route("GET", "/bulk/leases/{lease}", self._send_lease, operator=None)
        overlay.subscribe(self._heard)

    async def run(self) -> None:
        """Offer resources and run tasks until cancelled; then everything of them ends."""
        self._ledger = Ledger(await asyncio.to_thread(resources.total, self._config.resources, self._storage()))
        self._jobs.sandbox = await find_sandbox(self._config.job_code, mounts=bool(self._config.mounts))
        self._mounts = Mounts(self._config, self._jobs.sandbox)
        await self._jobs.prepare()
        await self._cordon.load()
        if self._jobs.sandbox.policy == "refuse":
            log.warning("worker.no_job_code reason=%s", self._jobs.sandbox.reason)
        terms = self._config.offer
        executors = [f"{item.class_}/{item.name}" for item in executors_of(self._config)]
        gpu_name = await asyncio.to_thread(resources.gpu_name)
        if len(self._stores) < len(self._config.fetch.stores):
            log.warning("worker.no_stores reason=obstore is not installed")
        self._overlay.offer(
            Offering(
                executors,
                max(terms.price, terms.floor),
                terms.floor,
                gpu_name,
                self._mounts.given,
                self._stores,
            )
        )
        self._overlay.describe(self._ledger.total, self._ledger.free())
        try:
            async with asyncio.TaskGroup() as self._tasks:
                self.is_ready = True
                self._tasks.create_task(self._arbitrate())
                self._tasks.create_task(self._keep_leases())
                self._tasks.create_task(self._cordon.keep())
                try:
                    await asyncio.Event().wait()
                finally:
                    self.is_ready = False
                    self._jobs.stopping()
        finally:
            self._tasks = None
            for lease in self._ledger.live:
                self._lease_over(self._ledger.withdraw(lease.lease_id))
            self._jobs.close()

    # ---- allocation -------------------------------------------------------------------------------

    def _heard(self, caller: Caller, advert: Advertisement) -> None:
        if self.is_ready:
            self._arbiter.hear(advert, time.monotonic())
            self._wake.set()

    async def _arbitrate(self) -> None:
        """Answer advertisements once their window is over; each answer is a call of its own."""
        while True:
            due_at = self._arbiter.due_at()
            if due_at is None:
                self._wake.clear()
                await self._wake.wait()
                continue
            await asyncio.sleep(max(0.0, due_at - time.monotonic()))
            now = time.monotonic()
            for answer in self._arbiter.decide(
                self._ledger.total, self._ledger.free(), now, closed=self._cordon.state.reason
            ):
                self._answer(answer, now)

    def _answer(self, answer: Answer, now: float) -> None:
        advert = answer.advert
        if answer.resources is None:
            log.info("offer.declined job=%s advert=%s reason=%s", advert.job_id, advert.advert_id, answer.reason)
            self._start(self._decline(advert, answer.reason))
            return
        lease = self._ledger.offer(
            uuid.uuid4().hex,
            advert.peer_id,
            advert.job_id,
            advert.executor,
            answer.resources,
            answer.price,
            now,
        )
        if lease is None:
            self._start(self._decline(advert, "busy: the resources were just promised to another"))
            return
        self._lease_changed(lease)
        text = f"offered to job {advert.job_id} at {answer.price:g}"
        self._lives.note(lease.lease_id, "offered", now, text)
        self._board.happened("lease.offered", text, lease=lease.lease_id, job=advert.job_id)
        self._start(self._offer(advert, lease))

    async def _offer(self, advert: Advertisement, lease: Lease) -> None:
        offer = Offer(
            advert_id=advert.advert_id,
            lease_id=lease.lease_id,
            executor=lease.executor,
            resources=lease.resources,
            price=lease.price,
            ttl_s=OFFER_TTL_S,
            heeds=HEEDED,
        )
        try:
            await self._overlay.call(advert.peer_id, offer, timeout_s=CALL_S)
        except Refused as error:
            # Not wanted any more: free it at once. After any other failure the scheduler may have it, so it lapses.
            log.info("offer.refused job=%s lease=%s reason=%s", lease.job_id, lease.lease_id, error)
            self._lease_over(self._ledger.withdraw(lease.lease_id))
        except (PeerError, TimeoutError) as error:
            log.warning("offer.not_sent job=%s lease=%s reason=%s", lease.job_id, lease.lease_id, error)

    async def _decline(self, advert: Advertisement, reason: str) -> None:
        try:
            decline = Decline(advert_id=advert.advert_id, reason=reason)
            await self._overlay.call(advert.peer_id, decline, timeout_s=CALL_S)
        except (PeerError, TimeoutError) as error:
            log.debug("decline.not_sent advert=%s reason=%s", advert.advert_id, error)

    async def _keep_leases(self) -> None:
        """End leases that nobody renewed, and clear the board of what is over."""
        while True:
            now = time.monotonic()
            next_end = self._ledger.next_end()
            await asyncio.sleep(TICK_S if next_end is None else min(TICK_S, max(0.0, next_end - now)))
            now = time.monotonic()
            for lease in self._ledger.expire(now):
                if lease.state == "expired":
                    text = f"the scheduler of job {lease.job_id} was silent for {lease.duration_s:g} s"
                    fields = {"lease": lease.lease_id, "job": lease.job_id}
                    self._board.happened("lease.expired", text, level="warning", **fields)
                self._lease_over(lease)
            self._transfers.sweep(now)
            for lease_id in [key for key, at in self._ended.items() if now - at >= KEEP_S]:
                del self._ended[lease_id]
                self._board.drop("lease", lease_id)

    async def _renew(self, caller: Caller, request: RenewLease) -> LeaseRenewed:
        now = time.monotonic()
        lease = self._ledger.renew(request.lease_id, caller.peer_id, request.job_id, request.duration_s, now)
        self._lease_changed(lease)
        name = "lease.accepted" if lease.renewals == 1 else "lease.renewed"
        log.info("%s lease=%s peer=%s job=%s", name, lease.lease_id, caller.peer_id, lease.job_id)
        if lease.renewals > 1:
            self._lives.renewed(lease.lease_id, now)
        else:
            text = f"job {lease.job_id} took the offer"
            self._lives.note(lease.lease_id, "accepted", now, text)
            self._board.happened("lease.accepted", text, lease=lease.lease_id, job=lease.job_id)
        return LeaseRenewed(duration_s=request.duration_s)

    async def _release(self, caller: Caller, request: ReleaseLease) -> Ack:
        lease = self._ledger.release(request.lease_id, caller.peer_id)
        if lease is not None:
            text = (
                f"job {lease.job_id} needs it no more" if lease.renewals else f"job {lease.job_id} took another offer"
            )
            self._board.happened("lease.released", text, lease=lease.lease_id)
        self._lease_over(lease)
        return Ack()

    def _lease_over(self, lease: Lease | None) -> None:
        if lease is None:
            return
        log.info("lease.%s lease=%s job=%s", lease.state, lease.lease_id, lease.job_id)
        self._jobs.end_lease(lease)
        self._lives.ended(lease.lease_id, lease.state, time.monotonic())
        self._ended[lease.lease_id] = time.monotonic()
        self._lease_changed(lease)
        self._cordon.leases_changed()

    def _lease_changed(self, lease: Lease) -> None:
        now = time.monotonic()
        self._board.put(
            LeaseView(
                id=lease.lease_id,
                worker=self._overlay.peer_id,
                scheduler=lease.scheduler,
                job_id=lease.job_id,
                state=lease.state,
                executor="/".join(filter(None, (lease.executor.class_, lease.executor.name))),
                resources=lease.resources,
                price=lease.price,
                duration_s=lease.duration_s,
                remaining_s=max(0.0, lease.ends_at - now) if lease.is_live else 0.0,
                renewals=lease.renewals,
                age_s=now - lease.made_at,
                task_id=self._jobs.task_of(lease.lease_id),
            )
        )
        self._overlay.describe(self._ledger.total, self._ledger.free())

    # ---- tasks ------------------------------------------------------------------------------------

    async def _dispatch(self, caller: Caller, request: Dispatch) -> Dispatched:
        mounts = await self._mounts.find(request.mounts)
        if self._tasks is None or not self.is_ready:
            raise Refused("busy", "the worker is starting or stopping")
        lease = self._ledger.held_by(request.lease_id, caller.peer_id, time.monotonic())
        if lease.job_id != request.job_id:
            raise Refused("conflict", f"lease {lease.lease_id} is for job {lease.job_id}")
        if lease.executor.class_ != request.executor.class_ or lease.executor.name not in ("", request.executor.name):
            raise Refused("conflict", f"lease {lease.lease_id} is for executor {lease.executor.class_}")
        self._jobs.start(self._tasks, request, lease, mounts)
        self._lives.note(lease.lease_id, "dispatched", time.monotonic(), f"task {request.task_id}")
        self._lease_changed(lease)
        return Dispatched()

    async def _cancel(self, caller: Caller, request: CancelTask) -> Ack:
        self._jobs.cancel(request.task_id, caller.peer_id)
        return Ack()

    async def _set_members(self, caller: Caller, request: SetMembers) -> MembersSet:
        server = self._jobs.parameter_server_task(request.task_id, caller.peer_id)
        return MembersSet(round=server.set_members(request.members))

    async def _announce_update(self, caller: Caller, request: AnnounceUpdate) -> UpdateAnnounced:
        return self._jobs.parameter_server(request.job_id).announce(caller.peer_id, request)

    async def _whole_version(self, caller: Caller, request: WholeVersion) -> WholeFiles:
        server = self._jobs.parameter_server(request.job_id)
        server.check_reader(caller.peer_id)
        return await server.whole(request.number)

    # ---- bulk -------------------------------------------------------------------------------------

    async def _take_update(self, caller: Caller, request: web.Request) -> web.StreamResponse:
        server = self._jobs.parameter_server(request.match_info["job"])
        with metrics().stream():
            return await server.take_update(
                caller.peer_id, request.match_info["task"], request.match_info["sha256"], request
            )

    async def _send_version(self, caller: Caller, request: web.Request) -> web.StreamResponse:
        server = self._jobs.parameter_server(request.match_info["job"])
        server.check_reader(caller.peer_id)
        state = request.query.get("state", "committed")
        return await server.send_version(request.match_info["version"], state, _wait_s(request))

    async def _send_version_file(self, caller: Caller, request: web.Request) -> web.StreamResponse:
        server = self._jobs.parameter_server(request.match_info["job"])
        server.check_reader(caller.peer_id)
        with metrics().stream():
            return await server.send_version_file(request.match_info["kind"], request.match_info["version"], request)

    async def _send_export(self, caller: Caller, request: web.Request) -> web.StreamResponse:
        server = self._jobs.parameter_server(request.match_info["job"])
        server.check_reader(caller.peer_id)
        with metrics().stream():
            return await server.send_export(request.match_info["name"], request)

    async def _send_log(self, caller: Caller, request: web.Request) -> web.StreamResponse:
        task_id = request.match_info["task"]
        path = self._jobs.log_path(task_id)
        text = request.query.get("lines", "200")
        lines = min(MAX_LOG_LINES, int(text)) if text.isascii() and text.isdigit() else 200
        found = await asyncio.to_thread(tail, path, lines)
        chunk = LogChunk(task_id=task_id, peer_id=self._overlay.peer_id, lines=found)
        return web.json_response(body=msgspec.json.encode(chunk))

    async def _send_lease(self, caller: Caller, request: web.Request) -> web.StreamResponse:
        lease_id = request.match_info["lease"]
        marks = self._lives.marks(lease_id, time.monotonic())
        if marks is None:
            raise Refused("unknown", f"no lease {lease_id[:80]!r} is remembered here")
        earlier = self._lives.earlier_renewals(lease_id)
        history = LeaseHistory(lease_id=lease_id, marks=marks, earlier_renewals=earlier)
        return web.json_response(body=msgspec.json.encode(history))

    # ---- small things -------------------------------------------------------------------------------

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        if self._tasks is None:
            work.close()
            return
        self._tasks.create_task(work)

    def _storage(self) -> Path:
        folder = self._config.jobs_dir
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        return folder if folder.is_dir() else self._config.state_dir


def _wait_s(request: web.Request) -> float:
    try:
        return float(request.query.get("wait_s", "0"))
    except ValueError:
        raise Refused("invalid", "wait_s is a number of seconds") from None
