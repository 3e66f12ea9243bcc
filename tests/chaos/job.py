"""The job that chaos and the benchmarks run: a tiny model whose batches take a given time, on a small random language.

The model learns which letter follows which, so its loss nears the language's entropy and stays there. A batch sleeps
for `pace` seconds beside its real forward and backward pass: on two cores, eight workers then train as eight machines
of that speed would, and what is measured is the cluster, not who gets the processor. A worker that is to be slower has
a factor in its executor's environment (`HYPHA_PACE`).
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path

from hypha_tui.local_cluster import command

LETTERS = "abcdefghijklmnopqrstuvwxyz"
ROW = 32
SEED = 7
"""Of the model."""

STAMPS = "steps-done "
"""In an executor's log, before the beginnings and ends (monotonic clock, JSON) of its last steps."""
STAMPS_A_LINE = 20

MODEL = """
import json
import os
import time

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

PACE_S = {pace_s} * float(os.environ.get("HYPHA_PACE", "1"))
PIECES = 25
steps = []
began = 0.0


def stepped(optimizer, arguments, more):
    steps.append([began, time.monotonic()])
    if len(steps) == {stamps}:
        print("{mark}" + json.dumps(steps), flush=True)
        steps.clear()


class Letters(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.before = torch.nn.Embedding(26, 24)
        self.after = torch.nn.Linear(24, 26)
        sizes = [len(range(piece, {ballast}, PIECES)) for piece in range(PIECES)]
        self.ballast = torch.nn.ParameterList([torch.nn.Parameter(torch.zeros(size)) for size in sizes if size])

    def forward(self, letters):
        return self.after(torch.tanh(self.before(letters)))


def build():
    register_optimizer_step_post_hook(stepped)
    return Letters()


def loss(model, batch):
    letters = batch["input_ids"] - 97
    if model.training:
        global began
        began = time.monotonic()
        time.sleep(PACE_S)
    found = model(letters[:, :-1]).reshape(-1, 26)
    value = torch.nn.functional.cross_entropy(found, letters[:, 1:].reshape(-1))
    module = getattr(model, "module", model)
    return value + 0.001 * sum((piece - 0.01).square().sum() for piece in module.ballast)
"""

JOB = """
name = "{name}"
dataset = "letters"
{validation}
[model]
type = "torch"
filenames = ["model.py"]
seed = {seed}
[rounds]
update_rounds = {rounds}
avg_samples_between_updates = {samples}
max_batch_size = {batch}
[inner_optimizer]
learning_rate = {rate}
weight_decay = 0.0
[outer_optimizer]
learning_rate = {outer}
momentum = {momentum}
[resources]
num_workers = {workers}
min_workers = {least}
spare_workers = {spares}
worker = {{ cpu = 1, memory = 1 }}
parameter_server = {{ cpu = 0.5, memory = 1 }}
worker_price = {{ bid = 1.0, max = 2.0 }}
parameter_server_price = {{ bid = 1.0, max = 2.0 }}
{more}
"""


@dataclass(frozen=True)
class Job:
    """Settings of one job. `rounds` in all, `samples` of the whole group in each."""

    rounds: int
    samples: int
    workers: int
    spares: int = 0
    batch: int = 8
    pace_s: float = 0.04
    least: int = 1
    ballast: int = 8
    rate: float = 1e-2
    """Learning rate of the workers, and below of the parameter server."""
    outer: float = 0.7
    momentum: float = 0.9
    name: str = "letters"
    sections: str = field(default="")
    """More TOML: `[sync]`, `[aggregation]`, .."""
    validated: bool = True

    @property
    def program(self) -> str:
        """The model's source."""
        return MODEL.format(pace_s=self.pace_s, ballast=self.ballast, stamps=STAMPS_A_LINE, mark=STAMPS)

    def write(self, folder: Path) -> Path:
        """The job's folder, as an operator submits it."""
        folder.mkdir(parents=True)
        (folder / "model.py").write_text(self.program)
        validation = 'validation_dataset = "letters-validation"' if self.validated else ""
        text = JOB.format(
            name=self.name,
            validation=validation,
            rounds=self.rounds,
            samples=self.samples,
            batch=self.batch,
            workers=self.workers,
            spares=self.spares,
            least=self.least,
            rate=self.rate,
            outer=self.outer,
            momentum=self.momentum,
            seed=SEED,
            more=self.sections,
        )
        (folder / "job.toml").write_text(text)
        return folder


def write_dataset(folder: Path, *, rows: int, rows_per_slice: int = 64) -> Path:
    """A dataset `letters` of about so many rows, and `letters-validation` beside it."""
    source = folder / "source"
    source.mkdir(parents=True)
    draw = random.Random(11)
    weights = [[draw.expovariate(1.0) ** 3 for _ in LETTERS] for _ in LETTERS]
    text, last = [], 0
    for _ in range(int(rows * ROW * 1.06)):
        (last,) = draw.choices(range(26), weights[last])
        text.append(LETTERS[last])
    (source / "text.txt").write_text("".join(text))
    out = folder / "letters"
    sizes = ["--sequence-length", str(ROW), "--rows-per-slice", str(rows_per_slice)]
    command(
        "dataset", "build", str(source), "--out", str(out), "--format", "text", "--validation-fraction", "0.05", *sizes
    )
    return out
