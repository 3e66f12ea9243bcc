"""Results and checkpoints of jobs that a data node takes in, where its owner lets it: `results_path`."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import re
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from aiohttp import web

from node.errors import Refused
from node.identity.caller import Caller
from node.network.ranges import sha256_of_etag
from node.network.serving import receive_file, send_file
from node.telemetry import metrics
from node.wire import UNDECODABLE, StoredFiles, StoreHeader

if TYPE_CHECKING:
    from node.network.overlay import Overlay

LIMIT_BYTES = 1 << 42
FILES_MOST = 10_000
OWNER = ".owner"
"""In each folder of files: whose it is. No name from outside begins with a dot."""
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
_FOLDER = re.compile(rf"{_PLAIN.pattern}(/{_PLAIN.pattern}){{0,3}}")


class Inbox:
    """Takes files of schedulers of this cluster, one at a time, whole and verified; nothing without a folder. A
    scheduler may see, fetch and remove what lies in folders that it began."""

    def __init__(self, folder: Path | None, overlay: Overlay) -> None:
        self._folder = folder
        self._overlay = overlay
        overlay.bulk_route("PUT", "/bulk/results/{name}", self._take)
        overlay.bulk_route("GET", "/bulk/results", self._list)
        overlay.bulk_route("GET", "/bulk/results/{name}", self._send)
        overlay.bulk_route("DELETE", "/bulk/results/{name}", self._remove)

    async def _take(self, caller: Caller, request: web.Request) -> web.StreamResponse:
        try:
            header = msgspec.json.decode(request.headers.get("Hypha-Store", ""), type=StoreHeader)
        except UNDECODABLE as error:
            raise Refused("invalid", f"the header Hypha-Store: {error}") from error
        folder = self._inside(caller, header.folder)
        name = _plain(request.match_info["name"])
        try:
            await asyncio.to_thread(_make, _levels(folder, header.folder), caller.peer_id)
        except OSError as error:
            raise Refused("full", f"the folder cannot be made: {error.strerror}") from error
        with metrics().stream():
            await receive_file(
                request,
                folder / name,
                sha256=header.sha256,
                size_bytes=header.size_bytes,
                limit_bytes=LIMIT_BYTES,
            )
        return web.json_response({})

    async def _list(self, caller: Caller, request: web.Request) -> web.StreamResponse:
        folder = await self._own(caller, request)
        found = StoredFiles(files=await asyncio.to_thread(_files_below, folder))
        return web.Response(body=msgspec.json.encode(found), content_type="application/json")

    async def _send(self, caller: Caller, request: web.Request) -> web.StreamResponse:
        path = await self._own(caller, request) / _plain(request.match_info["name"])
        # Who knows the digest checks it; it is reckoned for who asks what it is.
        sha256 = sha256_of_etag(request.headers.get("If-Match", ""))
        if sha256 is None:
            try:
                sha256 = await asyncio.to_thread(_digest, path)
            except OSError as error:
                raise Refused("unknown", f"{path.name} cannot be read here: {error.strerror}") from error
        with metrics().stream():
            return await send_file(request, path, sha256=sha256)

    async def _remove(self, caller: Caller, request: web.Request) -> web.StreamResponse:
        path = await self._own(caller, request) / _plain(request.match_info["name"])
        await asyncio.to_thread(_unlink, path)
        return web.json_response({})

    async def _own(self, caller: Caller, request: web.Request) -> Path:
        """The folder that a request names, if this scheduler began it."""
        text = request.query.get("folder", "")
        folder = self._inside(caller, text)
        if await asyncio.to_thread(_owner_of, _levels(folder, text)) != caller.peer_id:
            raise Refused("denied", f"no folder {text[:200]!r} of this scheduler is here")
        return folder

    def _inside(self, caller: Caller, folder: str) -> Path:
        if self._folder is None:
            raise Refused("denied", "this node takes no results", hint="its owner sets results_path")
        if all(peer.record.peer_id != caller.peer_id for peer in self._overlay.peers("scheduler")):
            raise Refused("denied", "results come from schedulers alone")
        if not _FOLDER.fullmatch(folder):
            raise Refused("invalid", "a folder is up to four names of letters, digits, '.', '_' and '-'")
        return self._folder / folder


def _plain(name: str) -> str:
    if not _PLAIN.fullmatch(name):
        raise Refused("invalid", "a name is letters, digits, '.', '_' and '-'")
    return name


def _levels(folder: Path, text: str) -> list[Path]:
    """The folder of this text and those around it, the innermost first, up to the node's folder of results."""
    return [folder, *folder.parents][: text.count("/") + 1]


def _make(levels: Sequence[Path], owner: str) -> None:
    for folder in reversed(levels):
        if not folder.is_dir():
            folder.mkdir(parents=True, exist_ok=True)
            (folder / OWNER).write_text(owner)


def _owner_of(levels: Sequence[Path]) -> str:
    """Who began the innermost of these folders that somebody began."""
    for folder in levels:
        with contextlib.suppress(OSError, UnicodeDecodeError):
            return (folder / OWNER).read_text().strip()
    return ""


def _files_below(folder: Path) -> list[tuple[str, int]]:
    found = []
    for place, _, names in os.walk(folder):
        for name in names:
            status = (Path(place) / name).lstat()
            if _PLAIN.fullmatch(name) and stat.S_ISREG(status.st_mode):
                found.append(((Path(place) / name).relative_to(folder).as_posix(), status.st_size))
                if len(found) > FILES_MOST:
                    raise Refused("full", f"more than {FILES_MOST:,} files are there")
    return sorted(found)


def _digest(path: Path) -> str:
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _unlink(path: Path) -> None:
    path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        if [left.name for left in path.parent.iterdir()] == [OWNER]:
            (path.parent / OWNER).unlink()
            path.parent.rmdir()
