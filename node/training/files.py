"""Safetensors files read and written in pieces, so that no tensor has to fit in memory twice.

Reading is `pread` into buffers that are used again. A memory map would count towards the resident size, and would end
the process with SIGBUS if the file were cut under it; a short `pread` is an error like any other.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from node.errors import TensorFileError
from node.tensorfile import MAX_HEADER_BYTES, parse_header

CHUNK = 1 << 20
"""Elements handled at a time: the temporaries of a step stay within a few megabytes."""

DTYPES: dict[str, Any] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}

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
    """A safetensors file whose header has been checked against the file's size."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise TensorFileError(f"{path.name}: {error.strerror}") from error
        try:
            size = os.fstat(self._fd).st_size
            start = os.pread(self._fd, 8, 0)
            start += os.pread(self._fd, min(int.from_bytes(start, "little"), MAX_HEADER_BYTES), 8)
            header = parse_header(start, size)
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

    def read_into(self, name: str, start: int, out: torch.Tensor) -> None:
        """Fills `out` (contiguous, of the tensor's dtype) with the elements from `start` on."""
        entry = self.entries[name]
        view = memoryview(out.reshape(-1).view(torch.uint8).numpy())
        offset = entry.begin + start * out.element_size()
        while view:
            got = os.preadv(self._fd, [view], offset)
            if got == 0:
                raise TensorFileError(f"{self.path.name} ends inside tensor {name}")
            view, offset = view[got:], offset + got

    def tensor(self, name: str) -> torch.Tensor:
        """The whole tensor, in memory of its own."""
        entry = self.entries[name]
        if entry.dtype not in DTYPES:
            raise TensorFileError(f"{self.path.name}: tensor {name} has the unknown dtype {entry.dtype}")
        out = torch.empty(entry.shape, dtype=DTYPES[entry.dtype])
        if entry.elements:
            self.read_into(name, 0, out)
        return out

    def close(self) -> None:
        os.close(self._fd)

    def __enter__(self) -> TensorReader:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


class TensorWriter:
    """Writes tensors in the order of `names` under a temporary name; `publish` gives the file its name.

    The bytes depend on the layout, the metadata and the values alone, so equal files have equal digests.
    """

    def __init__(
        self, path: Path, layout: Layout, metadata: Mapping[str, str] | None = None, *, hashed: bool = True
    ) -> None:
        self.path = path
        self._part = path.with_name(path.name + ".part")
        self.names = write_order(layout)
        header = _build_header(self.names, layout, metadata)
        self._left = sum(size_of(layout[name]) for name in self.names)
        self.size_bytes = len(header) + self._left
        self._hash = hashlib.sha256(header) if hashed else None
        self._file = self._part.open("wb")
        self._file.write(header)

    def write(self, values: torch.Tensor) -> None:
        """Appends the values of a piece of the tensor whose turn it is."""
        piece = memoryview(values.contiguous().reshape(-1).view(torch.uint8).numpy())
        self._left -= len(piece)
        if self._hash is not None:
            self._hash.update(piece)
        self._file.write(piece)

    def finish(self) -> str:
        """Brings the bytes to the disk and gives their SHA-256, if asked for. `publish` gives the final name."""
        if self._left:
            raise TensorFileError(f"{self.path.name}: {self._left} bytes were not written")
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        return "" if self._hash is None else self._hash.hexdigest()

    def publish(self) -> None:
        """Gives the finished file its final name, for good."""
        self._part.replace(self.path)
        directory = os.open(self.path.parent, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def discard(self) -> None:
        """Removes what was written; does nothing after `publish`."""
        self._file.close()
        self._part.unlink(missing_ok=True)


def write_order(layout: Layout) -> list[str]:
    """Widest elements first, then by name: every tensor is aligned and the order is always the same."""
    return sorted(layout, key=lambda name: (-DTYPES[layout[name][0]].itemsize, name))


def size_of(kind: tuple[str, tuple[int, ...]]) -> int:
    """Bytes of one tensor."""
    return int(DTYPES[kind[0]].itemsize) * prod(kind[1])


def pieces(elements: int) -> Iterator[tuple[int, int]]:
    """(start, length) of the chunks a tensor of so many elements is handled in."""
    for start in range(0, elements, CHUNK):
        yield start, min(CHUNK, elements - start)


def write_tensors(path: Path, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str] | None = None) -> str:
    """Writes whole float32 tensors; answers the SHA-256 of the file."""
    layout: Layout = {name: ("F32", tuple(value.shape)) for name, value in tensors.items()}
    writer = TensorWriter(path, layout, metadata)
    try:
        for name in writer.names:
            writer.write(tensors[name].detach().to("cpu", torch.float32))
        digest = writer.finish()
        writer.publish()
    finally:
        writer.discard()
    return digest


def _build_header(names: list[str], layout: Layout, metadata: Mapping[str, str] | None) -> bytes:
    header: dict[str, Any] = {"__metadata__": dict(sorted(metadata.items()))} if metadata else {}
    offset = 0
    for name in names:
        dtype, shape = layout[name]
        end = offset + size_of(layout[name])
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text
