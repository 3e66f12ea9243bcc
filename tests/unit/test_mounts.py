"""Folders of a worker's machine: what a job may ask for, what its owner gives, and that read-only is read-only."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from node.config import FetchConfig, MountConfig, NodeConfig, load
from node.errors import ConfigError, Refused
from node.jobdocument import document_of, settings_of
from node.jobspec import JobSpec, job_from, parse_job
from node.mounts import objection
from node.scheduler.dispatches import train_dispatch
from node.scheduler.group import Task
from node.scheduler.inference_order import infer_dispatch, inference_order
from node.scheduler.order import AGGREGATE, TRAIN, order_of_spec
from node.schema import Origin
from node.views import PeerView
from node.wire import Advertisement, BindMount, ExecutorKind, Mountable, Resources
from node.worker import mounts as looking
from node.worker.arbiter import WINDOW_S, Arbiter, Terms
from node.worker.environment import environment
from node.worker.logfile import LogFile, tail
from node.worker.mounts import Mounts
from node.worker.process import ExecutorProcess
from node.worker.sandbox import Mount, Sandbox, find_sandbox
from tests.support import MakeIdentity
from tests.terminal.feed import WHOLE_JOB
from tests.unit.network_loopback import eventually
from tests.unit.worker_cluster import cluster

DATA = BindMount(host_path="/mnt/data", container_path="/mnt/data")
TORCH = WHOLE_JOB.replace('type = "causal-lm"', 'type = "torch"')
SANDBOXED = Sandbox("sandboxed")
NO_BUBBLEWRAP = "bwrap is not installed"


def job(*lines: str, text: str = TORCH) -> JobSpec:
    """A job with one table of `bind_mounts` for each group of lines."""
    return parse_job(text + "".join(f"[[bind_mounts]]\n{line}\n" for line in lines))


def config(tmp_path: Path, *allowed: tuple[Path, bool]) -> NodeConfig:
    """A worker whose owner allows these (path, read-only)."""
    mounts = [MountConfig(path=path, read_only=read_only) for path, read_only in allowed]
    return NodeConfig(state_dir=tmp_path / "state", key_pem=tmp_path / "keys" / "key.pem", mounts=mounts)


def asked(path: Path | str, *, at: str = "", read_only: bool = True) -> BindMount:
    return BindMount(host_path=str(path), container_path=at or str(path), read_only=read_only)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a file, as an owner would allow it."""
    made = tmp_path / "data"
    made.mkdir()
    (made / "rows.csv").write_text("1,2\n")
    return made


# ---- what a job asks for ----------------------------------------------------------------------------


