"""The arithmetic of a whole cluster against DiLoCo written out in plain torch, from the record the cluster keeps.

Four jobs run side by side on the same three workers: 1, 2 and 3 workers with an outer optimizer, and 1 worker without
one (outer step 1, no momentum). What the oracle is given: the model's configuration and seed, the files of the
dataset, and `training.json`, which tells which rows each task trained on, in which order, for which round. It imports
nothing of the product.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from hypha_tui.local_cluster import LocalCluster
from tests.integration.support import job_at, processes_naming, small_cluster, submit, until
from tests.unit.oracle_diloco import Oracle

pytestmark = pytest.mark.timeout(240)

ROUNDS = 3
BATCH = 4
SEED = 11
INNER = {"learning_rate": 5e-3, "epsilon": 1e-4, "weight_decay": 0.05}
ROWS = (5, 13, 8, 3, 21, 2, 9, 17, 4, 11)
"""Rows of the slices: no multiple of the batch, so counts are unequal and slices cross the rounds."""

MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 64,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 16,
    "tie_word_embeddings": False,
}
"""Without biases: an attention key's bias has no real gradient, and AdamW makes steps of its rounding noise."""

JOB = """
name = "{name}"
dataset = "rows"
[model]
type = "causal-lm"
path = "model"
seed = {seed}
[rounds]
update_rounds = {rounds}
avg_samples_between_updates = {samples}
max_batch_size = {batch}
[inner_optimizer]
{inner}
[outer_optimizer]
learning_rate = {outer}
momentum = {momentum}
[resources]
num_workers = {workers}
min_workers = {workers}
worker = {{ cpu = 1, memory = 1 }}
parameter_server = {{ cpu = 0.5, memory = 1 }}
worker_price = {{ bid = 1.0, max = 2.0 }}
parameter_server_price = {{ bid = 1.0, max = 2.0 }}
"""


@dataclass(frozen=True)
class Case:
    """One job."""

    name: str
    workers: int
    outer: float = 0.7
    momentum: float = 0.9


CASES = {case.name: case for case in (Case("one", 1), Case("two", 2), Case("three", 3), Case("plain", 1, 1.0, 0.0))}


@dataclass(frozen=True)
class Run:
    """What a user finds after the job."""

    case: Case
    model_dir: Path
    record: dict[str, Any]
    slices: list[torch.Tensor]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Run]]:
    """All jobs, trained on one cluster at the same time."""
    folder = tmp_path_factory.mktemp("oracle")
    slices = write_slices(folder / "rows")
    with LocalCluster(folder / "cluster") as cluster:
        small_cluster(cluster, workers=3, data=[folder / "rows"], cpu=8)
        front = cluster.nodes["gateway"]
        jobs = {name: submit(front, write_job(folder / name, case)) for name, case in CASES.items()}
        made = {}
        for name, job_id in jobs.items():
            job = until(
                lambda job_id=job_id: (
                    (found := job_at(front, job_id)).get("state") in ("done", "failed", "cancelled") and found
                ),
                within_s=150,
                what=f"the job {name} ends",
            )
            assert job["state"] == "done", (job["reason"], job["tasks"], cluster.nodes["scheduler"].last_lines(20))
            where = Path(job["model_dir"])
            made[name] = Run(CASES[name], where, json.loads((where / "training.json").read_text()), slices)
        yield made
        assert set(cluster.stop().values()) == {0}
    assert processes_naming(str(folder)) == []


def write_slices(folder: Path) -> list[torch.Tensor]:
    """Patterns with noise, as a folder of safetensors slices; the tensors in the order of the files."""
    folder.mkdir()
    draw = random.Random(SEED)
    tensors = []
    for number, rows in enumerate(ROWS):
        values = [
            [(start + step * at) % 64 if draw.random() < 0.9 else draw.randrange(64) for at in range(16)]
            for start, step in ((draw.randrange(64), draw.randrange(1, 5)) for _ in range(rows))
        ]
        tensors.append(torch.tensor(values, dtype=torch.int64))
        save_file({"input_ids": tensors[-1].to(torch.uint8)}, folder / f"part-{number:02d}.safetensors")
    return tensors


