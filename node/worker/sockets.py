"""The sockets of bridges: in one folder, the same for every life of a node."""

from __future__ import annotations

import contextlib
from pathlib import Path

from node.socketfolder import socket_folder


class Sockets:
    """Gives out socket paths. The node's state directory, which it holds alone, names the folder."""

    def __init__(self, state_dir: Path) -> None:
        self._state_dir = state_dir
        self._folder: Path | None = None
        self._count = 0

    def next(self) -> Path:
        """A path that nothing else of this node has."""
        if self._folder is None:
            self._folder = socket_folder(f"bridges:{self._state_dir.resolve()}", "123456.sock")
            for left in self._folder.glob("*.sock"):
                left.unlink(missing_ok=True)
        self._count += 1
        return self._folder / f"{self._count}.sock"

    def close(self) -> None:
        """Remove the folder, once all bridges are closed."""
        if self._folder is not None:
            with contextlib.suppress(OSError):
                self._folder.rmdir()
