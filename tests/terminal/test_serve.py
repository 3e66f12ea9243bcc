"""`hypha-tui serve` as a browser sees it: the gate, the limit, and a session that can look and not change."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import psutil
import pytest

pytest.importorskip("textual_serve")

from aiohttp import web

from hypha_tui.client.endpoint import Endpoint
from hypha_tui.serve.orders import orders_for
from hypha_tui.serve.server import Plan, TerminalServer
from tests.terminal.fake_node import FakeNode, serving

pytestmark = pytest.mark.asyncio


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Sessions keep their history in a home of their own."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)


@dataclass
class Served:
    """A server under test and a browser that was not let in yet."""

    server: TerminalServer
    http: aiohttp.ClientSession
    said: list[str] = field(default_factory=list)

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.server.port}"

    async def status(self, path: str, **headers: str) -> int:
        async with self.http.get(self.origin + path, headers=headers, allow_redirects=False) as response:
            await response.read()
            return response.status

    async def refused(self, origin: str | None) -> int:
        """The answer to a WebSocket that is not let in."""
        with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
            await self.http.ws_connect(f"{self.origin}/ws", origin=origin)
        return caught.value.status

    async def enter(self) -> None:
        """Use the link."""
        async with self.http.get(self.server.link) as response:
            assert response.status == 200


@asynccontextmanager
async def served(socket: Path, sessions: int = 1) -> AsyncIterator[Served]:
    orders = orders_for(Endpoint(socket=socket), readonly=True)
    said: list[str] = []
    server = TerminalServer(Plan(orders, 0, sessions, "hypha"), said.append)
    runner = web.AppRunner(server.app(), shutdown_timeout=5)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        server.port = runner.addresses[0][1]
        async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as http:
            yield Served(server, http, said)
    finally:
        await runner.cleanup()


def session_process() -> psutil.Process:
    """The process of the one terminal that is served."""
    (found,) = [one for one in psutil.Process().children() if any("hypha_tui.serve" in word for word in one.cmdline())]
    return found


async def test_without_the_link_nothing_is_served() -> None:
    async with served(Path("/nowhere")) as browser:
        for path in ("/", "/static/js/textual.js", "/download/x", "/ws", "/?token=wrong", "/focus.js"):
            needs_origin = {"Origin": browser.origin} if path == "/ws" else {}
            assert await browser.status(path, **needs_origin) == 401, path


async def test_the_link_gives_a_cookie_that_scripts_and_other_sites_do_not_get() -> None:
    async with served(Path("/nowhere")) as browser:
        link = browser.server.link
        async with browser.http.get(link, allow_redirects=False) as response:
            cookie = response.headers["Set-Cookie"]
            assert response.headers["Location"] == "/"
            assert "HttpOnly" in cookie and "SameSite=Strict" in cookie
        assert browser.server.link != link and browser.server.link in browser.said[-1]
        async with browser.http.get(browser.origin) as page:
            text = await page.text()
            assert f"ws://127.0.0.1:{browser.server.port}/ws" in text
            policy = page.headers["Content-Security-Policy"]
            assert "script-src 'self';" in policy and "frame-ancestors 'none'" in policy
            assert not re.search(r"https?://", text), "nothing comes from another host"
        assert await browser.status("/static/js/textual.js") == 200
        assert await browser.status("/static/") in (403, 404), "no listing of the folder"
        assert await browser.status("/static/../server.py") == 404
        browser.http.cookie_jar.clear()
        assert await browser.status(link.removeprefix(browser.origin)) == 401, "a link works once"


async def test_other_names_and_other_pages_are_turned_away_with_the_cookie_too() -> None:
    async with served(Path("/nowhere")) as browser:
        await browser.enter()
        assert await browser.status("/", Host="evil.example") == 403
        assert await browser.status("/", Origin="http://evil.example") == 403
        assert await browser.refused(None) == 403
        assert await browser.refused("http://localhost:3000") == 403


async def test_a_session_looks_and_cannot_change_and_ends_with_its_socket(tmp_path: Path) -> None:
    """T60: and it is told where to look through a pipe, not in its arguments or its environment."""
    with serving(FakeNode(tmp_path / "n.sock")) as node:
        async with served(node.socket) as browser:
            await browser.enter()
            async with browser.http.ws_connect(f"{browser.origin}/ws?width=100&height=30", origin=browser.origin) as ws:
                await read_until(ws, lambda text: "lease.renewed" in text)
                child = session_process()
                assert not any("n.sock" in word for word in (*child.cmdline(), *child.environ().values()))
                assert await browser.refused(browser.origin) == 503, "one terminal is the limit here"
                assert await browser.status("/") == 503
                await ws.send_json(["stdin", "5"])
                await read_until(ws, lambda text: "[5 Jobs]" in text and " RO " in text)
                await ws.send_json(["stdin", ":save /etc/x.csv\r"])
                await read_until(ws, lambda text: "has no files of this machine" in text)
                await ws.send_json(["resize", {"width": 10**9, "height": "tall"}])
                await ws.send_json({"what": "is this"})
                await read_until(ws, lambda text: False)
            gone = await asyncio.to_thread(psutil.wait_procs, [child], 5)
            assert gone[0], "what is not understood ends the session, and its process"
            assert node.changes == []


async def read_until(ws: aiohttp.ClientWebSocketResponse, done: Callable[[str], bool]) -> None:
    """What the terminal draws, until it says so; or until the socket closes."""
    drawn = ""
    try:
        async with asyncio.timeout(10):
            async for message in ws:
                if message.type is aiohttp.WSMsgType.BINARY:
                    drawn = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", drawn + message.data.decode("utf-8", "replace"))
                if done(drawn):
                    return
    except TimeoutError:
        raise AssertionError(f"not drawn: {drawn}") from None


async def test_serving_ends_its_sessions_when_it_ends(tmp_path: Path) -> None:
    with serving(FakeNode(tmp_path / "n.sock")) as node:
        async with served(node.socket) as browser:
            await browser.enter()
            ws = await browser.http.ws_connect(f"{browser.origin}/ws", origin=browser.origin)
            await read_until(ws, lambda text: "hypha" in text)
            child = session_process()
        gone = await asyncio.to_thread(psutil.wait_procs, [child], 5)
        assert gone[0]
