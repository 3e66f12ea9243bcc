"""One round's exchange: 4 workers upload an update, the parameter server averages and steps, all fetch the answer.

    python -m benchmarks.exchange [--mb 200] [--runs 5] [--codecs none,int8]

The parameter server is a real one, in a `hypha-node` process with its arithmetic in a process of its own; the members
are four processes that upload and fetch as a worker does (mutual TLS 1.3, SHA-256 of all that arrives, files). This
process is their scheduler: a round is committed when the delta is in its journal, on the disk. The floor, in the same
run and in turns: plain TCP, four processes, arrays in memory, no TLS, no files, no digests.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiohttp import web

from benchmarks import floor
from benchmarks.floor import MEMBERS
from benchmarks.slices import loop_factory
from hypha_tui.local_cluster import LocalCluster, LocalNode
from node.board import Board
from node.config import NodeConfig
from node.identity.caller import Caller
from node.identity.credentials import load_identity
from node.network import bulk
from node.network.overlay import Overlay
from node.network.serving import send_file
from node.store import Store
from node.wire import (
    Ack,
    Advertisement,
    AggregateTask,
    AnnounceUpdate,
    CommitRound,
    Decline,
    Dispatch,
    ExecutorKind,
    Member,
    ModelSource,
    Offer,
    OuterOptimizer,
    RenewLease,
    Resources,
    Span,
    Sync,
    TaskStatus,
    VersionFile,
)
from node.worker.versions import describe

JOB = "exchange"
TENSORS = 25
WORKER = """
work_dir = "{work}"
[resources]
cpu = 2
memory = 16
storage = 60
gpu = 0
"""


# ---- a member, a process of its own ---------------------------------------------------------------


async def member(name: str, gateway: str, server: str, certificates: Path, folder: Path) -> None:
    """One line on stdin is one exchange: `<task> <round> <path>` or `floor <port> <elements>`; JSON on stdout."""
    async with _overlay(name, "worker", gateway, certificates, folder) as overlay:
        print(json.dumps("ready"), flush=True)
        digests: dict[str, tuple[str, int]] = {}
        while line := (await asyncio.to_thread(sys.stdin.readline)).split():
            if line[0] == "floor":
                print(json.dumps(await asyncio.to_thread(floor.member, int(line[1]), int(line[2]))), flush=True)
                continue
            task_id, round_, path = line[0], int(line[1]), Path(line[2])
            if line[2] not in digests:
                digests[line[2]] = (_sha256(path), path.stat().st_size)
            sha256, size = digests[line[2]]
            header = AnnounceUpdate(
                job_id=JOB,
                epoch=0,
                task_id=task_id,
                round=round_,
                samples=100,
                sha256=sha256,
                size_bytes=size,
                spans=[Span(round_, int(task_id[-1]), 0, 100)],
            )
            began = time.perf_counter()
            await asyncio.to_thread(_sha256, path)  # a worker hashes what its executor hands over
            await overlay.call(server, header, timeout_s=20)
            await bulk.upload(
                overlay,
                server,
                f"/bulk/jobs/{JOB}/updates/{task_id}/{sha256}",
                path,
            )
            uploaded = time.perf_counter()
            version = await describe(overlay, server, JOB, round_ + 1, state="prepared")
            prepared = time.perf_counter()
            delta = next(file for file in version.files if file.kind == "delta")
            target = folder / "delta.safetensors"
            await bulk.download(
                overlay,
                [server],
                f"/bulk/jobs/{JOB}/delta/{round_ + 1}",
                target,
                sha256=delta.sha256,
                size_bytes=delta.size_bytes,
                durable=False,
            )
            fetched = time.perf_counter()
            while not version.committed:
                version = await describe(overlay, server, JOB, round_ + 1, state="committed")
            done = time.perf_counter()
            target.unlink()
            times = {"up": uploaded - began, "step": prepared - began, "down": fetched - began, "all": done - began}
            print(json.dumps({**times, "bytes_up": size, "bytes_down": delta.size_bytes}), flush=True)


# ---- the scheduler --------------------------------------------------------------------------------


class Scheduler:
    """Leases a worker, dispatches one parameter server to it, and commits its rounds."""

    def __init__(self, overlay: Overlay, folder: Path) -> None:
        self.overlay = overlay
        self.folder = folder
        self.offers: asyncio.Queue[Offer] = asyncio.Queue(100)
        self.ready = asyncio.Event()
        self.failure = ""
        self.journal_s: list[float] = []
        overlay.on(Offer, self._offer)
        overlay.on(Decline, self._decline)
        overlay.on(TaskStatus, self._status)
        overlay.on(CommitRound, self._commit)
        overlay.bulk_route("GET", "/bulk/jobs/{job}/journal/{kind}/{number}", self._send)

    async def _offer(self, caller: Caller, request: Offer) -> Ack:
        await self.offers.put(request)
        return Ack()

    async def _decline(self, caller: Caller, request: Decline) -> Ack:
        return Ack()

    async def _status(self, caller: Caller, request: TaskStatus) -> Ack:
        if request.state == "ready":
            self.ready.set()
        elif request.state in ("failed", "cancelled"):
            self.failure = f"{request.state}: {request.detail} {request.tail}"
            self.ready.set()
        return Ack()

    async def _send(self, caller: Caller, request: web.Request) -> web.StreamResponse:
        path = self.folder / f"{request.match_info['kind']}-{request.match_info['number']}.safetensors"
        return await send_file(request, path, sha256=await asyncio.to_thread(_sha256, path))

    async def _commit(self, caller: Caller, request: CommitRound) -> Ack:
        began = time.perf_counter()
        target = self.folder / f"journal-{request.delta.number}.safetensors"
        await bulk.download(
            self.overlay,
            [caller.peer_id],
            f"/bulk/jobs/{JOB}/delta/{request.delta.number}",
            target,
            sha256=request.delta.sha256,
            size_bytes=request.delta.size_bytes,
        )
        target.unlink()
        self.journal_s.append(time.perf_counter() - began)
        return Ack()

    async def dispatch(self, worker: str, members: list[Member], sync: Sync, base: VersionFile) -> str:
        """Start the parameter server; its lease."""
        kind = ExecutorKind(class_="aggregate", name="parameter-server")
        seq = self.overlay.next_seq()
        await self.overlay.publish(
            Advertisement(
                peer_id=self.overlay.peer_id,
                seq=seq,
                advert_id=f"a{seq}",
                job_id=JOB,
                executor=kind,
                resources=Resources(cpu=1),
                bid=1.0,
                count=1,
                ttl_s=5.0,
            )
        )
        async with asyncio.timeout(10):
            lease_id = (await self.offers.get()).lease_id
        await self.overlay.call(worker, RenewLease(lease_id=lease_id, job_id=JOB, duration_s=600))
        task = AggregateTask(
            model=ModelSource(task="torch", filenames=["model.py"]),
            optimizer=OuterOptimizer(learning_rate=0.7, momentum=0.9),
            rounds=100_000,
            members=members,
            min_members=len(members),
            sync=sync,
            start=[base],
        )
        await self.overlay.call(
            worker,
            Dispatch(lease_id=lease_id, job_id=JOB, task_id=f"{JOB}.0.ps", epoch=0, executor=kind, task=task),
        )
        async with asyncio.timeout(60):
            await self.ready.wait()
        if self.failure:
            raise RuntimeError(self.failure)
        return lease_id


class _overlay:
    """An overlay of this process, joined through the gateway."""

    def __init__(self, name: str, role: str, gateway: str, certificates: Path, folder: Path) -> None:
        self._folder = folder
        self._gateway = gateway
        base = f"{certificates}/{name}"
        cert, key, trust = (Path(f"{base}-{kind}.pem") for kind in ("cert", "key", "trust"))
        self._identity = load_identity(cert, key, trust)
        self._config = NodeConfig(
            name=name,
            roles=[role],
            state_dir=folder,
            listen_addresses=["/ip4/127.0.0.1/tcp/0"],
            gateway_addresses=[gateway],
            mdns=False,
        )
        self.prepare: Any = None

    async def __aenter__(self) -> Overlay:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._store = Store.open(self._folder / "state.db")
        store = await self._store.__aenter__()
        overlay = Overlay(self._config, self._identity, Board(self._identity.peer_id), store)
        if self.prepare is not None:
            self.prepare(overlay)
        self._tasks = asyncio.TaskGroup()
        await self._tasks.__aenter__()
        self._running = self._tasks.create_task(overlay.run())
        async with asyncio.timeout(15):
            while len(overlay.peers()) < 3:
                await asyncio.sleep(0.02)
        return overlay

    async def __aexit__(self, *details: object) -> None:
        self._running.cancel()
        await self._tasks.__aexit__(None, None, None)
        await self._store.__aexit__(None, None, None)


# ---- the comparison -------------------------------------------------------------------------------


@dataclass
class Group:
    """Four members of one codec, in their processes."""

    members: list[subprocess.Popen[str]]
    updates: list[Path]
    round: int = 0

    async def exchange(self) -> dict[str, float]:
        """One round; the last member's times."""
        for number, process in enumerate(self.members):
            _say(process, f"{JOB}.0.{number} {self.round} {self.updates[number]}")
        self.round += 1
        answers = [await asyncio.to_thread(_hear, process) for process in self.members]
        return {key: max(answer[key] for answer in answers) for key in answers[0]}


