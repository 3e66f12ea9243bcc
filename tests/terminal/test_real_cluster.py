"""The terminal as an operator uses it: on a real terminal, connected to real nodes."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hypha_tui.local_cluster import LocalCluster, LocalNode, command
from tests.integration.support import (
    WORKER,
    dataset,
    job_folder,
    processes_naming,
    small_cluster,
    submit,
    tui,
    until,
)
from tests.terminal.tmux import HAS_TMUX, shown

pytestmark = pytest.mark.skipif(not HAS_TMUX, reason="tmux is not installed")
SCRIPTED = Path(__file__).parents[1] / "unit" / "scripted_executor.py"
SLEEPER = f"""
[[executors]]
class = "train"
name = "diloco-transformer"
runtime = "process"
cmd = "{sys.executable}"
args = ["{SCRIPTED}", "--mode", "sleep", "--socket", "{{SOCKET_PATH}}",
    "--work-dir", "{{WORK_DIR}}", "--job", "{{JOB_JSON}}"]
[[executors]]
class = "aggregate"
name = "parameter-server"
runtime = "parameter-server"
"""


def held(node: LocalNode) -> list[dict[str, Any]]:
    """Leases that are held: two by the job that runs, and the parameter server of the one that waits."""
    return [lease for lease in tui(node, "leases") if lease["state"] == "held"]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Nodes of every role, one job that runs and one that waits for more than there is."""
    folder = tmp_path_factory.mktemp("real")
    with LocalCluster(folder / "cluster") as made:
        small_cluster(made, workers=0, data=[dataset(folder)])
        command("cert", "node", "worker-1", "--dir", str(made.certificates), "--org", "demo")
        gateways = [made.nodes["gateway"].address]
        config = WORKER.format(work=made.folder / "worker-1" / "work", cpu=2) + SLEEPER
        made.start("worker-1", "worker", config=config, gateways=gateways)
        scheduler = made.nodes["scheduler"]
        submit(scheduler, job_folder(folder / "holds", name="holds", workers=1))
        submit(scheduler, job_folder(folder / "waits", name="waits", gpu=10))
        until(lambda: len(held(scheduler)) == 3, within_s=10, what="the leases are held")
        yield made
    assert processes_naming(str(folder)) == []


def over_tls(cluster: LocalCluster) -> list[str]:
    """Flags of an operator who connects to the gateway."""
    return ["--node", cluster.nodes["gateway"].address, *cluster.certificate_flags()]


@pytest.mark.parametrize("size", [(80, 24), (120, 40)], ids=["80x24", "120x40"])
def test_every_screen_shows_the_cluster(cluster: LocalCluster, size: tuple[int, int]) -> None:
    with shown(*over_tls(cluster), size=size) as terminal:
        overview = terminal.wait("live", "1/1", "holds", "waits", "held 3", "worker-1")
        assert "Transfers" in overview and "Events" in overview
        terminal.press("2")
        peers = terminal.wait("[2 Peers]", "gateway", "scheduler", "data", "worker-1")
        assert peers.count(" up ") >= 4
        terminal.press("3")
        leases = terminal.wait("[3 Leases]", "REMAINING", "● held", "━")
        lines = [line for line in leases.splitlines() if "● held" in line and "worker-1" in line]
        assert len([line for line in lines if "holds" in line]) == 2
        terminal.press("4")
        terminal.wait("tiny", "256", "holds", "available 256")
        terminal.press("j")  # 4, 5 and G one upon the other would be a number
        terminal.press("5")
        terminal.wait("[5 Jobs]", "holds", "waits")
        terminal.press("G")
        jobs = terminal.wait("because", "0 of 2", "1 worker refused: gpu 0 < 10")
        assert "12D3Koo" not in jobs
        terminal.press("7")
        terminal.wait("lease.accepted", "job.accepted")
        terminal.press("8")
        terminal.wait("connected to", cluster.nodes["gateway"].peer_id)


def test_a_job_is_submitted_inspected_and_cancelled_by_keyboard(cluster: LocalCluster, tmp_path: Path) -> None:
    folder = job_folder(tmp_path / "by-hand", name="by-hand", gpu=10)
    with shown(*over_tls(cluster), size=(80, 24)) as terminal:
        terminal.wait("holds")
        terminal.press("5")
        terminal.wait("[5 Jobs]")
        terminal.press("a")
        terminal.wait("New job")
        terminal.write(str(folder))
        terminal.press("Enter")
        terminal.wait("ready", "2 workers, 3 rounds")
        terminal.press("C-r")
        terminal.wait("is accepted by scheduler")
        terminal.press("/")
        terminal.write("by-hand")
        terminal.press("Enter")
        terminal.wait("1 of 3 jobs", "0 of 2")
        terminal.press("x")
        terminal.wait("cancel the job")
        terminal.press("Enter")
        terminal.wait("Cancel job by-hand?", "Keep it")
        terminal.press("Right", "Enter")
        terminal.wait("cancelled")


def test_a_wrong_job_is_told_with_its_line_before_it_is_sent(cluster: LocalCluster, tmp_path: Path) -> None:
    folder = job_folder(tmp_path / "wrong", name="wrong")
    text = (folder / "job.toml").read_text().replace("update_rounds", "update_round")
    (folder / "job.toml").write_text(text)
    with shown(*over_tls(cluster), size=(80, 24)) as terminal:
        terminal.wait("holds")
        terminal.press(":")
        terminal.write(f"submit {folder}")
        terminal.press("Enter")
        terminal.wait("update_round", "unknown key", "did you mean")
        terminal.press("Escape")


def test_a_node_that_dies_is_told_within_two_seconds_and_found_again(cluster: LocalCluster) -> None:
    """What was known stays on the screen, marked old; the node's other end comes back by itself."""
    gateway = cluster.nodes["gateway"]
    with shown("--state-dir", str(gateway.state_dir), size=(80, 24)) as terminal:
        terminal.wait("live", "holds")
        cluster.kill("gateway")
        died = time.monotonic()
        broken = terminal.wait("stale", within_s=2.0)
        assert time.monotonic() - died < 2.0
        terminal.wait("cannot reach", "old", within_s=3.0)
        assert "holds" in broken
        cluster.restart("gateway")
        terminal.wait("● live", within_s=8.0)
        terminal.wait("holds", "work 1/1", within_s=15.0)


def test_it_lives_through_any_size_and_gives_the_screen_back(cluster: LocalCluster) -> None:
    with shown(*over_tls(cluster)) as terminal:
        terminal.wait("holds")
        for size in ((40, 10), (200, 60), (61, 17), (80, 24)):
            terminal.resize(*size)
            terminal.wait("needs 60x16" if size == (40, 10) else "waits")
        terminal.press("q")
        terminal.wait("press q again")
        terminal.press("q")
        left = terminal.wait("EXIT=0")
        assert "BEFORE" in left and "Overview" not in left


def test_a_killed_worker_is_shown_unreachable_and_its_leases_end(cluster: LocalCluster) -> None:
    """H31: nobody tells; the lease is not renewed, and the job says that it waits."""
    with shown(*over_tls(cluster), size=(120, 40)) as terminal:
        terminal.wait("held 3")
        cluster.kill("worker-1")
        terminal.wait("unreachable 1", "worker 0/1", within_s=8.0)
        terminal.press("3")
        terminal.wait("✕ expired", "its worker cannot be asked")
        terminal.press("2")
        terminal.wait("✕ unreachable")
