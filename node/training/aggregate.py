"""Closing a round: the weighted mean of the updates, one outer step, the next version of the weights.

Everything is read and written chunk by chunk; memory does not grow with the model or the number of updates. Sums are
float64 and updates are taken in the order of their paths, so the result does not depend on who came first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import torch

from node.errors import TensorFileError
from node.training.files import CHUNK, TensorReader, TensorWriter, pieces
from node.training.outer import nesterov
from node.training.updates import buffers_metadata, buffers_named, check_layout


@dataclass(frozen=True, slots=True)
class Update:
    """An accepted update and the number of samples behind it."""

    path: Path
    weight: float


@dataclass(frozen=True, slots=True)
class Committed:
    """The files of a new version are on the disk under their final names."""

    version: int
    digest: str
    weights_bytes: int
    step_digest: str
    step_bytes: int


def weights_path(folder: Path, version: int) -> Path:
    """Where the weights of a version lie. A version exists if and only if this file does."""
    return folder / f"weights-{version}.safetensors"


def step_path(folder: Path, version: int) -> Path:
    """The step that made a version out of the one before."""
    return folder / f"step-{version}.safetensors"


def momentum_path(folder: Path, version: int) -> Path:
    """The outer optimizer's velocity after a version was made."""
    return folder / f"momentum-{version}.safetensors"


def commit(
    folder: Path, round_number: int, updates: Sequence[Update], *, learning_rate: float, momentum: float
) -> Committed:
    """Makes version `round_number + 1`. With no update, or no samples behind them, the step is zero and the
    velocity stays as it is. The weights get their name last: until then the round did not happen."""
    version = round_number + 1
    for update in updates:
        if not (math.isfinite(update.weight) and update.weight >= 0):
            raise TensorFileError(f"{update.path.name}: weight {update.weight} is not a number of samples")
    counted = sorted((u for u in updates if u.weight > 0), key=lambda update: str(update.path))
    with ExitStack() as stack:
        base = stack.enter_context(TensorReader(weights_path(folder, round_number)))
        layout = base.layout
        buffers = buffers_named(base)
        velocity = None
        if round_number > 0:
            velocity = stack.enter_context(TensorReader(momentum_path(folder, round_number)))
            check_layout(velocity, layout)
        sources = [(stack.enter_context(TensorReader(update.path)), update.weight) for update in counted]
        for reader, _ in sources:
            check_layout(reader, layout)

        step_out = TensorWriter(step_path(folder, version), layout)
        stack.callback(step_out.discard)
        momentum_out = TensorWriter(momentum_path(folder, version), layout, hashed=False)
        stack.callback(momentum_out.discard)
        weights_out = TensorWriter(weights_path(folder, version), layout, buffers_metadata(buffers))
        stack.callback(weights_out.discard)
        work = _Workspace()
        for name in weights_out.names:
            outer = (1.0, 0.0) if name in buffers else (learning_rate, momentum)
            for start, length in pieces(base.entries[name].elements):
                step, new_velocity, theta = work.advance(name, start, length, base, velocity, sources, outer)
                step_out.write(step)
                momentum_out.write(new_velocity)
                weights_out.write(theta)
        momentum_out.finish()
        done = Committed(version, weights_out.finish(), weights_out.size_bytes, step_out.finish(), step_out.size_bytes)
        for writer in (step_out, momentum_out, weights_out):
            writer.publish()
    return done


class _Workspace:
    """Buffers for one chunk, used again for every chunk."""

    def __init__(self) -> None:
        self._read = torch.empty(CHUNK, dtype=torch.float32)
        self._mean = torch.empty(CHUNK, dtype=torch.float64)
        self._velocity = torch.empty(CHUNK, dtype=torch.float64)

    def advance(
        self,
        name: str,
        start: int,
        length: int,
        base: TensorReader,
        velocity: TensorReader | None,
        sources: Sequence[tuple[TensorReader, float]],
        outer: tuple[float, float],
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """(step, velocity, weights) of one chunk, float32."""
        piece = self._read[:length]
        mean = self._mean[:length].zero_()
        speed = self._velocity[:length].zero_()
        for reader, weight in sources:
            reader.read_into(name, start, piece)
            mean.add_(piece, alpha=weight)
        if velocity is not None:
            velocity.read_into(name, start, piece)
            speed.copy_(piece)
        if sources:
            mean.div_(sum(weight for _, weight in sources))
            learning_rate, momentum = outer
            step64, speed = nesterov(mean, speed, learning_rate=learning_rate, momentum=momentum)
            step = step64.to(torch.float32)
        else:
            step = torch.zeros(length, dtype=torch.float32)
        base.read_into(name, start, piece)
        theta = piece + step
        if not math.isfinite(theta.sum(dtype=torch.float64).item()):
            raise TensorFileError(f"the outer step leaves values that are not finite in {name}")
        return step, speed.to(torch.float32), theta
