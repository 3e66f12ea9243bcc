"""The file of a recording: blocks of records, each whole or not there.

    b"hypha-tape\\n", u16 version, u32 length, MessagePack of `Label`
    block: b"HTB1", u8 kind, u32 length, u32 CRC-32, f64 first second, f64 last second, then zlib of
           records, each u32 length and MessagePack

All numbers are big-endian; seconds count from the start of the recording. A block that is cut off or damaged ends what
can be read: a recorder that is killed loses only what it had not written. `KEY` blocks hold everything at one moment,
so that a reader can begin there; points and answers stand in blocks of their own, so that they can be found without
the frames.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeVar

import msgspec

from node.errors import ConfigError
from node.version import __version__
from node.views import Frame, Point
from node.wire import UNDECODABLE

MAGIC: Final = b"hypha-tape\n"
VERSION: Final = 1
MARK: Final = b"HTB1"
FRAMES, KEY, POINTS, ANSWERS = range(4)
MOST_BYTES: Final = 256 << 20
"""Of one block, unpacked."""
_HEAD: Final = struct.Struct(">HI")
_BLOCK: Final = struct.Struct(">4sBIIdd")
_LENGTH: Final = struct.Struct(">I")


class Label(msgspec.Struct, frozen=True):
    """When it was made, and by which version."""

    started_unix: float
    program: str = __version__


class FrameAt(msgspec.Struct, frozen=True, array_like=True):
    """A frame, and when it came."""

    t: float
    frame: Frame


class PointsAt(msgspec.Struct, frozen=True, array_like=True):
    """Values of metrics, and when they were told."""

    t: float
    points: list[Point]


class AnswerAt(msgspec.Struct, frozen=True, array_like=True):
    """What a node answered when it was asked for `what` of `key`: MessagePack."""

    t: float
    what: str
    key: str
    data: bytes


Record = FrameAt | PointsAt | AnswerAt
R = TypeVar("R", FrameAt, PointsAt, AnswerAt)


@dataclass(frozen=True, slots=True)
class Block:
    """Where a block lies, and the seconds that it covers."""

    kind: int
    offset: int
    length: int
    crc: int
    first: float
    last: float


class TapeWriter:
    """Appends blocks to a new file that only its owner can read."""

    def __init__(self, path: Path, label: Label) -> None:
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            raise ConfigError(f"{path} is there already", hint="name a file that does not exist") from None
        except OSError as error:
            raise ConfigError(f"{path} cannot be written: {error.strerror}", hint="name another file") from error
        self._file = os.fdopen(descriptor, "wb", buffering=0)
        packed = msgspec.msgpack.encode(label)
        self._file.write(MAGIC + _HEAD.pack(VERSION, len(packed)) + packed)
        self.size_bytes = self._file.tell()

    def append(self, kind: int, first: float, last: float, records: Sequence[bytes]) -> None:
        """Write a block of records that are MessagePack already. OSError where the disk does not take it."""
        packed = zlib.compress(b"".join(_LENGTH.pack(len(one)) + one for one in records), 6)
        whole = _BLOCK.pack(MARK, kind, len(packed), zlib.crc32(packed), first, last) + packed
        rest = memoryview(whole)
        while rest:
            rest = rest[self._file.write(rest) :]
        self.size_bytes += len(whole)

    def close(self) -> None:
        """Nothing more comes."""
        self._file.close()


class Tape:
    """A recording to read. Only its index is held in memory; `close()` it."""

    def __init__(self, path: Path) -> None:
        try:
            self._file: BinaryIO = path.open("rb")
        except OSError as error:
            raise ConfigError(f"{path} cannot be read: {error.strerror}", hint="name a recording") from error
        try:
            self.label = self._read_label(path)
            self.blocks = list(self._index())
        except BaseException:
            self._file.close()
            raise
        if not any(block.kind == KEY for block in self.blocks):
            self._file.close()
            raise ConfigError(f"{path} holds nothing yet", hint="a recording begins with the first frame of a node")
        self.first = min(block.first for block in self.blocks if block.kind == KEY)
        self.last = max(block.last for block in self.blocks)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def of(self, kind: int, until: float, since: float = 0.0) -> list[Block]:
        """Blocks of a kind with something in since..until, in order."""
        return [one for one in self.blocks if one.kind == kind and one.first <= until and one.last >= since]

    def key_before(self, t: float) -> Block:
        """The last block that holds everything at a moment up to `t`; else the first there is."""
        keys = [block for block in self.blocks if block.kind == KEY]
        return next((block for block in reversed(keys) if block.first <= t), keys[0])

    def records(self, block: Block, type_: type[R]) -> list[R]:
        """What a block holds; nothing where it is damaged."""
        self._file.seek(block.offset)
        packed = self._file.read(block.length)
        if len(packed) < block.length or zlib.crc32(packed) != block.crc:
            return []
        unpacker, decoder = zlib.decompressobj(), msgspec.msgpack.Decoder(type_)
        found: list[R] = []
        try:
            data = memoryview(unpacker.decompress(packed, MOST_BYTES))
            at = 0
            while at + _LENGTH.size <= len(data):
                (length,) = _LENGTH.unpack_from(data, at)
                at += _LENGTH.size
                found.append(decoder.decode(data[at : at + length]))
                at += length
        except (zlib.error, *UNDECODABLE) as error:
            raise ConfigError(
                f"the recording cannot be read at {block.first:.0f} s: {error}",
                hint=f"it was made by {self.label.program}",
            ) from None
        return found

    def _read_label(self, path: Path) -> Label:
        head = self._file.read(len(MAGIC) + _HEAD.size)
        if not head.startswith(MAGIC) or len(head) < len(MAGIC) + _HEAD.size:
            raise ConfigError(f"{path} is not a recording", hint="`hypha-tui --record FILE` makes one")
        version, length = _HEAD.unpack_from(head, len(MAGIC))
        if version != VERSION:
            raise ConfigError(f"{path} is a recording of version {version}, not {VERSION}", hint="use that hypha-tui")
        try:
            return msgspec.msgpack.decode(self._file.read(min(length, 1 << 16)), type=Label)
        except UNDECODABLE:
            raise ConfigError(f"{path} is not a recording", hint="its first block is damaged") from None

    def _index(self) -> Iterator[Block]:
        size = os.fstat(self._file.fileno()).st_size
        while True:
            head = self._file.read(_BLOCK.size)
            if len(head) < _BLOCK.size:
                return
            mark, kind, length, crc, first, last = _BLOCK.unpack(head)
            offset = self._file.tell()
            if mark != MARK or offset + length > size:
                return
            yield Block(kind, offset, length, crc, first, last)
            self._file.seek(offset + length)


def packed_answer(value: Any) -> bytes:
    """A node's answer as it stands on the tape."""
    return msgspec.msgpack.encode(value)
