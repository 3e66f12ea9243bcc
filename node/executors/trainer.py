"""The model under training: batches, evaluation, and the move from one version of the weights to the next."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import find_executable_batch_size

from node.errors import JobError
from node.executors.batches import Batch, Slice
from node.executors.job import Optimizer, Schedule
from node.executors.models import LoadedModel
from node.training.files import TensorReader
from node.training.schedules import factor_of
from node.training.updates import check_layout, check_values, layout_of, state_of, write_update

log = logging.getLogger(__name__)


class Trainer:
    """AdamW on one replica. Model and optimizer are prepared once and live through all rounds."""

    def __init__(
        self, accelerator: Accelerator, loaded: LoadedModel, optimizer: Optimizer, schedule: Schedule | None
    ) -> None:
        self.accelerator = accelerator
        self._loss = loaded.loss
        self._is_causal = loaded.task == "causal-lm"
        self._plain = loaded.module
        if hasattr(getattr(loaded.module, "config", None), "use_cache"):
            loaded.module.config.use_cache = False  # keys and values of past tokens are for generating only
        adamw = torch.optim.AdamW(
            [value for value in loaded.module.parameters() if value.requires_grad],
            lr=optimizer.learning_rate,
            betas=optimizer.betas,
            eps=optimizer.epsilon,
            weight_decay=optimizer.weight_decay,
        )
        shape = schedule or Schedule()
        factor = factor_of(
            shape.type,
            warmup_steps=shape.warmup_steps,
            total_steps=shape.training_steps or shape.total_steps,
            decay_steps=shape.decay_steps,
        )
        self._schedule = torch.optim.lr_scheduler.LambdaLR(adamw, factor)
        self._model, self._optimizer = self.accelerator.prepare(loaded.module, adamw)
        self._tensors, _ = state_of(self._plain)
        self._layout = layout_of(self._tensors)
        self._base = {name: value.to("cpu", torch.float32, copy=True) for name, value in self._tensors.items()}

    @property
    def learning_rate(self) -> float:
        """The rate of the next batch."""
        return float(self._schedule.get_last_lr()[0])

    def train(self, batch: Batch) -> float:
        """One step of the inner optimizer; answers the batch's loss. In several processes each takes its rows."""
        self._model.train()
        rows = _rows(batch)
        begin, end = self._share(rows)
        part = self._place(batch, begin, max(end, begin + 1))
        loss = self._loss(self._model, part)
        world = self.accelerator.num_processes
        self.accelerator.backward(loss if world == 1 else loss * (world * (end - begin) / rows))
        self._optimizer.step()
        self._schedule.step()
        self._optimizer.zero_grad(set_to_none=True)
        if world == 1:
            return float(loss.item())
        mine = loss.detach() * ((end - begin) / rows)
        return float(self.accelerator.reduce(mine, "sum").item())

    def probe(self, batch_size: int, read: Callable[[int], Batch]) -> int:
        """The largest batch that fits in memory, halving from `batch_size`; `read(n)` gives n rows. A CPU has no such
        limit that it could report, so there it is `batch_size`. Neither weights nor random state change."""
        if self.accelerator.device.type == "cpu":
            return batch_size

        @find_executable_batch_size(starting_batch_size=batch_size)  # type: ignore[untyped-decorator, unused-ignore]
        def attempt(size: int) -> int:
            batch = read(size)
            self.accelerator.backward(self._loss(self._model, self._place(batch, 0, _rows(batch))))
            return size

        with torch.random.fork_rng():
            found = int(attempt())
        self._optimizer.zero_grad(set_to_none=True)
        self._restore()
        return found

    def evaluate(self, slices: Iterable[Slice], batch_size: int) -> float:
        """The mean loss over all rows, each by the number of targets it has."""
        self._model.eval()
        total = weight = 0.0
        with torch.no_grad():
            for part in slices:
                for start, end in part.batches(batch_size):
                    batch = part.read(start, end)
                    targets = self._targets(batch)
                    loss = self._loss(self._plain, self._place(batch, 0, end - start))
                    total += loss.item() * targets
                    weight += targets
        if not weight:
            raise JobError("the validation dataset has no rows")
        return total / weight

    def write_update(self, path: Path) -> float:
        """Writes what was learned since the round's base as a file; answers its norm."""
        return write_update(path, self._base, self._tensors)

    def apply_step(self, path: Path) -> None:
        """Base plus step becomes the new base and the model's weights; on any failure the model is the base again."""
        self._move(path, adds=True)

    def apply_weights(self, path: Path) -> None:
        """Takes a whole version as base and weights."""
        self._move(path, adds=False)

    def _move(self, path: Path, *, adds: bool) -> None:
        try:
            with TensorReader(path) as reader, torch.no_grad():
                check_layout(reader, self._layout)
                check_values(reader)
                for name, tensor in self._tensors.items():
                    value = reader.tensor(name)
                    tensor.copy_(value.add_(self._base[name]) if adds else value)
        except BaseException:
            self._restore()
            raise
        for name, tensor in self._tensors.items():
            self._base[name].copy_(tensor)

    def _restore(self) -> None:
        with torch.no_grad():
            for name, tensor in self._tensors.items():
                tensor.copy_(self._base[name])

    def _targets(self, batch: Batch) -> int:
        """How many predictions the loss of a batch is the mean of."""
        labels = batch.get("labels", batch.get("input_ids") if self._is_causal else None)
        if labels is None or labels.is_floating_point():
            return _rows(batch)
        return int((labels[..., 1:] if self._is_causal else labels).ne(-100).sum())

    def _share(self, rows: int) -> tuple[int, int]:
        world, rank = self.accelerator.num_processes, self.accelerator.process_index
        return rows * rank // world, rows * (rank + 1) // world

    def _place(self, batch: Batch, begin: int, end: int) -> dict[str, Any]:
        begin = min(begin, _rows(batch) - 1)
        device = self.accelerator.device
        return {name: value[begin:end].to(device) for name, value in batch.items()}


def _rows(batch: Batch) -> int:
    return len(next(iter(batch.values())))
