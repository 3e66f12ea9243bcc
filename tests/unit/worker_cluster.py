"""A worker over real TLS, and a scripted scheduler that also serves slices: for the tests of the worker."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import io
import sys
import tarfile
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from node.board import Board
from node.config import ExecutorConfig, ResourcesConfig
from node.errors import Refused
from node.identity.caller import Caller
from node.network import bulk
from node.network.overlay import Overlay
from node.network.serving import send_file
from node.store import Store
from node.wire import (
    Ack,
    Advertisement,
    AggregateTask,
    BindMount,
    CommitRound,
    Decline,
    Dispatch,
    ExecutorKind,
    InnerOptimizer,
    Measure,
    Member,
    ModelSource,
    NextSlice,
    Offer,
    OuterOptimizer,
    Plan,
    Progress,
    ReleaseLease,
    RenewLease,
    Resources,
    SliceGrant,
    Span,
    Sync,
    TaskStatus,
    TrainTask,
    VersionFile,
    WholeVersion,
)
from node.worker import jobs
from node.worker.service import WorkerService
from tests.support import IdentityFiles, MakeIdentity
from tests.unit.network_loopback import config_for, eventually, overlay_for, running

HERE = Path(__file__).parent
TRAIN = ExecutorKind(class_="train", name="scripted")
AGGREGATE = ExecutorKind(class_="aggregate", name="parameter-server")
BATCHES = 3
ROWS = 1000


class Scheduler:
    """Answers a worker, notes what it says, and asks for leases and tasks."""

    def __init__(self, overlay: Overlay, folder: Path) -> None:
        self.overlay = overlay
        self.folder = folder
        self.offers: list[Offer] = []
        self.declines: list[str] = []
        self.statuses: list[TaskStatus] = []
        self.progress: list[Progress] = []
        self.measures: list[Measure] = []
        self.committed: list[CommitRound] = []
        self.returned: list[tuple[str, int, list[Span]]] = []
        self.granted = 0
        self.grants: dict[tuple[str, int], SliceGrant] = {}
        self.destinations: dict[str, tuple[int, str]] = {}
        self.deaf_for = 0
        self.refusal: Refused | None = None
        self.untrue: dict[str, str] = {}
        """Tasks whose updates do not count, and why."""
        self.keeps = False
        self.journal = folder / "journal"
        self.journal.mkdir()
        self.hold_slices: dict[str, asyncio.Event] = {}
        self.waiting: set[str] = set()
        self.slice = folder / "slice.bin"
        self.slice.write_bytes(bytes(range(256)) * 4000)
        self.archive = folder / "folder.tar"
        self.bring({"config.json": b"{}", "job.toml": b"", "sub/a.txt": b"hello"})
        overlay.on(Offer, self._offer)
        overlay.on(Decline, self._decline)
        overlay.on(TaskStatus, self._status)
        overlay.on(NextSlice, self._next)
        overlay.on(Progress, self._progress)
        overlay.on(Measure, self._measure)
        overlay.on(CommitRound, self._round)
        overlay.bulk_route("GET", "/bulk/datasets/{name}/slices/{index}", self._send_slice)
        overlay.bulk_route("GET", "/bulk/jobs/{job}/folder", self._send_folder)
        overlay.bulk_route("GET", "/bulk/jobs/{job}/journal/{kind}/{number}", self._send_journal)

    def bring(self, files: dict[str, bytes]) -> None:
        """What the folder of its jobs holds."""
        self.archive_sha256 = _archive(self.archive, files)

    async def lease(
        self,
        worker: str,
        kind: ExecutorKind = TRAIN,
        cpu: float = 1,
        duration_s: float = 30,
        job: str = "job",
        mounts: Sequence[BindMount] = (),
    ) -> str:
        """Advertise, take the offer, accept it; the lease's id."""
        count = len(self.offers)
        await self.advertise(kind, cpu, job, mounts)
        await eventually(lambda: len(self.offers) > count)
        lease_id = self.offers[-1].lease_id
        await self.renew(worker, lease_id, duration_s, job)
        return lease_id

    async def advertise(
        self, kind: ExecutorKind = TRAIN, cpu: float = 1, job: str = "job", mounts: Sequence[BindMount] = ()
    ) -> None:
        """Publish one advertisement."""
        seq = self.overlay.next_seq()
        await self.overlay.publish(
            Advertisement(
                peer_id=self.overlay.peer_id,
                seq=seq,
                advert_id=f"a{seq}",
                job_id=job,
                executor=kind,
                resources=Resources(cpu=cpu),
                bid=1.0,
                count=1,
                ttl_s=5.0,
                mounts=list(mounts),
            )
        )

    async def renew(self, worker: str, lease_id: str, duration_s: float = 30, job: str = "job") -> None:
        """Renew once."""
        await self.overlay.call(worker, RenewLease(lease_id=lease_id, job_id=job, duration_s=duration_s))

    async def release(self, worker: str, lease_id: str) -> None:
        """Give a lease back."""
        await self.overlay.call(worker, ReleaseLease(lease_id=lease_id))

    async def train(
        self,
        worker: str,
        lease_id: str,
        task_id: str = "t1",
        server: str = "",
        rounds: int = 2,
        sync: Sync | None = None,
        **more: Any,
    ) -> None:
        """Dispatch a training task."""
        self.destinations[task_id] = (0, server or worker)
        task = TrainTask(
            model=ModelSource(task="causal-lm", filenames=["config.json"]),
            dataset="data",
            parameter_server=server or worker,
            optimizer=InnerOptimizer(learning_rate=0.1),
            batch_size=4,
            rounds=rounds,
            sync=sync or Sync(),
        )
        await self._dispatch(worker, lease_id, task_id, TRAIN, task, **more)

    async def aggregate(
        self,
        worker: str,
        lease_id: str,
        members: list[Member],
        task_id: str = "ps",
        rounds: int = 2,
        terms: dict[str, Any] | None = None,
        **more: Any,
    ) -> None:
        """Dispatch a parameter server; `terms` are further fields of its task."""
        fields: dict[str, Any] = {
            "model": ModelSource(task="causal-lm", filenames=["config.json"]),
            "optimizer": OuterOptimizer(learning_rate=1.0, momentum=0.0),
            **(terms or {}),
        }
        task = AggregateTask(rounds=rounds, members=members, **fields)
        await self._dispatch(worker, lease_id, task_id, AGGREGATE, task, **more)

    def states(self, task_id: str) -> list[str]:
        """What a task has said of itself, in order."""
        return [status.state for status in self.statuses if status.task_id == task_id]

    def last(self, task_id: str) -> TaskStatus:
        """Its last status."""
        return [status for status in self.statuses if status.task_id == task_id][-1]

    async def _dispatch(
        self,
        worker: str,
        lease_id: str,
        task_id: str,
        kind: ExecutorKind,
        task: TrainTask | AggregateTask,
        job: str = "job",
        epoch: int = 0,
        **more: Any,
    ) -> None:
        await self.overlay.call(
            worker,
            Dispatch(
                lease_id=lease_id,
                job_id=job,
                task_id=task_id,
                epoch=epoch,
                executor=kind,
                task=task,
                folder_sha256=self.archive_sha256,
                **more,
            ),
        )

    async def _offer(self, caller: Caller, request: Offer) -> Ack:
        self.offers.append(request)
        return Ack()

    async def _decline(self, caller: Caller, request: Decline) -> Ack:
        self.declines.append(request.reason)
        return Ack()

    async def _status(self, caller: Caller, request: TaskStatus) -> Ack:
        self.statuses.append(request)
        return Ack()

    async def _next(self, caller: Caller, request: NextSlice) -> SliceGrant:
        if request.task_id in self.hold_slices and not self.hold_slices[request.task_id].is_set():
            self.waiting.add(request.task_id)
            return SliceGrant(index=-1, wait_s=0.1)
        key = (request.task_id, request.number)
        if key not in self.grants:
            self.granted += 1
            self.grants[key] = SliceGrant(
                index=self.granted - 1,
                name=f"s{self.granted - 1}",
                end=ROWS,
                sha256=hashlib.sha256(self.slice.read_bytes()).hexdigest(),
                size_bytes=self.slice.stat().st_size,
                rows=ROWS,
                providers=[self.overlay.peer_id],
            )
        return self.grants[key]

    async def _progress(self, caller: Caller, request: Progress) -> Plan:
        self.progress.append(request)
        if request.returned:
            self.returned.append((request.task_id, request.return_number, request.returned))
        epoch, server = self.destinations[request.task_id]
        target = BATCHES if server else None
        return Plan(round=request.round, target_batches=target, epoch=epoch, parameter_server=server)

    async def _measure(self, caller: Caller, request: Measure) -> Ack:
        self.measures.append(request)
        return Ack()

    async def _round(self, caller: Caller, request: CommitRound) -> Ack:
        if self.deaf_for > 0:
            self.deaf_for -= 1
            raise KeyError("the scheduler is not itself")
        if self.refusal is not None:
            raise self.refusal
        names = [share.task_id for share in request.contributions]
        if parts := {number: self.untrue[name] for number, name in enumerate(names) if name in self.untrue}:
            raise Refused("conflict", "; ".join(parts.values()), parts=parts)
        if self.keeps:
            ask = WholeVersion(job_id="job", number=request.round + 1)
            whole = await self.overlay.call(caller.peer_id, ask, timeout_s=20)
            for file in (request.delta, *whole.files):
                await self.keep(caller.peer_id, file)
        self.committed.append(request)
        return Ack()

    async def keep(self, worker: str, file: VersionFile, job: str = "job") -> None:
        """Take a file of a version over into the journal."""
        if not self.keeps:
            return
        target = self.journal / f"{file.kind}-{file.number}.safetensors"
        path = f"/bulk/jobs/{job}/{file.kind}/{file.number}"
        await bulk.download(
            self.overlay, [worker], path, target, sha256=file.sha256, size_bytes=file.size_bytes, durable=False
        )

    async def _send_journal(self, caller: Caller, request: web.Request) -> web.StreamResponse:
        path = self.journal / "{kind}-{number}.safetensors".format(**request.match_info)
        return await send_file(request, path, sha256=hashlib.sha256(path.read_bytes()).hexdigest())

    async def _send_slice(self, caller: Caller, request: web.Request) -> web.StreamResponse:
        sha256 = hashlib.sha256(self.slice.read_bytes()).hexdigest()
        return await send_file(request, self.slice, sha256=sha256)

    async def _send_folder(self, caller: Caller, request: web.Request) -> web.StreamResponse:
        return await send_file(request, self.archive, sha256=self.archive_sha256)


