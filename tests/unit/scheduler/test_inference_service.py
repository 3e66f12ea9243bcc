"""Inference jobs through the scheduler's service, with workers that answer by a script."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
from pathlib import Path

import aiohttp
import msgspec
import pytest

from node.scheduler import records, runner
from node.scheduler.export import RECORD
from node.scheduler.records import JobRow
from node.wire import (
    Cancel,
    Dispatch,
    HandOver,
    InferTask,
    NextSlice,
    Pause,
    Progress,
    ResultHeader,
    Resume,
    RunCommand,
    SliceGrant,
)
from tests.unit.scheduler.fake_cluster import FakeWorker, caller
from tests.unit.scheduler.test_service import JOB as TRAINING
from tests.unit.scheduler.test_service import World, client, parse_job, restarted, serving, signed, world

pytestmark = pytest.mark.asyncio

JOB = """
type = "inference"
name = "answers"
dataset = "train-data"
[model]
type = "causal-lm"
{model}
[output]
kind = "tokens"
to = "{to}"
[resources]
num_workers = 2
"""
HUB = 'repository = "org/model"\nfilenames = ["config.json"]'
ROWS = 8


@pytest.fixture(autouse=True)
def _shown_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Operators see every change: with fakes a round takes milliseconds, and a test stops a job where it says."""
    monkeypatch.setattr(runner, "SHOW_EVERY_S", 0.0)


class Inferring(FakeWorker):
    """A worker that answers slices. It crashes `crashes` times at a slice, and computes only while `goes` is set."""

    def __init__(self, here: World, peer_id: str, *, crashes: int = 0) -> None:
        super().__init__(here.overlay, peer_id, crashes=crashes)
        self.here = here
        self.goes = asyncio.Event()
        self.goes.set()
        self.firsts: list[int] = []

    async def _train(self, dispatch: Dispatch) -> None:
        assert isinstance(dispatch.task, InferTask)
        await self.status(dispatch, "running")
        number = 1
        while True:
            ask = NextSlice(task_id=dispatch.task_id, dataset="train-data", number=number)
            grant: SliceGrant = await self.tell(ask)
            if grant.index < 0:
                await asyncio.sleep(0.01)
                continue
            if self.crashes:
                self.crashes -= 1
                await self.status(dispatch, "failed", exit_code=1, tail=["infer.failed out of luck"])
                return
            self.firsts.append(grant.first_row)
            report = Progress(task_id=dispatch.task_id, round=0, batches=number, samples=number * ROWS, batch_s=0.01)
            await self.tell(report)
            await self.goes.wait()
            assert await self.deliver(dispatch, grant.index) in ("", "stale")
            number += 1

    async def deliver(self, dispatch: Dispatch, index: int) -> str:
        """Upload a result, again where the scheduler ends before it has answered."""
        while True:
            with contextlib.suppress(TimeoutError, aiohttp.ClientError):
                async with asyncio.timeout(1):
                    if (refused := await self.put(dispatch, index)) != "busy":
                        return refused
            await asyncio.sleep(0.01)

    async def put(self, dispatch: Dispatch, index: int, *, peer: str = "") -> str:
        """Upload a result; the code of the refusal, if it is refused."""
        content = b"".join(b'{"row": %d}\n' % row for row in range(ROWS))
        header = ResultHeader(
            task_id=dispatch.task_id,
            index=index,
            rows=ROWS,
            sha256=hashlib.sha256(content).hexdigest(),
            size_bytes=len(content),
        )
        headers = {"Hypha-Result": msgspec.json.encode(header).decode(), "Caller": peer or self.peer_id}
        url = f"{self.here.url}/bulk/jobs/{dispatch.job_id}/results/{index}"
        async with client() as session, session.put(url, data=content, headers=headers) as answer:
            return "" if answer.status == 200 else str((await answer.json())["code"])


def job(to: Path, model: str = HUB) -> str:
    return JOB.format(to=to, model=model)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("train-data-*.jsonl"))


ALL = [f"train-data-{n:06d}-rows-{n * ROWS}-{(n + 1) * ROWS}.jsonl" for n in range(5)]


async def test_a_job_runs_to_its_list_of_results_and_lets_its_workers_go(tmp_path: Path) -> None:
    async with world(tmp_path / "s", workers=0) as here:
        workers = [Inferring(here, name) for name in ("W1", "W2")]
        assert (await here.submit(job(tmp_path / "out")))[0] == 200
        view = await here.until("done")
        assert (view.samples, view.model_dir, view.slices["used"]) == (40, str(tmp_path / "out"), 5)
        assert names(tmp_path / "out") == ALL
        listed = json.loads((tmp_path / "out" / "train-data.results.json").read_text())
        assert [entry["name"] for entry in listed["results"]] == ALL
        assert sorted(first for worker in workers for first in worker.firsts) == [0, 8, 16, 24, 32]
        await here.until_true(lambda: not any(worker.leases for worker in workers))
        await here.until_true(lambda: not (tmp_path / "out" / ".hypha-j1").exists())


