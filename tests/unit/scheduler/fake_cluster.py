"""An overlay without a network, with workers that play their part of a job in this process."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
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
    Progress,
    ProviderRecord,
    ReleaseEarlier,
    ReleaseLease,
    RenewLease,
    RoundCommitted,
    SetMembers,
    Signed,
    SliceInfo,
    TaskStatus,
    TrainTask,
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


class FakeOverlay:
    """What `SchedulerService` needs of an overlay."""

    def __init__(self) -> None:
        self.peer_id = SCHEDULER
        self.identity = SimpleNamespace(trust=FakeTrust())
        self.handlers: dict[type, Callable[[Caller, Any], Awaitable[Any]]] = {}
        self.routes: list[tuple[str, str, Callable[[Caller, web.Request], Awaitable[web.StreamResponse]], bool]] = []
        self.workers: dict[str, FakeWorker] = {}
        self.cut: set[str] = set()
        self.datasets: dict[str, Manifest] = {}
        self.adverts: list[Advertisement] = []
        self.watchers: list[Callable[[], None]] = []
        self._seq = itertools.count(1)

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

    async def connect(self, peer_id: str) -> socket.socket:
        """A connection to a parameter server that has one file to give."""
        if peer_id in self.cut:
            raise PeerUnreachable("cut off")
        ours, its = socket.socketpair()
        threading.Thread(target=_give_model, args=(its,), daemon=True).start()
        return ours

    async def told(self, peer_id: str, request: Any) -> Any:
        """A worker calls the scheduler."""
        if peer_id in self.cut:
            raise PeerUnreachable("cut off")
        return await self.handlers[type(request)](caller(peer_id), request)

    def serve_dataset(self, name: str, slices: int) -> None:
        infos = [SliceInfo(name=f"s{n}", size_bytes=10, rows=8, sha256=f"{n:064x}") for n in range(slices)]
        self.datasets[name] = Manifest(name=name, slices=infos)


def _give_model(connection: socket.socket) -> None:
    with connection, connection.makefile("rwb") as stream:
        while stream.readline().strip():
            pass
        head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(MODEL)}\r\n\r\n"
        stream.write(head.encode() + MODEL)


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

    def __init__(self, members: list[str]) -> None:
        self.members = members
        self.updates: dict[str, int] = {}
        self.version = 0
        self.changed = asyncio.Event()


class FakeWorker:
    """A worker that offers, trains and, if told, is the parameter server."""

    def __init__(self, overlay: FakeOverlay, peer_id: str, *, refusal: str = "", crashes: int = 0) -> None:
        self.overlay = overlay
        self.peer_id = peer_id
        self.refusal = refusal
        self.crashes = crashes
        self.leases: dict[str, int] = {}
        self.dispatched: list[Dispatch] = []
        self.released: list[str] = []
        self.cleared: list[str] = []
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
                self.leases[lease_id] = self.leases.get(lease_id, 0) + 1
                return LeaseRenewed(duration_s=duration_s)
            case ReleaseLease(lease_id=lease_id):
                self.released.append(lease_id)
                self.leases.pop(lease_id, None)
                if task := self._task_of.pop(lease_id, None):
                    task.cancel()
                return Ack()
            case ReleaseEarlier(job_id=job_id):
                self.cleared.append(job_id)
                return Ack()
            case Dispatch():
                self.dispatched.append(request)
                run = self._serve(request) if isinstance(request.task, AggregateTask) else self._train(request)
                self._task_of[request.lease_id] = self.spawn(run)
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

    async def status(self, dispatch: Dispatch, state: str, **more: Any) -> None:
        await self.overlay.told(
            self.peer_id, TaskStatus(task_id=dispatch.task_id, lease_id=dispatch.lease_id, state=state, **more)
        )

    async def _train(self, dispatch: Dispatch) -> None:
        task, told = dispatch.task, self.overlay.told
        assert isinstance(task, TrainTask)
        if self.crashes:
            self.crashes -= 1
            await self.status(dispatch, "failed", exit_code=7, tail=["Traceback", "RuntimeError: out of luck"])
            return
        await self.status(dispatch, "running")
        while dispatch.job_id not in self.overlay.workers[task.parameter_server].groups:
            await asyncio.sleep(0.002)
        server = self.overlay.workers[task.parameter_server].groups[dispatch.job_id]
        if task.evaluate:
            metrics = {"eval_loss": 5.0}
            await told(self.peer_id, Measure(task_id=dispatch.task_id, round=0, metrics=metrics))
        used: list[tuple[int, int]] = []
        for number in range(server.version, task.rounds):
            batches, target, evaluate = 0, None, False
            while target is None or batches < target:
                await self.pauses.wait()
                grant = await told(self.peer_id, NextSlice(task_id=dispatch.task_id, dataset=task.dataset, used=used))
                used = [(grant.epoch, grant.index)]
                await asyncio.sleep(0.002)
                batches += 1
                plan = await told(
                    self.peer_id,
                    Progress(
                        task_id=dispatch.task_id,
                        round=number,
                        batches=batches,
                        samples=batches * task.batch_size,
                        batch_s=0.002,
                        loss=4.0 - number,
                    ),
                )
                target, evaluate = plan.target_batches, plan.evaluate
            server.updates[dispatch.task_id] = batches * task.batch_size
            server.changed.set()
            while server.version <= number:
                await asyncio.sleep(0.002)
            if evaluate:
                metrics = {"eval_loss": 4.0 - number}
                await told(self.peer_id, Measure(task_id=dispatch.task_id, round=number + 1, metrics=metrics))
        await self.status(dispatch, "finished", exit_code=0)

    async def _serve(self, dispatch: Dispatch) -> None:
        task = dispatch.task
        assert isinstance(task, AggregateTask)
        group = self.groups[dispatch.job_id] = FakeGroup([member.task_id for member in task.members])
        await self.status(dispatch, "ready")
        while group.version < task.rounds:
            group.changed.clear()
            if group.members and set(group.members) <= set(group.updates):
                shares = [
                    Contribution(task_id=name, peer_id="?", samples=group.updates[name], sha256="0" * 64, norm=1.0)
                    for name in group.members
                ]
                report = RoundCommitted(
                    task_id=dispatch.task_id,
                    round=group.version,
                    digest=f"{group.version:064x}",
                    contributions=shares,
                    bytes_up=100 * (group.version + 1),
                    bytes_down=200,
                )
                await self.overlay.told(self.peer_id, report)
                await self.overlay.told(self.peer_id, report)
                group.updates = {}
                group.version += 1
                continue
            await group.changed.wait()
        files = [
            ExportedFile(name="model.safetensors", size_bytes=len(MODEL), sha256=hashlib.sha256(MODEL).hexdigest())
        ]
        await self.status(dispatch, "exported", exported=files)
        await asyncio.Event().wait()
