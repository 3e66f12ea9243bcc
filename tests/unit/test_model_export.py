"""`hypha-tui job export`: from a scheduler's folders, through another node, to the operator. And `job resume`."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
import pytest_asyncio
from aiohttp import web

from hypha_tui.client import export as client_export
from hypha_tui.client import link
from hypha_tui.client.api import ApiClient
from hypha_tui.client.endpoint import Endpoint
from hypha_tui.client.export import export
from hypha_tui.twin import jobs as commands
from node.api import local
from node.api.service import ApiService
from node.board import Board
from node.config import NodeConfig
from node.errors import ConfigError, DiskFull, HyphaError, PeerProtocol, PeerUnreachable, Refused
from node.identity.credentials import Identity
from node.jobspec import parse_job
from node.scheduler import handover, records
from node.scheduler.copies import Copies
from node.scheduler.files import SchedulerFiles
from node.scheduler.handover import Handover
from node.scheduler.intake import Intake
from node.scheduler.records import JobRow
from node.store import Store
from node.telemetry import Telemetry
from node.views import ModelFile, ModelView
from node.wire import Accepted, Cancel, Command, Export, Resume, RunCommand
from tests.support import MakeIdentity
from tests.unit.fake_overlay import FakeOverlay, Network
from tests.unit.test_api import signed

pytestmark = pytest.mark.asyncio

JOB = """
name = "tiny"
dataset = "d"
model = { type = "torch" }
rounds = { update_rounds = 4, avg_samples_between_updates = 8 }
inner_optimizer = { learning_rate = 1e-3 }
outer_optimizer = { learning_rate = 0.7, momentum = 0.9 }
"""
WEIGHTS = os.urandom(300_000)


class Cluster:
    """Node a with the operator API, node b with a scheduler; the operator sits at a's socket."""

    def __init__(self, a: FakeOverlay, b: FakeOverlay, client: ApiClient, store: Store, files: SchedulerFiles) -> None:
        self.a = a
        self.b = b
        self.client = client
        self.store = store
        self.files = files
        self.commands: list[Command] = []

    async def add(self, job_id: str, state: str, round_: int = 4) -> None:
        """A job in the scheduler's store."""
        spec = msgspec.json.encode(parse_job(JOB)).decode()
        row = JobRow(job_id, "tiny", spec, "b", "", "ada", state=state, round=round_)
        await self.store.write(lambda db: records.insert_job(db, row))

    def model(self, job_id: str, **files: bytes) -> Path:
        """A finished model with these files and a training record."""
        folder = self.files.model(job_id)
        for name, content in {"training.json": b"{}", **files}.items():
            path = folder / name.replace("__", "/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        return folder


@pytest_asyncio.fixture
async def cluster(make_identity: MakeIdentity, tmp_path: Path) -> AsyncIterator[Cluster]:
    network = Network()
    a = FakeOverlay(network, make_identity("a").load(), "a", ["gateway"])
    b = FakeOverlay(network, make_identity("b").load(), "b", ["scheduler"])
    configs = [NodeConfig(name=one.name, state_dir=tmp_path / one.name, operators=[a.peer_id]) for one in (a, b)]
    files = SchedulerFiles(tmp_path / "b")
    async with contextlib.AsyncExitStack() as stack:
        for config in configs:
            config.state_dir.mkdir()
        files.prepare()
        store = await stack.enter_async_context(Store.open(tmp_path / "b" / "state.db"))
        intake = Intake(configs[1], b, store, files)  # type: ignore[arg-type]
        Handover(b, store, files, intake, Copies(b, files))  # type: ignore[arg-type]
        found = Cluster(a, b, ApiClient(Endpoint(socket=local.socket_path(tmp_path / "a"))), store, files)

        async def command(run: RunCommand) -> Accepted:
            given = intake.open_command(run.signed).command
            found.commands.append(given)
            return Accepted(job_id=given.job_id, scheduler=b.peer_id)

        b.handlers[RunCommand] = command
        service = ApiService(configs[0], a, Board(a.peer_id), None, Telemetry(configs[0]))  # type: ignore[arg-type]
        for one in (a, b):
            await stack.enter_async_context(one.running())
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        running = tasks.create_task(service.run())
        async with asyncio.timeout(5):
            while not (tmp_path / "a" / local.FILE_NAME).exists():
                await asyncio.sleep(0.01)
        yield found
        await found.client.close()
        running.cancel()


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "FIRST_WAIT_S", 0.01)


