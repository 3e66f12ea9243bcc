"""Results of jobs that a data node takes in, where its owner lets it: `results_path`."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from aiohttp import web

from node.errors import Refused
from node.identity.caller import Caller
from node.network.serving import receive_file
from node.telemetry import metrics
from node.wire import StoreHeader

if TYPE_CHECKING:
    from node.network.overlay import Overlay

LIMIT_BYTES = 1 << 42
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")


class Inbox:
    """Takes results of schedulers of this cluster, one file at a time, whole and verified; nothing without a folder."""

    def __init__(self, folder: Path | None, overlay: Overlay) -> None:
        self._folder = folder
        self._overlay = overlay
        overlay.bulk_route("PUT", "/bulk/results/{name}", self._take)

    async def _take(self, caller: Caller, request: web.Request) -> web.StreamResponse:
        if self._folder is None:
            raise Refused("denied", "this node takes no results", hint="its owner sets results_path")
        if all(peer.record.peer_id != caller.peer_id for peer in self._overlay.peers("scheduler")):
            raise Refused("denied", "results come from schedulers alone")
        try:
            header = msgspec.json.decode(request.headers.get("Hypha-Store", ""), type=StoreHeader)
        except msgspec.MsgspecError as error:
            raise Refused("invalid", f"the header Hypha-Store: {error}") from error
        name = request.match_info["name"]
        if not _PLAIN.fullmatch(name) or not _PLAIN.fullmatch(header.folder):
            raise Refused("invalid", "folder and name are letters, digits, '.', '_' and '-'")
        folder = self._folder / header.folder
        try:
            await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
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
