from __future__ import annotations

import asyncio
import base64
import contextlib
import functools
import hashlib
import io
import json
import socket
import ssl
import stat
import sys
import tarfile
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from node.board import Board
from node.commanding import payload_of
from node.config import NodeConfig, SchedulerConfig
from node.errors import Refused
from node.jobspec import job_from, parse_job
from node.network.accepting import Acceptor
from node.scheduler import runner
from node.scheduler.service import SchedulerService
from node.schema import Origin
from node.store import Store
from node.views import JobView, LeaseHistory, Point, SliceMap, SubmitResult
from node.wire import (
    Cancel,
    Command,
    CommitRound,
    Measure,
    NextSlice,
    Offer,
    Progress,
    Resume,
    RunCommand,
    Signed,
    Submit,
    TaskStatus,
)
from tests.support import make_authority, make_identity_in
from tests.unit.scheduler.fake_cluster import SCHEDULER, BulkRoute, FakeOverlay, FakeWorker, caller, version_file

JOB = """
name = "tiny"
dataset = "train-data"
validation_dataset = "valid-data"
[model]
type = "causal-lm"
repository = "org/model"
filenames = ["model.safetensors"]
token = "hf_very_secret"
[rounds]
update_rounds = 2
avg_samples_between_updates = 32
max_batch_size = 4
[inner_optimizer]
learning_rate = 0.001
[outer_optimizer]
learning_rate = 0.7
momentum = 0.9
[resources]
num_workers = 2
"""


@pytest.fixture(autouse=True)
def _shown_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Operators see every change: with fakes a round takes milliseconds, and a test stops a job where it says."""
    monkeypatch.setattr(runner, "SHOW_EVERY_S", 0.0)


class World:
    """A scheduler on a fake overlay, with its state in a temporary folder."""

    def __init__(self, state_dir: Path, store: Store, **settings: Any) -> None:
        self.state_dir = state_dir
        self.overlay = FakeOverlay()
        self.board = Board(SCHEDULER)
        self.store = store
        config = NodeConfig(state_dir=state_dir, **settings)
        self.service = SchedulerService(config, self.overlay, self.board, store)  # type: ignore[arg-type]
        self.url = ""
        self.door = contextlib.AsyncExitStack()
        self.running: asyncio.Task[None]

    async def kill(self) -> None:
        """The scheduler's process ends, with every request that it is at; nobody answers in its place."""
        await self.overlay.scheduler_dies()
        await self.door.aclose()
        await stop(self.running)
        await self.store.read("SELECT 1")

    def job(self, job_id: str = "j1") -> JobView:
        return next(view for view in self.board.items() if isinstance(view, JobView) and view.id == job_id)

    async def until(self, state: str, job_id: str = "j1", within_s: float = 30.0) -> JobView:
        await self.until_true(lambda: self.job(job_id).state == state, within_s)
        return self.job(job_id)

    async def until_true(self, what: Callable[[], Any], within_s: float = 30.0) -> Any:
        async with asyncio.timeout(within_s):
            while True:
                with contextlib.suppress(StopIteration):
                    if found := what():
                        return found
                await asyncio.sleep(0.01)

    async def submit(self, body: bytes | str, job_id: str = "j1", **more: Any) -> tuple[int, dict[str, Any]]:
        body = body.encode() if isinstance(body, str) else body
        digest = more.pop("digest", hashlib.sha256(body).hexdigest())
        scheduler = more.pop("scheduler", "")
        header = command_header(Submit(job_id=job_id, body_sha256=digest, scheduler=scheduler), **more)
        async with (
            client() as session,
            session.put(
                f"{self.url}/bulk/submissions/{job_id}", data=body, headers={"Hypha-Command": header}
            ) as answer,
        ):
            return answer.status, await answer.json()

    async def get(self, path: str, peer: str = "W1") -> tuple[int, bytes]:
        async with (
            client() as session,
            session.get(f"{self.url}{path}", headers={"Caller": peer}) as answer,
        ):
            return answer.status, await answer.read()


def signed(command: Command, signer: str = "operator:ada", signature: bytes = b"good") -> Signed:
    return Signed(payload=payload_of(command), signature=signature, chain=[signer.encode()])


