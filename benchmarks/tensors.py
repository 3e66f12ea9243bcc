"""Files of tensors of a given size, as a parameter server and its members exchange them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from node.training.files import TensorReader, write_tensors
from node.training.traits import Traits
from node.training.updates import write_update

SCALE = 1e-3


def make_weights(path: Path, elements: int, tensors: int) -> None:
    """A version's weights: so many float32 values in so many tensors of one size."""
    draw = np.random.default_rng(1)
    each = elements // tensors
    made: dict[str, Any] = {f"layer{number:02}": draw.standard_normal(each, np.float32) for number in range(tensors)}
    write_tensors(path, made, Traits().metadata)


def make_update(path: Path, weights: Path, codec: str, *, seed: int) -> None:
    """What a worker sends after it has moved every weight a little."""
    draw = np.random.default_rng(seed + 2)
    with TensorReader(weights) as reader:
        base = {name: reader.tensor(name) for name in reader.entries}
    moved = {
        name: value + torch.from_numpy(draw.standard_normal(value.numel(), np.float32) * np.float32(SCALE))
        for name, value in base.items()
    }
    write_update(path, base, moved, codec=codec)