class Worker:
    """A node with the worker role."""

    def __init__(self, overlay: Overlay, service: WorkerService, board: Board, store: Store, jobs_dir: Path) -> None:
        self.overlay = overlay
        self.service = service
        self.board = board
        self.store = store
        self.jobs_dir = jobs_dir
        self.peer_id = overlay.peer_id

    async def log(self, scheduler: Scheduler, task_id: str) -> str:
        """A task's log, as another node reads it."""
        async with scheduler.overlay.open(self.peer_id, "GET", f"/bulk/tasks/{task_id}/log?lines=100") as answer:
            return "\n".join((await answer.json())["lines"])


def scripted(mode: str, *extra: str) -> ExecutorConfig:
    """The scripted executor in one of its modes."""
    return ExecutorConfig(
        class_="train",
        name="scripted",
        runtime="process",
        cmd=sys.executable,
        args=[
            str(HERE / "scripted_executor.py"),
            *("--mode", mode, "--socket", "{SOCKET_PATH}", "--work-dir", "{WORK_DIR}", "--job", "{JOB_JSON}"),
            *extra,
        ],
    )


@contextlib.asynccontextmanager
async def worker_for(
    files: IdentityFiles, state_dir: Path, gateway: str, mode: str = "wire", *extra: str, **settings: Any
) -> AsyncIterator[Worker]:
    """A running worker that has joined the node at `gateway`."""
    state_dir.mkdir(parents=True, exist_ok=True)
    values: dict[str, Any] = {
        "gateway_addresses": [gateway],
        "resources": ResourcesConfig(cpu=4, memory=4, storage=4, gpu=0),
        "executors": [
            scripted(mode, *extra),
            ExecutorConfig(class_="aggregate", name="parameter-server", runtime="parameter-server"),
        ],
    }
    config = config_for(files, state_dir, **(values | settings))
    board = Board(files.peer_id)
    async with Store.open(state_dir / "state.db") as store:
        overlay = Overlay(config, files.load(), board, store)
        service = WorkerService(config, overlay, board, store)
        async with running(overlay), asyncio.TaskGroup() as tasks:
            task = tasks.create_task(service.run())
            try:
                await eventually(lambda: service.is_ready)
                yield Worker(overlay, service, board, store, config.jobs_dir)
            finally:
                task.cancel()


