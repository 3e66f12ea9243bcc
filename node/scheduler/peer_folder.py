"""A folder of a data node whose owner takes results in: `peer:<name or id>`, and a folder there after a `/`."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import msgspec

from node.errors import JobError, PeerError, PeerProtocol, Refused
from node.network import bulk
from node.objectstore import Entry
from node.wire import MAX_MESSAGE_BYTES, UNDECODABLE, StoredFiles, StoreHeader

if TYPE_CHECKING:
    from node.network.overlay import Overlay

PEER = "peer:"


class PeerFolder:
    """Files below that folder, by names like `job/version-3/weights.safetensors`. Only who put a folder there may list,
    read and remove what is in it. Raises `PeerError`; `JobError` where the owner does not agree."""

    def __init__(self, overlay: Overlay, place: str) -> None:
        self._overlay = overlay
        self._place = place
        self._peer, _, self._root = place.removeprefix(PEER).partition("/")

    async def put(self, name: str, source: Path, sha256: str = "") -> None:
        """Upload a file; the data node verifies it."""
        folder, last = self._split(name)
        size, digest = await asyncio.to_thread(_size_and_digest, source, sha256)
        header = StoreHeader(folder=folder, sha256=digest, size_bytes=size)
        try:
            await bulk.upload(
                self._overlay,
                self._peer_id(),
                f"/bulk/results/{quote(last)}",
                source,
                headers={"Hypha-Store": msgspec.json.encode(header).decode()},
            )
        except Refused as error:
            if error.code in ("denied", "invalid", "unknown"):
                raise JobError(f"{self._place} takes no results: {error.message}", hint=error.hint) from error
            raise

    async def entries(self, prefix: str, *, is_deep: bool) -> list[Entry]:
        """The files below a folder, in name order."""
        path = f"/bulk/results?folder={quote(self._below(prefix), safe='')}"
        body = b""
        async with self._overlay.open(self._peer_id(), "GET", path) as answer:
            async for piece in answer.content.iter_any():
                body += piece
                if len(body) > MAX_MESSAGE_BYTES:
                    raise PeerProtocol(f"{self._place} lists too many files")
        try:
            found = msgspec.json.decode(body, type=StoredFiles)
        except UNDECODABLE as error:
            raise PeerProtocol(f"{self._place} lists its files unreadably: {error}") from error
        return [Entry(f"{prefix}/{name}", size, "") for name, size in sorted(found.files) if is_deep or "/" not in name]

    async def fetch(self, name: str, target: Path, *, sha256: str, size_bytes: int) -> None:
        """Bring a file of this content here."""
        folder, last = self._split(name)
        path = f"/bulk/results/{quote(last)}?folder={quote(folder, safe='')}"
        await bulk.download(
            self._overlay, [self._peer_id()], path, target, sha256=sha256, size_bytes=size_bytes, attempts=4
        )

    async def fetch_small(self, name: str, target: Path, limit_bytes: int) -> None:
        """Bring a file here of which the data node knows what it should be."""
        folder, last = self._split(name)
        path = f"/bulk/results/{quote(last)}?folder={quote(folder, safe='')}"
        await bulk.download_unknown(self._overlay, self._peer_id(), path, target, limit_bytes=limit_bytes)

    async def delete(self, names: Sequence[str]) -> None:
        """Remove files, one after the other."""
        for name in names:
            folder, last = self._split(name)
            path = f"/bulk/results/{quote(last)}?folder={quote(folder, safe='')}"
            async with self._overlay.open(self._peer_id(), "DELETE", path):
                pass

    def _split(self, name: str) -> tuple[str, str]:
        folder, _, last = name.rpartition("/")
        return self._below(folder), last

    def _below(self, folder: str) -> str:
        return "/".join(part for part in (self._root, folder) if part)

    def _peer_id(self) -> str:
        found = self._overlay.find_name(self._peer)
        if found is None:
            raise PeerError(f"there is no data node {self._peer} now")
        return found


def _size_and_digest(path: Path, known: str) -> tuple[int, str]:
    with path.open("rb") as file:
        digest = known or hashlib.file_digest(file, "sha256").hexdigest()
        return path.stat().st_size, digest