def test_a_mount_is_read_only_and_seen_where_it_lies_unless_the_job_says_otherwise() -> None:
    spec = job('host_path = "/mnt/data/"', 'host-path = "/nfs/x"\ncontainer-path = "/y"\nread-only = false')
    assert spec.bind_mounts == [DATA, BindMount(host_path="/nfs/x", container_path="/y", read_only=False)]
    assert document_of(spec)["bind_mounts"][0] == {"host_path": "/mnt/data"}
    assert job_from(document_of(spec), Origin("again")) == spec
    assert settings_of(spec)["bind_mounts"] == ["/mnt/data", "/nfs/x as /y, writable"]


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ('host_path = "data"', "'data' is not an absolute path"),
        ('host_path = "/mnt/../etc"', "without '..'"),
        ('host_path = "/"', "/ cannot be mounted"),
        ('host_path = "/proc/1"', "/proc/1 cannot be mounted"),
        ('host_path = "/a\\nb"', "is no path"),
        ('host_path = "/mnt/data"\ncontainer_path = "data"', r"container_path: 'data' is not an absolute path"),
        ('host_path = "/mnt/data"\ncontainer_path = "/usr/lib"', "/usr/lib belongs to the system"),
        ('hostpath = "/mnt/data"', "did you mean host_path"),
    ],
)
def test_a_path_that_cannot_be_mounted_is_named_with_its_key(lines: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as told:
        job(lines)
    assert "bind_mounts[0]" in str(told.value)


def test_mounts_that_cannot_be_are_refused_with_the_job() -> None:
    with pytest.raises(ConfigError, match="two mounts are seen at /x"):
        job('host_path = "/a"\ncontainer_path = "/x"', 'host_path = "/b"\ncontainer_path = "/x"')
    with pytest.raises(ConfigError, match="container_path: is another path than host_path"):
        job('host_path = "/a"\ncontainer_path = "/x"', text=WHOLE_JOB)
    assert job('host_path = "/a"', text=WHOLE_JOB).bind_mounts == [asked("/a")]


def test_every_task_of_a_job_is_advertised_and_dispatched_with_its_mounts() -> None:
    spec = job('host_path = "/mnt/data"')
    order = order_of_spec("j", spec, "")
    assert order.needs[TRAIN].mounts == order.needs[AGGREGATE].mounts == (DATA,)
    task = Task("j.0.1", TRAIN, "peer", "lease", epoch=0, since_round=0)
    assert train_dispatch(order, task, "server", evaluate=False).mounts == [DATA]
    text = 'type = "inference"\ndataset = "d"\nmodel = { type = "torch" }\noutput = { kind = "classes" }\n'
    inference = inference_order("j", job('host_path = "/mnt/data"', text=text), "")
    assert infer_dispatch(inference, replace(task, role="inference")).mounts == [DATA]


# ---- what an owner gives ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "reason"),
    [
        (DATA, ""),
        (asked("/mnt/data/images"), ""),
        (asked("/mnt/database"), "no mount /mnt/database"),
        (asked("/mnt"), "no mount /mnt"),
        (asked("/mnt/data/../x"), "no mount /mnt/data/../x"),
        (asked("/mnt/data", read_only=False), "no writable mount /mnt/data"),
        (asked("/mnt/data/scratch/me", read_only=False), ""),
    ],
)
def test_a_worker_declines_what_its_owner_does_not_list(wanted: BindMount, reason: str) -> None:
    allowed = [Mountable(path="/mnt/data"), Mountable(path="/mnt/data/scratch", read_only=False)]
    assert objection([wanted], allowed) == reason
    advert = Advertisement(
        peer_id="s",
        seq=1,
        advert_id="a",
        job_id="j",
        executor=ExecutorKind(class_="train"),
        resources=Resources(cpu=1),
        bid=1.0,
        count=1,
        ttl_s=5.0,
        mounts=[wanted],
    )
    arbiter = Arbiter("me", [advert.executor], Terms(), unmountable=lambda some: objection(some, allowed))
    arbiter.hear(advert, 0.0)
    (answer,) = arbiter.decide(Resources(cpu=1), Resources(cpu=1), WINDOW_S)
    assert answer.reason == reason
    assert (answer.resources is None) is bool(reason)


def test_an_owners_list_is_read_from_the_file_with_its_folder_as_base(tmp_path: Path) -> None:
    path = tmp_path / "node.toml"
    path.write_text('[[mounts]]\npath = "data"\n[[mounts]]\npath = "/scratch"\nread_only = false\n')
    found = load(path, env={"XDG_STATE_HOME": "/s"}).config.mounts
    assert found == [MountConfig(path=tmp_path / "data"), MountConfig(path=Path("/scratch"), read_only=False)]


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ('path = "/s"', "/s and /s/hypha lie in one another"),
        ('path = "/s/hypha/work/x"', "lie in one another"),
        ('path = "/w"\nread_only = false\n[[mounts]]\npath = "/w/keep"', "jobs may write to /w/keep, as part of /w"),
        ('path = "/w"\n[[mounts]]\npath = "/w"', "/w is listed twice"),
        ('path = "/"', "/ cannot be mounted"),
    ],
)
def test_a_list_that_gives_away_the_nodes_own_files_or_contradicts_itself_is_refused(
    tmp_path: Path, lines: str, said: str
) -> None:
    path = tmp_path / "node.toml"
    path.write_text(f"[[mounts]]\n{lines}\n")
    with pytest.raises(ConfigError, match=said):
        load(path, env={"XDG_STATE_HOME": "/s"})


