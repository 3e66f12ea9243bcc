"""DiLoCo in plain torch, for comparison: shares no code with `node` (arXiv 2311.08105, algorithm 1).

Everything happens in one process on lists of tensors: workers take AdamW steps from the same weights, their changes are
averaged by samples, and the outer optimizer is torch's own SGD with Nesterov momentum.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch

Batch = dict[str, torch.Tensor]
LossOf = Callable[[Any, Batch], torch.Tensor]


class Oracle:
    """A group of workers. `model` is the global model; it is only read."""

    def __init__(
        self,
        model: Any,
        loss_of: LossOf,
        workers: int,
        *,
        inner: dict[str, Any],
        outer_lr: float,
        outer_momentum: float,
        factor: Callable[[int], float] = lambda step: 1.0,
    ) -> None:
        self.loss_of = loss_of
        self.replicas = [copy.deepcopy(model) for _ in range(workers)]
        self.inner = [torch.optim.AdamW(replica.parameters(), **inner) for replica in self.replicas]
        self.schedules = [torch.optim.lr_scheduler.LambdaLR(opt, factor) for opt in self.inner]
        self.weights = [parameter.detach().clone() for parameter in model.parameters()]
        self.buffers = [buffer.detach().clone() for buffer in model.buffers()]
        self.outer = torch.optim.SGD(self.weights, lr=outer_lr, momentum=outer_momentum, nesterov=outer_momentum > 0)

    def round(self, batches: Sequence[Sequence[Batch]], rows: Callable[[Batch], int]) -> None:
        """One round; `batches[k]` are worker k's. A worker without batches is not part of it."""
        for replica, optimizer, schedule, mine in zip(self.replicas, self.inner, self.schedules, batches, strict=True):
            self._start(replica)
            replica.train()
            for batch in mine:
                optimizer.zero_grad()
                self.loss_of(replica, batch).backward()
                optimizer.step()
                schedule.step()
        samples = [sum(rows(batch) for batch in mine) for mine in batches]
        total = sum(samples)
        for index, weight in enumerate(self.weights):
            after = [list(replica.parameters())[index].detach().double() for replica in self.replicas]
            change = sum((n / total) * (value - weight.double()) for n, value in zip(samples, after, strict=True))
            weight.grad = -change.float()
        for index, buffer in enumerate(self.buffers):
            after = [list(replica.buffers())[index] for replica in self.replicas]
            if buffer.is_floating_point():
                buffer.copy_(sum((n / total) * value.double() for n, value in zip(samples, after, strict=True)).float())
            else:
                buffer.copy_(torch.stack(after).amax(0))
        self.outer.step()

    def named(self, model: Any) -> dict[str, torch.Tensor]:
        """The global weights under the names of `model`."""
        names = [name for name, _ in model.named_parameters()]
        buffers = [name for name, _ in model.named_buffers()]
        return {**dict(zip(names, self.weights, strict=True)), **dict(zip(buffers, self.buffers, strict=True))}

    def _start(self, replica: Any) -> None:
        with torch.no_grad():
            for parameter, weight in zip(replica.parameters(), self.weights, strict=True):
                parameter.copy_(weight)
            for mine, buffer in zip(replica.buffers(), self.buffers, strict=True):
                mine.copy_(buffer)


def nesterov(gradients: Sequence[float], lr: float, mu: float, theta: float = 0.0) -> float:
    """The scalar recursion, written out: v = mu v + g, theta += lr (g + mu v)."""
    velocity = 0.0
    for gradient in gradients:
        velocity = mu * velocity + gradient
        theta += lr * (gradient + mu * velocity)
    return theta