Watch = Callable[[LocalNode], AbstractContextManager[object]]


async def codec_runs(
    folder: Path, codec: str, mb: int, runs: int, watch: Watch = nullcontext
) -> dict[str, list[dict[str, float]]]:
    """Exchanges with one codec, with those of the floor in turns. `watch` is entered with the parameter server's node
    while they go on."""
    from benchmarks.tensors import make_update, make_weights

    elements = mb * 1_000_000 // 4
    names = [f"member-{number}" for number in range(MEMBERS)]
    found: dict[str, list[dict[str, float]]] = {codec: [], "floor": []}
    with LocalCluster(folder / "cluster") as cluster:
        cluster.make_authority(["gateway", "server", "scheduler", *names])
        gateway = cluster.start("gateway", "gateway").address
        work = WORKER.format(work=folder / "work")
        server = cluster.start("server", "worker", config=work, gateways=[gateway])
        files = folder / "files"
        files.mkdir()
        base = files / "weights-0.safetensors"
        make_weights(base, elements, TENSORS)
        updates = [files / f"update-{number}.safetensors" for number in range(MEMBERS)]
        for number, path in enumerate(updates):
            make_update(path, base, codec, seed=number)
        start = VersionFile(kind="weights", number=0, sha256=_sha256(base), size_bytes=base.stat().st_size)
        where = _overlay("scheduler", "scheduler", gateway, cluster.certificates, folder / "scheduler")
        made: list[Scheduler] = []
        where.prepare = lambda overlay: made.append(Scheduler(overlay, files))
        async with where:
            processes = [
                _spawn("--member", name, gateway, server.peer_id, str(cluster.certificates), str(folder / name))
                for name in names
            ]
            floored = _spawn("--floor-server", str(elements))
            try:
                for process in processes:
                    await asyncio.to_thread(_hear, process)
                port = int(await asyncio.to_thread(floored.stdout.readline))  # type: ignore[union-attr]
                ids = [_peer_id(cluster, name) for name in names]
                members = [
                    Member(task_id=f"{JOB}.0.{number}", peer_id=peer, since_round=0) for number, peer in enumerate(ids)
                ]
                await made[0].dispatch(server.peer_id, members, Sync(codec=codec), start)
                group = Group(processes, updates)
                with watch(server):
                    for run in range(runs + 1):
                        answer = await group.exchange()
                        answer["journal"] = made[0].journal_s[-1]
                        _say(floored, "go")
                        for process in processes:
                            _say(process, f"floor {port} {elements}")
                        for process in processes:
                            await asyncio.to_thread(_hear, process)
                        seconds = await asyncio.to_thread(_hear, floored)
                        if run:
                            found[codec].append(answer)
                            found["floor"].append({"all": float(seconds)})
            finally:
                for process in [*processes, floored]:
                    process.kill()
                    process.wait(5)
    shutil.rmtree(folder, ignore_errors=True)
    return found


