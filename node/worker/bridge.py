"""The job bridge: HTTP over a Unix socket, one for each task, by which an executor reaches the cluster.

What it may ask for, and in which spellings, is the contract with executors; `references` reads it. Progress is answered
from the task's own state at once, never by a call to the scheduler.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Protocol

import msgspec
from aiohttp import web

from node.telemetry import metrics
from node.wire import UNDECODABLE
from node.worker.bridge_description import DESCRIPTION
from node.worker.bridge_state import TaskProgress
from node.worker.references import BridgeError, Peers, Reference, folder, inside, parse_fetch, parse_receive, parse_send

log = logging.getLogger(__name__)

BODY_LIMIT_BYTES = 1 << 20
KEEP_ALIVE_S = 15.0

Arrival = dict[str, Any]


class Work(Protocol):
    """What the bridge needs of its task."""

    work_dir: Path
    progress: TaskProgress
    arrivals: Arrivals

    async def fetch(self, reference: Reference, out_dir: str) -> list[dict[str, Any]]:
        """Bring files into the work directory."""

    async def send(self, peers: Peers, path: Path) -> None:
        """Deliver a file."""

    def knows(self, peers: Peers) -> bool:
        """Whether files for the executor come from these peers."""

    def codec(self) -> str | None:
        """The codec of the update that is due, if the executor does not know it."""

    def changed(self) -> None:
        """The progress moved on."""

    def measured(self, round_: int, metrics: dict[str, float]) -> None:
        """The executor measured something."""


class Arrivals:
    """Files that arrived for the executor and that it has not applied yet. A reader that comes back gets them again."""

    def __init__(self) -> None:
        self._items: list[Arrival] = []
        self._changed = asyncio.Event()
        self._sequence = 0

    def add(self, path: str, size: int, from_peer: str, **more: Any) -> None:
        """A file has arrived whole."""
        item = {"path": path, "size": size, "from_peer": from_peer, "sequence": self._sequence, **more}
        self._sequence += 1
        self._items.append(item)
        self._wake()

    def clear(self) -> list[Arrival]:
        """Everything that arrived is applied."""
        items, self._items = self._items, []
        return items

    async def after(self, sequence: int) -> list[Arrival]:
        """What has arrived with a number above `sequence`; waits until there is something, or for a while at most."""
        changed = self._changed
        found = [item for item in self._items if item["sequence"] > sequence]
        if not found:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(KEEP_ALIVE_S):
                    await changed.wait()
        return found or [item for item in self._items if item["sequence"] > sequence]

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


class Bridge:
    """Serves one task."""

    def __init__(self, work: Work) -> None:
        self._work = work

    @contextlib.asynccontextmanager
    async def listening(self, path: Path) -> AsyncIterator[None]:
        """Serve on a socket at `path` for the length of the block. Only this user may connect."""
        app = web.Application(client_max_size=BODY_LIMIT_BYTES, middlewares=[_errors_as_json])
        app.router.add_post("/resources/fetch", self._fetch)
        app.router.add_post("/resources/send", self._send)
        app.router.add_post("/resources/receive", self._receive)
        app.router.add_post("/status/send", self._status)
        app.router.add_get("/openapi.json", self._describe)
        runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        listener = _listen(path)
        try:
            await web.SockSite(runner, listener).start()
            yield
        finally:
            await runner.cleanup()
            listener.close()
            path.unlink(missing_ok=True)

    async def _fetch(self, request: web.Request) -> web.Response:
        reference, out_dir = parse_fetch(await _body(request))
        inside(self._work.work_dir, out_dir)
        began = time.monotonic()
        entries = await self._work.fetch(reference, out_dir)
        self._work.progress.away(time.monotonic() - began)
        return web.json_response(entries)

    async def _send(self, request: web.Request) -> web.Response:
        peers, text = parse_send(await _body(request))
        path = inside(self._work.work_dir, text)
        if not path.is_file():
            raise BridgeError(404, "unknown", f"there is no file {text!r} in the work directory")
        await self._work.send(peers, path)
        return web.json_response({"status": "accepted"})

    async def _receive(self, request: web.Request) -> web.StreamResponse:
        peers, out_dir = parse_receive(await _body(request))
        folder(self._work.work_dir, out_dir)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
        await response.prepare(request)
        last = -1
        try:
            await response.write(b": open\n\n")
            while True:
                found = await self._work.arrivals.after(last)
                for item in found:
                    last = item["sequence"]
                    if self._work.knows(peers):
                        await response.write(b"data: " + json.dumps(item).encode() + b"\n\n")
                if not found:
                    await response.write(b": waiting\n\n")
        except ConnectionError:
            return response

    async def _status(self, request: web.Request) -> web.Response:
        return web.json_response(self._answer(await _body(request)))

    def _answer(self, body: Any) -> dict[str, Any]:
        progress = self._work.progress
        match body:
            case "update":
                answer = progress.update(time.monotonic())
                codec = self._work.codec()
                if answer["type"] == "Ok" and codec is not None:
                    answer["codec"] = codec
            case "update-received":
                answer = progress.applied(time.monotonic())
                if answer["type"] != "Error":
                    _remove(self._work.work_dir, self._work.arrivals.clear())
            case {"status": {"batch_size": int(size), **rest}} if 0 < size < 1 << 31:
                reported_s = _number(rest.get("round_time"), 0.0) / 1000
                answer = progress.batch(
                    size, _finite(rest.get("loss")), reported_s, time.monotonic(), batches=_batches(rest, size)
                )
                if answer["type"] != "Error":
                    metrics().samples_trained(size)
            case {"metrics": {"round": int(round_), "metrics": dict(values)}}:
                self._work.measured(round_, {str(name): _number(value, math.nan) for name, value in values.items()})
                return {"type": "Ok"}
            case _:
                raise BridgeError(400, "invalid_body", "not a status that the bridge knows")
        self._work.changed()
        return answer

    async def _describe(self, request: web.Request) -> web.Response:
        return web.json_response(DESCRIPTION)


def _listen(path: Path) -> socket.socket:
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(str(path))
        path.chmod(0o600)
        listener.listen(64)
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
    return listener


@web.middleware
async def _errors_as_json(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    try:
        return await handler(request)
    except BridgeError as error:
        log.warning("bridge.refused path=%s code=%s detail=%s", request.path, error.code, error.detail)
        return _problem(error.status, error.code, error.detail)
    except web.HTTPException as error:
        code = {404: "unknown", 405: "unknown", 413: "full"}.get(error.status, "invalid_body")
        return _problem(error.status, code, f"{request.method} {request.path}: {error.reason}")
    except OSError as error:
        if isinstance(error, ConnectionError):
            raise
        log.warning("bridge.failed path=%s reason=%s", request.path, error)
        return _problem(507 if error.errno in (28, 122) else 500, "failed", str(error))


def _problem(status: int, code: str, detail: str) -> web.Response:
    return web.json_response({"error": code, "detail": detail}, status=status)


async def _body(request: web.Request) -> Any:
    try:
        return msgspec.json.decode(await request.read())
    except UNDECODABLE as error:
        raise BridgeError(400, "invalid_body", f"the body is not JSON: {error}") from None


def _remove(work_dir: Path, items: list[Arrival]) -> None:
    for item in items:
        for key in ("path", "momentum"):
            if key in item:
                (work_dir / item[key]).unlink(missing_ok=True)


def _batches(status: dict[Any, Any], size: int) -> int:
    batches = status.get("batches", 1)
    if type(batches) is not int or not 0 < batches <= size:
        raise BridgeError(400, "invalid_body", "batches is a number from 1 to batch_size")
    return batches


def _finite(value: Any) -> float | None:
    number = _number(value, math.nan)
    return number if math.isfinite(number) else None


def _number(value: Any, default: float) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else default
