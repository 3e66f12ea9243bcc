"""Does DiLoCo, and does each codec, learn as well as averaging after every step? On the same samples.

    python -m benchmarks.quality [--seeds 3] [--jobs 2] [--codecs none,int4] [--replaced-every N]

A small character-level transformer (one layer of width 64) on the source of Python's standard library, 4 workers, 16
rows of 32 characters in a batch. All runs of a seed start from the same 500 steps with averaging, as DiLoCo's paper
starts from a pretrained model, and see the same rows in the same order for 1,000 steps of each worker after that, under
the same learning-rate schedule. Updates go through the product's own arithmetic: the executor's encoding with its
residuals, the parameter server's program, and the executor's step from one version to the next; no network. With
`--replaced-every N` another parameter server takes over after every N rounds, without what the encoding of the answers
had left out so far.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sysconfig
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import nn
from torch.nn import functional

from node.executors.aggregate import Aggregator
from node.training.files import write_tensors
from node.training.traits import Traits
from node.training.updates import state_of, write_update
from node.training.versions import Outer, advanced
from node.wire import Aggregation, Sync

WORKERS = 4
BATCH = 16
LETTERS = 32
WIDTH = 64
WARM, STEPS, EVERY = 500, 1500, 50
RATE, BETAS, DECAY = 4e-3, (0.9, 0.99), 0.01
OUTER = Outer(learning_rate=0.7, momentum=0.9)
CODECS = ("none", "bf16", "int8", "int4", "topk")
WANTED = {"none": 0.01, "bf16": 0.003, "int8": 0.003, "int4": 0.005, "topk": 0.01}
CORPUS_BYTES = 4_000_000


def rows() -> tuple[torch.Tensor, torch.Tensor]:
    """(validation rows, training rows): characters, one more than the model sees."""
    text = b""
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        text += path.read_bytes()
    letters = torch.frombuffer(bytearray(text[:CORPUS_BYTES]), dtype=torch.uint8).long().clamp(max=127)
    count = len(letters) // (LETTERS + 1)
    cut = letters[: count * (LETTERS + 1)].reshape(count, LETTERS + 1)
    mixed = cut[torch.randperm(count, generator=torch.Generator().manual_seed(0))]
    return mixed[:512], mixed[512:]


class Letters(nn.Module):
    """A transformer of one layer."""

    def __init__(self) -> None:
        super().__init__()
        self.letter = nn.Embedding(128, WIDTH)
        self.place = nn.Embedding(LETTERS, WIDTH)
        self.before, self.between, self.after = (nn.LayerNorm(WIDTH) for _ in range(3))
        self.look = nn.Linear(WIDTH, 3 * WIDTH)
        self.seen = nn.Linear(WIDTH, WIDTH)
        self.wide = nn.Linear(WIDTH, 4 * WIDTH)
        self.narrow = nn.Linear(4 * WIDTH, WIDTH)
        self.out = nn.Linear(WIDTH, 128)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, letters: torch.Tensor) -> torch.Tensor:
        """Scores of the next character at each place."""
        count, length = letters.shape
        x = self.letter(letters) + self.place.weight[:length]
        query, key, value = self.look(self.before(x)).reshape(count, length, 3, 4, WIDTH // 4).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.seen(mixed.transpose(1, 2).reshape(count, length, WIDTH))
        x = x + self.narrow(functional.gelu(self.wide(self.between(x))))
        scores: torch.Tensor = self.out(self.after(x))
        return scores


class Course:
    """The rows of each step, the learning rate, the loss."""

    def __init__(self, seed: int) -> None:
        torch.set_num_threads(1)
        self.validation, self._rows = rows()
        self._order = torch.randperm(len(self._rows), generator=torch.Generator().manual_seed(seed))

    def batch(self, step: int, begin: int, end: int) -> torch.Tensor:
        """Rows `begin` to `end` of those that the whole group sees in a step."""
        places = (torch.arange(begin, end) + step * WORKERS * BATCH) % len(self._rows)
        return self._rows[self._order[places]]

    def train(self, model: nn.Module, optimizer: torch.optim.Optimizer, step: int, batch: torch.Tensor) -> None:
        """One step."""
        warmth = step / 50 if step < 50 else 0.55 + 0.45 * math.cos(math.pi * (step - 50) / (STEPS - 50))
        for group in optimizer.param_groups:
            group["lr"] = RATE * warmth
        optimizer.zero_grad(set_to_none=True)
        loss_of(model, batch).backward()
        optimizer.step()

    def evaluate(self, model: nn.Module) -> float:
        """The validation loss."""
        with torch.no_grad():
            return loss_of(model, self.validation).item()


def loss_of(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    """Cross entropy of the next character."""
    return functional.cross_entropy(model(batch[:, :-1]).reshape(-1, 128), batch[:, 1:].reshape(-1))


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    """The inner optimizer."""
    return torch.optim.AdamW(model.parameters(), lr=RATE, betas=BETAS, weight_decay=DECAY)


def averaged(seed: int) -> tuple[float, dict[str, Any]]:
    """(loss, the weights after the first steps) of averaging after every step: that is one batch of all workers."""
    course = Course(seed)
    torch.manual_seed(seed)
    model = Letters()
    optimizer = adamw(model)
    start: dict[str, Any] = {}
    for step in range(STEPS):
        if step == WARM:
            start = {name: value.detach().clone().numpy() for name, value in model.named_parameters()}
        course.train(model, optimizer, step, course.batch(step, 0, WORKERS * BATCH))
    return course.evaluate(model), start


def diloco(seed: int, codec: str, start: dict[str, Any], replaced_every: int) -> tuple[float, int]:
    """(loss, bytes up and down of one worker) of DiLoCo with a codec, from these weights on."""
    course = Course(seed)
    models = [Letters() for _ in range(WORKERS)]
    optimizers = [adamw(model) for model in models]
    base = {name: torch.from_numpy(value.copy()) for name, value in start.items()}
    momentum: dict[str, torch.Tensor] = {}
    residuals: list[dict[str, torch.Tensor]] = [{} for _ in models]
    moved = 0
    with tempfile.TemporaryDirectory(prefix="hypha-bench-") as name:
        folder = Path(name)
        write_tensors(folder / "weights-0.safetensors", base, Traits().metadata)
        server = Server(folder, codec)
        for round_ in range((STEPS - WARM) // EVERY):
            if replaced_every and round_ and round_ % replaced_every == 0:
                for path in folder.glob("residual-*"):
                    path.unlink()
            updates = []
            for number, model in enumerate(models):
                tensors, _ = state_of(model)
                for key, tensor in tensors.items():
                    tensor.copy_(base[key])
                for step in range(WARM + round_ * EVERY, WARM + (round_ + 1) * EVERY):
                    batch = course.batch(step, number * BATCH, (number + 1) * BATCH)
                    course.train(model, optimizers[number], step, batch)
                path = folder / f"update-{number}.safetensors"
                written = write_update(path, base, tensors, codec=codec, residual=residuals[number])
                residuals[number] = written.residual
                updates.append(path)
            delta = server.commit(round_, updates)
            moved += updates[0].stat().st_size + delta.stat().st_size
            changed, speed = advanced(delta, base, momentum, names=sorted(base), traits=Traits(), outer=OUTER)
            base |= changed
            momentum |= speed
        tensors, _ = state_of(models[0])
        for key, tensor in tensors.items():
            tensor.copy_(base[key])
        return course.evaluate(models[0]), moved


class Server:
    """The parameter server's program, in this process."""

    def __init__(self, folder: Path, codec: str) -> None:
        self._folder = folder
        self._sync = msgspec.to_builtins(Sync(codec=codec))
        self._aggregator = Aggregator(folder)

    def commit(self, round_: int, updates: list[Path]) -> Path:
        """The delta of a round."""
        shares = []
        for number, path in enumerate(updates):
            norm = self._ask("check", path=str(path), round=round_, sync=self._sync)["norm"]
            shares.append({"path": str(path), "weight": 1.0, "task_id": f"t.0.{number}", "norm": norm})
        self._ask(
            "commit",
            round=round_,
            updates=shares,
            learning_rate=OUTER.learning_rate,
            momentum=OUTER.momentum,
            sync=self._sync,
            aggregation=msgspec.to_builtins(Aggregation()),
        )
        return self._folder / f"delta-{round_ + 1}.safetensors"

    def _ask(self, do: str, **fields: Any) -> dict[str, Any]:
        request = {"id": 1, "do": do, "folder": str(self._folder), **fields}
        answer = self._aggregator.answer(msgspec.json.encode(request))
        if not answer["ok"]:
            raise RuntimeError(f"{do}: {answer['error']}: {answer['detail']}")
        return answer


