"""Executor processes: their launcher, their end, their log, their sandbox, and what a dead node leaves."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from node.errors import Refused
from node.socketfolder import socket_path_fits
from node.wire import Resources
from node.worker import orphans
from node.worker.environment import arguments, environment
from node.worker.logfile import LogFile, tail
from node.worker.orphans import ExecutorRow
from node.worker.process import ExecutorProcess
from node.worker.sandbox import Sandbox, find_sandbox
from node.worker.sockets import Sockets
from tests.unit.test_worker_service import is_alive

SLEEPER = "import subprocess,time,os; p = subprocess.Popen(['sleep', '600']); print(p.pid, flush=True); time.sleep(600)"
PARENT = """
import asyncio, sys
from pathlib import Path
from node.worker.process import ExecutorProcess
async def main():
    process = await ExecutorProcess.start([sys.executable, "-c", sys.argv[1]], {"PATH": "/bin:/usr/bin"}, Path("/"))
    print(process.pid, flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""


def wait_for(holds: object, within_s: float = 5.0) -> bool:
    """Whether a condition comes true in time."""
    ends = time.monotonic() + within_s
    while time.monotonic() < ends:
        if holds():  # type: ignore[operator]
            return True
        time.sleep(0.01)
    return False


def row(pid: int, work_dir: Path, **more: object) -> ExecutorRow:
    fields: dict[str, object] = {
        "task_id": "t1",
        "pid": pid,
        "start_ticks": orphans.start_ticks(pid),
        "boot_id": orphans.boot_id(),
        "work_dir": str(work_dir),
        "socket_path": str(work_dir.parent / "socks" / "1.sock"),
    }
    return ExecutorRow(**(fields | more))  # type: ignore[arg-type]


@pytest.fixture
def leader(tmp_path: Path):  # type: ignore[no-untyped-def]
    """An executor in its own session, with a child, that nobody watches; and the child's id."""
    process = subprocess.Popen(
        [sys.executable, "-c", SLEEPER], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    child = int(process.stdout.readline())
    yield process, child
    process.kill()
    process.wait()
    process.stdout.close()
    if is_alive(child):
        os.kill(child, signal.SIGKILL)


def test_an_executor_dies_with_a_node_that_is_killed() -> None:
    """H33, U72: no trainer is left when its node gets SIGKILL."""
    code = "import time; time.sleep(600)"
    node = subprocess.Popen([sys.executable, "-c", PARENT, code], stdout=subprocess.PIPE, text=True)
    assert node.stdout is not None
    pid = int(node.stdout.readline())
    assert is_alive(pid)
    node.kill()
    node.wait()
    node.stdout.close()
    assert wait_for(lambda: not is_alive(pid))


def test_the_launcher_gives_up_where_its_parent_is_gone_already() -> None:
    launcher = [sys.executable, "-I", "-S", str(Path(orphans.__file__).with_name("launcher.py"))]
    done = subprocess.run([*launcher, "1", "true"], check=False)
    assert done.returncode == -signal.SIGKILL


@pytest.mark.asyncio
async def test_a_command_that_does_not_exist_says_so_in_its_log(tmp_path: Path) -> None:
    process = await ExecutorProcess.start(["no-such-program"], {"PATH": "/bin"}, tmp_path)
    with LogFile(tmp_path / "log") as output:
        await process.drain(output)
    assert await process.wait() == 127
    assert tail(tmp_path / "log", 5) == ["cannot start no-such-program: No such file or directory"]
    await process.stop()


@pytest.mark.asyncio
async def test_stopping_asks_first_and_gives_time(tmp_path: Path) -> None:
    code = "import signal,sys,time; signal.signal(15, lambda *_: sys.exit(7)); print('up', flush=True); time.sleep(60)"
    process = await ExecutorProcess.start([sys.executable, "-c", code], {"PATH": "/bin"}, tmp_path)
    with LogFile(tmp_path / "log") as output:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(process.drain(output))
            while not tail(tmp_path / "log", 1):
                await asyncio.sleep(0.01)
            await process.stop()
    assert await process.wait() == 7


def test_the_next_start_sweeps_what_a_dead_node_left(leader: tuple[subprocess.Popen[str], int], tmp_path: Path) -> None:
    """H33, U41: processes, socket and work directory go without a manual step."""
    process, child = leader
    work_dir, sockets = tmp_path / "hypha-t1", tmp_path / "socks"
    work_dir.mkdir()
    sockets.mkdir()
    (sockets / "1.sock").touch()
    assert orphans.sweep(row(process.pid, work_dir))
    assert process.wait() == -signal.SIGKILL
    assert wait_for(lambda: not is_alive(child))
    assert not work_dir.exists()
    assert not sockets.exists()


def test_children_of_a_leader_that_is_gone_are_swept_too(
    leader: tuple[subprocess.Popen[str], int], tmp_path: Path
) -> None:
    """U72: what an executor started does not hold memory for days."""
    process, child = leader
    found = row(process.pid, tmp_path / "hypha-t1")
    process.kill()
    process.wait()
    assert is_alive(child)
    assert orphans.sweep(found)
    assert wait_for(lambda: not is_alive(child))


@pytest.mark.parametrize("change", [{"start_ticks": 12345}, {"boot_id": "another boot"}, {"boot_id": ""}, {"pid": 0}])
def test_a_process_that_is_not_surely_ours_is_left_alone(
    leader: tuple[subprocess.Popen[str], int], tmp_path: Path, change: dict[str, object]
) -> None:
    process, child = leader
    assert not orphans.sweep(row(**({"pid": process.pid, "work_dir": tmp_path / "hypha-t1"} | change)))  # type: ignore[arg-type]
    assert process.poll() is None
    assert is_alive(child)


def test_only_a_task_s_directory_is_ever_removed(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    orphans.sweep(row(0, precious))
    assert precious.is_dir()


def test_the_last_five_failed_directories_are_kept(tmp_path: Path) -> None:
    """H35: a retention rule, and no more."""
    for number in range(8):
        path = tmp_path / f"failed-t{number}"
        path.mkdir()
        os.utime(path, (number, number))
    orphans.prune(tmp_path, tmp_path / "logs")
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"failed-t{number}" for number in range(3, 8)]


def test_a_log_is_bounded_and_its_tail_spans_the_rotation(tmp_path: Path) -> None:
    path = tmp_path / "t.log"
    with LogFile(path, rotate_at_bytes=1000) as log:
        for number in range(500):
            log.write(b"line %d\n" % number)
            assert tail(path, 3)[-1] == f"line {number}"
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) <= 2000
    assert tail(path, 50) == [f"line {number}" for number in range(450, 500)]


def test_progress_bars_and_endless_lines_do_not_fill_a_tail(tmp_path: Path) -> None:
    path = tmp_path / "t.log"
    path.write_bytes(b"1%\r50%\r100%\nx" + b"y" * 100_000 + b"\n\xff\r\n")
    lines = tail(path, 10)
    assert lines[0] == "100%"
    assert len(lines[1]) == 2000
    assert tail(tmp_path / "none.log", 10) == []


def test_sockets_lie_at_a_short_private_path_that_every_life_of_a_node_shares(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H34, U65: a long state directory. U42: another user's folder at that place is not used."""
    state_dir = tmp_path / ("x" * 100) / ("y" * 100)
    runtime = Path(tempfile.mkdtemp(dir="/tmp"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    try:
        first = Sockets(state_dir)
        path = first.next()
        path.touch()
        assert socket_path_fits(path)
        assert Sockets(state_dir).next() == path
        assert not path.exists()
        first.close()
        path.parent.mkdir(mode=0o755)
        other = Sockets(state_dir)
        assert other.next().parent != path.parent
        other.close()
        assert [found.name for found in runtime.iterdir()] == [path.parent.name]
        long_base = runtime / ("z" * 90)
        long_base.mkdir()
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(long_base))
        short = Sockets(state_dir)
        assert short.next().parent.parent == Path("/tmp")
        short.close()
    finally:
        shutil.rmtree(runtime)


def test_an_environment_is_an_allow_list() -> None:
    """H32."""
    own = {"PATH": "/bin", "HF_TOKEN": "x", "AWS_SECRET_ACCESS_KEY": "y", "HYPHA_KEY": "z", "HOME": "/home/me"}
    made = environment("t1", Path("/w"), Resources(cpu=2.7), "uv", own)
    assert not {"HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "HYPHA_KEY", "PYTHONPATH"} & made.keys()
    assert made["OMP_NUM_THREADS"] == "2"
    assert made["TMPDIR"] == "/w/tmp"


def test_placeholders_are_filled_in_once() -> None:
    made = arguments(["--job={JOB_JSON}", "{SOCKET_PATH}"], Path("/s"), Path("/w"), '{"x": "{WORK_DIR}"}')
    assert made == ['--job={"x": "{WORK_DIR}"}', "/s"]
    with pytest.raises(Refused):
        arguments(["{JOB_JSON}"], Path("/s"), Path("/w"), "x" * 200_000)


@pytest.mark.asyncio
async def test_a_refusal_to_run_job_code_is_clear() -> None:
    sandbox = await find_sandbox("refuse")
    with pytest.raises(Refused, match="runs no code that comes with a job"):
        sandbox.wrap(["x"], Path("/w"), None, [])
    assert Sandbox("allow").wrap(["x"], Path("/w"), None, []) == ["x"]


@pytest.mark.asyncio
async def test_without_bubblewrap_job_code_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    sandbox = await find_sandbox(None)
    assert sandbox.policy == "refuse"
    assert "bwrap is not installed" in sandbox.reason


@pytest.mark.asyncio
async def test_job_code_in_the_sandbox_sees_no_key_no_network_and_no_other_process(tmp_path: Path) -> None:
    sandbox = await find_sandbox("sandboxed")
    if sandbox.policy != "sandboxed":
        pytest.skip(sandbox.reason)
    work_dir, keys = tmp_path / "hypha-t1", tmp_path / "keys"
    for path in (work_dir, keys):
        path.mkdir()
    (keys / "key.pem").write_text("secret")
    code = f"""
import os, socket
print("keys", os.path.exists({str(keys)!r}), os.path.exists("/etc/shadow"), os.path.exists("/root/.ssh"))
try:
    socket.create_connection(("127.0.0.1", 22), 1); print("network yes")
except OSError: print("network no")
print("processes", len([p for p in os.listdir("/proc") if p.isdigit()]))
status = open("/proc/self/status").read()
print("powers", {{line.split()[1] for line in status.splitlines() if line.startswith(("CapEff", "CapPrm"))}})
import node.wire
open("made", "w").write("x")
try: open(node.wire.__file__, "a")
except OSError: print("read-only")
"""
    command = sandbox.wrap([sys.executable, "-c", code], work_dir, None, [keys])
    variables = environment("t1", work_dir, Resources(cpu=1), sys.executable)
    process = await ExecutorProcess.start(command, variables, work_dir)
    with LogFile(tmp_path / "log") as output:
        await process.drain(output)
    assert await process.wait() == 0, tail(tmp_path / "log", 20)
    lines = tail(tmp_path / "log", 20)
    assert lines[:2] == ["keys False False False", "network no"]
    assert int(lines[2].split()[1]) <= 2
    assert lines[3] == "powers {'0000000000000000'}"
    assert lines[4] == "read-only"
    assert (work_dir / "made").exists()
    await process.stop()


@pytest.mark.asyncio
async def test_hidden_files_inside_a_shown_folder_stay_hidden(tmp_path: Path) -> None:
    command = Sandbox("sandboxed").wrap(["x"], tmp_path, None, [Path(sys.prefix), Path("/usr/nothing-here")])
    assert command[command.index(str(Path("/usr/nothing-here"))) - 1] == "/dev/null"
    last = len(command) - 1 - command[::-1].index(sys.prefix)
    assert command[last - 1] == "--tmpfs"