def nothing(_done: int, _total: int) -> None:
    """No bar."""


async def test_the_final_model_arrives_whole_through_another_node(cluster: Cluster, tmp_path: Path) -> None:
    await cluster.add("j-1", "done")
    cluster.model("j-1", **{"model.safetensors": WEIGHTS, "tokenizer__vocab.json": b"[]"})
    told: list[tuple[int, int]] = []
    done = await export(cluster.client, "j-1", "latest", tmp_path / "out" / "deep", lambda *one: told.append(one))
    assert (done.path, done.model.version, done.model.is_final) == (tmp_path / "out" / "deep" / "j-1", 4, True)
    assert (done.path / "model.safetensors").read_bytes() == WEIGHTS
    assert (done.path / "tokenizer" / "vocab.json").read_bytes() == b"[]"
    assert [path.name for path in (tmp_path / "out" / "deep").iterdir()] == ["j-1"]
    assert told[-1] == (len(WEIGHTS) + 4, len(WEIGHTS) + 4)
    again = await export(cluster.client, "j-1", "latest", tmp_path / "out" / "deep", nothing)
    assert again.was_here
    (done.path / "model.safetensors").write_bytes(b"mine")
    with pytest.raises(HyphaError, match="is there already, with other content"):
        await export(cluster.client, "j-1", "latest", tmp_path / "out" / "deep", nothing)
    assert (done.path / "model.safetensors").read_bytes() == b"mine"


async def test_the_commands_say_where_it_is_and_give_one_document_to_scripts(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A job that ended too long ago to be shown is found by its whole id."""
    await cluster.add("j-1", "done")
    cluster.model("j-1", **{"model.safetensors": b"abc"})
    endpoint = cluster.client.endpoint
    assert await commands.export(endpoint, "j-1", tmp_path, "latest", as_json=False) == 0
    out, err = capsys.readouterr()
    assert out == f"{tmp_path / 'j-1'}\n"
    assert err == "the final model: 2 files, 0.0 MB\n"
    assert await commands.export(endpoint, "j-1", tmp_path, "4", as_json=True) == 0
    assert msgspec.json.decode(capsys.readouterr().out) == {
        "job_id": "j-1",
        "path": str(tmp_path / "j-1"),
        "version": 4,
        "is_final": True,
        "files": 2,
        "size_bytes": 5,
    }


async def test_a_job_without_a_final_model_gives_its_newest_whole_version(cluster: Cluster, tmp_path: Path) -> None:
    """The journal's base, or a checkpoint; an older one by its number. What is half done is no version."""
    await cluster.add("j-2", "failed", 9)
    journal = cluster.files.journal("j-2")
    kept = cluster.files.checkpoints("j-2")
    for path in (journal, kept / "version-4", kept / "version-6", kept / ".version-8.x"):
        path.mkdir(parents=True)
        (path / "weights.safetensors").write_bytes(path.name.encode())
    (journal / "weights-5.safetensors").write_bytes(b"five")
    (journal / "momentum-5.safetensors").write_bytes(b"speed")
    (journal / "delta-9.safetensors").write_bytes(b"no version alone")
    (journal / "incoming-9").write_bytes(b"half")
    newest = await export(cluster.client, "j-2", "latest", tmp_path, nothing)
    assert (newest.path.name, newest.model.is_final) == ("j-2-v6", False)
    older = await export(cluster.client, "j-2", "5", tmp_path, nothing)
    assert {path.name: path.read_bytes() for path in older.path.iterdir()} == {
        "weights.safetensors": b"five",
        "momentum.safetensors": b"speed",
    }
    with pytest.raises(Refused, match=r"no version 8 .* kept here; there are 4, 5, 6"):
        await cluster.client.model("j-2", "8")


async def test_what_is_not_there_is_told_in_a_line(cluster: Cluster, tmp_path: Path) -> None:
    await cluster.add("j-3", "failed", 0)
    with pytest.raises(Refused, match="no whole version of job j-3"):
        await export(cluster.client, "j-3", "latest", tmp_path / "out", nothing)
    with pytest.raises(Refused, match="no job j-4"):
        await export(cluster.client, "j-4", "latest", tmp_path / "out", nothing)
    with pytest.raises(Refused, match="`latest` or a number is needed"):
        await cluster.client.model("j-3", "../9")
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="is not a folder"):
        await export(cluster.client, "j-3", "latest", tmp_path / "file", nothing)
    cluster.b.network.down.add(cluster.b.peer_id)
    with pytest.raises(PeerUnreachable):
        await cluster.client.model("j-3", "latest")
    assert not (tmp_path / "out").exists()


