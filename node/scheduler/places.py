"""Where checkpoints lie, and how they are found and read there: a folder, a data node's folder, object storage.

A checkpoint is a folder `<job>/version-<n>`. It is whole where its `checkpoint.json` is, which is written last and says
what the other files are.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import msgspec

from node.errors import DatasetError, JobError, PeerProtocol
from node.network.objects import download_object
from node.objectstore import OBJECT_STORES, Bucket, Entry
from node.scheduler.object_store import open_place
from node.scheduler.peer_folder import PEER, PeerFolder
from node.wire import UNDECODABLE

if TYPE_CHECKING:
    from node.network.overlay import Overlay

CHECKPOINT = "checkpoint.json"
RECORD_LIMIT_BYTES = 1 << 30
PIECE_BYTES = 1 << 20
_VERSION = re.compile(r"version-(\d{1,9})")


class Source(Protocol):
    """Files by names like `job/version-3/weights.safetensors`. Raises `HyphaError`, `OSError`."""

    async def entries(self, prefix: str, *, is_deep: bool) -> list[Entry]:
        """What lies below a folder, by name."""

    async def fetch(self, name: str, target: Path, *, sha256: str, size_bytes: int) -> None:
        """Bring a file of this content here."""

    async def fetch_small(self, name: str, target: Path, limit_bytes: int) -> None:
        """Bring a file here of which nobody here knows what it should be."""


class Place(Source, Protocol):
    """One that takes files, too."""

    async def put(self, name: str, source: Path) -> None:
        """A file, which appears when it is whole."""

    async def delete(self, names: Sequence[str]) -> None:
        """Remove files, one after the other."""


class BucketPlace:
    """A bucket, or a folder in one."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self.entries, self.put, self.delete = bucket.entries, bucket.put, bucket.delete

    async def fetch(self, name: str, target: Path, *, sha256: str, size_bytes: int) -> None:
        """As `Source`."""
        await download_object(self._bucket, name, target, sha256=sha256, size_bytes=size_bytes)

    async def fetch_small(self, name: str, target: Path, limit_bytes: int) -> None:
        """As `Source`."""
        content, _ = await self._bucket.read(name, limit_bytes)
        await asyncio.to_thread(target.write_bytes, content)


class FolderSource:
    """A folder of this machine."""

    def __init__(self, root: Path) -> None:
        self._root = root

    async def entries(self, prefix: str, *, is_deep: bool) -> list[Entry]:
        """As `Source`; links are not followed, and no deeper than checkpoints are."""

        def look() -> list[Entry]:
            found = (self._root / prefix).glob("*/*" if is_deep else "*")
            files = [path for path in found if path.is_file() and not path.is_symlink()]
            return [Entry(str(path.relative_to(self._root)), path.stat().st_size, "") for path in sorted(files)]

        return await asyncio.to_thread(look)

    async def fetch(self, name: str, target: Path, *, sha256: str, size_bytes: int) -> None:
        """As `Source`."""
        path, part = self._root / name, target.with_name(f".{target.name}.{secrets.token_hex(6)}")
        try:
            if await asyncio.to_thread(_copy, path, part, size_bytes) != sha256:
                raise DatasetError(f"{path} is not what its checkpoint says: its SHA-256 or its size differs")
            await asyncio.to_thread(part.replace, target)
        finally:
            await asyncio.to_thread(part.unlink, missing_ok=True)

    async def fetch_small(self, name: str, target: Path, limit_bytes: int) -> None:
        """As `Source`."""
        await asyncio.to_thread(_copy, self._root / name, target, limit_bytes)


async def place_of(overlay: Overlay, place: str) -> Place:
    """What `peer:` or an address in object storage names. Raises `JobError` where it can never work."""
    if place.startswith(PEER):
        return PeerFolder(overlay, place)
    return BucketPlace(await asyncio.to_thread(open_place, place))


async def source_of(overlay: Overlay, place: str) -> Source:
    """What a place names, a folder of this machine among them. Raises `JobError` where it can never work."""
    return await place_of(overlay, place) if is_remote(place) else FolderSource(Path(place))


def is_remote(place: str) -> bool:
    """Whether what is put there leaves this machine."""
    return place.startswith((*OBJECT_STORES, PEER))


def check_place(to: str) -> None:
    """Raise `JobError` where checkpoints can never go there."""
    if to.startswith(PEER):
        if not to.removeprefix(PEER).partition("/")[0]:
            raise JobError(f"{to} names no node", hint="peer:<name or id> of a data node with results_path")
    elif to.startswith(OBJECT_STORES):
        open_place(to)
    elif to and not Path(to).is_absolute():
        raise JobError(f"{to} is not an absolute path", hint="checkpoint.to is a folder on the scheduler's machine")


async def versions_at(source: Source, job_id: str) -> list[int]:
    """The whole checkpoints of a job that lie there."""
    names = [entry.name.split("/") for entry in await source.entries(job_id, is_deep=True)]
    found = [version_of(parts[-2]) for parts in names if len(parts) > 1 and parts[-1] == CHECKPOINT]
    return sorted(number for number in found if number is not None)


def version_of(folder: str) -> int | None:
    """The number in a checkpoint's name; None for another name."""
    match = _VERSION.fullmatch(folder)
    return int(match[1]) if match else None


async def fetch_checkpoint(source: Source, job_id: str, version: int, target: Path) -> None:
    """Bring a checkpoint here, each file as its record says. Raises `HyphaError` where it is not whole."""
    await asyncio.to_thread(target.mkdir, parents=True)
    place = f"{job_id}/version-{version}"
    await source.fetch_small(f"{place}/{CHECKPOINT}", target / CHECKPOINT, RECORD_LIMIT_BYTES)
    content = await asyncio.to_thread((target / CHECKPOINT).read_bytes)
    for kind, about in files_in(content, version).items():
        name = f"{kind}.safetensors"
        await source.fetch(f"{place}/{name}", target / name, sha256=about.sha256, size_bytes=about.size_bytes)


class About(msgspec.Struct, frozen=True):
    """What a file of a checkpoint is."""

    sha256: str
    size_bytes: int


class _Record(msgspec.Struct, frozen=True):
    files: dict[str, About]


def files_in(record: bytes, version: int) -> dict[str, About]:
    """The files of a checkpoint by kind, as its `checkpoint.json` has them. Raises `PeerProtocol`."""
    try:
        files = msgspec.json.decode(record, type=_Record).files
    except UNDECODABLE as error:
        raise PeerProtocol(f"the record of version {version} is unreadable: {error}") from error
    return {kind: files[kind] for kind in ("weights", "momentum") if kind in files}


def _copy(source: Path, target: Path, most_bytes: int) -> str:
    """Copy a regular file of no more bytes than that; its SHA-256."""
    handle = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    digest, left = hashlib.sha256(), most_bytes
    with os.fdopen(handle, "rb") as reading, target.open("xb") as writing:
        while piece := reading.read(PIECE_BYTES):
            left -= len(piece)
            if left < 0:
                raise DatasetError(f"{source} has more than {most_bytes:,} bytes")
            digest.update(piece)
            writing.write(piece)
        writing.flush()
        os.fsync(writing.fileno())
    return digest.hexdigest()