def command_header(command: Command, **more: Any) -> str:
    return base64.b64encode(msgspec.msgpack.encode(RunCommand(signed=signed(command, **more)))).decode()


@contextlib.asynccontextmanager
async def restarted(here: World) -> AsyncIterator[World]:
    """The same cluster with a new scheduler process on the same store; its workers went on all the time."""
    again = World(here.state_dir, here.store)
    again.overlay = here.overlay
    again.service = SchedulerService(
        NodeConfig(state_dir=here.state_dir),
        again.overlay,  # type: ignore[arg-type]
        again.board,
        again.store,
    )
    running = asyncio.get_running_loop().create_task(again.service.run())
    try:
        await again.until_true(lambda: again.service._tasks)
        yield again
    finally:
        await stop(running)


async def stop(running: asyncio.Task[None]) -> None:
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running


@contextlib.asynccontextmanager
async def world(state_dir: Path, *, workers: int = 2, datasets: bool = True, **settings: Any) -> AsyncIterator[World]:
    state_dir.mkdir(exist_ok=True)
    async with Store.open(state_dir / "state.db") as store:
        made = World(state_dir, store, **settings)
        for number in range(workers):
            FakeWorker(made.overlay, f"W{number + 1}")
        if datasets:
            made.overlay.serve_dataset("train-data", 5)
            made.overlay.serve_dataset("valid-data", 1)
        async with made.door:
            made.url = await made.door.enter_async_context(serving(made.overlay.routes))
            made.running = asyncio.get_running_loop().create_task(made.service.run())
            await made.until_true(lambda: made.service._tasks)
            try:
                yield made
            finally:
                await stop(made.running)
                for worker in made.overlay.workers.values():
                    await worker.close()


@contextlib.asynccontextmanager
async def serving(routes: Sequence[BulkRoute]) -> AsyncIterator[str]:
    """The bulk routes, for callers that name themselves, on connections as a node has them; their address."""
    runner = web.AppRunner(_application(routes), access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    assert runner.server is not None
    acceptor = Acceptor(tls_contexts()[0], runner.server)
    listening = socket.create_server(("127.0.0.1", 0))
    listening.setblocking(False)
    try:
        async with acceptor.accepting([listening]):
            yield f"https://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        await runner.cleanup()
        await acceptor.close()


def client() -> aiohttp.ClientSession:
    """Somebody who asks."""
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=tls_contexts()[1]))


