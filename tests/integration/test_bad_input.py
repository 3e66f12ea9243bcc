"""Whatever a user can get wrong is one clear line, a documented exit code, and nothing lost."""

from __future__ import annotations

import json
import socket
import sys
import time
from pathlib import Path

import pytest

from hypha_tui.local_cluster import LocalCluster
from tests.integration.support import (
    dataset,
    job_at,
    job_folder,
    live_leases,
    run_node,
    run_tui,
    small_cluster,
    submit,
    tui,
    until,
)


def one_line(stderr: str) -> str:
    """The only line of an error report."""
    lines = stderr.strip().splitlines()
    assert len(lines) == 1, stderr
    assert "Traceback" not in stderr
    return lines[0]


def test_an_unknown_configuration_key_is_named_with_its_line_and_the_nearest_known_one(tmp_path: Path) -> None:
    path = tmp_path / "node.toml"
    path.write_text('cert_pem = "a.pem"\nlisten_adresses = []\n')
    done = run_node("config", "check", str(path))
    assert done.returncode == 2
    line = one_line(done.stderr)
    assert "listen_adresses" in line and "listen_addresses" in line and "2" in line


@pytest.mark.parametrize("role", ["gateway", "scheduler", "worker", "data"])
def test_a_missing_certificate_is_the_same_line_and_code_in_every_role(role: str, tmp_path: Path) -> None:
    """U70."""
    path = tmp_path / "node.toml"
    base = tmp_path / "nobody"
    path.write_text("\n".join(f'{key}_pem = "{base}-{key}.pem"' for key in ("cert", "key", "trust")))
    done = run_node("--role", role, "--config", str(path), "--state-dir", str(tmp_path / "state"), "--no-mdns")
    assert done.returncode == 2
    lines = [line for line in done.stderr.splitlines() if line.startswith("hypha-node: ")]
    assert len(lines) == 1
    assert f"{base}-cert.pem" in lines[0]


def test_a_taken_port_is_told_with_its_number_and_its_holder(cluster: LocalCluster) -> None:
    cluster.make_authority(["gateway"])
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        base = cluster.certificates / "gateway"
        path = cluster.folder / "node.toml"
        path.write_text("\n".join(f'{key}_pem = "{base}-{key}.pem"' for key in ("cert", "key", "trust")))
        flags = ["--listen", f"/ip4/127.0.0.1/tcp/{port}", "--no-mdns", "--state-dir", str(cluster.folder / "state")]
        done = run_node("--role", "gateway", "--config", str(path), *flags)
    assert done.returncode == 1
    lines = [line for line in done.stderr.splitlines() if line.startswith("hypha-node: ")]
    assert len(lines) == 1
    assert str(port) in lines[0] and "python" in lines[0]


def test_a_gateway_that_is_not_there_is_one_line_and_the_node_goes_on_trying(cluster: LocalCluster) -> None:
    """U6."""
    cluster.make_authority(["data", "gateway"])
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    node = cluster.start("data", "data", gateways=[f"/ip4/127.0.0.1/tcp/{port}"])
    line = until(
        lambda: [text for text in node.last_lines(50).splitlines() if str(port) in text and "WARN" in text.upper()],
        within_s=5,
        what="a line about the gateway",
    )
    assert len(line) == 1
    assert node.process.poll() is None
    assert "Traceback" not in node.last_lines(200)


