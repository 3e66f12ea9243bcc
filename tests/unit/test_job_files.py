"""Files that come with a job: its own code finds them by relative paths, in the sandbox and outside of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors.numpy import load_file

from node.wire import ModelSource
from node.worker.sandbox import find_sandbox
from tests.support import MakeIdentity
from tests.unit.network_loopback import eventually
from tests.unit.worker_cluster import AGGREGATE, cluster

pytest.importorskip("torch")
pytestmark = pytest.mark.asyncio

MODEL = b"""
import csv
from pathlib import Path
import torch
from names import COLUMN  # another file of the folder


def build():
    module = torch.nn.Linear(3, 1, bias=False)
    with open("data/weights.csv", newline="") as file:
        values = [float(row[COLUMN]) for row in csv.DictReader(file)]
    with torch.no_grad():
        module.weight.copy_(torch.tensor([values]))
    assert Path("label.txt").read_text() == "x"
    return module
"""
FILES = {
    "model.py": MODEL,
    "names.py": b"COLUMN = 'value'\n",
    "data/weights.csv": b"value\n1.5\n2.5\n-3\n",
    "label.txt": b"x",
}


@pytest.mark.parametrize("policy", ["sandboxed", "allow"])
async def test_a_job_reads_the_data_in_its_folder_by_relative_paths(
    make_identity: MakeIdentity, tmp_path: Path, policy: str
) -> None:
    """The parameter server's real program makes version 0 from a CSV file."""
    if policy == "sandboxed" and (problem := (await find_sandbox(policy)).problem):
        pytest.skip(problem)
    async with cluster(make_identity, tmp_path, job_code=policy) as (scheduler, worker):
        scheduler.bring(FILES)
        lease = await scheduler.lease(worker.peer_id, AGGREGATE)
        terms = {"model": ModelSource(task="torch")}
        await scheduler.aggregate(worker.peer_id, lease, [], terms=terms, runs_job_code=True)
        await eventually(lambda: {"ready", "failed"} & set(scheduler.states("ps")), 30)
        assert scheduler.last("ps").state == "ready", scheduler.last("ps")
        (version,) = (worker.jobs_dir / "hypha-ps").rglob("weights-0.safetensors")
        assert load_file(version)["weight"].tolist() == [[1.5, 2.5, -3.0]]
