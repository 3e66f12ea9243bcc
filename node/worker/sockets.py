"""Where the sockets of bridges lie: a short path, for this user alone, the same for every life of a node."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import tempfile
from pathlib import Path

from node.worker.bridge import socket_path_fits


class Sockets:
    """Gives out socket paths. The node's state directory, which it holds alone, names the folder."""

    def __init__(self, state_dir: Path) -> None:
        self._state_dir = state_dir
        self._folder: Path | None = None
        self._count = 0

    def next(self) -> Path:
        """A path that nothing else of this node has."""
        if self._folder is None:
            self._folder = self._make()
        self._count += 1
        return self._folder / f"{self._count}.sock"

    def close(self) -> None:
        """Remove the folder, once all bridges are closed."""
        if self._folder is not None:
            with contextlib.suppress(OSError):
                self._folder.rmdir()

    def _make(self) -> Path:
        digest = hashlib.sha256(f"{os.getuid()}:{self._state_dir.resolve()}".encode()).hexdigest()
        base = Path(os.environ.get("XDG_RUNTIME_DIR") or "/tmp")
        if not os.access(base, os.W_OK) or not socket_path_fits(base / f"hypha-{digest[:10]}" / "123456.sock"):
            base = Path("/tmp")
        folder = base / f"hypha-{digest[:10]}"
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
            # Somebody else was there first: /tmp is everybody's.
            return Path(tempfile.mkdtemp(prefix="hypha-", dir=base))
        for path in folder.glob("*.sock"):
            path.unlink(missing_ok=True)
        return folder