def test_jobs_that_cannot_run_yet_say_what_they_wait_for_and_end_by_cancel(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    """H22, H23: no offers is a state with a reason, not the end of the scheduler."""
    small_cluster(cluster, workers=3, data=[dataset(tmp_path)])
    gateway = cluster.nodes["gateway"]
    asks_too_much = submit(gateway, job_folder(tmp_path / "gpu", gpu=10))
    unknown_data = submit(gateway, job_folder(tmp_path / "unknown", dataset="nowhere"))

    reasons = {
        job_id: until(
            lambda job_id=job_id, word=word: (
                (reason := job_at(gateway, job_id).get("reason", "")) and word in reason and reason
            ),
            within_s=10,
            what=f"a reason with {word}",
        )
        for job_id, word in ((asks_too_much, "refused"), (unknown_data, "nowhere"))
    }
    assert "0 of 2" in reasons[asks_too_much]
    assert "3 workers refused: gpu 0 < 10" in reasons[asks_too_much]
    for job_id in reasons:
        assert job_at(gateway, job_id)["state"] in ("waiting", "queued")
        tui(gateway, "cancel", job_id)
        until(lambda job_id=job_id: job_at(gateway, job_id)["state"] == "cancelled", within_s=5, what="cancelled")
    until(lambda: not live_leases(gateway), within_s=10, what="no lease is left")

    again = run_tui("cancel", "no-such-job", "--node", f"unix:{gateway.socket}")
    assert again.returncode == 1
    assert "no-such-job" in one_line(again.stderr)


def test_a_crashing_executor_shows_its_exit_code_and_last_lines_within_two_seconds(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    """H31."""
    program = "import sys; print('loading'); print('no such layer: 7', file=sys.stderr); sys.exit(41)"
    crashing = f"""
[[executors]]
class = "train"
name = "diloco-transformer"
runtime = "process"
cmd = "{sys.executable}"
args = ["-c", "{program}"]
[[executors]]
class = "aggregate"
name = "parameter-server"
runtime = "parameter-server"
"""
    small_cluster(cluster, workers=0, data=[dataset(tmp_path)])
    cluster_worker(cluster, crashing)
    scheduler = cluster.nodes["scheduler"]
    job_id = submit(scheduler, job_folder(tmp_path / "job", workers=1))
    began = time.monotonic()

    def crashed() -> dict[str, object] | None:
        for task in job_at(scheduler, job_id).get("tasks", []):
            if task.get("exit_code") == 41:
                return dict(task)
        return None

    task = until(crashed, within_s=10, what="the exit code is shown")
    assert "no such layer: 7" in "\n".join(str(line) for line in task["tail"])  # type: ignore[attr-defined]
    placed = [event for event in tui(scheduler, "events") if event["name"] == "task.failed"]
    assert placed, "the crash is an event"
    ended = until(
        lambda: (job := job_at(scheduler, job_id))["state"] == "failed" and job, within_s=40, what="the job gives up"
    )
    assert "41" in ended["reason"]
    assert time.monotonic() - began < 50


def cluster_worker(cluster: LocalCluster, executors: str) -> None:
    """One worker with executors of its own."""
    from hypha_tui.local_cluster import command
    from tests.integration.support import WORKER

    command("cert", "node", "crasher", "--dir", str(cluster.certificates), "--org", "demo")
    config = WORKER.format(work=cluster.folder / "crasher" / "work", cpu=2) + executors
    cluster.start("crasher", "worker", config=config, gateways=[cluster.nodes["gateway"].address])


def test_a_truncated_and_a_hostile_slice_are_refused_by_name(tmp_path: Path) -> None:
    good = dataset(tmp_path)
    first, second = sorted(good.glob("*.safetensors"))[:2]
    first.write_bytes(first.read_bytes()[:-10])
    done = run_node("dataset", "verify", str(good))
    assert done.returncode == 1
    assert first.name in done.stdout and "Traceback" not in done.stderr
    second.write_bytes((2**62).to_bytes(8, "little") + b"{}")
    done = run_node("dataset", "verify", str(good))
    assert done.returncode == 1
    assert second.name in done.stdout and "Traceback" not in done.stderr


def test_a_wrong_job_file_is_refused_before_anything_is_sent(tmp_path: Path) -> None:
    folder = job_folder(tmp_path / "job")
    text = (folder / "job.toml").read_text().replace("update_rounds", "update_round")
    (folder / "job.toml").write_text(text)
    done = run_tui("submit", str(folder), "--node", "unix:/nowhere/operator.sock")
    assert done.returncode == 2
    line = one_line(done.stderr)
    assert "update_round" in line and "update_rounds" in line


def test_a_node_that_is_not_there_is_exit_code_3(tmp_path: Path) -> None:
    done = run_tui("peers", "--node", "unix:/nowhere/operator.sock")
    assert done.returncode == 3
    assert "/nowhere/operator.sock" in one_line(done.stderr)


def test_a_node_certificate_is_not_an_operators(cluster: LocalCluster) -> None:
    cluster.make_authority(["gateway"])
    gateway = cluster.start("gateway", "gateway")
    done = run_tui("peers", "--node", gateway.address, *cluster.certificate_flags("gateway"))
    assert done.returncode in (1, 2)
    assert "operator" in one_line(done.stderr)
    done = run_tui("peers", "--node", gateway.address, *cluster.certificate_flags(), "--json")
    assert [peer["name"] for peer in json.loads(done.stdout)] == ["gateway"]
