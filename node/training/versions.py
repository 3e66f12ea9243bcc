"""From one version of the weights to the next, for everybody who holds one: executors, and whoever replays a journal.

A delta's content is the `step` (codec `none`), which is added, or the encoded mean pseudo-gradient (`gradient`), from
which everybody makes momentum and step. Buffers take the mean as it is and have no momentum. A `void` delta changes
nothing. Tensors that are not in a delta stay as they are, and so does their momentum.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from node.errors import TensorFileError
from node.training.codec import Codec, codec_named, codec_of
from node.training.files import (
    CHUNK,
    Array,
    Layout,
    TensorReader,
    check_layout,
    flat_float32,
    header_of,
    pieces,
    row,
    write_order,
)
from node.training.outer import clear, move, velocity_after
from node.training.traits import Traits
from node.training.updates import finite_square, layout_of

if TYPE_CHECKING:
    import torch

CONTENT = "hypha.content"
VERSION = "hypha.version"
VOID = "hypha.void"


@dataclass(frozen=True, slots=True)
class Outer:
    """The outer optimizer's constants."""

    learning_rate: float
    momentum: float


class Delta:
    """An open delta file, known to hold just the tensors of `expected`, or none if it is void."""

    def __init__(self, reader: TensorReader, expected: Layout, traits: Traits) -> None:
        self._reader = reader
        self.is_void = reader.metadata.get(VOID) == "1"
        self.content = reader.metadata.get(CONTENT, "step")
        if self.content not in ("step", "gradient"):
            raise TensorFileError(f"{reader.path.name}: the content {self.content[:40]!r} is unknown")
        self.version = reader.metadata.get(VERSION, "")
        self._number = int(self.version[:18]) if self.version[:18].isdecimal() else 1
        codec = codec_of(reader.metadata)
        if not (self.is_void and not reader.entries):
            check_layout(reader, codec.layout(expected, traits.buffers))
        self._buffers = traits.buffers
        self._codec = codec
        self._plain = codec_named("none")

    def codec_for(self, name: str) -> Codec:
        """How this tensor is written."""
        return self._plain if name in self._buffers else self._codec

    def apply(self, name: str, start: int, theta: Array, velocity: Array, outer: Outer | None, work: Work) -> None:
        """Moves a piece of the weights, and its momentum where `outer` is known, one version on."""
        if self.is_void:
            return
        step, scratch = work.step[: len(theta)], work.scratch[: len(theta)]
        self.codec_for(name).read(self._reader, name, start, step)
        with np.errstate(all="ignore"):
            if name not in self._buffers and outer is not None:
                rates = {"learning_rate": outer.learning_rate, "momentum": outer.momentum}
                advance = move if self.content == "gradient" else velocity_after
                advance(step, velocity, scratch, **rates)
                clear(velocity, scratch, self._number)
            np.add(theta, step, out=theta)


class Work:
    """Scratch space for one thread."""

    def __init__(self) -> None:
        self.step = row(CHUNK)
        self.scratch = row(CHUNK)


def advanced(
    path: Path,
    base: Mapping[str, torch.Tensor],
    momentum: Mapping[str, torch.Tensor],
    *,
    names: Sequence[str],
    traits: Traits,
    outer: Outer,
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """New (weights, momentum) of the tensors that a delta changes, out of those of the version before.

    The file must hold just `names`, with finite values, else TensorFileError. A name that is not in `momentum` has
    none yet. Only a gradient changes momentum here: who adds steps needs none. What is given is not written into.
    """
    import torch

    layout = layout_of({name: base[name] for name in names})
    with TensorReader(path) as reader:
        delta = Delta(reader, layout, traits)
        if delta.is_void:
            return {}, {}
        has_momentum = delta.content == "gradient"
        work = Work()
        new: dict[str, torch.Tensor] = {}
        new_momentum: dict[str, torch.Tensor] = {}
        for name in names:
            theta = flat_float32(base[name]).copy()
            speed = flat_float32(momentum[name]).copy() if name in momentum else np.zeros_like(theta)
            for start, length in pieces(len(theta)):
                here = slice(start, start + length)
                delta.apply(name, start, theta[here], speed[here], outer if has_momentum else None, work)
                finite_square(theta[here], path.name, name)
            new[name] = torch.from_numpy(theta.reshape(layout[name][1]))
            if has_momentum:
                new_momentum[name] = torch.from_numpy(speed.reshape(layout[name][1]))
    return new, new_momentum


def digest_of(tensors: Mapping[str, Any], metadata: Mapping[str, str]) -> str:
    """The SHA-256 that a float32 file of these tensors has; of a fragment's tensors, the fragment's digest."""
    layout = layout_of(tensors)
    digest = hashlib.sha256(header_of(layout, metadata))
    for name in write_order(layout):
        digest.update(flat_float32(tensors[name]))
    return digest.hexdigest()