@functools.cache
def tls_contexts() -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Of the server and its clients; who they are does not matter here."""
    with tempfile.TemporaryDirectory(prefix="hypha-") as name:
        identity = make_identity_in(make_authority(Path(name)), "somebody").load()
        return identity.server_context(), identity.client_context()


def _application(routes: Sequence[BulkRoute]) -> web.Application:
    application = web.Application()
    for method, path, handler, _ in routes:

        async def answer(request: web.Request, handler: Any = handler) -> web.StreamResponse:
            try:
                return await handler(caller(request.headers.get("Caller", "X")), request)  # type: ignore[no-any-return]
            except Refused as error:
                return web.json_response({"code": error.code, "detail": str(error)}, status=400)

        application.router.add_route(method, path, answer)
    return application


def tar_of(**files: str) -> bytes:
    body = io.BytesIO()
    with tarfile.open(fileobj=body, mode="w") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name.replace("__", "/").replace("_toml", ".toml").replace("_py", ".py"))
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content.encode()))
    return body.getvalue()


@pytest.mark.asyncio
async def test_a_submitted_job_is_run_to_its_model(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        status, answer = await here.submit(JOB)
        assert (status, msgspec.convert(answer, SubmitResult)) == (200, SubmitResult(job_id="j1", scheduler=SCHEDULER))
        await here.until_true(lambda: len(here.job().tasks) == 3 and here.job())
        assert sorted(advert.count for advert in here.overlay.adverts) == [1, 2], "one call for each role is enough"
        view = await here.until("done")
        assert (view.round, view.rounds, view.first_eval_loss, view.eval_loss) == (2, 2, 5.0, 3.0)
        assert view.samples >= 64
        assert view.samples_per_s is not None
        assert view.loss == pytest.approx(3.0)
        model = Path(view.model_dir)
        assert model == tmp_path / "models" / "j1"
        assert (model / "model.safetensors").read_bytes() == b"the model"
        record = json.loads((model / "training.json").read_text())
        assert [line["round"] for line in record["rounds"]] == [0, 1]
        assert {point["round"] for point in record["curve"] if point["name"] == "eval_loss"} == {0, 1, 2}
        assert len(record["dataset"]["digest"]) == 64
        status, body = await here.get("/bulk/jobs/j1/metrics")
        points = msgspec.json.decode(body, type=list[Point])
        assert {"loss", "eval_loss", "samples_per_s"} <= {point.name for point in points}
        status, body = await here.get("/bulk/jobs/j1/rounds")
        rounds = json.loads(body)
        assert [len(line["contributions"]) for line in rounds] == [2, 2]
        spans = [span for line in rounds for share in line["contributions"] for span in share["spans"]]
        counted = [(pass_, index, row) for pass_, index, start, end in spans for row in range(start, end)]
        assert len(counted) == len(set(counted)) == sum(line["samples"] for line in rounds) > 0
        assert record["rounds"] == rounds
        status, body = await here.get("/bulk/jobs/j1/spec")
        assert (status, job_from(msgspec.json.decode(body), Origin("again")).num_workers) == (200, view.workers_wanted)
        assert b"token" not in body
        status, body = await here.get("/bulk/jobs/j1/slices")
        slices = msgspec.json.decode(body, type=SliceMap)
        assert (slices.is_whole, set(slices.states)) == (True, {".", "u"})
        assert {index for pass_, index, _, _ in spans if pass_ == slices.pass_} == {
            index for index, state in enumerate(slices.states) if state == "u"
        }
        lives = {task.lease_id: task for task in view.tasks}
        for lease_id in lives:
            status, body = await here.get(f"/bulk/jobs/j1/leases/{lease_id}")
            assert msgspec.json.decode(body, type=LeaseHistory).marks[0].name == "accepted"
        assert (await here.get("/bulk/jobs/j1/leases/other"))[0] == 400
        for worker in here.overlay.workers.values():
            assert worker.leases == {}, "a lease is left behind"


@pytest.mark.asyncio
async def test_the_token_is_nowhere_but_in_its_own_file_and_in_the_dispatch(tmp_path: Path, caplog: Any) -> None:
    caplog.set_level("DEBUG")
    async with world(tmp_path) as here:
        for worker in here.overlay.workers.values():
            worker.pauses.clear()
        await here.submit(JOB)
        await here.until_true(lambda: len(here.job().tasks) == 3)
        secret = tmp_path / "scheduler" / "secrets" / "j1"
        assert secret.read_text() == "hf_very_secret"
        assert stat.S_IMODE(secret.stat().st_mode) == 0o600
        rows = await here.store.read("SELECT spec FROM jobs")
        assert "hf_very_secret" not in rows[0][0]
        events = msgspec.json.encode([here.board.events(), here.board.items()])
        assert b"hf_very_secret" not in events
        await here.until_true(lambda: sum(len(w.dispatched) for w in here.overlay.workers.values()) == 3)
        assert all(d.token == "hf_very_secret" for w in here.overlay.workers.values() for d in w.dispatched)
        for worker in here.overlay.workers.values():
            worker.pauses.set()
        await here.until("done")
        assert not secret.exists()
        assert "hf_very_secret" not in (tmp_path / "models" / "j1" / "training.json").read_text()
        left = [path for path in tmp_path.rglob("*") if path.is_file() and b"hf_very_secret" in path.read_bytes()]
        assert left == []
    assert "hf_very_secret" not in caplog.text


@pytest.mark.asyncio
async def test_a_job_that_no_worker_can_satisfy_says_what_it_waits_for(tmp_path: Path) -> None:
    """H22, H23."""
    async with world(tmp_path, workers=0) as here:
        for number in range(3):
            FakeWorker(here.overlay, f"R{number}", refusal="gpu 0 < 10")
        await here.submit(JOB)
        view = await here.until_true(lambda: "refused" in here.job().reason and here.job())
        assert view.state == "waiting"
        assert view.reason.startswith("waiting: 0 of 2; 3 workers refused: gpu 0 < 10")
        FakeWorker(here.overlay, "W1")
        FakeWorker(here.overlay, "W2")
        for watcher in here.overlay.watchers:
            watcher()
        await here.until("done")


@pytest.mark.asyncio
async def test_a_job_without_its_dataset_waits_until_somebody_serves_it(tmp_path: Path) -> None:
    async with world(tmp_path, datasets=False) as here:
        await here.submit(JOB)
        await here.until_true(lambda: 'no node serves dataset "train-data"' in here.job().reason)
        assert here.overlay.adverts == []
        here.overlay.serve_dataset("train-data", 3)
        await here.until_true(lambda: 'no node serves dataset "valid-data"' in here.job().reason)
        here.overlay.serve_dataset("valid-data", 1)
        await here.until("done")


@pytest.mark.asyncio
async def test_a_crashed_executor_is_shown_and_replaced(tmp_path: Path) -> None:
    """H31."""
    async with world(tmp_path) as here:
        here.overlay.workers["W1"].crashes = 1
        await here.submit(JOB)
        view = await here.until("done")
        failed = [task for task in view.tasks if task.state == "failed"]
        assert [(task.exit_code, task.tail[-1]) for task in failed] == [(7, "RuntimeError: out of luck")]


@pytest.mark.asyncio
async def test_a_job_whose_executors_always_crash_fails_and_says_why(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        for worker in here.overlay.workers.values():
            worker.crashes = 99
        await here.submit(JOB)
        view = await here.until("failed")
        assert view.reason.endswith("exit code 7: RuntimeError: out of luck")
        assert "node-W" in view.reason
        assert [row[0] for row in await here.store.read("SELECT state FROM jobs")] == ["failed"]


@pytest.mark.asyncio
async def test_the_same_submission_twice_is_one_job_and_another_one_under_its_id_is_refused(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        assert (await here.submit(JOB))[0] == 200
        assert (await here.submit(JOB))[0] == 200
        assert len(await here.store.read("SELECT * FROM jobs")) == 1
        status, answer = await here.submit(JOB.replace("tiny", "other"))
        assert (status, answer["code"]) == (400, "conflict")


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("more", "code", "words"),
    [
        ({"signer": "node:W1"}, "denied", "W1 is not an operator"),
        ({"signature": b"bad"}, "denied", "not validly signed"),
        ({"digest": "0" * 64}, "invalid", "SHA-256"),
    ],
)
async def test_a_submission_that_is_not_an_operators_is_refused(
    tmp_path: Path, more: dict[str, Any], code: str, words: str
) -> None:
    async with world(tmp_path) as here:
        status, answer = await here.submit(JOB, **more)
        assert (status, answer["code"]) == (400, code)
        assert words in answer["detail"]
        assert await here.store.read("SELECT * FROM jobs") == []
        assert list((tmp_path / "scheduler" / "incoming").iterdir()) == []


@pytest.mark.asyncio
async def test_a_job_that_is_signed_for_another_scheduler_is_refused(tmp_path: Path) -> None:
    """Whoever passes a job on cannot give it to two schedulers."""
    async with world(tmp_path) as here:
        status, answer = await here.submit(JOB, scheduler="12D3other")
        assert (status, answer["code"]) == (400, "denied")
        assert "another scheduler" in answer["detail"]
        assert (await here.submit(JOB, scheduler=SCHEDULER))[0] == 200


@pytest.mark.asyncio
async def test_this_node_and_the_nodes_it_was_told_of_may_submit(tmp_path: Path) -> None:
    async with world(tmp_path, operators=["W1"]) as here:
        assert (await here.submit(JOB, "a", signer=f"node:{SCHEDULER}"))[0] == 200
        assert (await here.submit(JOB, "b", signer="node:W1"))[0] == 200


@pytest.mark.asyncio
async def test_a_bad_job_file_is_refused_in_one_line(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        status, answer = await here.submit(JOB.replace("update_rounds", "update_round"))
        assert (status, answer["code"]) == (400, "invalid")
        assert "update_rounds" in answer["detail"]
        assert "\n" not in answer["detail"]


@pytest.mark.asyncio
async def test_a_job_is_in_the_store_before_it_is_acknowledged(tmp_path: Path) -> None:
    async with world(tmp_path, workers=0) as here:
        await here.submit(JOB)
        assert (await here.store.read("SELECT job_id, submitted_by FROM jobs")) == [("j1", "ada")]


@pytest.mark.asyncio
async def test_a_jobs_folder_goes_to_its_workers_and_to_nobody_else(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        for worker in here.overlay.workers.values():
            worker.pauses.clear()
        await here.submit(tar_of(job_toml=JOB, model__net_py="import torch"))
        await here.until_true(lambda: len(here.job().tasks) == 3)
        status, body = await here.get("/bulk/jobs/j1/folder", peer="W1")
        assert status == 200
        assert hashlib.sha256(body).hexdigest() == here.overlay.workers["W1"].dispatched[0].folder_sha256
        with tarfile.open(fileobj=io.BytesIO(body)) as archive:
            assert archive.getnames() == ["model/net.py"]
        status, body = await here.get("/bulk/jobs/j1/folder", peer="stranger")
        assert (status, json.loads(body)["code"]) == (400, "denied")


async def refusal(here: World, peer: str, request: Any) -> str:
    with pytest.raises(Refused) as caught:
        await here.overlay.told(peer, request)
    return caught.value.code


@pytest.mark.asyncio
async def test_only_the_holder_of_a_task_may_speak_for_it(tmp_path: Path) -> None:
    """H18, H19, H46."""
    async with world(tmp_path) as here:
        for worker in here.overlay.workers.values():
            worker.pauses.clear()
        await here.submit(JOB)
        await here.until_true(lambda: len(here.job().tasks) == 3)
        train = next(task for task in here.job().tasks if task.role == "train")
        server = next(task for task in here.job().tasks if task.role == "aggregate")

        def commit(task_id: str, epoch: int = 0) -> CommitRound:
            weights, momentum, delta = (version_file("j1", kind, 1) for kind in ("weights", "momentum", "delta"))
            return CommitRound(
                task_id=task_id,
                epoch=epoch,
                round=0,
                weights=weights,
                momentum=momentum,
                delta=delta,
                contributions=[],
            )

        def ask(task_id: str, dataset: str = "train-data") -> NextSlice:
            return NextSlice(task_id=task_id, dataset=dataset, number=1)

        def progress(task_id: str) -> Progress:
            return Progress(task_id=task_id, round=0, batches=1, samples=1, batch_s=1.0)

        assert await refusal(here, "stranger", ask(train.task_id)) == "denied"
        assert await refusal(here, "stranger", progress(train.task_id)) == "denied"
        assert await refusal(here, "stranger", commit(server.task_id)) == "denied"
        assert await refusal(here, train.peer_id, commit(train.task_id)) == "denied"
        assert await refusal(here, server.peer_id, commit(server.task_id, epoch=9)) == "stale"
        assert await refusal(here, train.peer_id, progress("j1.0.99")) == "unknown"
        assert await refusal(here, train.peer_id, progress("no task")) == "unknown"
        assert await refusal(here, train.peer_id, progress("other.0.1")) == "unknown"
        assert await refusal(here, train.peer_id, ask(train.task_id, "other")) == "unknown"
        wrong_lease = TaskStatus(task_id=train.task_id, lease_id="x", state="failed")
        assert await refusal(here, train.peer_id, wrong_lease) == "stale"
        measure = Measure(task_id=server.task_id, round=0, metrics={})
        assert await refusal(here, server.peer_id, measure) == "denied"
        offer = Offer(
            advert_id="?",
            lease_id="l",
            executor=here.overlay.adverts[0].executor,
            resources=here.overlay.adverts[0].resources,
            price=0.0,
            ttl_s=1.0,
        )
        assert await refusal(here, "W1", offer) == "stale"


@pytest.mark.asyncio
async def test_an_operator_cancels_a_job_and_its_leases_are_let_go(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        for worker in here.overlay.workers.values():
            worker.pauses.clear()
        await here.submit(JOB)
        await here.until_true(lambda: len(here.job().tasks) == 3)
        run = here.overlay.handlers[RunCommand]
        with pytest.raises(Refused, match="not an operator"):
            await run(caller("W1"), RunCommand(signed=signed(Cancel(job_id="j1"), signer="node:W1")))
        await run(caller("X"), RunCommand(signed=signed(Cancel(job_id="j1"))))
        view = await here.until("cancelled")
        assert view.reason == "cancelled by ada"
        await here.until_true(lambda: all(not worker.leases for worker in here.overlay.workers.values()))
        await run(caller("X"), RunCommand(signed=signed(Cancel(job_id="j1"))))
        with pytest.raises(Refused, match="no job"):
            await run(caller("X"), RunCommand(signed=signed(Cancel(job_id="nope"))))


@pytest.mark.asyncio
@pytest.mark.parametrize("committed", [0, 1])
async def test_a_scheduler_that_starts_again_goes_on_with_the_leases_and_tasks_it_had(
    tmp_path: Path, committed: int
) -> None:
    """U34, H34: its workers went on meanwhile; nothing is dispatched twice, no committed round is lost."""
    async with world(tmp_path) as here:
        await here.submit(JOB.replace("update_rounds = 2", "update_rounds = 12"))
        await here.until_true(lambda: len(here.job().tasks) == 3 and here.job().round >= committed)
        await here.kill()
        workers = list(here.overlay.workers.values())
        assert sum(len(worker.leases) for worker in workers) == 3, "a stopping scheduler keeps them"
        before = [row[0] for row in await here.store.read("SELECT round FROM jobs")]
        dispatched = sum(len(worker.dispatched) for worker in workers)
        async with restarted(here) as again:
            view = await again.until("done")
            assert view.round == 12
            assert sum(len(worker.dispatched) for worker in workers) == dispatched
            assert {task.task_id for task in view.tasks} == {"j1.0.0", "j1.0.1", "j1.0.2"}
            rounds = await again.store.read("SELECT round, epoch FROM rounds ORDER BY round")
            assert rounds == [(number, 0) for number in range(12)]
            assert before[0] <= 12
            await rows_are_exact(again)
    async with world(tmp_path) as here:
        view = await here.until("done")
        assert (view.round, view.first_eval_loss) == (12, 5.0)
        assert view.model_dir == str(tmp_path / "models" / "j1")


async def rows_are_exact(here: World, job_id: str = "j1") -> None:
    """Every row of a pass that is over is committed once, and none twice."""
    lines = await here.store.read("SELECT spans FROM contributions WHERE job_id = ?", (job_id,))
    spans = [span for (line,) in lines for span in json.loads(line)]
    counted = [(pass_, index, row) for pass_, index, start, end in spans for row in range(start, end)]
    assert len(counted) == len(set(counted)) > 0
    ((pass_,),) = await here.store.read("SELECT pass FROM jobs WHERE job_id = ?", (job_id,))
    assert sum(1 for row in counted if row[0] < pass_) == pass_ * 5 * 8


@pytest.mark.asyncio
async def test_a_worker_that_is_gone_when_the_scheduler_starts_again_is_replaced(tmp_path: Path) -> None:
    async with world(tmp_path, workers=3) as here:
        await here.submit(JOB.replace("update_rounds = 2", "update_rounds = 12"))
        await here.until_true(lambda: here.job().round >= 1)
        server = next(task.peer_id for task in here.job().tasks if task.role == "aggregate")
        victim = next(t.peer_id for t in here.job().tasks if t.role == "train" and t.peer_id != server)
        await here.kill()
        await here.overlay.workers[victim].die()
        here.overlay.cut.discard(victim)
        here.overlay.workers[victim].is_dead = False
        async with restarted(here) as again:
            view = await again.until("done")
            assert view.round == 12
            assert [task.state for task in view.tasks].count("lost") == 1
            await rows_are_exact(again)


@pytest.mark.asyncio
async def test_a_parameter_server_that_dies_is_placed_again_and_goes_on_from_the_last_commit(tmp_path: Path) -> None:
    """U28, H62: its journal is here; no round is done twice and no row counts twice."""
    async with world(tmp_path, workers=3) as here:
        await here.submit(JOB.replace("update_rounds = 2", "update_rounds = 14"))
        await here.until_true(lambda: here.job().round >= 3)
        server = next(task for task in here.job().tasks if task.role == "aggregate")
        kept = here.service._runners["j1"].job.chain.files()[-1]
        status, body = await here.get(f"/bulk/jobs/j1/journal/{kept.kind}/{kept.number}", peer=server.peer_id)
        assert (status, body.decode()) == (200, f"/bulk/jobs/j1/{kept.kind}/{kept.number}")
        worker = here.overlay.workers[server.peer_id]
        trained = {task.task_id: task.peer_id for task in here.job().tasks if task.role == "train"}
        await worker.die()
        await here.until_true(lambda: "was lost" in here.job().reason or here.job().round == 14)
        view = await here.until("done")
        assert view.round == 14
        (start,) = [
            dispatch.task.start
            for other in here.overlay.workers.values()
            for dispatch in other.dispatched
            if dispatch.epoch == 1 and dispatch.task_id.startswith("j1.1.") and hasattr(dispatch.task, "start")
        ]
        assert start[-1].number >= 3
        epochs = dict(await here.store.read("SELECT epoch, count(*) FROM rounds GROUP BY epoch"))
        assert set(epochs) == {0, 1}
        assert sum(epochs.values()) == 14
        tasks = {row[0] for row in await here.store.read("SELECT task_id FROM contributions WHERE round = 13")}
        survivors = {task for task, peer in trained.items() if peer != server.peer_id}
        assert survivors <= tasks, "whoever did not die kept its task"
        assert len(tasks - survivors) <= len(trained) - len(survivors), "only who died was replaced, if there was time"
        await rows_are_exact(here)
        status, body = await here.get("/bulk/jobs/j1/journal/weights/0", peer="stranger")
        assert (status, json.loads(body)["code"]) == (400, "denied")


@pytest.mark.asyncio
async def test_a_cancelled_job_goes_on_from_its_last_commit_when_it_is_resumed(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        run = here.overlay.handlers[RunCommand]
        await here.submit(JOB.replace("update_rounds = 2", "update_rounds = 60"))
        await here.until_true(lambda: here.job().round >= 3)
        await run(caller("X"), RunCommand(signed=signed(Cancel(job_id="j1"))))
        view = await here.until("cancelled")
        await here.until_true(lambda: all(not worker.leases for worker in here.overlay.workers.values()))
        assert (tmp_path / "scheduler" / "secrets" / "j1").exists(), "it is needed again"
        with pytest.raises(Refused, match="not an operator"):
            await run(caller("W1"), RunCommand(signed=signed(Resume(job_id="j1"), signer="node:W1")))
        await here.until_true(lambda: here.service._runners["j1"]._tasks is None)
        await run(caller("X"), RunCommand(signed=signed(Resume(job_id="j1"))))
        await run(caller("X"), RunCommand(signed=signed(Resume(job_id="j1"))))
        done = await here.until("done")
        assert done.round == 60
        assert done.samples > view.samples
        rounds = await here.store.read("SELECT round, epoch FROM rounds ORDER BY round")
        assert [row[0] for row in rounds] == list(range(60))
        assert {row[1] for row in rounds} == {0, 1}
        await rows_are_exact(here)
        with pytest.raises(Refused, match="is done"):
            await run(caller("X"), RunCommand(signed=signed(Resume(job_id="j1"))))
        with pytest.raises(Refused, match="no job"):
            await run(caller("X"), RunCommand(signed=signed(Resume(job_id="nope"))))
        assert not (tmp_path / "scheduler" / "jobs" / "j1" / "journal").exists()


CHECKPOINT = "[checkpoint]\nevery = 2\nkeep = 2\n"


@pytest.mark.asyncio
async def test_checkpoints_are_whole_and_only_the_newest_are_kept(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        await here.submit(JOB.replace("update_rounds = 2", "update_rounds = 9") + CHECKPOINT)
        await here.until("done")
        folder = tmp_path / "scheduler" / "jobs" / "j1" / "checkpoints"
        await here.until_true(lambda: sorted(path.name for path in folder.iterdir()) == ["version-6", "version-8"])
        content = json.loads((folder / "version-8" / "checkpoint.json").read_text())
        assert (content["version"], len(content["rounds"]), content["dataset"]["name"]) == (8, 8, "train-data")
        assert content["ledger"]["pass"] >= 0
        assert content["curve"]
        for kind in ("weights", "momentum"):
            body = (folder / "version-8" / f"{kind}.safetensors").read_bytes()
            assert body == f"/bulk/jobs/j1/{kind}/8".encode()
            assert hashlib.sha256(body).hexdigest() == content["files"][kind]["sha256"]
        assert "hf_very_secret" not in (folder / "version-8" / "checkpoint.json").read_text()


@pytest.mark.asyncio
async def test_a_checkpoint_that_cannot_be_written_costs_the_training_nothing(tmp_path: Path) -> None:
    """A full disk or a folder that went away: it is told, and tried again when the next one is due."""
    folder = tmp_path / "elsewhere"
    folder.write_text("a file is in the way")
    async with world(tmp_path / "node") as here:
        await here.submit(JOB.replace("update_rounds = 2", "update_rounds = 6") + CHECKPOINT + f'to = "{folder}"\n')
        await here.until("done")
        failed = [event for event in here.board.events() if event.name == "checkpoint.failed"]
        assert failed
        assert failed[0].level == "warning"


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("to", "words"),
    [("peer:", "names no node"), ("s3://bucket/x", "obstore"), ("relative", "absolute")],
)
async def test_a_place_where_checkpoints_can_never_go_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, to: str, words: str
) -> None:
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    async with world(tmp_path) as here:
        status, answer = await here.submit(JOB + CHECKPOINT + f'to = "{to}"\n')
        assert (status, answer["code"]) == (400, "invalid")
        assert words in answer["detail"]
        assert await here.store.read("SELECT * FROM jobs") == []


@pytest.mark.asyncio
async def test_the_job_of_the_configuration_is_run_once(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"scheduler": SchedulerConfig(job=parse_job(JOB))}
    async with world(tmp_path, **settings) as here:
        job_id = (await here.until_true(lambda: [v for v in here.board.items() if isinstance(v, JobView)]))[0].id
        await here.until("done", job_id)
    async with world(tmp_path, **settings) as here:
        await here.until("done", job_id)
        assert here.overlay.adverts == []
        assert len(await here.store.read("SELECT * FROM jobs")) == 1


@pytest.mark.asyncio
async def test_metrics_go_to_the_status_bridge_and_a_dead_one_disturbs_nothing(tmp_path: Path) -> None:
    """H20, H21."""
    got: list[dict[str, Any]] = []

    async def take(request: web.Request) -> web.Response:
        got.append(await request.json())
        return web.Response()

    application = web.Application()
    application.router.add_post("/status", take)
    async with TestServer(application) as sink, world(tmp_path / "a", status_bridge=f"{sink.host}:{sink.port}") as here:
        await here.submit(JOB)
        await here.until("done")
        await here.until_true(lambda: len(got) > 3)
    assert all(set(body) == {"worker_id", "round", "metric_name", "value"} for body in got)
    async with world(tmp_path / "b", status_bridge="127.0.0.1:1") as here:
        await here.submit(JOB)
        await here.until("done")


@pytest.mark.asyncio
async def test_a_fault_in_one_job_ends_that_job_alone(tmp_path: Path) -> None:
    async with world(tmp_path, workers=0) as here:
        await here.submit(JOB, "bad")
        await here.submit(JOB, "good")
        await here.until_true(lambda: len([v for v in here.board.items() if isinstance(v, JobView)]) == 2)
        broken = here.service._runners["bad"]
        broken.job.handle = lambda now, event: 1 / 0  # type: ignore[assignment, return-value]
        view = await here.until("failed", "bad")
        assert view.reason == "the scheduler failed: ZeroDivisionError: division by zero"
        FakeWorker(here.overlay, "W1")
        FakeWorker(here.overlay, "W2")
        for watcher in here.overlay.watchers:
            watcher()
        await here.until("done", "good")


@pytest.mark.asyncio
async def test_two_jobs_at_once_do_not_mix(tmp_path: Path) -> None:
    """U26."""
    async with world(tmp_path, workers=4) as here:
        await here.submit(JOB, "a")
        await here.submit(JOB, "b")
        await here.until("done", "a")
        await here.until("done", "b")
        shares = await here.store.read("SELECT job_id, task_id FROM contributions")
        assert len(shares) == 8
        assert all(task_id.startswith(f"{job_id}.0.") for job_id, task_id in shares)