def _peer_id(cluster: LocalCluster, name: str) -> str:
    base = f"{cluster.certificates}/{name}"
    return load_identity(*(Path(f"{base}-{kind}.pem") for kind in ("cert", "key", "trust"))).peer_id


def _spawn(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "benchmarks.exchange", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def _say(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()


def _hear(process: subprocess.Popen[str]) -> Any:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError("a process of the benchmark has ended")
    return json.loads(line)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def main() -> None:
    """Parse the arguments and run."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.exchange", description=__doc__)
    parser.add_argument("--mb", type=int, default=200, help="of float32 values in a model")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--codecs", default="none,int8")
    parser.add_argument("--member", nargs=5, help=argparse.SUPPRESS)
    parser.add_argument("--floor-server", type=int, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.floor_server:
        floor.server(chosen.floor_server)
        return
    with asyncio.Runner(loop_factory=loop_factory(plain=False)) as runner:
        if chosen.member:
            name, gateway, server, certificates, folder = chosen.member
            runner.run(member(name, gateway, server, Path(certificates), Path(folder)))
            return
        print(f"{MEMBERS} workers, {chosen.mb} MB of float32 each, mutual TLS 1.3, loopback, {os.cpu_count()} cores")
        heads = f"{'all':>8}{'range':>16}{'up':>8}{'+ step':>8}{'+ down':>8}{'journal':>9}{'MB up':>8}{'of floor':>10}"
        print(f"{'':<10}{heads}")
        for codec in chosen.codecs.split(","):
            with tempfile.TemporaryDirectory(prefix="hypha-bench-") as name:
                found = runner.run(codec_runs(Path(name) / "run", codec, chosen.mb, chosen.runs))
            floor_s = statistics.median(one["all"] for one in found["floor"])
            report(codec, found[codec], floor_s)
            print(f"{'  floor':<10}{floor_s:>7.3f}s")


def report(codec: str, times: list[dict[str, float]], floor_s: float) -> None:
    """One line: medians."""
    middle = {key: statistics.median(one[key] for one in times) for key in times[0]}
    every = sorted(one["all"] for one in times)
    spread = f"{every[0]:.3f}..{every[-1]:.3f}"
    parts = "".join(f"{middle[key]:>7.3f}s" for key in ("up", "step", "down"))
    ratio = middle["all"] / floor_s
    size = middle["bytes_up"] / 1e6
    print(f"{codec:<10}{middle['all']:>7.3f}s{spread:>16}{parts}{middle['journal']:>8.3f}s{size:>8.1f}{ratio:>10.1f}")


if __name__ == "__main__":
    main()
