"""The main job over real processes: trained, exported, seen from any node."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from hypha_tui.local_cluster import LocalCluster
from tests.integration.support import dataset, job_at, job_folder, live_leases, small_cluster, submit, tui, until
from tests.unit.object_storage import SECRET, Storage, storage, storage_server

__all__ = ["storage", "storage_server"]
pytestmark = pytest.mark.timeout(180)


def test_a_job_is_trained_and_every_node_tells_the_same(
    cluster: LocalCluster, tmp_path: Path, storage: Storage
) -> None:
    """Submitted at a data node (not a scheduler), watched at each node, exported as a directory that loads.

    Its data lies in object storage: the workers read it there, the data node serves what it is validated with from
    there, and the credentials are in no file of any node. Rows are dealt out by batches, the model is exchanged in
    fragments of int4 beside the batches, and its checkpoints go to object storage: another job goes on from there.
    """
    data = [dataset(tmp_path), dataset(tmp_path, name="tiny-validation", rows=64)]
    url, validation_url = storage.upload(data[0], "tiny"), storage.upload(data[1], "tiny-validation")
    readable = f'fetch = {{ stores = ["{storage.url("")}"] }}\n'
    small_cluster(cluster, data=[str(data[0]), validation_url], more=readable)
    validation = 'validation_dataset = "tiny-validation"'
    folder = job_folder(tmp_path / "job", dataset=url, validation=validation, rounds=3)
    more = '[partition]\nstrategy = "round-robin"\nunit = "rows"\n'
    more += '[sync]\ncodec = "int4"\nfragments = 2\noverlap = true\n'
    with (folder / "job.toml").open("a") as file:
        file.write(f'{more}[checkpoint]\nevery = 4\nto = "{storage.url("runs")}"\n')
    submitted = submit(cluster.nodes["data"], folder)

    job = done(cluster, submitted)
    assert job["round"] == job["rounds"] == 6
    assert job["samples"] >= 3 * 64 * 0.8
    assert job["eval_loss"] < job["first_eval_loss"]
    for node in cluster.nodes.values():
        seen = job_at(node, submitted)
        assert (seen["state"], seen["round"], seen["samples"]) == ("done", 6, job["samples"]), node.name
        assert len(tui(node, "peers")) == 5
        assert {row["name"] for row in tui(node, "datasets")} == {"tiny", "tiny-validation"}

    model_dir = Path(job["model_dir"])
    assert loss_of(model_dir, data[1]) == pytest.approx(job["eval_loss"], abs=1e-3)
    record = json.loads((model_dir / "training.json").read_text())
    assert len(record["rounds"]) == 6

    folder = job_folder(tmp_path / "again", dataset=url, validation=validation, rounds=4)
    with (folder / "job.toml").open("a") as file:
        file.write(f'{more}[checkpoint]\nstart_from = "{storage.url("runs")}/{submitted}"\n')
    again = done(cluster, submit(cluster.nodes["gateway"], folder))
    its_record = json.loads((Path(again["model_dir"]) / "training.json").read_text())
    assert again["round"] == len(its_record["rounds"]) == 8
    assert its_record["rounds"][:4] == record["rounds"][:4]
    assert again["eval_loss"] < job["first_eval_loss"] == again["first_eval_loss"]
    assert rows_twice(record) == rows_twice(its_record) == []
    leases = until(lambda: not live_leases(cluster.nodes["gateway"]) or None, within_s=10, what="leases are released")
    assert leases
    files = [path for path in cluster.folder.rglob("*") if path.is_file() and not path.is_symlink()]
    assert not [path for path in files if SECRET.encode() in path.read_bytes()]


def done(cluster: LocalCluster, job_id: str) -> dict[str, Any]:
    """A job, once it is done."""
    job: dict[str, Any] = until(
        lambda: (found := job_at(cluster.nodes["gateway"], job_id)).get("state") in ("done", "failed") and found,
        within_s=90,
        what="the job ends",
    )
    assert job["state"] == "done", (job["reason"], job["tasks"])
    return job


def rows_twice(record: dict[str, Any]) -> list[tuple[int, ...]]:
    """Rows, as (pass, slice, row), that count more than once in a pass."""
    spans = [span for line in record["rounds"] for share in line["contributions"] for span in share["spans"]]
    counts = Counter((number, index, row) for number, index, low, high in spans for row in range(low, high))
    return [row for row, count in counts.items() if count > 1]


def loss_of(model_dir: Path, validation: Path) -> float:
    """The loss of an exported model on a validation set, computed with Transformers alone."""
    import torch
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(model_dir).eval()
    rows = torch.cat([load_file(path)["input_ids"].long() for path in sorted(validation.glob("*.safetensors"))])
    with torch.no_grad():
        losses = [model(input_ids=row[None], labels=row[None]).loss.item() for row in rows]
    return sum(losses) / len(losses)
