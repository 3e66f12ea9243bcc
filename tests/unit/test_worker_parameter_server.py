"""A parameter server over real TLS, with a scripted scheduler and members that are written out."""

from __future__ import annotations

import asyncio
import hashlib
import shutil
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from node.errors import Refused
from node.network import bulk
from node.wire import Aggregation, AnnounceUpdate, Member, SetMembers, Span, UpdateTaken, VersionFile
from node.worker import committing
from node.worker.serving import KEPT
from node.worker.versions import Version, describe
from tests.support import MakeIdentity
from tests.unit import tiny_tensors
from tests.unit.network_loopback import eventually
from tests.unit.worker_cluster import AGGREGATE, Scheduler, Worker, cluster, scripted_aggregate  # noqa: F401

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("scripted_aggregate")]


class Group:
    """A parameter server with members that all live at its own node."""

    def __init__(self, scheduler: Scheduler, worker: Worker, folder: Path) -> None:
        self.scheduler = scheduler
        self.worker = worker
        self._folder = folder

    async def serve(self, tasks: list[str], *, task_id: str = "ps", epoch: int = 0, **more: Any) -> None:
        """Start a parameter server."""
        lease = await self.scheduler.lease(self.worker.peer_id, AGGREGATE)
        await self.scheduler.aggregate(
            self.worker.peer_id, lease, self.members(tasks), task_id=task_id, epoch=epoch, **more
        )
        await eventually(lambda: "ready" in self.scheduler.states(task_id), 20)

    def members(self, tasks: list[str], since: int = 0) -> list[Member]:
        """Members from this round on."""
        return [Member(task_id=name, peer_id=self.worker.peer_id, since_round=since) for name in tasks]

    async def send(self, task: str, round_: int, value: float = 1.0, *, epoch: int = 0, rows: int = 4) -> int:
        """Upload an update; the round in which it counts."""
        path = self._folder / f"{task}-{round_}-{value}.safetensors"
        tiny_tensors.write(path, [value] * 4)
        data = path.read_bytes()
        header = AnnounceUpdate(
            job_id="job",
            epoch=epoch,
            task_id=task,
            round=round_,
            samples=rows,
            sha256=hashlib.sha256(data).hexdigest(),
            size_bytes=len(data),
            spans=[Span(0, number, round_, round_ + 1) for number in range(rows)],
        )
        announced = await self.worker.overlay.call(self.worker.peer_id, header, timeout_s=10)
        if announced.round is not None:
            return announced.round
        path_there = f"/bulk/jobs/job/updates/{task}/{header.sha256}"
        answer = await bulk.upload(self.worker.overlay, self.worker.peer_id, path_there, path)
        return msgspec.json.decode(answer, type=UpdateTaken).round

    async def version(self, which: int | str, state: str = "committed", wait_s: float = 0) -> Version:
        """Ask for a version once."""
        path = f"/bulk/jobs/job/versions/{which}?state={state}&wait_s={wait_s}"
        async with self.worker.overlay.open(self.worker.peer_id, "GET", path) as answer:
            return msgspec.json.decode(await answer.read(), type=Version)

    async def fetch(self, file: VersionFile) -> list[float]:
        """The values in a file of a version."""
        path, target = f"/bulk/jobs/job/{file.kind}/{file.number}", self._folder / "fetched.safetensors"
        await bulk.download(
            self.worker.overlay,
            [self.worker.peer_id],
            path,
            target,
            sha256=file.sha256,
            size_bytes=file.size_bytes,
            durable=False,
        )
        return tiny_tensors.read(target)


@asynccontextmanager
async def group(make_identity: MakeIdentity, tmp_path: Path) -> AsyncIterator[Group]:
    async with cluster(make_identity, tmp_path) as (scheduler, worker):
        yield Group(scheduler, worker, tmp_path)


async def refused(work: Any) -> str:
    with pytest.raises(Refused) as told:
        await work
    return told.value.code


