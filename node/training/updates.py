"""Updates: what a worker learned in a round, as a file, and the checks such a file must pass.

The state that travels is every parameter and every persistent buffer of a model, as float32, under one name each: tied
weights appear once. Parameters go through the outer optimizer; buffers (the running statistics of batch norm) are
averaged plainly, without momentum. Counters (buffers of whole numbers, as the batches that batch norm has seen) move as
far as that of the worker that counted most.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from node.errors import TensorFileError
from node.training.codec import codec_named, shapes_metadata
from node.training.files import (
    CHUNK,
    FLOAT32,
    Array,
    Layout,
    TensorReader,
    TensorWriter,
    flat_float32,
    pieces,
    row,
)
from node.training.reading import Values
from node.training.traits import Traits

if TYPE_CHECKING:
    import torch

COUNTS_TO = 2**24
"""Whole numbers up to here are float32 numbers."""


@dataclass(frozen=True, slots=True)
class Written:
    """The norm of what was learned, and what the codec left out of the file."""

    norm: float
    residual: dict[str, torch.Tensor] = field(default_factory=dict)


def state_of(model: Any) -> tuple[dict[str, torch.Tensor], Traits]:
    """The live tensors of a model that travel, by name, and what they are."""
    tensors: dict[str, torch.Tensor] = {
        name: value.detach() for name, value in model.named_parameters() if value.is_floating_point()
    }
    kept = model.state_dict()
    buffers = {name: value.detach() for name, value in model.named_buffers() if name in kept and _travels(value)}
    names = {id(value): name for name, value in [*model.named_parameters(), *model.named_buffers()]}
    every = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    tied = {name: names[id(value)] for name, value in every if names[id(value)] != name}
    tensors |= buffers
    counters = frozenset(name for name, value in buffers.items() if not value.is_floating_point())
    return tensors, Traits(
        frozenset(buffers), counters, {name: first for name, first in tied.items() if first in tensors}
    )


def _travels(buffer: torch.Tensor) -> bool:
    """Floating point, or whole numbers that float32 can hold."""
    if buffer.is_floating_point():
        return True
    is_number = buffer.dtype.is_signed and not buffer.is_complex()
    return is_number and (not buffer.numel() or int(buffer.abs().max()) < COUNTS_TO)


def layout_of(tensors: Mapping[str, Any]) -> Layout:
    """The layout of a file with these tensors as float32."""
    return {name: (FLOAT32, tuple(value.shape)) for name, value in sorted(tensors.items())}


def check_update(reader: TensorReader, expected: Layout, traits: Traits) -> float:
    """The norm of a file of these tensors. Raises TensorFileError naming what is wrong with it."""
    values = Values(reader, expected, traits)
    buffer = row(CHUNK)
    total = 0.0
    for name, (_, shape) in expected.items():
        for start, length in pieces(math.prod(shape)):
            piece = buffer[:length]
            values.read(name, start, piece)
            total += finite_square(piece, reader.path.name, name)
    return math.sqrt(total)


def check_values(reader: TensorReader) -> float:
    """The norm over all tensors of a float32 file; raises TensorFileError naming a tensor with NaN or infinity."""
    return check_update(reader, reader.layout, Traits(buffers=frozenset(reader.entries)))


def finite_square(values: Array, place: str, name: str) -> float:
    """The sum of squares. Raises TensorFileError where a value is not finite: in this place, in the tensor `name`."""
    with np.errstate(all="ignore"):
        square = float(np.dot(values, values))
    if math.isfinite(square):
        return square
    if not np.isfinite(values).all():
        raise TensorFileError(f"{place}: tensor {name} has values that are not finite")
    wide: Array = values.astype(np.float64)
    return float(np.dot(wide, wide))


def write_update(
    path: Path,
    base: Mapping[str, torch.Tensor],
    tensors: Mapping[str, torch.Tensor],
    *,
    names: Sequence[str] | None = None,
    buffers: frozenset[str] = frozenset(),
    codec: str = "none",
    density: float = 0.02,
    residual: Mapping[str, torch.Tensor] | None = None,
) -> Written:
    """Writes `tensors - base` for these names (or all of `base`). Nothing is written if it is not finite.

    `residual` is what earlier files left out; it is added. The answer's residual is to take its place once the update
    has counted. Neither is touched here.
    """

    def change(name: str) -> torch.Tensor:
        return tensors[name].to("cpu", dtype=base[name].dtype) - base[name]

    shapes = {name: base[name] for name in (base if names is None else names)}
    return write_changes(
        path, layout_of(shapes), change, buffers=buffers, codec=codec, density=density, residual=residual
    )


def write_changes(
    path: Path,
    layout: Layout,
    change: Callable[[str], torch.Tensor],
    *,
    buffers: frozenset[str] = frozenset(),
    codec: str = "none",
    density: float = 0.02,
    residual: Mapping[str, torch.Tensor] | None = None,
) -> Written:
    """`write_update` for changes that are made one tensor at a time. Each is asked for once and may be written into."""
    import torch

    encoder, plain = codec_named(codec, density), codec_named("none")
    writer = TensorWriter(
        path, encoder.layout(layout, buffers), {**encoder.metadata, **shapes_metadata(encoder, layout)}
    )
    before, after, total = residual or {}, {}, 0.0
    try:
        for name, (_, shape) in layout.items():
            own = plain if name in buffers else encoder
            delta = flat_float32(change(name))
            left = np.empty_like(delta) if own.keeps_residual else None
            add = flat_float32(before[name]) if left is not None and name in before else None
            for start, length in pieces(len(delta)):
                piece = delta[start : start + length]
                total += finite_square(piece, "what was learned", name)
                if left is None:
                    own.write(writer, name, start, own.encode(piece))
                    continue
                wanted = left[start : start + length]
                np.add(piece, 0 if add is None else add[start : start + length], out=wanted)
                parts = own.encode(wanted)
                own.write(writer, name, start, parts)
                own.decode(parts, piece)
                np.subtract(wanted, piece, out=wanted)
            if left is not None:
                after[name] = torch.from_numpy(left.reshape(shape))
        writer.publish()
    finally:
        writer.discard()
    return Written(math.sqrt(total), after)