def _spread(values: list[float], show: Callable[[float], str]) -> str:
    return f"{show(statistics.mean(values)):>10}  ({', '.join(map(show, values))})"


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.quality", description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=2, help="runs at the same time, one thread each")
    parser.add_argument("--codecs", default=",".join(CODECS), help="names, with commas between them; none among them")
    parser.add_argument("--replaced-every", type=int, default=0, help="rounds between two parameter servers")
    chosen = parser.parse_args()
    codecs = chosen.codecs.split(",")
    began = time.monotonic()
    seeds = range(1, chosen.seeds + 1)
    with ProcessPoolExecutor(chosen.jobs, get_context("spawn")) as pool:
        plain = dict(zip(seeds, pool.map(averaged, seeds), strict=True))
        tasks = [(codec, seed) for codec in codecs for seed in seeds]
        starts = [plain[seed][1] for _, seed in tasks]
        every = [chosen.replaced_every] * len(tasks)
        made = pool.map(diloco, [s for _, s in tasks], [c for c, _ in tasks], starts, every)
        found = dict(zip(tasks, made, strict=True))
    print(f"{sum(value.size for value in plain[1][1].values()):,} parameters, {WORKERS} workers, H = {EVERY}")
    print(f"averaging every step   loss {_spread([plain[seed][0] for seed in seeds], '{:.4f}'.format)}")
    for codec in codecs:
        losses = [found[codec, seed][0] for seed in seeds]
        against = [plain[seed][0] if codec == "none" else found["none", seed][0] for seed in seeds]
        gaps = [loss / other - 1 for loss, other in zip(losses, against, strict=True)]
        size = found[codec, 1][1] / found["none", 1][1]
        what = "averaging every step" if codec == "none" else "DiLoCo uncompressed"
        print(
            f"DiLoCo {codec:<8} bytes {size:7.2%}   loss {statistics.mean(losses):.4f}   over {what}:"
            f" {_spread(gaps, '{:+.2%}'.format)}   wanted {WANTED[codec]:.1%}"
        )
    print(f"took {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
