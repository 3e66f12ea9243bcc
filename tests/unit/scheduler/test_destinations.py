"""Where results go: a folder, a data node whose owner agrees, object storage."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from node.data.inbox import Inbox
from node.errors import JobError, PeerError, Refused
from node.jobspec import parse_job
from node.network.overlay import Overlay
from node.scheduler.checkpoints import Checkpoints
from node.scheduler.copies import Copies
from node.scheduler.destinations import DataNode, Destination, Folder, ObjectStore, destination_of
from node.scheduler.files import SchedulerFiles
from node.scheduler.messages import KeepCheckpoint
from node.scheduler.peer_folder import PeerFolder
from node.scheduler.places import fetch_checkpoint
from node.scheduler.records import JobRow
from node.scheduler.results import check_rows
from node.scheduler.wholes import Wholes
from node.tensorfile import write_tensors
from node.wire import VersionFile
from tests.support import MakeIdentity
from tests.unit.network_loopback import eventually, overlay_for


async def put(destination: Destination, name: str, content: bytes) -> None:
    incoming = destination.incoming(name)
    incoming.write_bytes(content)
    await destination.keep(incoming, name, hashlib.sha256(content).hexdigest(), len(content))


@pytest.mark.asyncio
async def test_a_folder_shows_whole_files_alone_and_the_same_name_again_replaces_it(tmp_path: Path) -> None:
    """U47, U41: what a killed process left half done is gone at the next start."""
    out = tmp_path / "deep" / "out"
    (out / ".hypha-job-1").mkdir(parents=True)
    (out / ".hypha-job-1" / "half").write_bytes(b"x")
    folder = Folder(out, "job-1")
    await folder.prepare()
    await put(folder, "a.jsonl", b"one\n")
    await put(folder, "a.jsonl", b"two\n")
    assert (out / "a.jsonl").read_bytes() == b"two\n"
    await folder.close()
    assert [path.name for path in out.iterdir()] == ["a.jsonl"]
    (tmp_path / "file").write_text("")
    with pytest.raises(JobError, match="cannot be written"):
        await Folder(tmp_path / "file", "job-1").prepare()


def test_a_job_names_its_destination_by_its_form(tmp_path: Path) -> None:
    def made(to: str) -> Destination:
        staging = tmp_path / "staging"
        overlay: Any = None
        return destination_of(to, job_id="j", own_folder=tmp_path / "own", staging=staging, overlay=overlay)

    assert isinstance(made(""), Folder) and made("").place == str(tmp_path / "own")
    assert made("/data/out").place == "/data/out"
    assert isinstance(made("peer:data-1/labels"), DataNode)
    assert isinstance(made("s3://bucket/prefix"), ObjectStore)


Pair = tuple[Overlay, Overlay, Overlay]

JOB = """
dataset = "d"
model = { type = "torch" }
rounds = { update_rounds = 4, avg_samples_between_updates = 8 }
inner_optimizer = { learning_rate = 1e-3 }
outer_optimizer = { learning_rate = 0.7, momentum = 0.9 }
"""


def row_of(job_id: str, to: str) -> JobRow:
    """A job whose checkpoints go there."""
    spec = parse_job(f'{JOB}\ncheckpoint = {{ every = 1, to = "{to}" }}')
    return JobRow(job_id, "n", msgspec.json.encode(spec).decode(), "b", "", "ada", state="failed", round=10)


@pytest_asyncio.fixture
async def nodes(make_identity: MakeIdentity, tmp_path: Path) -> AsyncIterator[Callable[..., Any]]:
    """A maker of (data node, scheduler, worker) over real TLS."""
    async with contextlib.AsyncExitStack() as stack:

        async def make(results: Path | None) -> Pair:
            data = await stack.enter_async_context(
                overlay_for(
                    make_identity("data"),
                    tmp_path / "data",
                    prepare=lambda o: Inbox(results, o) and None,
                    roles=["data"],
                )
            )
            others = [
                await stack.enter_async_context(
                    overlay_for(
                        make_identity(role), tmp_path / role, roles=[role], gateway_addresses=[data.addresses[0]]
                    )
                )
                for role in ("scheduler", "worker")
            ]
            await eventually(lambda: len(data.peers()) >= 3 and all(other.peers("data") for other in others))
            return data, others[0], others[1]

        yield make


@pytest.mark.asyncio
async def test_a_data_node_takes_results_of_schedulers_into_its_folder_and_nothing_else(
    nodes: Callable[..., Any], tmp_path: Path
) -> None:
    data, scheduler, worker = await nodes(tmp_path / "results")
    (name,) = [peer.record.name for peer in scheduler.peers("data")]
    for place in (f"peer:{name}", f"peer:{data.peer_id}/labels"):
        destination = DataNode(place, tmp_path / "staging", scheduler, "job-1")
        await destination.prepare()
        await put(destination, "a.jsonl", b"one\n")
    for folder in ("job-1", "labels"):
        assert (tmp_path / "results" / folder / "a.jsonl").read_bytes() == b"one\n"
    assert not list((tmp_path / "staging").iterdir())
    escaping = DataNode(f"peer:{name}/../../etc", tmp_path / "staging", scheduler, "job-1")
    with pytest.raises(JobError, match="takes no results"):
        await put(escaping, "b", b"x")
    incoming = destination.incoming("c")
    incoming.write_bytes(b"other")
    with pytest.raises(JobError, match="SHA-256"):
        await destination.keep(incoming, "c", hashlib.sha256(b"meant").hexdigest(), 5)
    from_worker = DataNode(f"peer:{name}", tmp_path / "staging", worker, "job-1")
    with pytest.raises(JobError, match="from schedulers alone"):
        await put(from_worker, "d", b"x")
    with pytest.raises(PeerError, match="no data node nobody"):
        await put(DataNode("peer:nobody", tmp_path / "staging", scheduler, "job-1"), "e", b"x")
    there = sorted(path.name for path in (tmp_path / "results").rglob("*") if path.is_file())
    assert there == [".owner", ".owner", "a.jsonl", "a.jsonl"]


@pytest.mark.asyncio
async def test_a_checkpoint_on_another_disk_is_a_copy_that_was_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def elsewhere(*_: object) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    async def record(_: KeepCheckpoint) -> dict[str, Any]:
        return {}

    monkeypatch.setattr("os.link", elsewhere)
    (journal := tmp_path / "journal").mkdir()
    files, told = [], []
    for version, content in ((1, b"as it was written"), (2, b"rotten")):
        (journal / f"{version}").write_bytes(content)
        digest = hashlib.sha256(b"as it was written").hexdigest()
        files.append(VersionFile(kind="weights", number=version, sha256=digest, size_bytes=len(content)))
    kept = Checkpoints(
        None, "j1", to=str(tmp_path / "kept"), keep=2, own_folder=tmp_path / "own", staging=tmp_path,
        wholes=Wholes(None, "j1", 1), here=lambda file: journal / f"{file.number}", record=record,
        tell=lambda name, text, level: told.append(name),
    )  # fmt: skip
    for file in files:
        due = KeepCheckpoint(version=file.number, peer_id="ps", files=(file,), pass_=0, committed=())
        await kept.take(due)
    assert told == ["checkpoint.kept", "checkpoint.failed"]
    made = {str(path.relative_to(tmp_path / "kept")): path.read_bytes() for path in tmp_path.glob("kept/*/*/w*")}
    assert made == {"j1/version-1/weights.safetensors": b"as it was written"}
    assert [path.name for path in (tmp_path / "kept" / "j1").iterdir()] == ["version-1"]


@pytest.mark.asyncio
async def test_checkpoints_go_to_a_data_node_old_ones_leave_and_only_their_scheduler_sees_them(
    nodes: Callable[..., Any], tmp_path: Path
) -> None:
    data, scheduler, worker = await nodes(tmp_path / "results")
    (tmp_path / "results" / "private").mkdir(parents=True)
    weights, told = tmp_path / "weights", list[str]()
    weights.write_bytes(b"w" * 5000)
    digest = hashlib.sha256(weights.read_bytes()).hexdigest()
    file = VersionFile(kind="weights", number=1, sha256=digest, size_bytes=5000)

    async def record(due: KeepCheckpoint) -> dict[str, Any]:
        files = {file.kind: {"sha256": file.sha256, "size_bytes": file.size_bytes} for file in due.files}
        return {"version": due.version, "files": files}

    place = f"peer:{data.peer_id}/runs"
    kept = Checkpoints(
        scheduler, "j1", to=place, keep=2, own_folder=tmp_path / "own", staging=tmp_path / "staging",
        wholes=Wholes(scheduler, "j1", 1), here=lambda _: weights, record=record,
        tell=lambda name, text, level: told.append(name),
    )  # fmt: skip
    for version in (1, 2, 10):
        await kept.take(KeepCheckpoint(version=version, peer_id="ps", files=(file,), pass_=0, committed=()))
    assert told == ["checkpoint.kept"] * 3
    folder = tmp_path / "results" / "runs" / "j1"
    assert sorted(path.name for path in folder.iterdir()) == [".owner", "version-10", "version-2"]
    assert (folder / "version-10" / "weights.safetensors").read_bytes() == weights.read_bytes()
    assert not list((tmp_path / "staging").iterdir())

    copies, row = Copies(scheduler, SchedulerFiles(tmp_path / "state")), row_of("j1", place)
    assert await copies.versions(row) == [2, 10]
    assert await copies.versions(row_of("j1", "")) == await copies.versions(row_of("j1", "peer:nobody")) == []
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(copies.run())
        back = await copies.copy(row, 10)
        assert (back / "weights.safetensors").read_bytes() == weights.read_bytes()
        with pytest.raises(Refused, match="version 3 cannot be had"):
            await copies.copy(row, 3)
        running.cancel()
    assert list((tmp_path / "state").rglob("*.part")) == []
    with pytest.raises(Refused, match="no folder"):
        await PeerFolder(scheduler, f"peer:{data.peer_id}").entries("private", is_deep=True)
    mine = PeerFolder(scheduler, place)
    with pytest.raises(Refused, match="from schedulers alone"):
        await PeerFolder(worker, place).delete(["j1/version-2/checkpoint.json"])
    (folder / "version-2" / ".owner").write_text("another")
    with pytest.raises(Refused, match="no folder"):
        await fetch_checkpoint(mine, "j1", 2, tmp_path / "again")


@pytest.mark.asyncio
async def test_a_data_node_takes_no_results_unless_its_owner_says_where(
    nodes: Callable[..., Any], tmp_path: Path
) -> None:
    data, scheduler, _ = await nodes(None)
    destination = DataNode(f"peer:{data.peer_id}", tmp_path / "staging", scheduler, "job-1")
    await destination.prepare()
    with pytest.raises(JobError) as error:
        await put(destination, "a.jsonl", b"one\n")
    assert "takes no results" in error.value.message and error.value.hint == "its owner sets results_path"


@pytest.mark.asyncio
async def test_object_storage_needs_obstore(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = ObjectStore("s3://bucket/out", tmp_path / "staging")
    monkeypatch.setitem(sys.modules, "obstore", None)
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    with pytest.raises(JobError) as missing:
        await store.prepare()
    assert "hypha-tui[s3]" in missing.value.hint


def test_a_result_has_just_as_many_rows_as_its_slice(tmp_path: Path) -> None:
    lines, tensors = tmp_path / "a.jsonl", tmp_path / "a.safetensors"
    lines.write_bytes(b"{}\n{}\n")
    check_rows(lines, 2)
    write_tensors(tensors, {"logits": ("F32", (3, 2), bytes(24))})
    check_rows(tensors, 3)
    for path, rows in ((lines, 3), (tensors, 2)):
        with pytest.raises(Refused, match="rows"):
            check_rows(path, rows)
    lines.write_bytes(b"{}\n{}")
    with pytest.raises(Refused, match="None rows"):
        check_rows(lines, 2)
    tensors.write_bytes(b"nonsense")
    with pytest.raises(Refused):
        check_rows(tensors, 3)