def test_what_cannot_be_made_read_only_is_not_given(tmp_path: Path) -> None:
    """Where bubblewrap does not work; and a path of the job's choice is there in a sandbox alone."""
    own = config(tmp_path, (Path("/mnt/data"), True), (Path("/scratch"), False))
    bare = Mounts(own, Sandbox("allow", problem=NO_BUBBLEWRAP))
    assert bare.objection([DATA]) == f"no mount /mnt/data: nothing can be made read-only here: {NO_BUBBLEWRAP}"
    assert "read-only" in bare.objection([asked("/scratch")])
    assert bare.objection([asked("/scratch", read_only=False)]) == ""
    assert bare.given == [Mountable(path="/scratch", read_only=False)]
    unconfined = Mounts(own, Sandbox("allow"))
    assert unconfined.objection([DATA]) == ""
    assert unconfined.objection([asked("/mnt/data", at="/d")]) == "no mount /mnt/data as /d: there is no sandbox here"
    confined = Mounts(own, SANDBOXED)
    assert confined.objection([asked("/mnt/data", at="/d")]) == ""
    for place in (Path(sys.prefix).parent, Path(sys.prefix) / "lib"):
        assert "programs of this node lie there" in confined.objection([asked("/mnt/data", at=str(place))])


# ---- what a path leads to ---------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_links_do_not_lead_out_of_what_is_allowed(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "secret").mkdir()
    (folder / "out").symlink_to(tmp_path / "secret")
    (folder / "same").symlink_to(folder / "rows.csv")
    os.mkfifo(folder / "pipe")
    (tmp_path / "nfs").symlink_to(tmp_path)
    mounts = Mounts(config(tmp_path, (folder, True), (tmp_path / "nfs", True)), SANDBOXED)
    found = await mounts.find([asked(folder / "same", at=at) for at in ("/d", "/e")])
    status = (folder / "rows.csv").stat()
    assert found == [Mount(str(folder / "rows.csv"), at, True, status.st_dev, status.st_ino) for at in ("/d", "/e")]
    for path, said in (
        (folder / "out", "a link leads out of"),
        (folder / "gone", "no such file"),
        (folder / "pipe", "neither a folder nor a file"),
        (tmp_path / "nfs", "holds files of this node"),
        (tmp_path / "nfs" / "state", "holds files of this node"),
    ):
        with pytest.raises(Refused, match=said):
            await mounts.find([asked(path)])


