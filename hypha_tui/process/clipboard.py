"""Copying: through the terminal (OSC 52), a program of this machine, or where neither can, a file."""

from __future__ import annotations

import asyncio
import base64
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, Literal

from hypha_tui.settings.folders import state_folder, write_private

LARGEST_OSC52: Final = 74_994
"""Base64 bytes that every terminal which takes OSC 52 at all takes in one piece."""
DEADLINE_S: Final = 2.0
FILE: Final = "copied.txt"
_PROGRAMS: Final = (
    ("WAYLAND_DISPLAY", ("wl-copy",)),
    ("DISPLAY", ("xclip", "-selection", "clipboard")),
    ("DISPLAY", ("xsel", "--clipboard", "--input")),
    ("", ("pbcopy",)),
)
Way = Literal["terminal", "program", "file"]


def way_for(text: str, environment: Mapping[str, str], *, program: bool, in_browser: bool) -> Way:
    """How this text is copied best. Over ssh a program would copy at the wrong end."""
    is_remote = bool(environment.get("SSH_TTY") or environment.get("SSH_CONNECTION"))
    if in_browser:
        return "file"
    if program and not is_remote:
        return "program"
    if environment.get("TERM", "") in ("linux", "dumb", "") or encoded_size(text) > LARGEST_OSC52:
        return "file"
    return "terminal"


def encoded_size(text: str) -> int:
    """Base64 bytes of a text."""
    return (len(text.encode()) + 2) // 3 * 4


def osc52(text: str) -> str:
    """The sequence that asks a terminal to put a text into its clipboard."""
    return f"\x1b]52;c;{base64.b64encode(text.encode()).decode()}\a"


def program_for(environment: Mapping[str, str]) -> tuple[str, ...] | None:
    """The program that owns the clipboard here, if there is one."""
    for variable, command in _PROGRAMS:
        path = shutil.which(command[0], path=environment.get("PATH"))
        if path is not None and (not variable or environment.get(variable)):
            return (path, *command[1:])
    return None


class Clipboard:
    """`copy` says in words which way was taken."""

    def __init__(
        self, environment: Mapping[str, str], write: Callable[[str], None], *, in_browser: bool = False
    ) -> None:
        self._environment = environment
        self._write = write
        self._in_browser = in_browser

    async def copy(self, text: str) -> str:
        """Copy a text. Where one way fails, the next is tried."""
        command = program_for(self._environment)
        way = way_for(text, self._environment, program=command is not None, in_browser=self._in_browser)
        if way == "program" and command is not None:
            if await _feed(command, text):
                return f"with {Path(command[0]).name}"
            way = way_for(text, self._environment, program=False, in_browser=False)
        if way == "terminal":
            self._write(osc52(text))
            return "through the terminal (OSC 52)"
        return await asyncio.to_thread(self._to_file, text)

    def _to_file(self, text: str) -> str:
        folder = state_folder(self._environment)
        if folder is None:
            return "nowhere: it is too long for the terminal, and there is no home for a file"
        file = folder / FILE
        try:
            write_private(file, text)
        except OSError as error:
            return f"nowhere: {file} cannot be written: {error.strerror}"
        return f"to {_short(file, self._environment)}"


async def _feed(command: tuple[str, ...], text: str) -> bool:
    """Give a text to a program; whether it took it in time."""
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
    except OSError:
        return False
    try:
        async with asyncio.timeout(DEADLINE_S):
            await process.communicate(text.encode())
    except TimeoutError:
        process.kill()
        await process.wait()
    return process.returncode == 0


def _short(file: Path, environment: Mapping[str, str]) -> str:
    home = environment.get("HOME", "")
    return f"~/{file.relative_to(home)}" if home and file.is_relative_to(home) else str(file)
