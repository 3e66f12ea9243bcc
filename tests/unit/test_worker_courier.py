"""Updates out and versions in, while parameter servers come and go."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
import pytest_asyncio

from node.board import Board
from node.config import FetchConfig
from node.errors import PeerUnreachable, Refused
from node.network import bulk
from node.network.cache import ContentCache
from node.network.overlay import Overlay
from node.wire import (
    AnnounceUpdate,
    Dispatch,
    ExecutorKind,
    InnerOptimizer,
    ModelSource,
    Plan,
    Span,
    Sync,
    TrainTask,
    UpdateAnnounced,
    UpdateTaken,
    VersionFile,
    WholeFiles,
    WholeVersion,
)
from node.worker import courier, inbound
from node.worker.beneath import staging_of
from node.worker.context import TaskContext
from node.worker.references import BridgeError, Peers
from node.worker.training import TrainingTask
from node.worker.transfers import Transfers
from node.worker.uplink import Uplink
from node.worker.versions import Version
from node.worker.web import Web

pytestmark = pytest.mark.asyncio


@dataclass
class Server:
    """One parameter server: what it takes, and which versions it has."""

    epoch: int = 0
    refusal: Refused | None = None
    counts_in: int = 0
    headers: list[AnnounceUpdate] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    prepared: int = 0
    committed: int = 0
    contributors: list[tuple[str, int]] = field(default_factory=list)
    forgets: int = -1
    answers: bool = True
    has_changed: asyncio.Event = field(default_factory=asyncio.Event)

    def file(self, kind: str, number: int) -> VersionFile:
        """A version's file, and what this server would send for it."""
        content = f"{kind}-{number}-{self.epoch}".encode()
        return VersionFile(
            kind=kind, number=number, sha256=hashlib.sha256(content).hexdigest(), size_bytes=len(content)
        )

    def change(self, **values: Any) -> None:
        """Whoever waits looks again."""
        for name, value in values.items():
            setattr(self, name, value)
        changed, self.has_changed = self.has_changed, asyncio.Event()
        changed.set()


class Cluster:
    """The servers by their peer id, in the place of the network."""

    def __init__(self) -> None:
        self.servers: dict[str, Server] = {"one": Server()}

    async def call(
        self, peer: str, request: AnnounceUpdate | WholeVersion, **more: Any
    ) -> UpdateAnnounced | WholeFiles:
        """An update is announced, or a whole version asked for."""
        if peer not in self.servers or not self.servers[peer].answers:
            raise PeerUnreachable(f"{peer} is away")
        if isinstance(request, WholeVersion):
            kinds = ("weights", "momentum") if request.number else ("weights",)
            return WholeFiles(files=[self.servers[peer].file(kind, request.number) for kind in kinds])
        self.servers[peer].headers.append(request)
        return UpdateAnnounced()

    async def upload(self, overlay: object, peer: str, path: str, source: Path, **more: Any) -> bytes:
        """A `PUT`."""
        server = self.servers.get(peer)
        if server is None or not server.answers:
            raise PeerUnreachable(f"{peer} is away")
        header = server.headers[-1]
        assert path == f"/bulk/jobs/job/updates/t1/{header.sha256}"
        server.bodies.append(source.read_bytes())
        if server.refusal is not None:
            raise server.refusal
        return msgspec.json.encode(UpdateTaken(round=max(header.round, server.counts_in)))

    async def download(self, overlay: object, peers: list[str], path: str, target: Path, **more: Any) -> None:
        """A `GET` of a version's file."""
        kind, number = path.split("/")[-2:]
        content = f"{kind}-{number}-{self.servers[peers[0]].epoch}".encode()
        assert more["sha256"] == hashlib.sha256(content).hexdigest()
        target.write_bytes(content)

    async def describe(
        self, overlay: object, peer: str, job_id: str, number: int | None = None, *, state: str = "committed"
    ) -> Version:
        """Waits for a version."""
        server = self.servers[peer]
        while True:
            newest = server.committed
            have = server.prepared if state == "prepared" else newest
            wanted = newest if number is None else number
            if wanted <= server.forgets:
                raise Refused("stale", "not held any more")
            if server.answers and wanted <= have:
                kinds = ("weights", "momentum", "delta") if wanted else ("weights",)
                return Version(
                    number=wanted,
                    newest=newest,
                    committed=wanted <= newest,
                    epoch=server.epoch,
                    files=[server.file(kind, wanted) for kind in kinds],
                    content="gradient",
                    contributors=server.contributors,
                )
            await server.has_changed.wait()