async def test_a_prepared_version_can_be_fetched_and_is_committed_when_the_scheduler_says_so(
    make_identity: MakeIdentity, tmp_path: Path
) -> None:
    """A round is a transaction. U21: without the scheduler nothing is committed."""
    async with group(make_identity, tmp_path) as job:
        await job.serve(["t0"])
        ready = job.scheduler.last("ps").files
        assert [(file.kind, file.number) for file in ready] == [("weights", 0)]
        job.scheduler.refusal = Refused("busy", "not now")
        assert await job.send("t0", 0) == 0
        prepared = await job.version(1, "prepared", 5)
        assert (prepared.committed, prepared.newest, prepared.content) == (False, 0, "step")
        assert prepared.contributors == [("t0", 0)]
        delta = prepared.file("delta")
        assert delta is not None
        assert await job.fetch(delta) == [1.0] * 4
        assert await refused(job.version(1)) == "busy"
        assert (await job.version("latest")).number == 0
        assert await refused(job.send("t0", 1)) == "busy"
        assert await job.send("t0", 0) == 0
        job.scheduler.refusal = None
        committed = await job.version(1, "committed", 5)
        assert (committed.committed, committed.newest) == (True, 1)
        assert committed.files == prepared.files
        (request,) = job.scheduler.committed
        assert (request.epoch, request.round, request.delta) == (0, 0, delta)
        assert request.contributions[0].spans == [Span(0, n, 0, 1) for n in range(4)]
        assert request.bytes_up > 0
        assert await job.send("t0", 1, 2.0) == 1
        await job.version(2, "committed", 5)
        assert job.scheduler.committed[1].bytes_down == delta.size_bytes


async def test_a_server_whose_epoch_is_over_ends_and_its_prepared_version_never_was(
    make_identity: MakeIdentity, tmp_path: Path
) -> None:
    """U21, U23, H12."""
    async with group(make_identity, tmp_path) as job:
        await job.serve(["t0"])
        job.scheduler.refusal = Refused("stale", "epoch 1 goes on")
        await job.send("t0", 0)
        await eventually(lambda: "cancelled" in job.scheduler.states("ps"), 10)
        assert "epoch 1 goes on" in job.scheduler.last("ps").detail
        await eventually(lambda: job.worker.service._jobs.task_of(job.scheduler.offers[-1].lease_id) == "")
        assert await refused(job.version(1, "prepared")) == "unknown"
        assert job.scheduler.committed == []


async def test_a_server_placed_again_goes_on_from_the_journal_with_the_same_bytes(
    make_identity: MakeIdentity, tmp_path: Path
) -> None:
    """H11, U76: nothing of a committed round is lost, and members take the version that they miss by its delta."""
    async with group(make_identity, tmp_path) as job:
        job.scheduler.keeps = True
        await job.serve(["t0"], rounds=4)
        (base,) = job.scheduler.last("ps").files
        await job.scheduler.keep(job.worker.peer_id, base)
        for round_ in range(2):
            await job.send("t0", round_, round_ + 1.0)
            await job.version(round_ + 1, "committed", 5)
        await job.scheduler.release(job.worker.peer_id, job.scheduler.offers[-1].lease_id)
        await eventually(lambda: "cancelled" in job.scheduler.states("ps"))
        start = [base, *(request.delta for request in job.scheduler.committed)]
        began = time.monotonic()
        terms = {"start": start, "contributors": [("t0", 1)]}
        await job.serve(["t0"], task_id="ps2", epoch=1, rounds=4, terms=terms)
        assert time.monotonic() - began < 2.0
        newest = await job.version("latest")
        assert (newest.number, newest.epoch, newest.contributors) == (2, 1, [("t0", 1)])
        assert newest.weights == job.scheduler.committed[-1].weights
        assert newest.file("delta") == job.scheduler.committed[-1].delta
        assert await job.fetch(newest.weights) == [3.0] * 4
        assert await job.fetch(job.scheduler.committed[-1].delta) == [2.0] * 4
        assert [file.kind for file in job.scheduler.last("ps2").files] == ["weights", "momentum"]
        assert not (job.worker.jobs_dir / "hypha-ps2" / "journal").exists()
        assert await refused(job.send("t0", 2)) == "stale"
        assert await refused(job.send("t0", 1, epoch=1)) == "stale"
        assert await job.send("t0", 2, epoch=1) == 2


