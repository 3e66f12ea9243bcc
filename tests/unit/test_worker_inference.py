"""An inference task on a worker, with a scripted scheduler and a scripted executor over real TLS."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from aiohttp import web

from node.config import ExecutorConfig
from node.errors import Refused
from node.identity.caller import Caller
from node.network.overlay import Overlay
from node.network.serving import receive_file, send_file
from node.views import ModelFile, ModelView, TransferView
from node.wire import (
    Dispatch,
    ExecutorKind,
    InferTask,
    ModelSource,
    NextSlice,
    Output,
    Plan,
    Progress,
    ResultHeader,
    SliceGrant,
)
from tests.support import MakeIdentity
from tests.unit.network_loopback import eventually, overlay_for
from tests.unit.worker_cluster import HERE, Scheduler, Worker, worker_for

pytestmark = pytest.mark.asyncio

INFER = ExecutorKind(class_="inference", name="scripted")


class InferenceScheduler(Scheduler):
    """Gives out three slices and takes their results."""

    def __init__(self, overlay: Overlay, folder: Path) -> None:
        super().__init__(overlay, folder)
        self.results: dict[int, bytes] = {}
        self.uploads = 0
        self.refusals: list[Refused] = []
        overlay.bulk_route("PUT", "/bulk/jobs/{job}/results/{index}", self._result)
        overlay.bulk_route("GET", "/bulk/jobs/{job}/trained", self._trained)
        overlay.bulk_route("GET", "/bulk/jobs/{job}/trained/{name:.+}", self._trained)

    async def infer(self, worker: str, lease_id: str, task_id: str = "t1", model_job: str = "") -> None:
        task = InferTask(
            model=ModelSource(task="causal-lm", filenames=["config.json"]),
            dataset="data",
            output=Output(kind="classes", format="jsonl"),
            batch_size=4,
            model_job=model_job,
        )
        dispatch = Dispatch(
            lease_id=lease_id,
            job_id="job",
            task_id=task_id,
            epoch=0,
            executor=INFER,
            task=task,
            folder_sha256=self.archive_sha256,
        )
        await self.overlay.call(worker, dispatch)

    async def _next(self, caller: Caller, request: NextSlice) -> SliceGrant:
        if request.number > 3 and len(self.results) == 3:
            raise Refused("stale", "the task is over")
        if request.number > 3:
            return SliceGrant(index=-1, wait_s=0.05)
        grant = await super()._next(caller, request)
        return msgspec.structs.replace(grant, first_row=grant.index * grant.rows)

    async def _progress(self, caller: Caller, request: Progress) -> Plan:
        self.progress.append(request)
        return Plan(round=request.round)

    async def _trained(self, caller: Caller, request: web.Request) -> web.StreamResponse:
        assert request.match_info["job"] == "earlier"
        if "name" in request.match_info:
            return await send_file(request, self.archive, sha256=self.archive_sha256)
        size = self.archive.stat().st_size
        names = ("config.json", "tokenizer/a b.txt")
        files = [ModelFile(name=name, sha256=self.archive_sha256, size_bytes=size) for name in names]
        view = ModelView(job_id="earlier", version=3, is_final=True, files=files)
        return web.Response(body=msgspec.json.encode(view), content_type="application/json")

    async def _result(self, caller: Caller, request: web.Request) -> web.StreamResponse:
        header = msgspec.json.decode(request.headers["Hypha-Result"], type=ResultHeader)
        self.uploads += 1
        if self.refusals:
            raise self.refusals.pop(0)
        target = self.folder / f"result-{header.index}"
        await receive_file(request, target, sha256=header.sha256, size_bytes=header.size_bytes, limit_bytes=1 << 20)
        assert header.index not in self.results, "a result came twice"
        self.results[header.index] = target.read_bytes()
        return web.json_response({})


@contextlib.asynccontextmanager
async def pair(
    make_identity: MakeIdentity, tmp_path: Path, mode: str = "good"
) -> AsyncIterator[tuple[InferenceScheduler, Worker]]:
    """A scripted scheduler and a worker whose only executor is the scripted one."""
    made: list[InferenceScheduler] = []
    arguments = ["--mode", mode, "--socket", "{SOCKET_PATH}", "--work-dir", "{WORK_DIR}", "--job", "{JOB_JSON}"]
    executor = ExecutorConfig(
        class_="inference",
        name="scripted",
        cmd=sys.executable,
        args=[str(HERE / "scripted_inference.py"), *arguments],
    )
    async with overlay_for(
        make_identity("scheduler"),
        tmp_path / "scheduler",
        prepare=lambda overlay: made.append(InferenceScheduler(overlay, tmp_path)),
        roles=["scheduler"],
    ) as overlay:
        files = make_identity("worker")
        async with worker_for(files, tmp_path / "worker", overlay.addresses[0], executors=[executor]) as worker:
            await eventually(lambda: len(overlay.peers()) > 1 and len(worker.overlay.peers()) > 1)
            yield made[0], worker


def result_of(index: int) -> bytes:
    first = index * 1000
    return f'{{"row": {first}}}\n{{"row": {first + 1}}}\n'.encode()


@pytest.mark.parametrize("mode", ["good", "repeats"])
async def test_each_slice_goes_in_once_and_its_result_out_once_whatever_is_asked_again(
    make_identity: MakeIdentity, tmp_path: Path, mode: str
) -> None:
    async with pair(make_identity, tmp_path, mode) as (scheduler, worker):
        lease = await scheduler.lease(worker.peer_id, INFER)
        await scheduler.infer(worker.peer_id, lease)
        await eventually(lambda: "finished" in scheduler.states("t1"))
        assert scheduler.results == {index: result_of(index) for index in range(3)}
        assert (scheduler.uploads, len(scheduler.grants)) == (3, 3)
        assert scheduler.states("t1") == ["starting", "running", "finished"]
        assert "no more slices after 3" in await worker.log(scheduler, "t1")
        assert {item.what for item in worker.board.items() if isinstance(item, TransferView)} >= {"slice", "result"}
        samples = [report.samples for report in scheduler.progress]
        assert samples == sorted(samples) and samples[-1] >= 1000
        await eventually(lambda: not list(worker.jobs_dir.glob("hypha-t1*")))


async def test_a_scheduler_that_has_no_room_or_does_not_know_us_yet_gets_the_result_later(
    make_identity: MakeIdentity, tmp_path: Path
) -> None:
    """U34: it may have started again. A slice that another has done meanwhile is no failure either."""
    async with pair(make_identity, tmp_path) as (scheduler, worker):
        scheduler.refusals = [Refused("unknown", "no job here"), Refused("full", "no room"), Refused("busy", "later")]
        lease = await scheduler.lease(worker.peer_id, INFER)
        await scheduler.infer(worker.peer_id, lease)
        await eventually(lambda: len(scheduler.results) == 3)
        await eventually(lambda: "finished" in scheduler.states("t1"))
        assert scheduler.results[0] == result_of(0)


async def test_a_result_that_is_refused_for_good_fails_the_task_with_the_reason(
    make_identity: MakeIdentity, tmp_path: Path
) -> None:
    async with pair(make_identity, tmp_path) as (scheduler, worker):
        scheduler.refusals = [Refused("invalid", "the result has 2 rows, its slice has 1000")]
        lease = await scheduler.lease(worker.peer_id, INFER)
        await scheduler.infer(worker.peer_id, lease)
        await eventually(lambda: "failed" in scheduler.states("t1"))
        assert "its slice has 1000" in scheduler.last("t1").detail


@pytest.mark.parametrize(
    ("mode", "detail", "line"),
    [("crash", "exit code 1", "RuntimeError: no such layer"), ("idle", "before its slices were done", "fetched")],
)
async def test_an_executor_that_ends_too_soon_fails_its_task_with_its_last_lines(
    make_identity: MakeIdentity, tmp_path: Path, mode: str, detail: str, line: str
) -> None:
    """H31."""
    async with pair(make_identity, tmp_path, mode) as (scheduler, worker):
        lease = await scheduler.lease(worker.peer_id, INFER)
        await scheduler.infer(worker.peer_id, lease)
        await eventually(lambda: "failed" in scheduler.states("t1"))
        status = scheduler.last("t1")
        assert detail in status.detail and status.tail[-1].startswith(line)


async def test_the_model_of_an_earlier_job_takes_the_place_of_the_jobs_own_files(
    make_identity: MakeIdentity, tmp_path: Path
) -> None:
    async with pair(make_identity, tmp_path) as (scheduler, worker):
        lease = await scheduler.lease(worker.peer_id, INFER)
        await scheduler.infer(worker.peer_id, lease, model_job="earlier")
        await eventually(lambda: "finished" in scheduler.states("t1"))
        fetched = (await worker.log(scheduler, "t1")).splitlines()[0]
        assert fetched == "fetched ['artifacts/config.json', 'artifacts/tokenizer/a b.txt']"


async def test_letting_go_of_the_lease_of_a_task_without_a_slice_is_no_failure(
    make_identity: MakeIdentity, tmp_path: Path
) -> None:
    async with pair(make_identity, tmp_path) as (scheduler, worker):
        scheduler.hold_slices["t1"] = asyncio.Event()
        lease = await scheduler.lease(worker.peer_id, INFER)
        await scheduler.infer(worker.peer_id, lease)
        await eventually(lambda: scheduler.waiting)
        await scheduler.release(worker.peer_id, lease)
        await eventually(lambda: "finished" in scheduler.states("t1"))
        assert not scheduler.results