class Rig:
    """A training task whose executor is the test."""

    def __init__(self, tmp_path: Path, sync: Sync) -> None:
        self.cluster = Cluster()
        task = TrainTask(
            model=ModelSource(task="causal-lm"),
            dataset="data",
            parameter_server="one",
            optimizer=InnerOptimizer(learning_rate=0.1),
            batch_size=4,
            rounds=9,
            sync=sync,
        )
        dispatch = Dispatch(
            lease_id="l", job_id="job", task_id="t1", epoch=0, executor=ExecutorKind(class_="train"), task=task
        )
        cache = ContentCache(tmp_path / "cache", 1 << 30)
        web = Web(cache, FetchConfig())
        context = TaskContext("me", "scheduler", dispatch, tmp_path / "work", tmp_path / "log", cache, web)
        context.work_dir.mkdir()
        self.work_dir = context.work_dir
        self.task = TrainingTask(context, task, cast(Overlay, self.cluster), Transfers(Board("me")), tmp_path / "s")
        self.progress = self.task.progress

    @property
    def one(self) -> Server:
        """The first parameter server."""
        return self.cluster.servers["one"]

    def train(self, content: bytes = b"update", *, start: int = 0) -> Path:
        """Ten rows, and the update made of them."""
        self.progress.rows.take(Span(0, 0, start, start + 10))
        self.progress.batch(10, 1.0, 0.1, 1.0)
        assert self.progress.update(2.0)["type"] == "Ok"
        path = self.work_dir / "update.safetensors"
        path.write_bytes(content)
        return path

    async def send(self, path: Path) -> None:
        """As the bridge does it."""
        await self.task.send(Peers(["one"], "All"), path)

    def move(self, epoch: int, server: str) -> None:
        """The scheduler says that there is another parameter server."""
        assert self.progress.plan(Plan(round=0, epoch=epoch, parameter_server=server))
        self.task._courier.moved()

    async def arrival(self) -> dict[str, Any]:
        """What the executor is told next."""
        async with asyncio.timeout(5):
            while True:
                found = await self.task.arrivals.after(-1)
                if found:
                    return found[-1]

    def apply(self) -> str:
        """It takes that in."""
        self.task.arrivals.clear()
        return str(self.progress.applied(3.0)["type"])

    def left(self) -> list[Path]:
        """What lies in the private folder."""
        folder = staging_of(self.work_dir)
        return list(folder.iterdir()) if folder.exists() else []


@pytest_asyncio.fixture
async def rig(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Rig]:
    """A task's courier at work."""
    made = Rig(tmp_path, getattr(request, "param", Sync(codec="int8")))
    monkeypatch.setattr(bulk, "upload", made.cluster.upload)
    monkeypatch.setattr(bulk, "download", made.cluster.download)
    monkeypatch.setattr(inbound, "describe", made.cluster.describe)
    monkeypatch.setattr("node.worker.retrying.FIRST_S", 0.001)
    async with asyncio.TaskGroup() as tasks:
        loop = tasks.create_task(made.task._courier.run())
        yield made
        loop.cancel()


async def settled() -> None:
    """Let everything that can go on go on."""
    await asyncio.sleep(0.05)