async def test_a_server_that_starts_from_a_whole_version_serves_that(
    make_identity: MakeIdentity, tmp_path: Path
) -> None:
    async with group(make_identity, tmp_path) as job:
        job.scheduler.keeps = True
        await job.serve(["t0"], rounds=2)
        for round_ in range(2):
            await job.send("t0", round_)
            await job.version(round_ + 1, "committed", 5)
        last = job.scheduler.committed[-1]
        await eventually(lambda: "exported" in job.scheduler.states("ps"))
        await job.scheduler.release(job.worker.peer_id, job.scheduler.offers[-1].lease_id)
        await eventually(lambda: "finished" in job.scheduler.states("ps"))
        await job.serve(["t0"], task_id="ps2", epoch=1, rounds=2, terms={"start": [last.weights, last.momentum]})
        # Lost between the last commit and the export, it has only that left to do.
        await eventually(lambda: "exported" in job.scheduler.states("ps2"), 10)
        assert (await job.version("latest")).files == [last.weights, last.momentum]


async def test_a_prepared_version_outlives_the_death_of_the_arithmetic(
    make_identity: MakeIdentity, tmp_path: Path
) -> None:
    """H6: the round is not lost; the commit that was under way is made again."""
    async with group(make_identity, tmp_path) as job:
        await job.serve(["t0"])
        (job.worker.jobs_dir / "hypha-ps" / "versions" / "die").touch()
        await job.send("t0", 0)
        assert (await job.version(1, "committed", 10)).contributors == [("t0", 0)]


async def test_the_disk_holds_three_versions_and_the_updates_of_one_round(
    make_identity: MakeIdentity, tmp_path: Path
) -> None:
    """H8: freed with each round."""
    async with group(make_identity, tmp_path) as job:
        await job.serve(["t0", "t1"], rounds=9)
        work = job.worker.jobs_dir / "hypha-ps"
        for round_ in range(8):
            await job.send("t0", round_)
            assert len(list((work / "updates").iterdir())) == 1
            await job.send("t1", round_)
            await job.version(round_ + 1, "committed", 5)
            await eventually(lambda: not list((work / "updates").iterdir()))
        await eventually(lambda: len(list((work / "versions").iterdir())) == 3 * KEPT)
        assert await refused(job.version(3)) == "stale"
        assert (await job.version(6)).number == 6


async def test_a_round_that_nobody_can_add_to_is_void_and_the_model_stays_as_it_is(
    make_identity: MakeIdentity, tmp_path: Path
) -> None:
    """U35, H10: not finite, or without samples."""
    async with group(make_identity, tmp_path) as job:
        await job.serve(["t0", "t1"])
        assert await refused(job.send("t0", 0, float("nan"))) == "invalid"
        assert await job.send("t1", 0, rows=0) == 0
        version = await job.version(1, "committed", 5)
        assert version.contributors == []
        assert await job.fetch(version.weights) == [0.0] * 4
        (request,) = job.scheduler.committed
        assert request.contributions == []
        assert "not finite" in request.left_out["t0"]
        assert request.left_out["t1"] == "0 samples"


async def test_an_update_that_the_scheduler_does_not_count_is_left_out_and_its_server_goes_on(
    make_identity: MakeIdentity, tmp_path: Path
) -> None:
    """H46: nobody loses its place for another's mistake."""
    async with group(make_identity, tmp_path) as job:
        await job.serve(["t0", "t1"])
        job.scheduler.untrue = {"t1": "task t1: these rows are not its own"}
        assert [await job.send("t0", 0, 1.0), await job.send("t1", 0, 3.0)] == [0, 0]
        version = await job.version(1, "committed", 5)
        assert version.contributors == [("t0", 0)]
        delta = version.file("delta")
        assert delta is not None
        assert await job.fetch(delta) == [1.0] * 4
        (request,) = job.scheduler.committed
        assert request.delta == delta
        assert request.left_out == job.scheduler.untrue
        job.scheduler.untrue |= {"t0": "nor are these"}
        assert [await job.send("t0", 1), await job.send("t1", 1)] == [1, 1]
        assert (await job.version(2, "committed", 5)).contributors == []
        assert await job.send("t0", 2) == 2


