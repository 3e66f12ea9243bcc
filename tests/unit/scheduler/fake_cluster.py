"""An overlay without a network, with workers that play their part of a job in this process."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import itertools
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import msgspec
from aiohttp import web

from node.errors import PeerUnreachable, PeerUntrusted, Refused
from node.identity.caller import Caller
from node.network.membership import KnownPeer
from node.wire import (
    Ack,
    Advertisement,
    AggregateTask,
    CancelTask,
    CommitRound,
    Contribution,
    Decline,
    Dispatch,
    Dispatched,
    ExportedFile,
    LeaseRenewed,
    Manifest,
    Measure,
    MembersSet,
    NextSlice,
    Offer,
    PeerRecord,
    Plan,
    Progress,
    ProviderRecord,
    ReleaseLease,
    RenewLease,
    SetMembers,
    Signed,
    SliceInfo,
    Span,
    TaskStatus,
    TrainTask,
    VersionFile,
)

SCHEDULER = "S"
MODEL = b"the model"


def caller(peer_id: str, role: str = "node") -> Caller:
    return Caller(peer_id=peer_id, role=role, name=peer_id, expires_at=4e9)  # type: ignore[arg-type]


class FakeTrust:
    def open(self, signed: Signed) -> tuple[Caller, bytes]:
        """The first "certificate" is `<role>:<peer>`; a signature that is not `good` is none."""
        if signed.signature != b"good":
            raise PeerUntrusted("the signature does not fit")
        role, _, peer_id = signed.chain[0].decode().partition(":")
        return caller(peer_id, role), signed.payload


BulkRoute = tuple[str, str, Callable[[Caller, web.Request], Awaitable[web.StreamResponse]], bool]


class FakeOverlay:
    """What `SchedulerService` needs of an overlay."""

    def __init__(self) -> None:
        self.peer_id = SCHEDULER
        self.identity = SimpleNamespace(trust=FakeTrust())
        self.handlers: dict[type, Callable[[Caller, Any], Awaitable[Any]]] = {}
        self.routes: list[BulkRoute] = []
        self.workers: dict[str, FakeWorker] = {}
        self.cut: set[str] = set()
        self.datasets: dict[str, Manifest] = {}
        self.adverts: list[Advertisement] = []
        self.watchers: list[Callable[[], None]] = []
        self._seq = itertools.count(1)
        self._calls: set[asyncio.Future[Any]] = set()

    def on(self, request: type, handler: Callable[[Caller, Any], Awaitable[Any]], *, operator: bool = False) -> None:
        self.handlers[request] = handler

    def bulk_route(self, method: str, path: str, handler: Any, *, operator: bool = False) -> None:
        self.routes.append((method, path, handler, operator))

    def next_seq(self) -> int:
        return next(self._seq)

    def watch_peers(self, callback: Callable[[], None]) -> None:
        self.watchers.append(callback)

    def peers(self, role: str | None = None) -> list[KnownPeer]:
        return [
            KnownPeer(
                PeerRecord(peer_id=name, seq=1, name=f"node-{name}", roles=["worker"], addresses=[], ttl_s=60.0),
                reachable=name not in self.cut,
                rtt_ms=1.0,
                seen_at=0.0,
            )
            for name in self.workers
        ]

    async def publish(self, advert: Advertisement) -> None:
        self.adverts.append(advert)
        for worker in self.workers.values():
            if worker.peer_id not in self.cut and worker.peer_id not in advert.exclude:
                worker.spawn(worker.answer(advert))

    async def providers(self, dataset: str) -> list[ProviderRecord]:
        manifest = self.datasets.get(dataset)
        if manifest is None:
            return []
        digest = hashlib.sha256(msgspec.json.encode(manifest)).hexdigest()
        return [
            ProviderRecord(
                peer_id=peer,
                seq=1,
                dataset=dataset,
                digest=digest,
                slices=len(manifest.slices),
                rows=1,
                size_bytes=1,
                ttl_s=60.0,
            )
            for peer in ("D1", "D2")
        ]

    async def call(self, peer_id: str, request: Any, *, timeout_s: float = 5.0) -> Any:
        await asyncio.sleep(0)
        worker = self.workers.get(peer_id)
        if worker is not None and worker.is_dead:
            raise PeerUnreachable(f"{peer_id} does not answer") from ConnectionRefusedError(
                errno.ECONNREFUSED, "refused"
            )
        if worker is None or peer_id in self.cut:
            raise PeerUnreachable(f"{peer_id} does not answer")
        return await worker.handle(request)

    @contextlib.asynccontextmanager
    async def open(
        self, peer_id: str, method: str, path: str, *, headers: Any = None, data: Any = None, stall_s: float = 30.0
    ) -> AsyncIterator[Any]:
        await asyncio.sleep(0)
        if path.startswith("/bulk/datasets/"):
            body = msgspec.json.encode(self.datasets[path.split("/")[3]])
        else:
            raise Refused("unknown", path)
        yield FakeAnswer(body)

    def keep(self, peer_id: str, connection: socket.socket) -> None:
        """Nothing is kept."""
        connection.close()

    async def connect(self, peer_id: str) -> socket.socket:
        """A connection to a parameter server, for one file."""
        if peer_id in self.cut or peer_id not in self.workers:
            raise PeerUnreachable("cut off")
        ours, its = socket.socketpair()
        threading.Thread(target=_give_file, args=(its,), daemon=True).start()
        return ours

    async def told(self, peer_id: str, request: Any) -> Any:
        """A worker calls the scheduler."""
        if peer_id in self.cut:
            raise PeerUnreachable("cut off")
        if type(request) not in self.handlers:
            raise PeerUnreachable("the scheduler is not running")
        call = asyncio.ensure_future(self.handlers[type(request)](caller(peer_id), request))
        self._calls.add(call)
        try:
            return await asyncio.shield(call)
        except asyncio.CancelledError:
            if call.cancelled():
                raise PeerUnreachable("the scheduler died meanwhile") from None
            raise
        finally:
            self._calls.discard(call)

    async def scheduler_dies(self) -> None:
        """Nobody answers any more, calls that are under way included."""
        self.handlers.clear()
        for call in list(self._calls):
            call.cancel()
        await asyncio.gather(*self._calls, return_exceptions=True)

    def holder_of(self, task_id: str) -> str:
        """The worker that was given a task."""
        return next(
            worker.peer_id
            for worker in self.workers.values()
            if any(dispatch.task_id == task_id for dispatch in worker.dispatched)
        )

    def serve_dataset(self, name: str, slices: int) -> None:
        infos = [SliceInfo(name=f"s{n}", size_bytes=10, rows=8, sha256=f"{n:064x}") for n in range(slices)]
        self.datasets[name] = Manifest(name=name, slices=infos)


def content_of(path: str) -> bytes:
    """What a parameter server has under a path: the export, or a version's file, which tells its own name."""
    return MODEL if "/export/" in path else path.encode()


