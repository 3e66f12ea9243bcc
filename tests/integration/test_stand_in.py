"""Executors written for upstream run here as they are: configured, started, and trained with to the end."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from hypha_tui.local_cluster import LocalCluster, command
from tests.integration.support import MODEL, WORKER, dataset, job_at, small_cluster, submit, tui, until

pytestmark = pytest.mark.timeout(180)

PROGRAM = Path(__file__).with_name("stand_in.py")
DELTAS = {"fast": 0.01, "slow": 0.03}

EXECUTORS = """
[[executors]]
class = "train"
name = "stand-in"
runtime = "process"
cmd = "{python}"
args = [
    "{program}", "--delta", "{delta}",
    "--socket", "{{SOCKET_PATH}}", "--work-dir", "{{WORK_DIR}}", "--job", "{{JOB_JSON}}",
]
[[executors]]
class = "aggregate"
name = "parameter-server"
runtime = "parameter-server"
"""

JOB = """
name = "foreign"
dataset = "tiny"
[model]
type = "causal-lm"
filenames = ["config.json", "model.safetensors"]
[rounds]
update_rounds = 2
avg_samples_between_updates = 80
max_batch_size = 4
[inner_optimizer]
learning_rate = 1e-3
[outer_optimizer]
learning_rate = 1.0
momentum = 0.0
[resources]
num_workers = 2
min_workers = 2
worker = [{ type = "CPU", min = 1 }, { kind = "stand-in" }]
parameter_server = { cpu = 0.5, memory = 1 }
worker_price = { bid = 1.0, max = 2.0 }
parameter_server_price = { bid = 1.0, max = 2.0 }
"""


def test_executors_that_speak_upstreams_dialect_train_a_job_to_its_model(cluster: LocalCluster, tmp_path: Path) -> None:
    """Contract of the job bridge: fetch, slices, send, receive and status as upstream sends them, for two rounds."""
    import torch
    from safetensors.torch import load_file
    from transformers import AutoConfig, AutoModelForCausalLM

    small_cluster(cluster, workers=0, data=[dataset(tmp_path)])
    gateway = cluster.nodes["gateway"]
    for name, delta in DELTAS.items():
        command("cert", "node", name, "--dir", str(cluster.certificates), "--org", "demo")
        settings = WORKER.format(work=cluster.folder / name / "work", cpu=2)
        settings += EXECUTORS.format(python=sys.executable, program=PROGRAM, delta=delta)
        cluster.launch(name, "worker", config=settings, gateways=[gateway.address])
    cluster.wait_ready(*(cluster.nodes[name] for name in DELTAS))

    folder = tmp_path / "job"
    torch.manual_seed(3)
    config = AutoConfig.for_model(**{**MODEL, "bos_token_id": 0, "eos_token_id": 0})
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    (folder / "job.toml").write_text(JOB)
    job_id = submit(gateway, folder)
    job = until(
        lambda: (found := job_at(gateway, job_id)).get("state") in ("done", "failed") and found,
        within_s=120,
        what="the job ends",
    )
    assert job["state"] == "done", (job["reason"], job["tasks"])
    assert job["round"] == 2
    points = [point for point in tui(gateway, "metrics", job_id) if point["name"] == "loss" and point["worker"]]
    assert {(point["worker"], point["round"], point["value"]) for point in points} == {
        (cluster.nodes[name].peer_id, round_, 1.0 / (round_ + 1)) for name in DELTAS for round_ in range(2)
    }

    record = json.loads((Path(job["model_dir"]) / "training.json").read_text())
    names = {cluster.nodes[name].peer_id: delta for name, delta in DELTAS.items()}
    moved = 0.0
    for row in record["rounds"]:
        assert row["left_out"] == {}
        shares = row["contributions"]
        assert {share["peer_id"] for share in shares} == set(names)
        moved += sum(share["samples"] * names[share["peer_id"]] for share in shares) / row["samples"]
    before, after = load_file(folder / "model.safetensors"), load_file(Path(job["model_dir"]) / "model.safetensors")
    assert set(before) == set(after)
    for name, value in before.items():
        assert torch.allclose(after[name], value + moved, atol=1e-6), name
