"""Files on their way into and out of a work directory whose owner, the job's own code, may be hostile.

That code can swap a folder for a link at any moment. So nothing is written or read through a path of its choosing:
files are made in a folder that it cannot see, and moved or taken part by part, no link followed.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from pathlib import Path

from node.worker.references import BridgeError

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def staging_of(work_dir: Path) -> Path:
    """The private folder beside a work directory, on the same file system."""
    return work_dir.with_name(f".{work_dir.name}.staging")


def new_name(work_dir: Path) -> Path:
    """A name for a new file in the private folder."""
    folder = staging_of(work_dir)
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder / secrets.token_hex(8)


def put(source: Path, work_dir: Path, target: Path) -> None:
    """Move a finished file to `target`, a path below the work directory; folders on the way are made."""
    folder = _open_folder(work_dir, target.parent, makes=True)
    try:
        os.rename(source, target.name, dst_dir_fd=folder)
    except OSError as error:
        raise BridgeError(400, "invalid_path", f"{target.name!r} cannot be placed there: {error.strerror}") from error
    finally:
        os.close(folder)


def take(source: Path, work_dir: Path) -> Path:
    """A second name, in the private folder, for the regular file `source` below the work directory."""
    taken = new_name(work_dir)
    folder = _open_folder(work_dir, source.parent, makes=False)
    try:
        os.link(source.name, taken, src_dir_fd=folder, follow_symlinks=False)
    except OSError as error:
        raise BridgeError(404, "unknown", f"{source.name!r} cannot be read: {error.strerror}") from error
    finally:
        os.close(folder)
    if not stat.S_ISREG(taken.lstat().st_mode):
        taken.unlink()
        raise BridgeError(400, "invalid_path", f"{source.name!r} is not a regular file")
    return taken


def _open_folder(work_dir: Path, path: Path, *, makes: bool) -> int:
    base = work_dir.resolve()
    folder = os.open(base, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    for part in path.relative_to(base).parts:
        try:
            if makes:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(part, dir_fd=folder)
            inner = os.open(part, _FOLDER, dir_fd=folder)
        except OSError as error:
            raise BridgeError(400, "invalid_path", f"{part!r} is not a folder: {error.strerror}") from error
        finally:
            os.close(folder)
        folder = inner
    return folder
