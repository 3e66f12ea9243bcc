"""Executors written for upstream train real models here: images with a preprocessor and batch norm, and a language
model with tied weights."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoImageProcessor, AutoModelForCausalLM, AutoModelForImageClassification

from hypha_tui.local_cluster import LocalCluster, command
from tests.integration.support import MODEL, WORKER, dataset, job_at, small_cluster, submit, until

pytestmark = pytest.mark.timeout(120)

PROGRAM = Path(__file__).with_name("stand_in_torch.py")
TIED = {"lm_head.weight": "transformer.wte.weight"}
RESNET: dict[str, Any] = {
    "model_type": "resnet", "num_channels": 3, "embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1],
    "layer_type": "basic", "num_labels": 2,
}  # fmt: skip
PROCESSOR = {
    "image_processor_type": "ViTImageProcessor", "do_resize": True, "size": {"height": 16, "width": 16},
    "do_normalize": True, "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5],
}  # fmt: skip

EXECUTORS = """
[[executors]]
class = "train"
name = "stand-in"
runtime = "process"
cmd = "{python}"
args = ["{program}", "--socket", "{{SOCKET_PATH}}", "--work-dir", "{{WORK_DIR}}", "--job", "{{JOB_JSON}}"]
[[executors]]
class = "aggregate"
name = "parameter-server"
runtime = "parameter-server"
"""

JOB = """
name = "{name}"
dataset = "{dataset}"
[model]
type = "{type}"
filenames = ["config.json", "model.safetensors"]
{preprocessor}
[rounds]
update_rounds = 2
avg_samples_between_updates = 48
max_batch_size = 8
[inner_optimizer]
learning_rate = 1e-3
[outer_optimizer]
learning_rate = 1.0
momentum = 0.0
[resources]
num_workers = 1
min_workers = 1
worker = [{{ type = "CPU", min = 1 }}, {{ kind = "stand-in" }}]
parameter_server = {{ cpu = 0.5, memory = 1 }}
worker_price = {{ bid = 1.0, max = 2.0 }}
parameter_server_price = {{ bid = 1.0, max = 2.0 }}
"""


def write_jobs(folder: Path) -> dict[str, Path]:
    """The two jobs' folders with their models."""
    torch.manual_seed(3)
    values = {"name": "tied", "dataset": "tiny", "type": "causal-lm", "preprocessor": ""}
    folders = {"tied": folder / "tied", "images": folder / "images-job"}
    tied = AutoConfig.for_model(**{**MODEL, "bos_token_id": 0, "eos_token_id": 0})
    AutoModelForCausalLM.from_config(tied).save_pretrained(folders["tied"])
    (folders["tied"] / "job.toml").write_text(JOB.format(**values))
    AutoModelForImageClassification.from_config(AutoConfig.for_model(**RESNET)).save_pretrained(folders["images"])
    (folders["images"] / "preprocessor_config.json").write_text(json.dumps(PROCESSOR))
    preprocessor = '[preprocessor]\ntype = "image-processor"\nfilenames = ["preprocessor_config.json"]'
    values = {"name": "images", "dataset": "images", "type": "image-classification", "preprocessor": preprocessor}
    (folders["images"] / "job.toml").write_text(JOB.format(**values))
    return folders


def images(folder: Path) -> Path:
    """Noise, brighter in class 1."""
    folder.mkdir()
    labels = torch.arange(160) % 2
    pictures = (torch.rand(160, 3, 20, 20) * 128 + 100 * labels[:, None, None, None]).to(torch.uint8)
    for start in range(0, 160, 40):
        part = slice(start, start + 40)
        save_file({"images": pictures[part], "labels": labels[part]}, folder / f"{start:03d}.safetensors")
    return folder


def test_upstreams_executors_train_images_with_batch_norm_and_tied_language_models(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    """H49, U71: running statistics and counters travel; a tied weight may have its other name, and stays tied."""
    small_cluster(cluster, workers=0, data=[dataset(tmp_path), images(tmp_path / "images")])
    gateway = cluster.nodes["gateway"]
    command("cert", "node", "worker", "--dir", str(cluster.certificates), "--org", "demo")
    settings = WORKER.format(work=cluster.folder / "worker" / "work", cpu=4)
    settings += EXECUTORS.format(python=sys.executable, program=PROGRAM)
    cluster.launch("worker", "worker", config=settings, gateways=[gateway.address])
    cluster.wait_ready(cluster.nodes["worker"])
    folders = write_jobs(tmp_path)
    jobs = {name: submit(gateway, folder) for name, folder in folders.items()}
    made = {}
    for name, job_id in jobs.items():
        job = until(
            lambda job_id=job_id: (
                (found := job_at(gateway, job_id)).get("state") in ("done", "failed", "cancelled") and found
            ),
            within_s=90,
            what=f"the job {name} ends",
        )
        assert job["state"] == "done", (job["reason"], job["tasks"])
        made[name] = Path(job["model_dir"])

    for name, folder in folders.items():
        before, after = load_file(folder / "model.safetensors"), load_file(made[name] / "model.safetensors")
        assert set(before) == set(after)
        moved = {key for key, value in before.items() if not torch.equal(value, after[key])}
        floats = {key for key, value in before.items() if value.is_floating_point()}
        assert moved >= {key for key in floats if "weight" in key or "running" in key}, sorted(floats - moved)
    model = AutoModelForCausalLM.from_pretrained(made["tied"])
    assert model.lm_head.weight is model.transformer.wte.weight
    # What the one worker trained, with an outer step of one, is the model: nothing was lost on the way.
    for name in folders:
        (path,) = [
            path
            for path in cluster.folder.glob("*/work/**/end-*.safetensors")
            if ("lm_head.weight" in load_file(path)) == (name == "tied")
        ]
        after = load_file(made[name] / "model.safetensors")
        ends = {TIED.get(key, key): value for key, value in load_file(path).items()}
        assert set(ends) == set(after)
        assert all(torch.allclose(after[key], value, atol=1e-5) for key, value in ends.items())
    counters = {value.item() for key, value in after.items() if "num_batches_tracked" in key}
    assert len(counters) == 1 and counters.pop() > 0
    processor = AutoImageProcessor.from_pretrained(made["images"], use_fast=False)
    assert processor.size == PROCESSOR["size"]
