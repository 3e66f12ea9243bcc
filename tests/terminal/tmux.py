"""A real terminal for the tests: `hypha-tui` inside tmux, driven by keys and read from its screen."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager


class Tmux:
    """One session on a server of its own."""

    def __init__(self, command: Sequence[str], size: tuple[int, int], home: str) -> None:
        self._socket = f"{home}/tmux"  # goes with the home: of a server by name, the file stays
        width, height = size
        words = " ".join(f"'{word}'" for word in command)
        shell = f"echo BEFORE; {words}; echo EXIT=$?; exec sleep 60"
        environment = [f"PYTHONPATH={os.pathsep.join(sys.path)}", "LANG=C.UTF-8", "LC_ALL=C.UTF-8", f"HOME={home}"]
        unset = [f"--unset={name}" for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME")]
        self._tmux("new", "-d", "-x", str(width), "-y", str(height), "env", *unset, *environment, "sh", "-c", shell)

    @property
    def text(self) -> str:
        """What is on the screen."""
        return self._tmux("capture-pane", "-p")

    def press(self, *keys: str) -> None:
        """Keys by tmux's names."""
        for key in keys:
            self._tmux("send-keys", key)

    def write(self, words: str) -> None:
        """Letters, as they are."""
        self._tmux("send-keys", "-l", words)

    def resize(self, width: int, height: int) -> None:
        """Another size."""
        self._tmux("resize-window", "-x", str(width), "-y", str(height))

    def wait(self, *words: str, within_s: float = 8.0) -> str:
        """The screen, once it shows all these words."""
        deadline = time.monotonic() + within_s
        while True:
            text = self.text
            missing = [word for word in words if word not in text]
            if not missing:
                return text
            assert time.monotonic() < deadline, f"{missing} not within {within_s} s:\n{text}"
            time.sleep(0.05)

    def close(self) -> None:
        """End it, whatever runs in it."""
        self._tmux("kill-server")

    def _tmux(self, *words: str) -> str:
        command = ["tmux", "-S", self._socket, "-f", "/dev/null", *words]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout


@contextmanager
def shown(*arguments: str, size: tuple[int, int] = (120, 40)) -> Iterator[Tmux]:
    """`hypha-tui` with these arguments on a terminal of this size, in a home that is empty."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:
        tmux = Tmux([sys.executable, "-m", "hypha_tui.cli", *arguments], size, home)
        try:
            yield tmux
        finally:
            tmux.close()


HAS_TMUX = shutil.which("tmux") is not None
