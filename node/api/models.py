"""Models on their way to an operator, from the scheduler that has them through this node; nothing is kept here.

The operator's signature goes along: a scheduler hands a model to no node of its own accord.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from urllib.parse import quote

import aiohttp
import msgspec
from aiohttp import web

from node.api.commands import HEADER, Commands, checked, header_of
from node.api.endpoints import to_json
from node.api.problems import Failure
from node.errors import HyphaError, PeerProtocol
from node.identity.caller import Caller
from node.network.overlay import Overlay
from node.views import ModelView
from node.wire import Export

LISTED_WITHIN_S = 600.0
LIST_BYTES_MOST = 4 << 20
STALL_S = 30.0
AT_ONCE = 8
PASSED_ON = ("Range", "If-Match")
PASSED_BACK = ("Content-Length", "Content-Range", "ETag", "Accept-Ranges")


class Models:
    """What can be exported of a job, and its bytes."""

    def __init__(self, overlay: Overlay, commands: Commands) -> None:
        self._overlay = overlay
        self._commands = commands
        self._under_way = 0

    async def model(self, caller: Caller | None, request: web.Request) -> web.StreamResponse:
        """The files of a model, with their digests."""
        job_id = checked(request.match_info["id"])
        headers = {HEADER: self._authority(caller, request)}
        path = f"/bulk/jobs/{job_id}/model{_query(request)}"
        return to_json(await self._commands.somewhere(job_id, lambda scheduler: self._list(scheduler, path, headers)))

    async def model_file(self, caller: Caller | None, request: web.Request) -> web.StreamResponse:
        """One of them, or a part of it."""
        job_id = checked(request.match_info["id"])
        headers = {HEADER: self._authority(caller, request)}
        headers |= {name: request.headers[name] for name in PASSED_ON if name in request.headers}
        path = f"/bulk/jobs/{job_id}/model/{quote(request.match_info['name'], safe='')}{_query(request)}"
        if self._under_way >= AT_ONCE:
            raise Failure(503, "busy", f"{AT_ONCE} models pass through this node already")
        self._under_way += 1
        try:
            return await self._commands.somewhere(
                job_id, lambda scheduler: self._pass_on(request, scheduler, path, headers)
            )
        finally:
            self._under_way -= 1

    def _authority(self, caller: Caller | None, request: web.Request) -> str:
        run = self._commands.signed(caller, request)
        return header_of(run or self._commands.sign(Export(job_id=request.match_info["id"])))

    async def _list(self, scheduler: str, path: str, headers: Mapping[str, str]) -> ModelView:
        body = bytearray()
        asked = self._overlay.open(scheduler, "GET", path, headers=headers, stall_s=LISTED_WITHIN_S)
        try:
            async with asyncio.timeout(LISTED_WITHIN_S), asked as answer:
                async for piece in answer.content.iter_any():
                    body += piece
                    if len(body) > LIST_BYTES_MOST:
                        raise PeerProtocol(f"{scheduler} lists more than {LIST_BYTES_MOST >> 20} MiB of files")
            return msgspec.json.decode(bytes(body), type=ModelView)
        except (aiohttp.ClientError, ValueError, msgspec.MsgspecError) as error:
            raise PeerProtocol(f"{scheduler} answers something that is no list of files: {error}") from error

    async def _pass_on(
        self, request: web.Request, scheduler: str, path: str, headers: Mapping[str, str]
    ) -> web.StreamResponse:
        async with self._overlay.open(scheduler, "GET", path, headers=headers, stall_s=STALL_S) as answer:
            kept = {name: answer.headers[name] for name in PASSED_BACK if name in answer.headers}
            response = web.StreamResponse(status=answer.status, headers=kept)
            response.content_type = "application/octet-stream"
            await response.prepare(request)
            try:
                async for piece in answer.content.iter_any():
                    async with asyncio.timeout(STALL_S):
                        await response.write(piece)
            except (aiohttp.ClientError, HyphaError, TimeoutError, ConnectionError) as error:
                # the head is out: all that can be said is that this is not the end
                if request.transport is not None:
                    request.transport.abort()
                raise ConnectionResetError("the transfer of a model broke off") from error
            return response


def _query(request: web.Request) -> str:
    version = request.query.get("version", "latest")
    if version != "latest" and not (version.isascii() and version.isdigit() and len(version) < 10):
        raise Failure(422, "invalid", f"version={version[:40]}: `latest` or a number is needed")
    return f"?version={version}"