async def test_a_worker_that_dies_and_a_scheduler_that_dies_cost_no_slice_and_double_none(tmp_path: Path) -> None:
    """H43, U34."""
    async with world(tmp_path / "s", workers=0) as here:
        one, two = Inferring(here, "W1"), Inferring(here, "W2")
        one.goes.clear()
        await here.submit(job(tmp_path / "out"))
        await here.until_true(lambda: one.firsts and len(names(tmp_path / "out")) >= 2)
        await one.die()
        two.goes.clear()
        await here.kill()
        before = len(here.overlay.routes)
        async with restarted(here) as again, serving(here.overlay.routes[before:]) as again.url:
            two.here = again
            two.goes.set()
            await again.until("done")
        assert names(tmp_path / "out") == ALL


async def test_a_job_is_paused_resumed_drained_and_cancelled_and_answers_each_slice_once(tmp_path: Path) -> None:
    async with world(tmp_path / "s", workers=0) as here:
        run, drained = here.overlay.handlers[RunCommand], here.overlay.handlers[HandOver]
        one = Inferring(here, "W1")
        one.goes.clear()
        await here.submit(job(tmp_path / "out"))
        await here.until_true(lambda: one.firsts)
        await run(caller("X"), RunCommand(signed=signed(Pause(job_id="j1"))))
        assert (await here.until("paused")).reason == "paused by ada; resume it to go on"
        await here.until_true(lambda: not one.leases and not here.service._runners["j1"].is_running)
        await run(caller("X"), RunCommand(signed=signed(Resume(job_id="j1"))))
        await here.until_true(lambda: len(one.firsts) == 2)
        (lease_id,) = one.leases
        await drained(caller("W1"), HandOver(lease_id=lease_id, job_id="j1", reason="w-1 is drained by ada"))
        two = Inferring(here, "W2")
        one.refusal = "cordoned by ada"
        one.goes.set()
        await here.until("done")
        assert names(tmp_path / "out") == ALL
        assert len(one.firsts) == 2, "it went with its result"
        assert len(two.firsts) == 4
        one.refusal = ""
        two.goes.clear()
        await here.submit(job(tmp_path / "again"), job_id="j2")
        await here.until_true(lambda: len(two.firsts) == 5)
        await run(caller("X"), RunCommand(signed=signed(Cancel(job_id="j2"))))
        assert (await here.until("cancelled", "j2")).reason == "cancelled by ada"
        await here.until_true(lambda: not one.leases and not two.leases)


async def test_results_of_others_and_of_slices_that_are_not_ones_own_are_refused(tmp_path: Path) -> None:
    async with world(tmp_path / "s", workers=0) as here:
        worker = Inferring(here, "W1")
        worker.goes.clear()
        await here.submit(job(tmp_path / "out"))
        await here.until_true(lambda: worker.firsts)
        dispatch = worker.dispatched[0]
        index = worker.firsts[0] // ROWS
        assert await worker.put(dispatch, index, peer="W9") == "denied"
        assert await worker.put(dispatch, 99) == "stale"
        assert names(tmp_path / "out") == []


async def test_executors_that_fail_fail_the_job_with_the_last_line_of_their_output(tmp_path: Path) -> None:
    async with world(tmp_path / "s", workers=0) as here:
        for name in ("W1", "W2", "W3"):
            Inferring(here, name, crashes=9)
        await here.submit(job(tmp_path / "out"))
        view = await here.until("failed")
        assert "infer.failed out of luck" in view.reason and "3 t" in view.reason


async def test_a_model_of_an_earlier_job_goes_to_the_workers_of_this_one_alone(tmp_path: Path) -> None:
    async with world(tmp_path / "s", workers=0) as here:
        worker = Inferring(here, "W1")
        worker.goes.clear()
        status, answer = await here.submit(job(tmp_path / "out", 'job = "earlier"'))
        assert (status, answer["code"]) == (400, "invalid") and "no final model" in answer["detail"]
        spec = msgspec.json.encode(parse_job(TRAINING).without_secrets()).decode()
        await here.store.write(
            lambda db: records.insert_job(db, JobRow("earlier", "e", spec, "", "", "ada", state="done", ended_unix=1.0))
        )
        model = tmp_path / "s" / "models" / "earlier"
        model.mkdir(parents=True)
        for name in (RECORD, "config.json"):
            (model / name).write_text("{}")
        assert (await here.submit(job(tmp_path / "out", 'job = "earlier"')))[0] == 200
        await here.until_true(lambda: worker.firsts)
        assert worker.dispatched[0].task.model_job == "earlier"  # type: ignore[union-attr]
        status, body = await here.get("/bulk/jobs/earlier/trained", "W1")
        assert status == 200 and b"config.json" in body
        assert await here.get("/bulk/jobs/earlier/trained/config.json", "W1") == (200, b"{}")
        assert (await here.get("/bulk/jobs/earlier/trained", "W2"))[0] == 400
        assert (await here.get("/bulk/jobs/j1/trained", "W1"))[0] == 400
