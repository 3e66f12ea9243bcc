"""Safetensors files without torch or numpy: a strict reader of their headers, and a small writer.

Stricter than the reference implementation, which takes duplicate names (the last wins) and headers of 100 MB: what
comes from a peer must mean the same to every program that reads it.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

from node.errors import DiskFull, TensorFileError

MAX_HEADER_BYTES = 16 << 20
MAX_TENSORS = 100_000
MAX_RANK = 8
MAX_NAME = 256
MAX_FILE_BYTES = 1 << 50
COPY_BYTES = 1 << 20

DTYPE_BYTES: dict[str, int] = {
    "BOOL": 1,
    "U8": 1,
    "I8": 1,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "U16": 2,
    "I16": 2,
    "F16": 2,
    "BF16": 2,
    "U32": 4,
    "I32": 4,
    "F32": 4,
    "U64": 8,
    "I64": 8,
    "F64": 8,
    "C64": 8,
}

Buffer = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor: its bytes are `start` up to, not including, `end`, counted from the header's `data_start`."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Header:
    """What a safetensors file says about itself, checked against its size."""

    tensors: dict[str, TensorInfo]
    data_start: int
    size_bytes: int
    metadata: dict[str, str] = field(default_factory=dict)

    @property
    def rows(self) -> int | None:
        """The first dimension, where all tensors have the same one; else None."""
        firsts = {info.shape[0] if info.shape else None for info in self.tensors.values()}
        return firsts.pop() if len(firsts) == 1 else None


def read_header(path: Path) -> Header:
    """Read and check the header of a file; raises `TensorFileError` naming the file and what is wrong with it."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            prefix = file.read(8)
            if len(prefix) == 8:
                prefix += file.read(min(int.from_bytes(prefix, "little"), MAX_HEADER_BYTES))
    except OSError as error:
        raise TensorFileError(f"{path} cannot be read: {error.strerror}") from error
    try:
        return parse_header(prefix, size)
    except TensorFileError as error:
        raise TensorFileError(f"{path} is not a sound safetensors file: {error.message}") from error


def parse_header(prefix: bytes, file_size: int) -> Header:
    """Check the first bytes of a file, up to the end of its header at least, against the file's size.

    Raises `TensorFileError` naming the cause.
    """
    if file_size < 8 or len(prefix) < 8:
        raise TensorFileError(f"it has {file_size} bytes, too few for a header")
    length = int.from_bytes(prefix[:8], "little")
    if length > MAX_HEADER_BYTES:
        raise TensorFileError(f"its header claims {length:,} bytes, at most {MAX_HEADER_BYTES:,} are accepted")
    if 8 + length > file_size:
        raise TensorFileError(f"its header claims {length:,} bytes, but the file ends after {file_size:,}")
    if len(prefix) < 8 + length:
        raise TensorFileError("its header is cut short")
    entries = _object(prefix[8 : 8 + length])
    metadata = _metadata(entries.pop("__metadata__", {}))
    if len(entries) > MAX_TENSORS:
        raise TensorFileError(f"it has {len(entries):,} tensors, at most {MAX_TENSORS:,} are accepted")
    tensors = {name: _tensor(name, entry) for name, entry in entries.items()}
    _check_layout(tensors, file_size - 8 - length)
    return Header(tensors, 8 + length, file_size, metadata)


def cut_rows(source: Path, target: Path, start: int, end: int) -> tuple[int, str]:
    """Write rows `start` to `end` (not included) of every tensor of `source` as a new file; its size and SHA-256.

    All tensors must have the same first dimension. Read and written piece by piece. Raises `TensorFileError`.
    """
    header = read_header(source)
    rows = header.rows
    if rows is None:
        raise TensorFileError(f"{source} has no rows: its tensors differ in their first dimension, or have none")
    if not 0 <= start < end <= rows:
        raise TensorFileError(f"{source} has {rows:,} rows, not {start:,} to {end:,}")
    wanted = {}
    for name, info in header.tensors.items():
        row = (info.end - info.start) // rows
        place = header.data_start + info.start + row * start
        wanted[name] = _Cut(info.dtype, (end - start, *info.shape[1:]), place, row * (end - start), info.start)
    return _write_cuts(source, target, header.metadata, wanted)


def copy_tensors(source: Path, target: Path, names: Mapping[str, str]) -> tuple[int, str]:
    """Write a new file that has, by each of `names`, the tensor of `source` that it stands for; its size and SHA-256.

    Read and written piece by piece. Raises `TensorFileError`.
    """
    header = read_header(source)
    wanted = {}
    for number, (name, held) in enumerate(names.items()):
        info = header.tensors.get(held)
        if info is None:
            raise TensorFileError(f"{source} has no tensor {held}")
        wanted[name] = _Cut(info.dtype, info.shape, header.data_start + info.start, info.end - info.start, number)
    return _write_cuts(source, target, header.metadata, wanted)


@dataclass(frozen=True, slots=True)
class _Cut:
    """A tensor of a new file, whose bytes lie together in another one; `rank` orders those of one dtype."""

    dtype: str
    shape: tuple[int, ...]
    offset: int
    size: int
    rank: int