def write_job(folder: Path, case: Case) -> Path:
    """The job's folder as a user would write it."""
    (folder / "model").mkdir(parents=True)
    (folder / "model" / "config.json").write_text(json.dumps(MODEL))
    inner = "\n".join(f"{key} = {value}" for key, value in INNER.items())
    values: dict[str, Any] = {
        "name": case.name,
        "workers": case.workers,
        "outer": case.outer,
        "momentum": case.momentum,
    }
    values |= {"seed": SEED, "rounds": ROUNDS, "samples": 90, "batch": BATCH, "inner": inner}
    (folder / "job.toml").write_text(JOB.format(**values))
    return folder


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """As in the executors; for tensors this small more threads only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("name", ["one", "two", "three"])
def test_the_global_weights_after_three_rounds_are_those_of_the_oracle(runs: dict[str, Run], name: str) -> None:
    """H1, U39: sample-weighted mean, sign, momentum, in whatever order the updates came."""
    run = runs[name]
    counts = counts_of(run)
    print(f"\n{name}: samples of each worker in each round: {[list(row.values()) for row in counts]}")
    tasks = sorted(counts[0])
    assert len(tasks) == run.case.workers
    assert all(sorted(row) == tasks for row in counts), "somebody was left out"
    if run.case.workers > 1:
        assert any(len(set(row.values())) > 1 for row in counts), "the counts are to be unequal"

    inner = {"lr": INNER["learning_rate"], "eps": INNER["epsilon"], "weight_decay": INNER["weight_decay"]}
    model = fresh_model(run)
    oracle = Oracle(model, loss_of, len(tasks), inner=inner, outer_lr=run.case.outer, outer_momentum=run.case.momentum)
    batches = {task: batches_of(run, task) for task in tasks}
    for row in counts:
        oracle.round([take(batches[task], row[task]) for task in tasks], lambda batch: len(batch["input_ids"]))
    assert distance(run, oracle.named(model)) < 1e-5
    assert distance(run, dict(model.named_parameters())) > 1e-2, "it has learned nothing"


def test_one_worker_with_an_outer_step_of_one_trains_as_a_plain_loop_does(runs: dict[str, Run]) -> None:
    """U36: the same rows in the same order, one AdamW, and no rounds at all."""
    run = runs["plain"]
    counts = counts_of(run)
    (task,) = counts[0]
    model = fresh_model(run).train()
    adamw = torch.optim.AdamW(
        model.parameters(), lr=INNER["learning_rate"], eps=INNER["epsilon"], weight_decay=INNER["weight_decay"]
    )
    for batch in take(batches_of(run, task), sum(row[task] for row in counts)):
        loss_of(model, batch).backward()
        adamw.step()
        adamw.zero_grad()
    assert distance(run, dict(model.named_parameters())) < 1e-5


def test_the_record_tells_of_every_row_once(runs: dict[str, Run]) -> None:
    """H43, U51: in a pass no row counts twice, and the samples of each contribution are its rows."""
    for run in runs.values():
        shares = [share for row in run.record["rounds"] for share in row["contributions"]]
        assert all(share["samples"] == sum(end - start for _, _, start, end in share["spans"]) for share in shares)
        spans = [span for share in shares for span in share["spans"]]
        rows = [(number, index, row) for number, index, start, end in spans for row in range(start, end)]
        assert len(rows) == len(set(rows))
        if run.case.workers == 1:
            passes = range(max(number for number, _, _ in rows))
            assert all(sum(number == row[0] for row in rows) == sum(ROWS) for number in passes)


Batch = dict[str, torch.Tensor]


def counts_of(run: Run) -> list[dict[str, int]]:
    """For each round, the samples of each task that went into it."""
    rounds = run.record["rounds"]
    assert [row["round"] for row in rounds] == list(range(ROUNDS))
    assert not any(row["left_out"] for row in rounds), [row["left_out"] for row in rounds]
    return [{share["task_id"]: share["samples"] for share in row["contributions"]} for row in rounds]


def batches_of(run: Run, task: str) -> Iterator[Batch]:
    """A task's batches over the whole job: its rows in its order, never across two slices."""
    shares = [share for row in run.record["rounds"] for share in row["contributions"] if share["task_id"] == task]
    for _, index, start, end in (span for share in shares for span in share["spans"]):
        for first in range(start, end, BATCH):
            yield {"input_ids": run.slices[index][first : min(end, first + BATCH)]}


def take(batches: Iterator[Batch], samples: int) -> list[Batch]:
    """The next batches, exactly `samples` rows of them."""
    taken: list[Batch] = []
    while (have := sum(len(batch["input_ids"]) for batch in taken)) < samples:
        taken.append(next(batches))
    assert have == samples, "the count does not fall between two batches"
    return taken


def fresh_model(run: Run) -> Any:
    """Version 0, made as anybody can: Transformers, the job's configuration, its seed."""
    torch.manual_seed(SEED)
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(**MODEL), dtype=torch.float32)


def loss_of(model: Any, batch: Batch) -> torch.Tensor:
    """The loss of a causal model, written out: each token is predicted from those before it."""
    tokens = batch["input_ids"]
    logits = model(input_ids=tokens, use_cache=False).logits[:, :-1]
    return torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), tokens[:, 1:].reshape(-1))


def distance(run: Run, weights: dict[str, torch.Tensor]) -> float:
    """The largest difference to the exported model, over all of its values."""
    exported = load_file(run.model_dir / "model.safetensors")
    assert set(exported) <= set(weights) and len(exported) > 10
    apart = max((value - weights[name].detach()).abs().max().item() for name, value in exported.items())
    print(f"{run.case.name}: {apart:.2e} from the exported model")
    return apart