async def test_a_transfer_that_is_cut_goes_on_at_the_same_byte_and_is_no_error_of_a_node(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await cluster.add("j-5", "done")
    cluster.model("j-5", **{"model.safetensors": WEIGHTS})
    send, asked = handover.send_file, []

    async def cut(request: web.Request, path: Path, *, sha256: str) -> web.StreamResponse:
        if path.name != "model.safetensors" or len(asked) == 3:
            return await send(request, path, sha256=sha256)
        asked.append(request.headers.get("Range"))
        start = int((request.headers.get("Range") or "bytes=0-")[6:-1])
        response = web.StreamResponse(status=206 if start else 200, headers={"Content-Length": str(300_000 - start)})
        await response.prepare(request)
        await response.write(WEIGHTS[start : start + 70_000])
        await asyncio.sleep(0.05)
        assert request.transport is not None
        request.transport.close()
        return response

    monkeypatch.setattr(handover, "send_file", cut)
    done = await export(cluster.client, "j-5", "latest", tmp_path, nothing)
    assert (done.path / "model.safetensors").read_bytes() == WEIGHTS
    assert asked == [None, "bytes=70000-", "bytes=140000-"]
    assert [record.getMessage() for record in caplog.records if record.exc_info] == []


async def test_the_same_command_goes_on_where_an_earlier_one_gave_up(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is shown until all of it is there and right; what a foreign hand left is not shown at all."""
    await cluster.add("j-6", "done")
    folder = cluster.model("j-6", **{"model.safetensors": WEIGHTS})
    part = tmp_path / ".j-6.part"
    part.mkdir()
    (part / "model.safetensors").write_bytes(WEIGHTS[:200_000])
    (part / "left-over").write_bytes(b"?")
    asked: list[str] = []
    send = handover.send_file

    async def noted(request: web.Request, path: Path, *, sha256: str) -> web.StreamResponse:
        asked.append(f"{path.name} {request.headers.get('Range', '')}")
        return await send(request, path, sha256=sha256)

    monkeypatch.setattr(handover, "send_file", noted)
    done = await export(cluster.client, "j-6", "latest", tmp_path, nothing)
    assert (done.path / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()
    assert asked == ["model.safetensors bytes=200000-", "training.json "]
    assert sorted(path.name for path in done.path.iterdir()) == ["model.safetensors", "training.json"]


async def test_a_beginning_that_does_not_fit_is_thrown_away_and_said_so(cluster: Cluster, tmp_path: Path) -> None:
    await cluster.add("j-7", "done")
    cluster.model("j-7", **{"model.safetensors": WEIGHTS})
    part = tmp_path / ".j-7.part"
    part.mkdir()
    (part / "model.safetensors").write_bytes(b"x" * 1000)
    with pytest.raises(PeerProtocol, match="SHA-256 differs"):
        await export(cluster.client, "j-7", "latest", tmp_path, nothing)
    assert not (tmp_path / "j-7").exists()
    done = await export(cluster.client, "j-7", "latest", tmp_path, nothing)
    assert (done.path / "model.safetensors").read_bytes() == WEIGHTS


class Liar:
    """A node that answers what it likes."""

    def __init__(self, names: list[str], content: bytes = b"", sha256: str = "") -> None:
        self.files = [
            ModelFile(name=name, sha256=sha256 or hashlib.sha256(content).hexdigest(), size_bytes=3) for name in names
        ]
        self.content = content

    async def model(self, job_id: str, version: str) -> ModelView:
        return ModelView(job_id="j-8", version=1, is_final=True, files=self.files)

    async def model_bytes(self, model: ModelView, file: ModelFile, start: int) -> AsyncIterator[bytes]:
        yield self.content


@pytest.mark.parametrize("name", ["../x", "/etc/x", "a/../../x", "", ".", "a//b", "a\\b", "a\nb", "./a"])
async def test_no_name_of_a_file_leads_out_of_the_folder(name: str, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with pytest.raises(PeerProtocol):
        await export(Liar(["ok", name]), "j-8", "latest", tmp_path / "out", nothing)  # type: ignore[arg-type]
    assert list((tmp_path / "out").iterdir()) == []
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


async def test_links_in_the_unfinished_folder_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "theirs").write_text("")
    part = tmp_path / ".j-8.part"
    part.mkdir()
    (part / "ok").symlink_to(tmp_path / "theirs")
    with pytest.raises(HyphaError, match="ok"):
        await export(Liar(["ok"], b"abc"), "j-8", "latest", tmp_path, nothing)  # type: ignore[arg-type]
    assert (tmp_path / "theirs").read_text() == ""


async def test_more_bytes_than_announced_and_too_little_room_end_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(PeerProtocol, match="more than its 3 bytes"):
        await export(Liar(["ok"], b"abcd"), "j-8", "latest", tmp_path, nothing)  # type: ignore[arg-type]
    monkeypatch.setattr(client_export.shutil, "disk_usage", lambda _: _Room())
    with pytest.raises(DiskFull):
        await export(Liar(["ok"], b"abc"), "j-8", "latest", tmp_path, nothing)  # type: ignore[arg-type]
    assert not (tmp_path / "j-8").exists()


class _Room:
    free = 0


async def test_only_an_operators_word_about_this_job_opens_a_model(
    cluster: Cluster, make_identity: MakeIdentity
) -> None:
    """U77: a certificate of the cluster is not enough, nor a signature under another command or for another job."""
    await cluster.add("j-9", "done")
    cluster.model("j-9")
    operator, member = make_identity("ada", role="operator").load(), make_identity("m").load()

    async def ask(headers: dict[str, str]) -> int:
        try:
            async with cluster.a.open(cluster.b.peer_id, "GET", "/bulk/jobs/j-9/model", headers=headers) as answer:
                return answer.status
        except Refused as error:
            return {"denied": 403, "invalid": 400}[error.code]

    assert await ask(by(operator, Export(job_id="j-9"))) == 200
    assert await ask({}) == 400
    assert await ask(by(member, Export(job_id="j-9"))) == 403
    assert await ask(by(operator, Export(job_id="j-1"))) == 403
    assert await ask(by(operator, Cancel(job_id="j-9"))) == 400
    assert await ask(by(operator, Resume(job_id="j-9"))) == 400
    run = msgspec.msgpack.encode(Export(job_id="j-9"))
    with pytest.raises(Refused, match="cannot be read"):
        await cluster.a.call(cluster.b.peer_id, RunCommand(signed=operator.sign(run)))
    assert cluster.commands == [], "and an export is no command"


def by(identity: Identity, command: Any) -> dict[str, str]:
    return {"Hypha-Command": signed(identity, command)["Hypha-Command"]}


async def test_resume_reaches_the_jobs_scheduler_signed(cluster: Cluster, make_identity: MakeIdentity) -> None:
    await cluster.add("j-1", "failed")
    await cluster.client.resume("j-1")
    assert cluster.commands == [Resume(job_id="j-1")]
    assert cluster.a.server is not None
    url = cluster.a.server.make_url("/api/v1/jobs/j-1/resume")
    operator = make_identity("ada", role="operator").load()
    async with aiohttp.ClientSession() as session:
        for headers, status in (
            ({}, 403),
            (by(operator, Cancel(job_id="j-1")), 422),
            (by(operator, Resume(job_id="j-2")), 422),
            (by(operator, Resume(job_id="j-1")), 202),
        ):
            async with session.post(url, headers=headers) as answer:
                assert answer.status == status, await answer.text()
    assert cluster.commands == [Resume(job_id="j-1")] * 2
