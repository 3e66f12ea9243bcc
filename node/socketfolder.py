"""Where a node's Unix sockets lie: a short path, in a folder that its user alone may enter."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import tempfile
from pathlib import Path

PATH_BYTES_MOST = 100
"""sun_path has room for 107 bytes on Linux and 103 on macOS."""


def socket_path_fits(path: Path) -> bool:
    """Whether a Unix socket can be bound at `path` on any system."""
    return len(os.fsencode(path)) <= PATH_BYTES_MOST


def socket_folder(key: str, longest_name: str) -> Path:
    """A folder for sockets with names of at most this length, the same for the same key and user.

    Where somebody else has taken its place (`/tmp` is everybody's) it is another one, new each time.
    """
    name = f"hypha-{hashlib.sha256(f'{os.getuid()}:{key}'.encode()).hexdigest()[:16]}"
    base = Path(os.environ.get("XDG_RUNTIME_DIR") or "/tmp")
    if not os.access(base, os.W_OK) or not socket_path_fits(base / name / longest_name):
        base = Path("/tmp")
    folder = base / name
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        return Path(tempfile.mkdtemp(prefix="hypha-", dir=base))
    return folder
