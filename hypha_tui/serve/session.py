"""One browser's terminal: a process of its own, and what passes between it and the WebSocket."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from textual_serve.app_service import AppService
from textual_serve.download_manager import DownloadManager

from hypha_tui.serve.orders import Orders

READY: Final = b"__GANGLION__\n"
"""What Textual's driver for browsers says first."""
START_S: Final = 10.0
QUIT_S: Final = 3.0
TERMINATE_S: Final = 2.0
MOST_STDERR: Final = 4096
WIDTHS: Final = (20, 500)
HEIGHTS: Final = (5, 200)
_KEPT: Final = ("PATH", "HOME", "USER", "TZ", "TMPDIR", "PYTHONPATH", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "NO_COLOR")
_DRAWING: Final = {
    "LC_ALL": "C.UTF-8",
    "TERM": "xterm-256color",
    "TERM_PROGRAM": "textual",
    "TEXTUAL_DRIVER": "textual.drivers.web_driver:WebDriver",
    "TEXTUAL_COLOR_SYSTEM": "truecolor",
    "TEXTUAL_ANIMATIONS": "none",
    "TEXTUAL_SMOOTH_SCROLL": "0",
    "TEXTUAL_FPS": "20",
}


def environment_for(given: Mapping[str, str], width: int, height: int) -> dict[str, str]:
    """What a session's process may know of our environment, which may hold secrets, and how it is to draw."""
    kept = {name: given[name] for name in _KEPT if name in given}
    return {**kept, **_DRAWING, "COLUMNS": str(width), "ROWS": str(height)}


def clamped(value: object, limits: tuple[int, int]) -> int:
    """A side of a window as a browser tells it, made sane."""
    return min(max(value if isinstance(value, int) else 0, limits[0]), limits[1])


class Session(AppService):
    """A terminal process. `open` it, run `relay` as a task, and `close` it; it does not outlive us."""

    def __init__(
        self,
        orders: Orders,
        *,
        write_bytes: Callable[[bytes], Awaitable[None]],
        write_str: Callable[[str], Awaitable[None]],
        close: Callable[[], Awaitable[object]],
        downloads: DownloadManager,
    ) -> None:
        async def hang_up() -> None:
            await close()

        super().__init__("", write_bytes=write_bytes, write_str=write_str, close=hang_up, download_manager=downloads)
        self._orders = orders
        self._lifeline = -1
        self._errors = bytearray()

    async def open(self, width: int, height: int) -> None:
        """Start the process. Its end of the lifeline ends when we do, and the process with it."""
        theirs, ours = os.pipe()
        try:
            os.write(ours, self._orders.encoded())
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "hypha_tui.serve.child", str(theirs)),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                pass_fds=(theirs,),
                env=environment_for(os.environ, clamped(width, WIDTHS), clamped(height, HEIGHTS)),
                start_new_session=True,
            )
        except BaseException:
            os.close(ours)
            raise
        finally:
            os.close(theirs)
        self._lifeline = ours
        self._stdin = self._process.stdin

    async def relay(self) -> None:
        """Bring the browser what the process draws, until it ends; then hang up."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._read_errors())
            try:
                await self._read_packets()
            except (asyncio.IncompleteReadError, ConnectionError, TimeoutError):
                pass  # it ended, or the browser did
            await self.remote_close()

    async def _read_packets(self) -> None:
        assert self._process is not None and self._process.stdout is not None
        stdout = self._process.stdout
        async with asyncio.timeout(START_S):
            await stdout.readuntil(READY)
        while True:
            head = await stdout.readexactly(5)
            payload = await stdout.readexactly(int.from_bytes(head[1:], "big"))
            if head[:1] == b"D":
                await self.on_data(payload)
            elif head[:1] == b"M":
                await self.on_meta(payload)
            elif head[:1] == b"P":
                await self.on_packed(payload)

    async def _read_errors(self) -> None:
        assert self._process is not None and self._process.stderr is not None
        while data := await self._process.stderr.read(1024):
            self._errors = (self._errors + data)[-MOST_STDERR:]

    async def set_terminal_size(self, width: object, height: object) -> None:
        """The browser's window changed."""
        await super().set_terminal_size(clamped(width, WIDTHS), clamped(height, HEIGHTS))

    async def close(self) -> str:
        """End the process, by force if it must be; the last line it complained with, if any."""
        process, self._process = self._process, None
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1
        if process is None:
            return ""
        await self._download_manager.cancel_app_downloads(app_service_id=self.app_service_id)
        for signal_, wait_s in ((None, QUIT_S), (signal.SIGTERM, TERMINATE_S), (signal.SIGKILL, TERMINATE_S)):
            if signal_ is not None and process.returncode is None:
                process.send_signal(signal_)
            try:
                async with asyncio.timeout(wait_s):
                    await process.wait()
                    break
            except TimeoutError:
                continue
        lines = self._errors.decode("utf-8", "replace").strip().splitlines()
        return lines[-1] if lines else ""
