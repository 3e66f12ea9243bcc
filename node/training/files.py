"""Safetensors files read and written in pieces, so that no tensor has to fit in memory twice.

Reading is `pread` into buffers that are used again. A memory map would count towards the resident size, and would end
the process with SIGBUS if the file were cut under it; a short `pread` is an error like any other.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from node.errors import TensorFileError
from node.tensorfile import DTYPE_BYTES, MAX_HEADER_BYTES, parse_header

if TYPE_CHECKING:
    import torch

CHUNK = 1 << 18
"""Elements handled at a time: with 1 MB of them Python takes no part of the time to speak of, and the temporaries of a
step are still in a cache. A multiple of every codec's block."""

FLOAT32 = "F32"

Array = Any
"""A NumPy array. NumPy annotates itself for newer versions of Python than ours."""

Layout = dict[str, tuple[str, tuple[int, ...]]]
"""Tensor name -> (safetensors dtype, shape)."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor of a file; `begin` counts from the start of the file."""

    dtype: str
    shape: tuple[int, ...]
    begin: int

    @property
    def elements(self) -> int:
        return prod(self.shape)


class TensorReader:
    """A safetensors file whose header has been checked against the file's size. Any number of threads may read it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise TensorFileError(f"{path.name}: {error.strerror}") from error
        try:
            self.size_bytes = os.fstat(self._fd).st_size
            start = os.pread(self._fd, 8, 0)
            start += os.pread(self._fd, min(int.from_bytes(start, "little"), MAX_HEADER_BYTES), 8)
            header = parse_header(start, self.size_bytes)
        except TensorFileError as error:
            os.close(self._fd)
            raise TensorFileError(f"{path.name} is not a sound safetensors file: {error.message}") from error
        except BaseException:
            os.close(self._fd)
            raise
        self.metadata = header.metadata
        self.entries = {
            name: Entry(info.dtype, info.shape, header.data_start + info.start) for name, info in header.tensors.items()
        }

    @property
    def layout(self) -> Layout:
        """Names, dtypes and shapes, in name order."""
        return {name: (entry.dtype, entry.shape) for name, entry in sorted(self.entries.items())}

    def read_into(self, name: str, start: int, out: Any) -> None:
        """Fills `out` (a flat array of the tensor's dtype) with the elements from `start` on."""
        view = memoryview(out).cast("B") if out.nbytes else memoryview(b"")
        offset = self.entries[name].begin + start * out.itemsize
        while view:
            got = os.preadv(self._fd, [view], offset)
            if got == 0:
                raise TensorFileError(f"{self.path.name} ends inside tensor {name}")
            view, offset = view[got:], offset + got

    def tensor(self, name: str) -> torch.Tensor:
        """The whole tensor, in memory of its own."""
        import torch

        kinds = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
        kinds |= {"I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8}
        kinds |= {"U8": torch.uint8, "BOOL": torch.bool}
        entry = self.entries[name]
        if entry.dtype not in kinds:
            raise TensorFileError(f"{self.path.name}: tensor {name} has the unknown dtype {entry.dtype}")
        out = torch.empty(entry.shape, dtype=kinds[entry.dtype])
        if entry.elements:
            self.read_into(name, 0, out.reshape(-1).view(torch.uint8).numpy())
        return out

    def close(self) -> None:
        os.close(self._fd)

    def __enter__(self) -> TensorReader:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


class TensorWriter:
    """Writes pieces of tensors, in any order and from any thread, under a temporary name; `publish` gives the name.

    The bytes depend on the layout, the metadata and the values alone, so equal files have equal digests. Nothing is
    forced to the disk: whoever needs a file to outlast its machine keeps a copy of its own.
    """

    def __init__(self, path: Path, layout: Layout, metadata: Mapping[str, str] | None = None) -> None:
        self.path = path
        self._part = path.with_name(path.name + ".part")
        self.names = write_order(layout)
        self.header = header_of(layout, metadata)
        self._begin: dict[str, int] = {}
        end = len(self.header)
        for name in self.names:
            self._begin[name] = end
            end += size_of(layout[name])
        self.size_bytes = end
        self._left = end - len(self.header)
        self._lock = threading.Lock()
        self._fd: int | None = os.open(self._part, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        _pwrite(self._fd, memoryview(self.header), 0)

    def write(self, name: str, start: int, values: Any) -> None:
        """Writes a flat array as the elements of a tensor from `start` on; every element is written once."""
        if self._fd is None:
            raise ValueError(f"{self.path.name} is finished")
        if not values.nbytes:
            return
        _pwrite(self._fd, memoryview(values).cast("B"), self._begin[name] + start * values.itemsize)
        with self._lock:
            self._left -= values.nbytes

    def publish(self) -> None:
        """Gives the file, when all of it is written, its final name."""
        if self._left:
            raise TensorFileError(f"{self.path.name}: {self._left} bytes were not written")
        self._close()
        self._part.replace(self.path)

    def discard(self) -> None:
        """Removes what was written; does nothing after `publish`."""
        self._close()
        self._part.unlink(missing_ok=True)

    def _close(self) -> None:
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)


def write_order(layout: Layout) -> list[str]:
    """Widest elements first, then by name: every tensor is aligned and the order is always the same."""
    return sorted(layout, key=lambda name: (-DTYPE_BYTES[layout[name][0]], name))


def size_of(kind: tuple[str, tuple[int, ...]]) -> int:
    """Bytes of one tensor."""
    return DTYPE_BYTES[kind[0]] * prod(kind[1])


def pieces(elements: int) -> Iterator[tuple[int, int]]:
    """(start, length) of the chunks a tensor of so many elements is handled in."""
    for start in range(0, elements, CHUNK):
        yield start, min(CHUNK, elements - start)


def header_of(layout: Layout, metadata: Mapping[str, str] | None = None) -> bytes:
    """The first bytes of a file with this layout, up to its first tensor."""
    header: dict[str, Any] = {"__metadata__": dict(sorted(metadata.items()))} if metadata else {}
    offset = 0
    for name in write_order(layout):
        dtype, shape = layout[name]
        end = offset + size_of(layout[name])
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def check_layout(reader: TensorReader, expected: Layout) -> None:
    """Raises TensorFileError naming the first tensor that is missing, unknown or of another kind."""
    actual = reader.layout
    for name, kind in expected.items():
        if name not in actual:
            raise TensorFileError(f"{reader.path.name}: tensor {name} is missing")
        if actual[name] != kind:
            raise TensorFileError(
                f"{reader.path.name}: tensor {name} is {kind_text(actual[name])}, expected {kind_text(kind)}"
            )
    for name in actual:
        if name not in expected:
            raise TensorFileError(f"{reader.path.name}: tensor {name} is not part of the model")


def write_tensors(path: Path, tensors: Mapping[str, Any], metadata: Mapping[str, str] | None = None) -> str:
    """Writes whole tensors (of torch or numpy) as float32; answers the SHA-256 of the file."""
    flat = {name: flat_float32(value) for name, value in tensors.items()}
    layout: Layout = {name: (FLOAT32, tuple(value.shape)) for name, value in tensors.items()}
    writer = TensorWriter(path, layout, metadata)
    digest = hashlib.sha256(writer.header)
    try:
        for name in writer.names:
            digest.update(flat[name])
            writer.write(name, 0, flat[name])
        writer.publish()
    finally:
        writer.discard()
    return digest.hexdigest()


def flat_float32(value: Any) -> Array:
    """The values of a tensor in one row, as float32 in main memory; a view of it wherever that is possible."""
    if not isinstance(value, np.ndarray):
        value = value.detach().cpu().float().numpy()
    made: Array = np.ascontiguousarray(value, dtype=np.float32).reshape(-1)
    return made


def row(elements: int, dtype: Any = np.float32) -> Array:
    """Room for so many numbers."""
    return np.empty(elements, dtype)


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _pwrite(fd: int, view: memoryview, offset: int) -> None:
    while view:
        done = os.pwrite(fd, view, offset)
        view, offset = view[done:], offset + done


def kind_text(kind: tuple[str, tuple[int, ...]]) -> str:
    """A dtype and a shape in words."""
    return f"{kind[0]} {list(kind[1])}"
