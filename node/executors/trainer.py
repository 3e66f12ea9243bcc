"""The model under training: batches, evaluation, and the move from one version of the weights to the next."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType, DynamoBackend, find_executable_batch_size, gather_object

from node.errors import JobError
from node.executors import memory
from node.executors.adamw import AdamW
from node.executors.batches import Batch, Slice
from node.executors.bridge_client import Arrival
from node.executors.denormals import flushed
from node.executors.global_state import GlobalState
from node.executors.job import Optimizer, Schedule
from node.executors.models import LoadedModel
from node.training.schedules import factor_of
from node.training.updates import state_of
from node.wire import OuterOptimizer, Sync

EVERYTHING = Sync()
"""The whole model at once, as float32."""


class Trainer:
    """AdamW on one replica. Model and optimizer are prepared once and live through all rounds."""

    def __init__(
        self,
        accelerator: Accelerator,
        loaded: LoadedModel,
        optimizer: Optimizer,
        schedule: Schedule | None,
        *,
        sync: Sync = EVERYTHING,
        outer: OuterOptimizer | None = None,
        precision: str = "fp32",
    ) -> None:
        self.accelerator = accelerator
        self._loss = loaded.loss
        self._is_causal = loaded.task == "causal-lm"
        self._plain = loaded.module
        self._precision = precision
        if hasattr(getattr(loaded.module, "config", None), "use_cache"):
            loaded.module.config.use_cache = False  # keys and values of past tokens are for generating only
        adamw = AdamW(
            [value for value in loaded.module.parameters() if value.requires_grad],
            lr=optimizer.learning_rate,
            betas=optimizer.betas,
            eps=optimizer.epsilon,
            weight_decay=optimizer.weight_decay,
            fused=accelerator.device.type == "cuda" or None,
        )
        shape = schedule or Schedule()
        factor = factor_of(
            shape.type,
            warmup_steps=shape.warmup_steps,
            total_steps=shape.training_steps or shape.total_steps,
            decay_steps=shape.decay_steps,
        )
        self._schedule = torch.optim.lr_scheduler.LambdaLR(adamw, factor)
        self._model = self._prepared(loaded.module)
        # Accelerate's wrapper asks in each step what hardware there is; only a gradient scaler needs it.
        self._optimizer = adamw if self.accelerator.scaler is None else self.accelerator.prepare(adamw)
        self._model.train()
        self._tensors, traits = state_of(self._plain)
        self._global = GlobalState(self._tensors, traits, sync, outer, is_checked=accelerator.is_main_process)
        self._is_global = sync.fragments == 1 and not sync.overlap
        """Whether the weights right after `apply` are those of the version."""

    @property
    def learning_rate(self) -> float:
        """The rate of the next batch."""
        return float(self._schedule.get_last_lr()[0])

    @property
    def is_asynchronous(self) -> bool:
        """Whether `train` returns before the batch is computed."""
        return bool(self.accelerator.device.type != "cpu")

    @flushed()
    def train(self, batch: Batch) -> Any:
        """One step of the inner optimizer; answers the batch's loss, which `float` waits for. In several processes
        each takes its rows."""
        begin, end = self._share(_rows(batch))
        part = self._place(batch, begin, max(end, begin + 1))
        world = self.accelerator.num_processes
        weight = 1.0
        if world > 1:
            mine = self._targets({name: value[begin:end] for name, value in batch.items()}) if end > begin else 0
            weight = mine / max(1, self._targets(batch))
        with self._autocast():
            loss = self._loss(self._model, part)
        self._backward(loss if world == 1 else loss * (world * weight))
        self._optimizer.step()
        self._schedule.step()
        self._optimizer.zero_grad(set_to_none=True)
        value = loss.detach() if world == 1 else self.accelerator.reduce(loss.detach() * weight, "sum")
        return LateLoss(value) if value.is_cuda else value

    def probe(self, batch_size: int, read: Callable[[int], Batch]) -> int:
        """The largest batch that fits in memory, halving from `batch_size`; `read(n)` gives n rows. A device is tried,
        the memory of a CPU is reckoned. Neither weights nor random state change."""

        @flushed()
        def attempt(size: int) -> None:
            batch = read(size)
            begin, end = self._share(_rows(batch))
            # The plain module: in another process the passes may end sooner, and no gradients are exchanged here.
            with self._autocast():
                loss = self._loss(self._plain, self._place(batch, begin, max(end, begin + 1)))
            loss.backward()
            for parameter in self._plain.parameters():
                parameter.grad = None

        kept = {name: value.detach().clone() for name, value in self._plain.named_buffers()}
        with torch.random.fork_rng():
            fits = self._reckon(batch_size, attempt) if not self.is_asynchronous else self._try(batch_size, attempt)
        with torch.no_grad():
            for name, value in self._plain.named_buffers():
                value.copy_(kept[name])
        if self.accelerator.num_processes > 1:
            fits = min(gather_object([fits]))
        return fits

    def evaluate(self, slices: Iterable[Slice], batch_size: int) -> float:
        """The mean loss of the version at hand over all rows, each by the number of targets it has."""
        own = {} if self._is_global else {name: value.clone() for name, value in self._tensors.items()}
        if own:
            self._take(self._global.base)
        try:
            return self._evaluate(slices, batch_size)
        finally:
            self._model.train()
            if own:
                self._take(own)

    def update_writer(self, round_: int, codec: str, *, is_later: bool) -> Callable[[Path], float]:
        """What writes the file of a round's update and answers its norm. `is_later`: training goes on before that."""
        names = self._global.names_of(round_)
        changes = {name: self._change(name) for name in names} if is_later else None

        def write(path: Path) -> float:
            change = self._change if changes is None else changes.pop
            return self._global.write_update(path, names, change, codec)

        return write

    def apply(self, arrival: Arrival, version: int, *, mixing: float = 0.0) -> None:
        """Takes in what leads to `version`: `mixing` of the own weights, the rest of the new ones. On any failure the
        model is the base again."""
        try:
            names = self._global.advance(arrival, version)
        except BaseException:
            self._take(self._global.base)
            raise
        self._take({name: self._global.base[name] for name in names}, mixing)

    def apply_weights(self, path: Path, momentum: Path | None = None, *, keeps_progress: bool = False) -> None:
        """Takes a whole version as base and weights; with `keeps_progress` what was learned since the base is kept."""
        own = {name: self._change(name) for name in self._tensors} if keeps_progress else {}
        self._global.load(path, momentum)
        self._take(self._global.base)
        with torch.no_grad():
            for name, change in own.items():
                self._tensors[name].add_(change.to(self._tensors[name].device, self._tensors[name].dtype))

    def base_is_sound(self) -> bool:
        """Whether the base has the digest that the last arrival named; true where it named none."""
        return self._global.is_sound()

    def _change(self, name: str) -> torch.Tensor:
        return self._tensors[name].to("cpu", torch.float32) - self._global.base[name]

    def _take(self, values: Mapping[str, torch.Tensor], mixing: float = 0.0) -> None:
        with torch.no_grad():
            for name, value in values.items():
                tensor = self._tensors[name]
                if mixing and tensor.is_floating_point():
                    tensor.mul_(mixing).add_(value.to(tensor.device), alpha=1.0 - mixing)
                else:
                    tensor.copy_(value)

    @flushed()
    def _evaluate(self, slices: Iterable[Slice], batch_size: int) -> float:
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

    def _try(self, batch_size: int, attempt: Callable[[int], None]) -> int:
        """Runs into the device's limit, with what the optimizer is going to occupy already taken."""
        found: list[int] = []

        @find_executable_batch_size(starting_batch_size=batch_size)  # type: ignore[untyped-decorator, unused-ignore]
        def run(size: int) -> None:
            trainable = [value for value in self._plain.parameters() if value.requires_grad]
            reserved = [torch.empty_like(value) for value in trainable for _ in range(2)]
            attempt(size)
            del reserved
            found.append(size)

        try:
            run()
        except RuntimeError as error:
            if "No executable batch size" in str(error):
                raise JobError("the device has no room for a batch of one row") from error
            raise
        return found[0]

    def _reckon(self, batch_size: int, attempt: Callable[[int], None]) -> int:
        own = list(self._plain.parameters())
        trainable = sum(value.numel() * value.element_size() for value in own if value.requires_grad)
        limit = int(memory.limit_bytes() * memory.USABLE) // self.accelerator.num_processes
        # To come: gradients, the two moments of AdamW, and what the exchange keeps.
        free = limit - memory.resident_bytes() - 3 * trainable - self._global.bytes_to_come
        addresses = {value.untyped_storage().data_ptr() for value in own}
        return memory.rows_that_fit(batch_size, attempt, own=addresses, free_bytes=free)

    def _prepared(self, module: Any) -> Any:
        state = self.accelerator.state
        is_compiled = state.dynamo_plugin.backend != DynamoBackend.NO
        if state.distributed_type != DistributedType.NO or state.mixed_precision != "no" or is_compiled:
            return self.accelerator.prepare(module)
        # All that `prepare` would do; it loads half a second's worth of torch's distributed tensors to find out.
        return module.to(self.accelerator.device)

    def _backward(self, loss: Any) -> None:
        if self.accelerator.scaler is None:
            loss.backward()
        else:
            self.accelerator.backward(loss)

    def _autocast(self) -> contextlib.AbstractContextManager[Any]:
        context: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
        if self._precision == "bf16":
            context = torch.autocast(self.accelerator.device.type, torch.bfloat16)
        return context

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
        return {name: value[begin:end].to(device, non_blocking=True) for name, value in batch.items()}


class LateLoss:
    """A loss on its way from a GPU. Asked for later, it would come after all that has been queued there since."""

    def __init__(self, loss: torch.Tensor) -> None:
        self._value = torch.empty((), dtype=loss.dtype, pin_memory=True).copy_(loss, non_blocking=True)
        self._arrived = torch.cuda.Event()
        self._arrived.record()

    def __float__(self) -> float:
        self._arrived.synchronize()
        return float(self._value)


def _rows(batch: Batch) -> int:
    return len(next(iter(batch.values())))
