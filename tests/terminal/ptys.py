"""A pseudo-terminal with `hypha-tui` in it, driven by keys and signals and read from its screen."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from codecs import getincrementaldecoder
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.terminal.vt import Screen


class Pty:
    """One process as the leader of a session on a terminal of its own."""

    def __init__(self, command: Sequence[str], size: tuple[int, int], environment: dict[str, str]) -> None:
        self.screen = Screen(*size)
        self.raw = b""
        self._decode = getincrementaldecoder("utf-8")("replace").decode
        self._master, slave = pty.openpty()
        self._is_open = True
        self._size(size)
        # A session's leader that opens a terminal gets it as the one that controls it.
        shell = 'exec "$@" <"$0" >"$0" 2>&1'
        try:
            self.process = subprocess.Popen(
                ["sh", "-c", shell, os.ttyname(slave), *command], env=environment, start_new_session=True
            )
            self._read(5.0)
        finally:
            os.close(slave)

    def press(self, keys: str) -> None:
        """Bytes of keys."""
        os.write(self._master, keys.encode())

    def resize(self, width: int, height: int) -> None:
        """Another size; the kernel tells the process."""
        self.screen.resize(width, height)
        self._size((width, height))

    def wait(self, *words: str, within_s: float = 10.0) -> str:
        """The screen, once it shows all these words."""
        self.until(lambda: all(word in self.screen.text for word in words), f"{words}", within_s)
        return self.screen.text

    def until(self, done: Callable[[], bool], what: str, within_s: float = 10.0) -> None:
        """Read on until it is so."""
        deadline = time.monotonic() + within_s
        while not done():
            assert time.monotonic() < deadline, f"no {what} within {within_s} s:\n{self.screen.text}"
            self._read(0.02)

    def end(self, within_s: float = 10.0) -> int:
        """The exit code, once it ended; what it wrote last is on the screen."""
        self.until(lambda: self.process.poll() is not None, "end", within_s)
        self._read(0.05)
        return self.process.returncode

    def hang_up(self) -> None:
        """The terminal is gone."""
        if self._is_open:
            self._is_open = False
            os.close(self._master)

    def close(self) -> None:
        """End it, whatever it does."""
        self.process.kill()
        self.process.wait(5)
        self.hang_up()

    def _size(self, size: tuple[int, int]) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))

    def _read(self, wait_s: float) -> None:
        while self._is_open and select.select([self._master], [], [], wait_s)[0]:
            try:
                data = os.read(self._master, 65_536)
            except OSError:
                return  # nobody has the other end open any more
            self.raw += data
            self.screen.feed(self._decode(data))
            wait_s = 0.0


@contextmanager
def in_pty(
    *arguments: str, home: Path, size: tuple[int, int] = (100, 30), program: Sequence[str] = (), **environment: str
) -> Iterator[Pty]:
    """`hypha-tui` with these arguments; variables that are given as empty are not set."""
    given = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "PYTHONPATH": os.pathsep.join(sys.path),
        "LANG": "C.UTF-8",
        "TERM": "xterm-256color",
        "COLORTERM": "truecolor",
        **environment,
    }
    command = [sys.executable, *(program or ("-m", "hypha_tui.cli")), *arguments]
    pty_ = Pty(command, size, {name: value for name, value in given.items() if value})
    try:
        yield pty_
    finally:
        pty_.close()
