"""`hypha-tui serve`: the terminal in a browser of this machine.

It listens on 127.0.0.1 only. From elsewhere: `ssh -L 8421:127.0.0.1:8421 HOST`, which brings its own encryption and
its own idea of who you are.
"""

from __future__ import annotations

import asyncio
import errno
import json
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import textual_serve
from aiohttp import WSMsgType, web
from textual_serve.download_manager import DownloadManager

from hypha_tui.serve import page
from hypha_tui.serve.gate import Gate, is_our_host, is_our_origin
from hypha_tui.serve.orders import Orders
from hypha_tui.serve.session import Session
from node.errors import ConfigError

ADDRESS: Final = "127.0.0.1"
MOST_MESSAGE: Final = 64 * 1024
HEARTBEAT_S: Final = 15.0
SHUTDOWN_S: Final = 8.0
_STATIC: Final = Path(textual_serve.__file__).parent / "static"

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class Plan:
    """What to serve. `most_sessions`: terminals at once, each of which is a process."""

    orders: Orders
    port: int
    most_sessions: int
    title: str


class TerminalServer:
    """The web application: one page, one WebSocket for each terminal, and downloads."""

    def __init__(self, plan: Plan, say: Callable[[str], None], gate: Gate | None = None) -> None:
        self._plan = plan
        self._say = say
        self.gate = gate or Gate()
        self._downloads = DownloadManager()
        self._open: set[web.WebSocketResponse] = set()
        self._starting = 0
        self.port = plan.port

    @property
    def link(self) -> str:
        """The link that lets the next browser in, once."""
        return f"http://{ADDRESS}:{self.port}/?token={self.gate.token}"

    def app(self) -> web.Application:
        """The routes, each behind the gate."""
        app = web.Application(middlewares=[self._check], client_max_size=MOST_MESSAGE)
        app.router.add_get("/", self._index)
        app.router.add_get("/focus.js", self._focus)
        app.router.add_get("/ws", self._websocket)
        app.router.add_get("/download/{key}", self._download)
        app.router.add_static("/static", _STATIC, show_index=False)
        app.on_response_prepare.append(_harden)
        app.on_shutdown.append(self._close_all)
        return app

    # ---- who may come in --------------------------------------------------------------------------------------

    @property
    def _cookie(self) -> str:
        return f"hypha-tui-{self.port}"  # a browser gives all ports of a host the same cookies

    @web.middleware
    async def _check(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if not is_our_host(request.host):
            return _notice(403, "Come by 127.0.0.1 or localhost: other names of this machine are not answered.")
        if not is_our_origin(request.headers.get("Origin"), request.host, needed=request.path == "/ws"):
            return _notice(403, "Another page may not use this one.")
        token = request.query.get("token")
        if token is not None and request.path == "/":
            return self._let_in(token)
        if not self.gate.knows(request.cookies.get(self._cookie, "")):
            return _notice(401, "Open the link that hypha-tui serve printed last. A link works once.")
        return await handler(request)

    def _let_in(self, token: str) -> web.StreamResponse:
        cookie = self.gate.redeem(token)
        if cookie is None:
            return _notice(401, "This link was used, or is not of this server. Open the one that was printed last.")
        self._say(f"a browser was let in; the link for another one: {self.link}")
        response = web.Response(status=303, headers={"Location": "/"})
        response.set_cookie(self._cookie, cookie, httponly=True, samesite="Strict", path="/")
        return response

    # ---- what they get ----------------------------------------------------------------------------------------

    async def _index(self, request: web.Request) -> web.StreamResponse:
        if self._is_full:
            return _notice(503, self._full)
        return web.Response(text=page.terminal(request.host, self._plan.title), content_type="text/html")

    async def _focus(self, _request: web.Request) -> web.StreamResponse:
        return web.Response(text=page.FOCUS, content_type="text/javascript")

    @property
    def _is_full(self) -> bool:
        return len(self._open) + self._starting >= self._plan.most_sessions

    @property
    def _full(self) -> str:
        return f"{self._plan.most_sessions} terminals are open, which is the limit. Close one, or see --sessions."

    async def _websocket(self, request: web.Request) -> web.StreamResponse:
        if self._is_full:
            return _notice(503, self._full)
        websocket = web.WebSocketResponse(heartbeat=HEARTBEAT_S, max_msg_size=MOST_MESSAGE)
        self._starting += 1
        try:
            await websocket.prepare(request)
            self._open.add(websocket)
        finally:
            self._starting -= 1
        session = Session(
            self._plan.orders,
            write_bytes=websocket.send_bytes,
            write_str=websocket.send_str,
            close=websocket.close,
            downloads=self._downloads,
        )
        complaint = ""
        try:
            await session.open(_side(request, "width", 80), _side(request, "height", 24))
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(session.relay())
                try:
                    await _obey(websocket, session)
                finally:
                    complaint = await session.close()
        except* ConnectionError:
            pass  # the browser left in the middle of a message
        finally:
            await session.close()
            self._open.discard(websocket)
            if complaint:
                self._say(f"a session complained: {complaint}")
        return websocket

    async def _download(self, request: web.Request) -> web.StreamResponse:
        """A file that a session hands to its browser."""
        key = request.match_info["key"]
        try:
            described = await self._downloads.get_download_metadata(key)
        except KeyError:
            return _notice(404, "There is no such download.")
        response = web.StreamResponse()
        response.content_type = "application/octet-stream"
        name = "".join(letter for letter in described.file_name if letter.isalnum() or letter in "._- ") or "file"
        response.headers["Content-Disposition"] = f'attachment; filename="{name}"'
        await response.prepare(request)
        async for chunk in self._downloads.download(key):
            await response.write(chunk)
        await response.write_eof()
        return response

    async def _close_all(self, _app: web.Application) -> None:
        for websocket in list(self._open):
            await websocket.close(code=1001, message=b"the server ends")


async def _obey(websocket: web.WebSocketResponse, session: Session) -> None:
    """Hand the process what the browser sends, until it leaves. What is not understood ends the session."""
    async for message in websocket:
        if message.type is not WSMsgType.TEXT:
            return
        try:
            envelope: Any = json.loads(message.data)
        except ValueError:
            return
        match envelope:
            case ["stdin", str(keys)]:
                await session.send_bytes(keys.encode("utf-8", "replace"))
            case ["resize", {"width": width, "height": height}]:
                await session.set_terminal_size(width, height)
            case ["ping", str(when)]:
                await websocket.send_json(["pong", when])
            case ["blur"]:
                await session.blur()
            case ["focus"]:
                await session.focus()
            case _:
                return


def _side(request: web.Request, name: str, default: int) -> int:
    text = request.query.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 5 else default


def _notice(status: int, words: str) -> web.Response:
    return web.Response(status=status, text=page.notice(words), content_type="text/html")


async def _harden(request: web.Request, response: web.StreamResponse) -> None:
    host = request.host if is_our_host(request.host) else ADDRESS
    response.headers["Content-Security-Policy"] = page.POLICY.format(host=host)
    response.headers["X-Frame-Options"] = "DENY"
    response.headers["X-Content-Type-Options"] = "nosniff"
    response.headers["Referrer-Policy"] = "no-referrer"
    response.headers["Cross-Origin-Resource-Policy"] = "same-origin"
    response.headers["Cache-Control"] = "no-store"


async def serve(plan: Plan, say: Callable[[str], None]) -> None:
    """Serve until SIGINT, SIGTERM or SIGHUP. `say` gets lines for the person who started it."""
    server = TerminalServer(plan, say)
    runner = web.AppRunner(server.app(), access_log=None, shutdown_timeout=SHUTDOWN_S)
    await runner.setup()
    try:
        site = web.TCPSite(runner, ADDRESS, plan.port)
        try:
            await site.start()
        except OSError as error:
            reason = "is taken" if error.errno == errno.EADDRINUSE else f"cannot be used: {error.strerror}"
            raise ConfigError(f"port {plan.port} {reason}", hint="choose one with --port") from error
        server.port = runner.addresses[0][1]
        changes = "read-only" if plan.orders.readonly else "changes allowed"
        say(f"the terminal on {plan.orders.node}, {changes}: {server.link}")
        say("this link works once; from another machine: " + f"ssh -L {server.port}:{ADDRESS}:{server.port} THIS-HOST")
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        for signal_ in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(signal_, ended.set)
        await ended.wait()
    finally:
        await runner.cleanup()
