"""`hypha-tui demo`, as `make demo` runs it: it trains, it ends, and it cleans up however it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hypha_tui import local_cluster
from hypha_tui.demo import DATASET_FLAGS
from hypha_tui.local_cluster import command
from tests.integration.support import processes_naming, until
from tests.integration.test_main_job import loss_of

DEMO = [sys.executable, "-m", "hypha_tui.cli", "demo", "--headless"]


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """The demo with its temporary files and its model below `folder`."""
    return subprocess.Popen(
        [*DEMO, *arguments, "--out", str(folder / "out")],
        env={**os.environ, "TMPDIR": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@pytest.mark.timeout(240)
def test_the_demo_trains_a_model_that_loads_and_gives_its_loss_again(tmp_path: Path) -> None:
    demo = start(tmp_path, "--json", "--rounds", "4")
    out, err = demo.communicate(timeout=200)
    assert demo.returncode == 0, err
    summary = json.loads(out)
    assert summary["workers"] == 2
    assert summary["rounds"] == 4
    assert summary["samples"] >= 4 * 960
    assert summary["bytes_sent"] > 2 * 4 * 2 * 1_000_000
    assert summary["last_eval_loss"] <= 0.8 * summary["first_eval_loss"]
    assert processes_naming(str(tmp_path)) == []
    assert [path.name for path in tmp_path.iterdir()] == ["out"]

    dataset = tmp_path / "again" / "stdlib"
    command("dataset", "build", sysconfig.get_paths()["stdlib"], "--out", str(dataset), *DATASET_FLAGS)
    validation = dataset.with_name("stdlib-validation")
    assert loss_of(Path(summary["model_dir"]), validation) == pytest.approx(summary["last_eval_loss"], abs=1e-3)


@pytest.mark.parametrize("after_s", [0.3, 1.5, 4.0, 9.0])
def test_a_demo_interrupted_at_any_moment_leaves_nothing(after_s: float, tmp_path: Path) -> None:
    demo = start(tmp_path)
    time.sleep(after_s)
    demo.send_signal(signal.SIGINT)
    _, err = demo.communicate(timeout=15)
    assert demo.returncode == 130, err
    assert "Traceback" not in err
    assert processes_naming(str(tmp_path)) == []
    assert list(tmp_path.iterdir()) == []


def test_a_second_signal_does_not_cut_the_end_short(tmp_path: Path) -> None:
    """A shell passes on the SIGHUP of a terminal that the kernel has told of, too."""
    demo = start(tmp_path)
    until(lambda: list(tmp_path.glob("hypha-demo-*/worker-1/state")), within_s=60, what="a worker starts")
    for signal_ in (signal.SIGHUP, signal.SIGHUP, signal.SIGTERM):
        demo.send_signal(signal_)
        time.sleep(0.2)
    _, err = demo.communicate(timeout=15)
    assert demo.returncode == 130, err
    assert processes_naming(str(tmp_path)) == []
    assert list(tmp_path.iterdir()) == []


def test_a_killed_demo_takes_its_nodes_along() -> None:
    # a folder of its own, so short that the nodes' sockets lie in it: nobody cleans up after a killed demo
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        demo = start(Path(folder))
        until(lambda: len(processes_naming(f"{folder}/hypha-demo-")) >= 5, within_s=20, what="the nodes run")
        demo.kill()
        demo.communicate(timeout=10)
        until(lambda: not processes_naming(folder), within_s=5, what="the nodes end")


def test_a_command_that_is_interrupted_has_ended_when_the_interrupt_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it and its processes still write would otherwise come after the demo has removed its folder."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    monkeypatch.setattr(local_cluster, "NODE", [sys.executable, str(program)])

    def interrupt() -> None:
        while not (tmp_path / "begun").exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    with ThreadPoolExecutor() as pool, pytest.raises(KeyboardInterrupt):
        pool.submit(interrupt)
        command(str(tmp_path))
    assert (tmp_path / "ended").exists()


PROGRAM = """
import pathlib, sys, time

folder = pathlib.Path(sys.argv[1])
try:
    (folder / "begun").touch()
    time.sleep(60)
except KeyboardInterrupt:
    time.sleep(0.6)
    (folder / "ended").touch()
"""