def version_file(job_id: str, kind: str, number: int) -> VersionFile:
    body = content_of(f"/bulk/jobs/{job_id}/{kind}/{number}")
    return VersionFile(kind=kind, number=number, sha256=hashlib.sha256(body).hexdigest(), size_bytes=len(body))


def _give_file(connection: socket.socket) -> None:
    with contextlib.suppress(OSError, IndexError), connection, connection.makefile("rwb") as stream:
        body = content_of(stream.readline().decode().split(" ")[1])
        while stream.readline().strip():
            pass
        stream.write(f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)


async def _until_over(run: Coroutine[Any, Any, None]) -> None:
    """A task whose scheduler says that it is over stops."""
    try:
        await run
    except Refused as error:
        if error.code != "stale":
            raise


class FakeContent:
    def __init__(self, body: bytes) -> None:
        self._body = body

    def set_read_chunk_size(self, size: int) -> None:
        pass

    def at_eof(self) -> bool:
        return not self._body

    async def readchunk(self) -> tuple[bytes, bool]:
        body, self._body = self._body, b""
        return body, True

    async def iter_chunked(self, size: int) -> AsyncIterator[bytes]:
        body, self._body = self._body, b""
        yield body


class FakeAnswer:
    def __init__(self, body: bytes) -> None:
        self.status = 200
        self.headers: dict[str, str] = {}
        self.content_length = len(body)
        self.content = FakeContent(body)

    def close(self) -> None:
        pass


