"""What DiLoCo makes of a job whose machines nothing happens to: computed here, without a cluster and in a second."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from tests.chaos.job import SEED, Job
from tests.unit.oracle_diloco import Oracle


def losses_of(job: Job, dataset: Path, order: int = 1) -> dict[int, float]:
    """Validation losses by samples. The rows come in a random `order`, as no two runs on a cluster have the same."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # several only wait for each other, with tensors so small
    try:
        return _losses_of(job, dataset, order)
    finally:
        torch.set_num_threads(threads)


def _losses_of(job: Job, dataset: Path, order: int) -> dict[int, float]:
    program: dict[str, Any] = {"__name__": "model"}
    exec(compile(replace(job, pace_s=0.0).program, "model.py", "exec"), program)  # our own text
    loss = program["loss"]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        model = program["Letters"]()
    rows, validation = _rows(dataset), _rows(dataset.with_name("letters-validation"))
    oracle = Oracle(
        model,
        loss,
        job.workers,
        inner={"lr": job.rate, "weight_decay": 0.0},
        outer_lr=job.outer,
        outer_momentum=job.momentum,
    )

    def measure() -> float:
        with torch.no_grad():
            for name, value in oracle.named(model).items():
                model.get_parameter(name).copy_(value)
            model.eval()
            return float(loss(model, {"input_ids": validation}))

    batches = -(-job.samples // job.batch)
    draw = torch.Generator().manual_seed(order)
    waiting = rows[:0]
    found = {0: measure()}
    for _ in range(job.rounds):
        while len(waiting) < batches * job.batch:
            waiting = torch.cat([waiting, rows[torch.randperm(len(rows), generator=draw)]])
        now, waiting = waiting[: batches * job.batch], waiting[batches * job.batch :]
        cut = [{"input_ids": part} for part in now.split(job.batch)]
        oracle.round([cut[worker :: job.workers] for worker in range(job.workers)], lambda one: len(one["input_ids"]))
        found[max(found) + len(now)] = measure()
    return found


def _rows(dataset: Path) -> torch.Tensor:
    return torch.cat([load_file(path)["input_ids"] for path in sorted(dataset.glob("*.safetensors"))]).long()
