"""Where the results of a job go: a folder of this machine, a data node, or object storage.

A file is there whole under its name or not at all, and the same name again replaces it. Credentials for object storage
come from this node's environment and from nowhere else.
"""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from node.errors import JobError
from node.network.partfile import sync_directory
from node.objectstore import OBJECT_STORES, Bucket
from node.scheduler.object_store import open_place
from node.scheduler.peer_folder import PEER, PeerFolder

if TYPE_CHECKING:
    from node.network.overlay import Overlay


class Destination(Protocol):
    """A place for the results of one job."""

    place: str
    """What an operator is told."""

    async def prepare(self) -> None:
        """Make ready. Raises `JobError` where it can never work."""

    def incoming(self, name: str) -> Path:
        """Where a file of this name is put together, before `keep`."""

    async def keep(self, source: Path, name: str, sha256: str, size_bytes: int) -> None:
        """Place a whole file under its name. Raises `JobError` for good; other errors may pass."""

    async def close(self) -> None:
        """The job is over."""


class Folder:
    """A folder of this machine. Files are put together in a hidden one inside it, so that placing is a rename."""

    def __init__(self, folder: Path, job_id: str) -> None:
        self.place = str(folder)
        self._folder = folder
        self._hidden = folder / f".hypha-{job_id}"

    async def prepare(self) -> None:
        """Make the folders, and clear what a killed process left half done."""

        def make() -> None:
            shutil.rmtree(self._hidden, ignore_errors=True)
            self._hidden.mkdir(parents=True)

        try:
            await asyncio.to_thread(make)
        except OSError as error:
            raise JobError(f"{self.place} cannot be written to: {error.strerror}") from error

    def incoming(self, name: str) -> Path:
        """A name in the hidden folder."""
        return self._hidden / name

    async def keep(self, source: Path, name: str, sha256: str, size_bytes: int) -> None:
        """Show the file under its name."""

        def place() -> None:
            source.replace(self._folder / name)
            sync_directory(self._folder)

        await asyncio.to_thread(place)

    async def close(self) -> None:
        """Take the hidden folder away."""
        await asyncio.to_thread(shutil.rmtree, self._hidden, ignore_errors=True)


class _Staged:
    """Files that are put together in a folder of our own, and go elsewhere."""

    def __init__(self, place: str, staging: Path) -> None:
        self.place = place
        self._staging = staging

    async def prepare(self) -> None:
        def make() -> None:
            shutil.rmtree(self._staging, ignore_errors=True)
            self._staging.mkdir(parents=True, mode=0o700)

        await asyncio.to_thread(make)

    def incoming(self, name: str) -> Path:
        return self._staging / name

    async def close(self) -> None:
        await asyncio.to_thread(shutil.rmtree, self._staging, ignore_errors=True)


class DataNode(_Staged):
    """A data node whose owner takes results in; without a folder of its choice a job has one of its own there."""

    def __init__(self, place: str, staging: Path, overlay: Overlay, job_id: str) -> None:
        super().__init__(place, staging)
        self._folder = PeerFolder(overlay, place)
        self._own = "" if "/" in place.removeprefix(PEER) else f"{job_id}/"

    async def keep(self, source: Path, name: str, sha256: str, size_bytes: int) -> None:
        """Upload the file; the data node verifies it."""
        await self._folder.put(f"{self._own}{name}", source, sha256)
        await asyncio.to_thread(source.unlink, missing_ok=True)


class ObjectStore(_Staged):
    """A bucket, through obstore. An object appears when it is whole."""

    def __init__(self, place: str, staging: Path) -> None:
        super().__init__(place, staging)
        self._bucket: Bucket | None = None

    async def prepare(self) -> None:
        """Find obstore and the bucket's settings."""
        self._bucket = await asyncio.to_thread(open_place, self.place)
        await super().prepare()

    async def keep(self, source: Path, name: str, sha256: str, size_bytes: int) -> None:
        """Put the object, and see that it has arrived whole."""
        if self._bucket is None:
            await self.prepare()
        assert self._bucket is not None
        await self._bucket.put(name, source, sha256)
        await asyncio.to_thread(source.unlink, missing_ok=True)


def destination_of(to: str, *, job_id: str, own_folder: Path, staging: Path, overlay: Overlay) -> Destination:
    """What the `to` of a job file names; `own_folder` where it names nothing."""
    if to.startswith(PEER):
        return DataNode(to, staging, overlay, job_id)
    if to.startswith(OBJECT_STORES):
        return ObjectStore(to, staging)
    return Folder(Path(to) if to else own_folder, job_id)