class FakeGroup:
    """What a parameter server knows."""

    def __init__(self, peer_id: str, members: list[str], version: int) -> None:
        self.peer_id = peer_id
        self.members = members
        self.updates: dict[str, list[Span]] = {}
        self.version = version
        self.changed = asyncio.Event()


class FakeWorker:
    """A worker that offers, trains and, if told, is the parameter server."""

    def __init__(self, overlay: FakeOverlay, peer_id: str, *, refusal: str = "", crashes: int = 0) -> None:
        self.overlay = overlay
        self.peer_id = peer_id
        self.refusal = refusal
        self.crashes = crashes
        self.is_dead = False
        self.leases: dict[str, int] = {}
        self.dispatched: list[Dispatch] = []
        self.released: list[str] = []
        self.ended: set[str] = set()
        self.pauses = asyncio.Event()
        self.pauses.set()
        self.groups: dict[str, FakeGroup] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._task_of: dict[str, asyncio.Task[None]] = {}
        overlay.workers[peer_id] = self

    def spawn(self, work: Any) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def die(self) -> None:
        """The process is killed: nothing of it is left, and it comes back with nothing."""
        self.overlay.cut.add(self.peer_id)
        self.is_dead = True
        await self.close()
        self.ended |= self.leases.keys()
        self.leases.clear()
        self.groups.clear()
        self._task_of.clear()

    async def answer(self, advert: Advertisement) -> None:
        if self.refusal:
            await self.overlay.told(self.peer_id, Decline(advert_id=advert.advert_id, reason=self.refusal))
            return
        lease_id = f"{self.peer_id}-{advert.advert_id}"
        with contextlib.suppress(Refused):
            await self.overlay.told(
                self.peer_id,
                Offer(
                    advert_id=advert.advert_id,
                    lease_id=lease_id,
                    executor=advert.executor,
                    resources=advert.resources,
                    price=0.0,
                    ttl_s=8.0,
                ),
            )

    async def handle(self, request: Any) -> Any:
        match request:
            case RenewLease(lease_id=lease_id, duration_s=duration_s):
                if lease_id not in self.leases and lease_id in self.ended:
                    raise Refused("stale", "this lease is over")
                self.leases[lease_id] = self.leases.get(lease_id, 0) + 1
                return LeaseRenewed(duration_s=duration_s)
            case ReleaseLease(lease_id=lease_id):
                self.released.append(lease_id)
                self.ended.add(lease_id)
                self.leases.pop(lease_id, None)
                if task := self._task_of.pop(lease_id, None):
                    task.cancel()
                return Ack()
            case Dispatch() if request.lease_id in self._task_of:
                return Dispatched()
            case Dispatch():
                self.dispatched.append(request)
                run = self._serve(request) if isinstance(request.task, AggregateTask) else self._train(request)
                self._task_of[request.lease_id] = self.spawn(_until_over(run))
                return Dispatched()
            case SetMembers():
                group = self.groups.get(request.task_id.split(".")[0])
                if group is None:
                    raise Refused("unknown", f"no parameter server {request.task_id}")
                group.members = [member.task_id for member in request.members]
                group.changed.set()
                return MembersSet(round=group.version)
            case CancelTask():
                return Ack()
        raise Refused("unknown", str(request))

    async def tell(self, request: Any) -> Any:
        """Call the scheduler until it answers."""
        while True:
            try:
                return await self.overlay.told(self.peer_id, request)
            except PeerUnreachable:
                await asyncio.sleep(0.005)
            except Refused as error:
                if error.code != "busy":
                    raise
                await asyncio.sleep(0.005)

    async def status(self, dispatch: Dispatch, state: str, **more: Any) -> None:
        await self.tell(TaskStatus(task_id=dispatch.task_id, lease_id=dispatch.lease_id, state=state, **more))

    async def _train(self, dispatch: Dispatch) -> None:
        task = dispatch.task
        assert isinstance(task, TrainTask)
        if self.crashes:
            self.crashes -= 1
            await self.status(dispatch, "failed", exit_code=7, tail=["Traceback", "RuntimeError: out of luck"])
            return
        await self.status(dispatch, "running")
        server = await self._server(dispatch.job_id, task.parameter_server)
        if task.evaluate:
            metrics = {"eval_loss": 5.0 - server.version}
            await self.tell(Measure(task_id=dispatch.task_id, round=server.version, metrics=metrics))
        request = 0
        for number in range(server.version, task.rounds):
            batches, spans, plan = 0, [], Plan(round=number)
            while plan.target_batches is None or batches < plan.target_batches:
                await self.pauses.wait()
                request += 1
                ask = NextSlice(task_id=dispatch.task_id, dataset=task.dataset, number=request)
                while (grant := await self.tell(ask)).index < 0:
                    await asyncio.sleep(0.005)
                spans.append(Span(grant.pass_, grant.index, grant.start, grant.end))
                await asyncio.sleep(0.002)
                batches += 1
                plan = await self.tell(self._progress(dispatch, number, batches))
            while server.version <= number:
                group = (
                    self.overlay.workers[plan.parameter_server].groups.get(dispatch.job_id)
                    if plan.parameter_server
                    else None
                )
                if group is not None and dispatch.task_id not in group.updates and group.version == number:
                    group.updates[dispatch.task_id] = spans
                    group.changed.set()
                server = group or server
                await asyncio.sleep(0.005)
                plan = await self.tell(self._progress(dispatch, number, batches))
            if plan.evaluate:
                metrics = {"eval_loss": 4.0 - number}
                await self.tell(Measure(task_id=dispatch.task_id, round=number + 1, metrics=metrics))
        await self.status(dispatch, "finished", exit_code=0)

    def _progress(self, dispatch: Dispatch, number: int, batches: int) -> Progress:
        samples = batches * dispatch.task.batch_size  # type: ignore[union-attr]
        return Progress(
            task_id=dispatch.task_id, round=number, batches=batches, samples=samples, batch_s=0.002, loss=4.0 - number
        )

    async def _server(self, job_id: str, peer_id: str) -> FakeGroup:
        """The parameter server at a peer, once it is there."""
        while job_id not in self.overlay.workers[peer_id].groups:
            await asyncio.sleep(0.002)
        return self.overlay.workers[peer_id].groups[job_id]

    async def _serve(self, dispatch: Dispatch) -> None:
        task, job_id = dispatch.task, dispatch.job_id
        assert isinstance(task, AggregateTask)
        version = max((file.number for file in task.start), default=0)
        group = FakeGroup(self.peer_id, [member.task_id for member in task.members], version)
        files = [version_file(job_id, kind, version) for kind in (("weights", "momentum") if version else ("weights",))]
        await self.status(dispatch, "ready", files=files)
        self.groups[job_id] = group
        while group.version < task.rounds:
            group.changed.clear()
            if group.members and set(group.members) <= set(group.updates):
                await self._commit(dispatch, group)
                continue
            await group.changed.wait()
        exported = [
            ExportedFile(name="model.safetensors", size_bytes=len(MODEL), sha256=hashlib.sha256(MODEL).hexdigest())
        ]
        await self.status(dispatch, "exported", exported=exported)
        await asyncio.Event().wait()

    async def _commit(self, dispatch: Dispatch, group: FakeGroup) -> None:
        number = group.version + 1
        shares = [
            Contribution(
                task_id=name,
                peer_id=self.overlay.holder_of(name),
                samples=sum(span.end - span.start for span in group.updates[name]),
                sha256="0" * 64,
                norm=1.0,
                from_round=group.version,
                spans=group.updates[name],
            )
            for name in group.members
        ]
        weights, momentum, delta = (
            version_file(dispatch.job_id, kind, number) for kind in ("weights", "momentum", "delta")
        )
        report = CommitRound(
            task_id=dispatch.task_id,
            epoch=dispatch.epoch,
            round=group.version,
            weights=weights,
            momentum=momentum,
            delta=delta,
            contributions=shares,
            bytes_up=100 * number,
            bytes_down=200,
        )
        await self.tell(report)
        await self.tell(report)
        group.updates = {}
        group.version = number