async def test_a_late_update_counts_in_the_next_round_and_its_sender_is_told_which(
    make_identity: MakeIdentity, tmp_path: Path
) -> None:
    """H4: late, and of use all the same."""
    async with group(make_identity, tmp_path) as job:
        terms = {"aggregation": Aggregation(late="carry", late_weight=0.5)}
        await job.serve(["t0", "t1"], rounds=3, terms=terms)
        await job.send("t0", 0)
        await job.scheduler.overlay.call(job.worker.peer_id, SetMembers(task_id="ps", members=job.members(["t0"])))
        await job.version(1, "committed", 5)
        await job.scheduler.overlay.call(
            job.worker.peer_id, SetMembers(task_id="ps", members=job.members(["t0", "t1"]))
        )
        assert await job.send("t1", 0, 4.0) == 1
        await job.send("t1", 1)
        await job.send("t0", 1)
        version = await job.version(2, "committed", 5)
        assert sorted(version.contributors) == [("t0", 1), ("t1", 0), ("t1", 1)]
        weights = {(c.task_id, c.from_round): c.weight for c in job.scheduler.committed[-1].contributions}
        assert weights == {("t0", 1): 4.0, ("t1", 0): 2.0, ("t1", 1): 4.0}


async def test_no_room_for_an_update_is_told_once_and_loses_nothing(
    make_identity: MakeIdentity, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H6, H7: the sender keeps it and comes again."""
    async with group(make_identity, tmp_path) as job:
        await job.serve(["t0"])
        with monkeypatch.context() as patch:
            usage = shutil.disk_usage(tmp_path)
            patch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=0))
            for _ in range(2):
                assert await refused(job.send("t0", 0)) == "full"
        told = [event for event in job.worker.board.events() if event.name == "round.blocked"]
        assert len(told) == 1
        assert await job.send("t0", 0) == 0
        await job.version(1, "committed", 5)


async def test_an_update_of_very_many_slices_is_announced_with_all_of_them(
    make_identity: MakeIdentity, tmp_path: Path
) -> None:
    async with group(make_identity, tmp_path) as job:
        await job.serve(["t0"])
        assert await job.send("t0", 0, rows=50_000) == 0
        await job.version(1, "committed", 5)
        assert len(job.scheduler.committed[0].contributions[0].spans) == 50_000


async def test_a_silent_scheduler_is_asked_until_it_answers_and_that_is_shown(
    make_identity: MakeIdentity, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H6: an unreachable scheduler costs time, and no round."""
    monkeypatch.setattr(committing, "AGAIN_MOST_S", 0.05)
    async with group(make_identity, tmp_path) as job:
        await job.serve(["t0"])
        job.scheduler.deaf_for = committing.TOLD_AFTER + 2
        await job.send("t0", 0)
        version = await describe(job.worker.overlay, job.worker.peer_id, "job", 1)
        assert version.committed
        assert job.scheduler.deaf_for == 0
        assert "round.blocked" in [event.name for event in job.worker.board.events()]


async def test_many_who_wait_for_a_version_are_answered_together(make_identity: MakeIdentity, tmp_path: Path) -> None:
    async with group(make_identity, tmp_path) as job:
        await job.serve(["t0"])
        async with asyncio.TaskGroup() as tasks:
            asked = [tasks.create_task(job.version(1, "committed", 10)) for _ in range(20)]
            await job.send("t0", 0)
        assert {task.result().number for task in asked} == {1}
        assert await refused(job.version(0, "half")) == "invalid"


async def test_the_weights_of_a_version_that_does_not_exist_yet_are_not_waited_for(
    make_identity: MakeIdentity, tmp_path: Path
) -> None:
    async with group(make_identity, tmp_path) as job:
        await job.serve(["t0"])
        for path, code in (("delta/0", "unknown"), ("weights/1", "busy"), ("weights/x", "invalid")):
            with pytest.raises(Refused) as told:
                async with job.worker.overlay.open(job.worker.peer_id, "GET", f"/bulk/jobs/job/{path}"):
                    pass
            assert told.value.code == code