@pytest.mark.asyncio
async def test_a_file_server_that_is_gone_holds_up_one_thread_and_nobody_else(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NFS: a look at a path may take for ever."""
    back = threading.Event()
    monkeypatch.setattr(looking, "LOOK_S", 0.05)
    monkeypatch.setattr(looking.os, "access", lambda *_: back.wait(10))
    mounts = Mounts(config(tmp_path, (folder, True)), SANDBOXED)
    for _ in range(2):
        with pytest.raises(Refused, match="it does not answer") as told:
            await mounts.find([asked(folder)])
        assert told.value.code == "denied"
    back.set()
    await eventually(lambda: all(look.done() for look in mounts._silent.values()))
    assert await asyncio.gather(*(mounts.find([asked(folder)]) for _ in range(3)))
    assert not mounts._silent


# ---- what a task sees -------------------------------------------------------------------------------


async def outcome(command: list[str], work_dir: Path) -> tuple[int, list[str]]:
    """Exit code and output of a command, started as executors are."""
    work_dir.mkdir(exist_ok=True)
    variables = environment("t1", work_dir, Resources(cpu=1), sys.executable)
    process = await ExecutorProcess.start(command, variables, work_dir)
    log = work_dir.with_name("log")
    with LogFile(log) as output:
        await process.drain(output)
    code = await process.wait()
    await process.stop()
    return code, tail(log, 20)


@pytest.mark.asyncio
@pytest.mark.parametrize("policy", ["sandboxed", "allow"])
async def test_read_only_really_is_and_writable_is_where_the_owner_allows_it(
    tmp_path: Path, folder: Path, policy: str
) -> None:
    """Behind bubblewrap, for code that is confined and for code that is not."""
    sandbox = await find_sandbox(policy, mounts=True)
    if sandbox.problem:
        pytest.skip(sandbox.problem)
    scratch, work_dir = tmp_path / "scratch", tmp_path / "hypha-t1"
    scratch.mkdir()
    (folder / "deep").mkdir()
    at = "/seen/here" if policy == "sandboxed" else str(folder)
    mounts = Mounts(config(tmp_path, (folder, True), (scratch, False)), sandbox)
    found = await mounts.find([asked(scratch, read_only=False), asked(folder, at=at)])
    code = f"""
import os
print(open({at + "/rows.csv"!r}).read().strip())
for path in ({at + "/rows.csv"!r}, {at + "/new"!r}, {at + "/deep/new"!r}):
    try: open(path, "a").write("x"); print("written")
    except OSError as error: print(error.strerror)
open({str(scratch / "made")!r}, "w").write("x")
print(os.path.exists({str(folder)!r}), os.getcwd() == {str(work_dir)!r})
print("alone", sum(name.isdigit() for name in os.listdir("/proc")) < 4)
"""
    command = sandbox.wrap([sys.executable, "-c", code], work_dir, None, [tmp_path / "state"], found)
    ended, lines = await outcome(command, work_dir)
    assert lines == ["1,2", *["Read-only file system"] * 3, f"{policy == 'allow'} True", "alone True"]
    assert ended == 0
    assert (folder / "rows.csv").read_text() == "1,2\n"
    assert sorted(path.name for path in folder.iterdir()) == ["deep", "rows.csv"]
    assert (scratch / "made").exists()


@pytest.mark.asyncio
async def test_a_mount_that_was_replaced_meanwhile_ends_the_task_before_its_code_runs(
    tmp_path: Path, folder: Path
) -> None:
    """Another task may put a link in the place of a folder that was looked at."""
    sandbox = await find_sandbox(None)
    if sandbox.problem:
        pytest.skip(sandbox.problem)
    (found,) = await Mounts(config(tmp_path, (tmp_path / "data", True)), sandbox).find([asked(folder)])
    (tmp_path / "secret").mkdir()
    folder.rename(tmp_path / "before")
    folder.symlink_to(tmp_path / "secret")
    command = sandbox.wrap([sys.executable, "-c", "print('ran')"], tmp_path / "hypha-t1", None, [], [found])
    code, lines = await outcome(command, tmp_path / "hypha-t1")
    assert (code, lines) == (126, [f"{folder} was replaced while the task started"])


def test_tasks_without_read_only_mounts_start_as_ever() -> None:
    writable = Mount("/s", "/s", False, 1, 2)
    assert Sandbox("allow").wrap(["x"], Path("/w"), None, [], [writable]) == ["x"]
    assert Sandbox("refuse").view(["x"], Path("/w"), []) == ["x"]


@pytest.mark.asyncio
async def test_a_worker_says_what_it_gives_declines_the_rest_and_refuses_what_is_gone(
    make_identity: MakeIdentity, tmp_path: Path, folder: Path
) -> None:
    if shutil.which("bwrap") is None:
        pytest.skip(NO_BUBBLEWRAP)
    listed: dict[str, Any] = {"mounts": [MountConfig(path=folder)], "job_code": "allow"}
    listed["fetch"] = FetchConfig(stores=["s3://bucket/sets"])
    async with cluster(make_identity, tmp_path, "sleep", **listed) as (scheduler, worker):
        (shown,) = [view for view in worker.board.items() if view.id == worker.peer_id]
        assert isinstance(shown, PeerView) and shown.mounts == [Mountable(path=str(folder))]
        assert shown.stores == ["s3://bucket/sets"]
        await scheduler.advertise(mounts=[DATA])
        await eventually(lambda: scheduler.declines == ["no mount /mnt/data"])
        lease = await scheduler.lease(worker.peer_id, mounts=[asked(folder)])
        assert scheduler.offers[-1].heeds == ["mounts", "stores"]
        folder.rename(tmp_path / "elsewhere")
        with pytest.raises(Refused, match="no such file"):
            await scheduler.train(worker.peer_id, lease, mounts=[asked(folder)])
        (tmp_path / "elsewhere").rename(folder)
        await scheduler.train(worker.peer_id, lease, mounts=[asked(folder)])
        await eventually(lambda: "running" in scheduler.states("t1"))