def _write_cuts(source: Path, target: Path, metadata: Mapping[str, str], wanted: Mapping[str, _Cut]) -> tuple[int, str]:
    entries: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    pieces: list[tuple[int, int]] = []
    at = 0
    # By size of the dtype, so that every tensor stays aligned.
    for name, cut in sorted(wanted.items(), key=lambda item: (-DTYPE_BYTES[item[1].dtype], item[1].rank)):
        entries[name] = {"dtype": cut.dtype, "shape": list(cut.shape), "data_offsets": [at, at + cut.size]}
        pieces.append((cut.offset, cut.size))
        at += cut.size
    prefix = _prefix(entries)
    digest = hashlib.sha256(prefix)
    try:
        with source.open("rb") as read, target.open("xb") as write:
            write.write(prefix)
            for offset, size in pieces:
                read.seek(offset)
                left = size
                while left:
                    piece = read.read(min(left, COPY_BYTES))
                    if not piece:
                        raise TensorFileError(f"{source} was cut short while it was read")
                    write.write(piece)
                    digest.update(piece)
                    left -= len(piece)
    except OSError as error:
        target.unlink(missing_ok=True)
        raise _write_error(target, len(prefix) + at, error) from error
    except TensorFileError:
        target.unlink(missing_ok=True)
        raise
    return len(prefix) + at, digest.hexdigest()


def write_tensors(
    path: Path,
    tensors: Mapping[str, tuple[str, Sequence[int], Buffer]],
    *,
    metadata: Mapping[str, str] | None = None,
    durable: bool = True,
) -> None:
    """Write `{name: (dtype, shape, bytes)}` as `path`, whole or not at all. The same content gives the same bytes.

    `durable`: it is on the disk before this returns. The order in the file is by size of the dtype, then by name,
    which keeps every tensor aligned.
    """
    order = sorted(tensors, key=lambda name: (-DTYPE_BYTES.get(tensors[name][0], 0), name))
    entries: dict[str, Any] = {}
    if metadata:
        entries["__metadata__"] = dict(sorted(metadata.items()))
    end = 0
    for name in order:
        dtype, shape, content = tensors[name]
        start, end = end, end + memoryview(content).nbytes
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}
    prefix = _prefix(entries)
    try:
        parse_header(prefix, len(prefix) + end)
    except TensorFileError as error:
        raise TensorFileError(f"{path} cannot be written: {error.message}") from error
    part = path.with_name(f".{path.name[:200]}.{secrets.token_hex(6)}.part")
    try:
        with part.open("xb") as file:
            file.write(prefix)
            for name in order:
                file.write(tensors[name][2])
            if durable:
                file.flush()
                os.fsync(file.fileno())
        part.replace(path)
    except OSError as error:
        raise _write_error(path, len(prefix) + end, error) from error
    finally:
        part.unlink(missing_ok=True)


def _prefix(entries: dict[str, Any]) -> bytes:
    header = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header


def _object(text: bytes) -> dict[str, Any]:
    if not text.startswith(b"{"):
        raise TensorFileError("its header does not begin with '{'")
    try:
        entries = json.loads(text.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise TensorFileError(f"its header is not JSON: {error}") from error
    if not isinstance(entries, dict):
        raise TensorFileError("its header is not a JSON object")
    return entries


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise TensorFileError(f"its header names {key[:MAX_NAME]!r} twice")
            seen.add(key)
    return made


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not allowed")


def _metadata(value: Any) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise TensorFileError("its __metadata__ is not a map of strings")
    return value


def _tensor(name: str, entry: Any) -> TensorInfo:
    shown = repr(name[:MAX_NAME])
    if not 0 < len(name) <= MAX_NAME or not name.isprintable():
        raise TensorFileError(f"the tensor name {shown} is empty, too long or not printable")
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise TensorFileError(f"the entry of {shown} does not have just dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPE_BYTES:
        raise TensorFileError(f"{shown} has the unknown dtype {str(dtype)[:40]!r}")
    if not _are_sizes(shape) or len(shape) > MAX_RANK:
        raise TensorFileError(f"{shown} has no valid shape of at most {MAX_RANK} dimensions")
    if not _are_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise TensorFileError(f"{shown} has no valid data_offsets")
    need = prod(shape) * DTYPE_BYTES[dtype]
    if need != offsets[1] - offsets[0]:
        raise TensorFileError(f"{shown} is {dtype}{shape}: {need:,} bytes, but its data_offsets span {_span(offsets)}")
    return TensorInfo(dtype, tuple(shape), offsets[0], offsets[1])


def _are_sizes(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int and 0 <= item <= MAX_FILE_BYTES for item in value)


def _span(offsets: list[int]) -> str:
    return f"{offsets[1] - offsets[0]:,}"


def _check_layout(tensors: dict[str, TensorInfo], data_bytes: int) -> None:
    at = 0
    for name, info in sorted(tensors.items(), key=lambda item: (item[1].start, item[1].end)):
        if info.start != at:
            problem = "overlaps the tensor before it" if info.start < at else "leaves a hole before it"
            raise TensorFileError(f"{name!r} begins at {info.start:,}, not at {at:,}: it {problem}")
        at = info.end
    if at > data_bytes:
        raise TensorFileError(f"it is cut short: its tensors need {at:,} bytes, {data_bytes:,} are there")
    if at < data_bytes:
        raise TensorFileError(f"{data_bytes - at:,} bytes follow its last tensor")


def _write_error(path: Path, need: int, error: OSError) -> TensorFileError | DiskFull:
    try:
        room = os.statvfs(path.parent)
    except OSError:
        return TensorFileError(f"{path} cannot be written: {error.strerror}")
    free = room.f_bavail * room.f_frsize
    return DiskFull(path, need, free) if free < need else TensorFileError(f"{path} cannot be written: {error.strerror}")
