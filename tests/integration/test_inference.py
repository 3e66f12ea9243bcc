"""A model over a dataset on a real cluster: every slice exactly once, whoever is killed."""

from __future__ import annotations

import hashlib
import json
import signal
from pathlib import Path
from typing import Any

import pytest

from hypha_tui.local_cluster import LocalCluster
from tests.integration.support import (
    MODEL,
    dataset,
    job_at,
    processes_naming,
    run_tui,
    small_cluster,
    submit,
    tui,
    until,
)

pytestmark = pytest.mark.timeout(240)

ROWS, ROWS_PER_SLICE = 512, 16
JOB = """
type = "inference"
name = "next-tokens"
dataset = "tiny"
batch_size = 4
[model]
type = "causal-lm"
path = "model"
seed = 7
[output]
kind = "tokens"
max_new_tokens = 8
to = "{to}"
[resources]
num_workers = 2
worker = {{ cpu = 1, memory = 1 }}
worker_price = {{ bid = 1.0, max = 2.0 }}
"""


def inference_job(folder: Path, out: Path) -> Path:
    (folder / "model").mkdir(parents=True)
    (folder / "model" / "config.json").write_text(json.dumps({**MODEL, "n_positions": 64, "eos_token_id": None}))
    (folder / "job.toml").write_text(JOB.format(to=out))
    return folder


def test_every_slice_has_one_result_though_a_worker_and_the_scheduler_are_killed(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    """H43, U34, U47: what the dead worker had is done again; the scheduler goes on from what it wrote."""
    out = tmp_path / "out"
    workers = small_cluster(cluster, workers=2, data=[dataset(tmp_path, rows=ROWS, rows_per_slice=ROWS_PER_SLICE)])
    scheduler = cluster.nodes["scheduler"]
    job_id = submit(scheduler, inference_job(tmp_path / "job", out))

    def done() -> list[Path]:
        return sorted(out.glob("tiny-*.jsonl")) if out.is_dir() else []

    until(lambda: len(done()) >= 4, within_s=100, what="the first results")
    cluster.kill(workers[0].name)
    until(lambda: len(done()) >= 10, within_s=100, what="more results")
    cluster.nodes["scheduler"].process.send_signal(signal.SIGKILL)
    cluster.nodes["scheduler"].process.wait(5)
    cluster.restart("scheduler")
    ended = until(
        lambda: (found := job_at(scheduler, job_id)).get("state") in ("done", "failed") and found,
        within_s=100,
        what="the end",
    )
    assert ended["state"] == "done", ended["reason"]
    assert (ended["samples"], ended["model_dir"], ended["rounds"]) == (ROWS, str(out), 0)
    assert ended["slices"]["used"] == ROWS // ROWS_PER_SLICE
    check_results(out)
    shown = run_tui("jobs", "--node", f"unix:{scheduler.socket}")
    assert "next-tokens" in shown.stdout and "done" in shown.stdout, shown.stdout
    lost = [task for task in ended["tasks"] if task["peer_id"] == workers[0].peer_id]
    assert [task["state"] for task in lost] == ["lost"]
    until(lambda: not processes_naming(f"hypha-{job_id}"), within_s=5, what="no executor is left")
    assert not [lease for lease in tui(scheduler, "leases") if lease["state"] == "held"]


def check_results(out: Path) -> None:
    """The list names each file with its digest, and the rows are all there, each once."""
    listed: dict[str, Any] = json.loads((out / "tiny.results.json").read_text())
    assert [entry["slice"] for entry in listed["results"]] == list(range(ROWS // ROWS_PER_SLICE))
    assert {path.name for path in out.iterdir()} == {entry["name"] for entry in listed["results"]} | {
        "tiny.results.json"
    }
    rows = []
    for entry in listed["results"]:
        content = (out / entry["name"]).read_bytes()
        assert (hashlib.sha256(content).hexdigest(), len(content)) == (entry["sha256"], entry["size_bytes"])
        lines = [json.loads(line) for line in content.splitlines()]
        assert len(lines) == entry["rows"] and all(len(line["tokens"]) == 8 for line in lines)
        rows += [line["row"] for line in lines]
    assert rows == list(range(ROWS))