async def test_a_delta_is_fetched_while_it_is_prepared_and_given_out_when_it_is_committed(rig: Rig) -> None:
    """One commit, by the scheduler: nobody applies what may never come to be."""
    await rig.send(rig.train())
    assert rig.one.headers[0].spans == [Span(0, 0, 0, 10)]
    assert rig.one.headers[0].samples == 10
    rig.one.change(prepared=1)
    await settled()
    assert len(rig.left()) == 2
    assert rig.progress.phase.value == "waiting"
    rig.one.change(committed=1, contributors=[("t1", 0), ("t2", 0)])
    event = await rig.arrival()
    assert (rig.work_dir / event["path"]).read_bytes() == b"delta-1-0"
    assert {key: event[key] for key in ("version", "content", "counted", "from_peer", "size")} == {
        "version": 1,
        "content": "gradient",
        "counted": True,
        "from_peer": "one",
        "size": 9,
    }
    assert event["sha256"] == rig.one.file("weights", 1).sha256
    await settled()
    assert rig.left() == []
    assert rig.apply() == "Continue"
    assert rig.progress.rows.outstanding == {}


async def test_an_update_under_way_to_a_lost_server_goes_to_the_new_one(rig: Rig) -> None:
    """U28, H11: same bytes, though the executor's file is gone by then; the new epoch."""
    rig.one.answers = False
    path = rig.train(b"mine")
    async with asyncio.TaskGroup() as tasks:
        sending = tasks.create_task(rig.send(path))
        await settled()
        path.unlink()
        rig.move(0, "")
        await settled()
        assert not sending.done()
        rig.cluster.servers["two"] = Server(epoch=1)
        rig.move(1, "two")
    two = rig.cluster.servers["two"]
    assert (two.bodies, two.headers[0].epoch, two.headers[0].round) == ([b"mine"], 1, 0)
    two.change(prepared=1, committed=1, contributors=[("t1", 0)])
    assert (await rig.arrival())["counted"] is True


async def test_what_a_lost_server_had_prepared_is_thrown_away(rig: Rig) -> None:
    """A delta of another epoch is nobody's."""
    await rig.send(rig.train())
    rig.one.change(prepared=1)
    await settled()
    rig.cluster.servers["two"] = Server(epoch=1)
    rig.move(1, "two")
    await settled()
    two = rig.cluster.servers["two"]
    assert len(two.headers) == 1
    rig.one.change(committed=1)
    await settled()
    assert rig.progress.phase.value == "waiting"
    two.change(prepared=1, committed=1, contributors=[("t1", 0)])
    event = await rig.arrival()
    assert (rig.work_dir / event["path"]).read_bytes() == b"delta-1-1"


async def test_a_version_that_was_committed_before_the_server_was_lost_is_taken_from_the_new_one(rig: Rig) -> None:
    """The new one refuses the update; its rows are offered back, and the scheduler's ledger knows better."""
    rig.progress.started_from(0)
    await rig.send(rig.train())
    rig.cluster.servers["two"] = Server(epoch=1, refusal=Refused("stale", "closed"), prepared=1, committed=1)
    rig.move(1, "two")
    event = await rig.arrival()
    assert (event["version"], event["content"], event["counted"]) == (1, "gradient", False)
    assert rig.progress.rows.returned == (1, [Span(0, 0, 0, 10)])


async def test_an_answer_of_another_epoch_than_the_plan_s_is_not_taken(rig: Rig) -> None:
    """The same node may be parameter server again before the scheduler has told."""
    await rig.send(rig.train())
    rig.one.change(epoch=1, prepared=1, committed=1)
    await settled()
    assert rig.progress.phase.value == "waiting"
    rig.move(1, "one")
    assert (await rig.arrival())["version"] == 1
    assert [header.epoch for header in rig.one.headers] == [0, 1]


async def test_a_task_that_fell_behind_gets_the_newest_weights_and_the_momentum(rig: Rig) -> None:
    """U37: all that the group's state is."""
    rig.progress.started_from(0)
    rig.one.refusal = Refused("stale", "round 0 is closed")
    rig.one.change(prepared=4, committed=4)
    await rig.send(rig.train())
    event = await rig.arrival()
    assert (event["version"], event["content"], event["counted"]) == (4, "weights", False)
    assert (rig.work_dir / event["path"]).read_bytes() == b"weights-4-0"
    assert (rig.work_dir / event["momentum"]).read_bytes() == b"momentum-4-0"
    assert rig.apply() == "Continue"
    assert rig.progress.round == 4
    assert rig.progress.rows.returned == (1, [Span(0, 0, 0, 10)])


