"""Updates: what a worker learned in a round, as a file, and the checks such a file must pass.

The state that travels is every parameter and every persistent floating point buffer of a model, as float32, under one
name each: tied weights appear once. Integer buffers (counters) stay where they are. Parameters go through the outer
optimizer; buffers (the running statistics of batch norm) are averaged plainly, without momentum.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from node.errors import TensorFileError
from node.training.files import CHUNK, Layout, TensorReader, TensorWriter, pieces

BUFFERS = "hypha.buffers"
"""Key in a file's metadata: which of its tensors are buffers, as a JSON list."""


def state_of(model: Any) -> tuple[dict[str, torch.Tensor], frozenset[str]]:
    """The live tensors of a model that travel, by name, and which of them are buffers."""
    tensors: dict[str, torch.Tensor] = {
        name: value.detach() for name, value in model.named_parameters() if value.is_floating_point()
    }
    kept = model.state_dict()
    buffers = {
        name: value.detach() for name, value in model.named_buffers() if name in kept and value.is_floating_point()
    }
    return {**tensors, **buffers}, frozenset(buffers)


def layout_of(tensors: Mapping[str, torch.Tensor]) -> Layout:
    """The layout of a file with these tensors as float32."""
    return {name: ("F32", tuple(value.shape)) for name, value in sorted(tensors.items())}


def buffers_metadata(buffers: frozenset[str]) -> dict[str, str]:
    """Metadata of a weights file. `format` is what Transformers asks for."""
    return {"format": "pt", BUFFERS: json.dumps(sorted(buffers))}


def buffers_named(reader: TensorReader) -> frozenset[str]:
    """Which tensors of a weights file are buffers."""
    return frozenset(json.loads(reader.metadata.get(BUFFERS, "[]")))


def check_layout(reader: TensorReader, expected: Layout) -> None:
    """Raises TensorFileError naming the first tensor that is missing, unknown or of another kind."""
    actual = reader.layout
    for name, kind in expected.items():
        if name not in actual:
            raise TensorFileError(f"{reader.path.name}: tensor {name} is missing")
        if actual[name] != kind:
            raise TensorFileError(f"{reader.path.name}: tensor {name} is {_kind(actual[name])}, expected {_kind(kind)}")
    for name in actual:
        if name not in expected:
            raise TensorFileError(f"{reader.path.name}: tensor {name} is not part of the model")


def check_values(reader: TensorReader) -> float:
    """The norm over all tensors of a float32 file; raises TensorFileError naming a tensor with NaN or infinity."""
    buffer = torch.empty(CHUNK, dtype=torch.float32)
    total = 0.0
    for name, entry in sorted(reader.entries.items()):
        for start, length in pieces(entry.elements):
            piece = buffer[:length]
            reader.read_into(name, start, piece)
            norm = torch.linalg.vector_norm(piece, dtype=torch.float64).item()
            if not math.isfinite(norm):
                raise TensorFileError(f"{reader.path.name}: tensor {name} has values that are not finite")
            total += norm * norm
    return math.sqrt(total)


def write_update(path: Path, base: Mapping[str, torch.Tensor], tensors: Mapping[str, torch.Tensor]) -> float:
    """Writes `tensors - base` for every name of `base`; answers the norm. Nothing is written if it is not finite."""
    writer = TensorWriter(path, layout_of(base), hashed=False)
    total = 0.0
    try:
        for name in writer.names:
            delta = tensors[name].to("cpu", torch.float32) - base[name]
            norm = torch.linalg.vector_norm(delta, dtype=torch.float64).item()
            if not math.isfinite(norm):
                raise TensorFileError(f"training left values that are not finite in {name}")
            total += norm * norm
            writer.write(delta)
        writer.finish()
        writer.publish()
    finally:
        writer.discard()
    return math.sqrt(total)


def _kind(kind: tuple[str, tuple[int, ...]]) -> str:
    return f"{kind[0]} {list(kind[1])}"