@contextlib.asynccontextmanager
async def cluster(
    make_identity: MakeIdentity, tmp_path: Path, mode: str = "wire", *extra: str, **settings: Any
) -> AsyncIterator[tuple[Scheduler, Worker]]:
    """A scripted scheduler and one worker that know each other."""
    made: list[Scheduler] = []

    def prepare(overlay: Overlay) -> None:
        made.append(Scheduler(overlay, tmp_path))

    async with overlay_for(
        make_identity("scheduler"), tmp_path / "scheduler", prepare=prepare, roles=["scheduler"]
    ) as overlay:
        files = make_identity("worker")
        async with worker_for(files, tmp_path / "worker", overlay.addresses[0], mode, *extra, **settings) as worker:
            await eventually(lambda: len(overlay.peers()) > 1 and len(worker.overlay.peers()) > 1)
            yield made[0], worker


@pytest.fixture
def scripted_aggregate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the parameter server run the scripted arithmetic."""
    monkeypatch.setattr(jobs, "COMMAND", (sys.executable, str(HERE / "scripted_aggregate.py"), "--work-dir"))


def processes(holds: Callable[[str], bool]) -> list[int]:
    """Ids of the processes whose command line meets a condition."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                if line and holds(line):
                    found.append(int(entry.name))
    return found


def _archive(path: Path, files: dict[str, bytes]) -> str:
    with tarfile.open(path, "w") as tar:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return hashlib.sha256(path.read_bytes()).hexdigest()