async def test_an_executor_that_takes_no_weights_is_given_step_after_step(rig: Rig) -> None:
    """Written for upstream, it knows nothing but steps."""
    rig.one.refusal = Refused("stale", "round 0 is closed")
    rig.one.change(prepared=2, committed=2)
    for number in (1, 2):
        await rig.send(rig.train(start=10 * number))
        event = await rig.arrival()
        assert (event["version"], event["content"]) == (number, "gradient")
        assert rig.apply() == "Continue"


async def test_an_executor_too_far_behind_for_steps_ends_its_task_with_the_reason(rig: Rig) -> None:
    rig.one.refusal = Refused("stale", "round 0 is closed")
    rig.one.change(prepared=6, committed=6, forgets=3)
    await rig.send(rig.train())
    async with asyncio.timeout(5):
        await rig.task._has_problem.wait()
    assert "not held any more" in rig.task._problem


async def test_a_carried_update_counts_in_the_round_that_took_it(rig: Rig) -> None:
    rig.one.change(counts_in=1, prepared=1, committed=1)
    await rig.send(rig.train())
    assert (await rig.arrival())["counted"] is True
    rig.apply()
    await rig.send(rig.train(start=20))
    rig.one.change(prepared=2, committed=2, contributors=[("t1", 0), ("t1", 1)])
    await rig.arrival()
    assert rig.progress.rows.outstanding == {}
    assert rig.progress.rows.returned == (0, [])


async def test_an_update_that_cannot_be_used_is_the_executor_s_error(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """H5: told to whoever made it; one that trains on regardless is ended."""
    monkeypatch.setattr(courier, "TOLD_S", 0.01)
    rig.one.refusal = Refused("invalid", "tensor w is not finite")
    path = rig.train()
    for _ in range(2):
        with pytest.raises(BridgeError, match="not finite") as told:
            await rig.send(path)
        assert told.value.status == 422
    async with asyncio.timeout(5):
        await rig.task._has_problem.wait()
    assert "not finite" in rig.task._problem


async def test_weights_come_with_their_digests_from_the_server_there_is(rig: Rig) -> None:
    rig.move(0, "")
    async with asyncio.TaskGroup() as tasks:
        fetching = tasks.create_task(rig.task._weights("artifacts"))
        await settled()
        rig.cluster.servers["two"] = Server(epoch=1, prepared=3, committed=3)
        rig.move(1, "two")
    two = rig.cluster.servers["two"]
    found = {entry["metadata"]["kind"]: entry for entry in fetching.result()}
    assert found.keys() == {"weights", "momentum"}
    for kind, entry in found.items():
        assert entry["path"] == f"artifacts/{kind}-3.safetensors"
        assert (entry["metadata"]["version"], entry["metadata"]["sha256"]) == ("3", two.file(kind, 3).sha256)
    assert rig.progress.round == 3


@pytest.mark.parametrize("rig", [Sync(codec="auto")], indirect=True)
async def test_the_codec_is_chosen_by_how_fast_updates_were(rig: Rig) -> None:
    """The first update goes by a guess, the next ones by measurement."""
    assert rig.task.codec() == "int8"
    await rig.task._weights("artifacts")
    await rig.send(rig.train())
    assert rig.task.codec() == "none"


async def test_the_least_lossy_codec_is_chosen_that_takes_a_twentieth_of_a_round() -> None:
    uplink = Uplink()
    uplink.sent(1_000_000, 1.0)
    chosen = [uplink.codec(values, 20.0, 0.02) for values in (200_000, 500_000, 900_000, 1_800_000, 9_000_000, 1e9)]
    assert chosen == ["none", "bf16", "int8", "int4", "topk", "topk"]
    for _ in range(8):
        uplink.sent(1_000_000, 100.0)
    assert uplink.codec(200_000, 20.0, 0.02) == "topk"
