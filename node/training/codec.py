"""Codecs: how the values of a pseudo-gradient are written down in fewer bytes.

A tensor becomes one or more parts in the file: its codes under its own name, what they are to be multiplied by under
`name@scale`, the places of values that were picked under `name@index`. Blocks are counted along the flattened tensor.

| codec | block | parts | bytes of float32 |
|---|---|---|---|
| `none` | | F32 | all |
| `bf16` | | BF16 | 1/2 |
| `int8` | 256 | I8 codes in the tensor's shape; F32 scales | 1/3.94 |
| `int4` | 64 | U8, two codes a byte, low nibble first; BF16 scales | 1/7.5 |
| `topk` | 4096 | the largest `density` of a block: U8 12-bit places, U8 2-bit codes; BF16 scales | 1/112 at 2 % |

A scale is a block's largest magnitude divided by the largest code. Codes are rounded half to even after a true
division, which every machine does alike. A block whose scale would not be a normal float32 is zero. BF16
scales have the range of float32: float16 would lose pseudo-gradients below 1e-6.
Buffers (running statistics) are never encoded.

What `int8`, `int4` and `topk` lose is kept and added to what is encoded next (error feedback), or it would be lost
every time. What `bf16` loses, at most 1/256 of a value, is not worth a copy of the model.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from node.errors import TensorFileError
from node.training.files import CHUNK, FLOAT32, Array, Layout, TensorReader, TensorWriter

CODEC = "hypha.codec"
DENSITY = "hypha.density"
SHAPES = "hypha.shapes"

NAMES = ("none", "bf16", "int8", "int4", "topk")
TINY = np.float32(2.0**-126)
TOP_BLOCK = 4096


class Codec:
    """What all codecs have in common. `encode` has scratch space: each thread that encodes needs a codec of its own.

    Pieces begin at multiples of `CHUNK`. What `encode` answers is good until the next call.
    """

    name = "none"
    parts: tuple[tuple[str, str, Any], ...] = (("", FLOAT32, np.float32),)
    """(suffix of the name, dtype in the file, dtype in memory)."""
    keeps_residual = False
    """Whether what encoding loses is worth keeping for the next round."""

    @property
    def metadata(self) -> dict[str, str]:
        """What a file must say of its codec."""
        return {CODEC: self.name}

    def counts(self, elements: int) -> tuple[int, ...]:
        """How many items of each part the first so many elements of a tensor take."""
        return (elements,)

    def shapes(self, shape: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
        """The shape of each part."""
        return (shape,)

    def encode(self, values: Array) -> Sequence[Array]:
        """The parts of a piece."""
        return (values,)

    def decode(self, parts: Sequence[Array], out: Array) -> None:
        """Fills `out` with the values that parts stand for. Raises ValueError where they stand for none."""
        out[:] = parts[0]

    def layout(self, tensors: Layout, buffers: frozenset[str]) -> Layout:
        """The layout of a file that holds these float32 tensors."""
        made: Layout = {name: kind for name, kind in tensors.items() if name in buffers}
        for name, (_, shape) in tensors.items():
            if name not in buffers:
                for (suffix, dtype, _), part_shape in zip(self.parts, self.shapes(shape), strict=True):
                    if name + suffix in made or (suffix and name + suffix in tensors):
                        raise TensorFileError(f"the tensor name {name + suffix} is taken")
                    made[name + suffix] = (dtype, part_shape)
        return made

    def read(self, reader: TensorReader, name: str, start: int, out: Array) -> None:
        """Fills `out` with the values of a tensor from `start` on. Raises TensorFileError."""
        parts = self.read_parts(reader, name, start, len(out))
        try:
            with np.errstate(all="ignore"):  # what is not finite is found by looking for it
                self.decode(parts, out)
        except ValueError as error:
            raise TensorFileError(f"{reader.path.name}: tensor {name} {error}") from error

    def read_parts(self, reader: TensorReader, name: str, start: int, length: int) -> list[Array]:
        """The parts of a piece of a tensor."""
        begins, ends = self.counts(start), self.counts(start + length)
        made = []
        for (suffix, _, dtype), begin, end in zip(self.parts, begins, ends, strict=True):
            part: Array = np.empty(end - begin, dtype)
            reader.read_into(name + suffix, begin, part)
            made.append(part)
        return made

    def write(self, writer: TensorWriter, name: str, start: int, parts: Sequence[Array]) -> None:
        """Writes what `encode` answered for the piece of a tensor that begins at `start`."""
        for (suffix, _, _), begin, part in zip(self.parts, self.counts(start), parts, strict=True):
            writer.write(name + suffix, begin, part)


class Plain(Codec):
    """Float32 as it is."""

    def read(self, reader: TensorReader, name: str, start: int, out: Array) -> None:
        """Straight into `out`."""
        reader.read_into(name, start, out)


class BrainFloat(Codec):
    """The upper half of each float32, rounded half to even."""

    name = "bf16"
    parts = (("", "BF16", np.uint16),)

    def encode(self, values: Array) -> Sequence[Array]:
        """The upper halves."""
        return (upper_half(values),)

    def decode(self, parts: Sequence[Array], out: Array) -> None:
        """The lower halves are zero."""
        np.left_shift(parts[0], np.uint32(16), out=out.view(np.uint32), dtype=np.uint32)


class _Blockwise(Codec):
    """Codes that are multiplied by the scale of their block."""

    keeps_residual = True
    block: int
    largest: int

    def __init__(self) -> None:
        self._values: Array = np.zeros(CHUNK, np.float32)
        self._codes: Array = np.zeros(CHUNK, np.int8)

    def _quantised(self, values: Array, scale_of: Any) -> tuple[Array, Array]:
        """(codes, scales) of a piece; the codes fill whole blocks."""
        count = len(values)
        blocks = -(-count // self.block)
        padded = self._values[: blocks * self.block]
        np.abs(values, out=padded[:count])
        padded[count:] = 0
        rows = padded.reshape(blocks, self.block)
        kept, scales = scale_of(rows.max(axis=1) / np.float32(self.largest))
        padded[:count] = values
        # nothing is left of a number divided by infinity: the block is zero
        np.divide(rows, np.where(scales > 0, scales, np.float32(np.inf))[:, None], out=rows)
        np.rint(padded, out=padded)
        codes = self._codes[: len(padded)]
        np.copyto(codes, padded, casting="unsafe")
        return codes, kept

    def _scaled(self, codes: Array, scales: Array, out: Array) -> None:
        """`codes` times `scales`, block by block, into `out`."""
        whole = len(out) // self.block * self.block
        out[:] = codes
        rows = out[:whole].reshape(-1, self.block)
        np.multiply(rows, scales[: len(rows), None], out=rows)
        if whole < len(out):
            np.multiply(out[whole:], scales[-1], out=out[whole:])


class Int8(_Blockwise):
    """Codes from -127 to 127, a float32 scale for each 256."""

    name = "int8"
    parts = (("", "I8", np.int8), ("@scale", FLOAT32, np.float32))
    block, largest = 256, 127

    def counts(self, elements: int) -> tuple[int, ...]:
        """Codes and scales."""
        return elements, -(-elements // self.block)

    def shapes(self, shape: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
        """The codes have the tensor's own shape."""
        return shape, (-(-prod(shape) // self.block),)

    def encode(self, values: Array) -> Sequence[Array]:
        """Codes and scales."""
        codes, scales = self._quantised(values, _float32_scales)
        return codes[: len(values)], scales

    def decode(self, parts: Sequence[Array], out: Array) -> None:
        """Codes times scales."""
        self._scaled(parts[0], parts[1], out)

    def mix(self, pieces: Sequence[Sequence[Array]], shares: Array, rows: Array, out: Array) -> None:
        """The sum of several pieces, each times its share; in a fraction of the time that decoding them takes."""
        for row, (codes, _) in zip(rows, pieces, strict=True):
            row[:] = codes
        scales = np.array([scales for _, scales in pieces]) * shares[:, None]
        whole = len(out) // self.block * self.block
        blocks = rows[:, :whole].reshape(len(rows), -1, self.block).transpose(1, 0, 2)
        factors = scales[:, : len(blocks)].T.reshape(-1, 1, len(rows))
        np.matmul(factors, blocks, out=out[:whole].reshape(-1, 1, self.block))
        if whole < len(out):
            np.dot(scales[:, -1], rows[:, whole:], out=out[whole:])


class Int4(_Blockwise):
    """Codes from -7 to 7, two in a byte, a BF16 scale for each 64."""

    name = "int4"
    parts = (("", "U8", np.uint8), ("@scale", "BF16", np.uint16))
    block, largest = 64, 7

    def counts(self, elements: int) -> tuple[int, ...]:
        """Bytes and scales."""
        return -(-elements // 2), -(-elements // self.block)

    def shapes(self, shape: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
        """Both in one row."""
        return tuple((count,) for count in self.counts(prod(shape)))

    def encode(self, values: Array) -> Sequence[Array]:
        """Bytes and scales."""
        codes, scales = self._quantised(values, _half_scales)
        pairs = codes.view("<u2")
        packed = ((pairs & 0x000F) | ((pairs >> 4) & 0x00F0)).astype(np.uint8)
        return packed[: -(-len(values) // 2)], scales

    def decode(self, parts: Sequence[Array], out: Array) -> None:
        """Codes times scales."""
        pairs = parts[0].astype("<u2")
        codes = ((pairs | (pairs << 4)) & 0x0F0F).view(np.int8)
        codes ^= 8
        codes -= 8
        self._scaled(codes[: len(out)], widened(parts[1]), out)


class TopK(Codec):
    """The values of largest magnitude in each block of 4096, in four steps from minus to plus the largest."""

    name = "topk"
    parts = (("@index", "U8", np.uint8), ("", "U8", np.uint8), ("@scale", "BF16", np.uint16))
    keeps_residual = True

    def __init__(self, density: float) -> None:
        self.density = density

    @property
    def metadata(self) -> dict[str, str]:
        """With the density: the sizes follow from it."""
        return {CODEC: self.name, DENSITY: repr(self.density)}

    def kept(self, elements: int) -> int:
        """How many values of a block of so many are kept."""
        return min(elements, max(1, math.ceil(self.density * elements))) if elements else 0

    def counts(self, elements: int) -> tuple[int, ...]:
        """Bytes of places, bytes of codes, scales."""
        full, rest = divmod(elements, TOP_BLOCK)
        most, last = self.kept(TOP_BLOCK), self.kept(rest)
        places = full * _place_bytes(most) + _place_bytes(last)
        return places, full * -(-most // 4) + -(-last // 4), full + bool(rest)

    def shapes(self, shape: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
        """All in one row."""
        return tuple((count,) for count in self.counts(prod(shape)))

    def encode(self, values: Array) -> Sequence[Array]:
        """Places, codes and scales."""
        made = [_picked(rows, self.kept(rows.shape[1])) for rows in _blocks(values)]
        return [np.concatenate(part) if len(part) > 1 else part[0] for part in zip(*made, strict=True)]

    def decode(self, parts: Sequence[Array], out: Array) -> None:
        """Zero but for the values that were picked."""
        out[:] = 0
        begins: tuple[int, ...] = (0, 0, 0)
        for rows in _blocks(out):
            keep = self.kept(rows.shape[1])
            widths = (_place_bytes(keep), -(-keep // 4), 1)
            ends = tuple(begin + len(rows) * width for begin, width in zip(begins, widths, strict=True))
            places, codes, scales = (
                part[begin:end].reshape(len(rows), -1) for part, begin, end in zip(parts, begins, ends, strict=True)
            )
            begins = ends
            where = _unpacked_places(places, keep)
            if (where[:, -1] >= rows.shape[1]).any() or (where[:, 1:] <= where[:, :-1]).any():
                raise ValueError("has places that are out of order or outside of it")
            four = (codes[:, :, None] >> np.array([0, 2, 4, 6], np.uint8)) & 3
            steps = four.reshape(len(rows), -1)[:, :keep].astype(np.float32) - np.float32(1.5)
            np.put_along_axis(rows, where.astype(np.int64), steps * widened(scales), axis=1)


def codec_named(name: str, density: float = 0.02) -> Codec:
    """The codec of this name. Raises TensorFileError for another."""
    if name == "topk":
        if not 0 < density <= 1:
            raise TensorFileError(f"the density {density} is not more than 0 and at most 1")
        return TopK(density)
    codecs: dict[str, type[Codec]] = {"none": Plain, "bf16": BrainFloat, "int8": Int8, "int4": Int4}
    if name not in codecs:
        raise TensorFileError(f"the codec {name[:40]!r} is not one of {', '.join(NAMES)}")
    return codecs[name]()


def codec_of(metadata: Mapping[str, str]) -> Codec:
    """The codec that a file says it has; without a word it is `none`. Raises TensorFileError."""
    try:
        density = float(metadata.get(DENSITY, "0.02"))
    except ValueError:
        density = math.nan
    return codec_named(metadata.get(CODEC, "none"), density)


def shapes_metadata(codec: Codec, tensors: Layout) -> dict[str, str]:
    """The shapes of tensors that a file does not show in another way."""
    if codec.name in ("int4", "topk"):
        return {SHAPES: json.dumps({name: list(kind[1]) for name, kind in sorted(tensors.items())})}
    return {}


def upper_half(values: Array) -> Array:
    """Float32 rounded half to even to its upper 16 bits."""
    bits = values.view(np.uint32)
    rounded = bits >> np.uint32(16)
    rounded &= np.uint32(1)
    rounded += np.uint32(0x7FFF)
    rounded += bits
    rounded >>= np.uint32(16)
    return rounded.astype(np.uint16)


def widened(halves: Array) -> Array:
    """The float32 whose upper 16 bits these are."""
    return np.left_shift(halves, np.uint32(16), dtype=np.uint32).view(np.float32)


def _float32_scales(scales: Array) -> tuple[Array, Array]:
    scales[scales < TINY] = 0
    return scales, scales


def _half_scales(scales: Array) -> tuple[Array, Array]:
    halves = upper_half(scales)
    wide = widened(halves)
    halves[wide < TINY] = 0
    return halves, widened(halves)


def _blocks(values: Array) -> list[Array]:
    """The whole blocks as rows, and the rest as one shorter row; views."""
    whole = len(values) // TOP_BLOCK * TOP_BLOCK
    parts = (values[:whole].reshape(-1, TOP_BLOCK), values[None, whole:])
    return [rows for rows in parts if rows.size]


def _place_bytes(count: int) -> int:
    """Bytes of so many 12-bit numbers."""
    return (3 * count + 1) // 2


def _picked(rows: Array, keep: int) -> tuple[Array, Array, Array]:
    width = rows.shape[1]
    magnitudes = np.abs(rows)
    where = np.sort(np.argpartition(magnitudes, width - keep, axis=1)[:, width - keep :], axis=1)
    values = np.take_along_axis(rows, where, axis=1)
    halves, scales = _half_scales(np.abs(values).max(axis=1) / np.float32(2))
    steps = values / np.where(scales > 0, scales, np.float32(np.inf))[:, None] + np.float32(2)
    codes: Array = np.zeros((len(rows), -(-keep // 4) * 4), np.uint8)
    codes[:, :keep] = np.clip(np.floor(steps), 0, 3)
    codes <<= np.array([0, 2, 4, 6] * (codes.shape[1] // 4), np.uint8)
    packed = np.bitwise_or.reduce(codes.reshape(len(rows), -1, 4), axis=2)
    return _packed_places(where).reshape(-1), packed.reshape(-1), halves


def _packed_places(where: Array) -> Array:
    count = where.shape[1]
    pairs = np.zeros((len(where), -(-count // 2) * 2), np.uint16)
    pairs[:, :count] = where
    first, second = pairs[:, 0::2], pairs[:, 1::2]
    packed = np.empty((len(where), first.shape[1], 3), np.uint8)
    packed[:, :, 0] = first & 0xFF
    packed[:, :, 1] = (first >> 8) | ((second & 0xF) << 4)
    packed[:, :, 2] = second >> 4
    return packed.reshape(len(where), -1)[:, : _place_bytes(count)]


def _unpacked_places(packed: Array, count: int) -> Array:
    triples: Array = np.zeros((len(packed), -(-count // 2) * 3), np.uint16)
    triples[:, : packed.shape[1]] = packed
    low, middle, high = triples[:, 0::3], triples[:, 1::3], triples[:, 2::3]
    where = np.empty((len(packed), low.shape[1] * 2), np.uint16)
    where[:, 0::2] = low | ((middle & 0xF) << 8)
    where[:, 1::2] = (middle >> 4) | (high << 4)
    return where[:, :count]
