"""The values of a state's tensors in a file, whoever wrote it."""

from __future__ import annotations

from typing import Any

import numpy as np

from node.errors import TensorFileError
from node.training.codec import CODEC, Codec, codec_named, codec_of, widened
from node.training.files import Array, Layout, TensorReader, check_layout, kind_text
from node.training.traits import Traits

PLAIN = codec_named("none")
FLOATS: dict[str, Any] = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": np.uint16}
INTEGERS: dict[str, Any] = {
    "I64": np.int64,
    "I32": np.int32,
    "I16": np.int16,
    "I8": np.int8,
    "U64": np.uint64,
    "U32": np.uint32,
    "U16": np.uint16,
    "U8": np.uint8,
}


class Values:
    """Float32 values by the names of `expected`. Raises TensorFileError where the file does not hold just these.

    A file of ours names its codec, and holds all of them as that says. In any other a tensor has any floating point
    type, and a counter any integer one; a counter that is not there has not moved; a tied tensor has any of its names.
    Where it has several the first in the alphabet counts: safetensors saves a model under that one, and upstream's
    executor knows the change of that one alone.
    """

    def __init__(self, reader: TensorReader, expected: Layout, traits: Traits) -> None:
        self.codec: Codec = codec_of(reader.metadata)
        self._reader = reader
        self._buffers = traits.buffers
        self._names: dict[str, str] | None = None
        if CODEC in reader.metadata:
            check_layout(reader, self.codec.layout(expected, traits.buffers))
        else:
            self._names = _names(reader, expected, traits)

    def holds(self, name: str) -> bool:
        """Whether the file says anything of this tensor."""
        return self._names is None or name in self._names

    def read(self, name: str, start: int, out: Array) -> None:
        """Fills `out` with the values of a tensor from `start` on."""
        if self._names is None:
            (PLAIN if name in self._buffers else self.codec).read(self._reader, name, start, out)
            return
        found = self._names.get(name)
        if found is None:
            out[:] = 0
            return
        dtype = self._reader.entries[found].dtype
        if dtype == "F32":
            self._reader.read_into(found, start, out)
            return
        values = np.empty(len(out), (FLOATS | INTEGERS)[dtype])
        self._reader.read_into(found, start, values)
        with np.errstate(all="ignore"):  # what is not finite is found by looking for it
            out[:] = widened(values) if dtype == "BF16" else values


def _names(reader: TensorReader, expected: Layout, traits: Traits) -> dict[str, str]:
    """Under which name the file has each tensor that it has."""
    own = {name: traits.tied.get(name, name) for name in sorted(reader.entries)}
    found: dict[str, str] = {}
    for name, meant in own.items():
        if meant not in expected:
            raise TensorFileError(f"{reader.path.name}: tensor {name} is not part of the model")
        found.setdefault(meant, name)
    for name, kind in expected.items():
        if name not in found:
            if name in traits.counters:
                continue
            raise TensorFileError(f"{reader.path.name}: tensor {name} is missing")
        entry = reader.entries[found[name]]
        is_number = entry.dtype in FLOATS or (name in traits.counters and entry.dtype in INTEGERS)
        if not is_number or entry.shape != kind[1]:
            is_what = kind_text((entry.dtype, entry.shape))
            raise TensorFileError(f"{reader.path.name}: tensor {found[name]} is {is_what}, expected {kind_text(kind)}")
    return found
