"""Hidden folders that datasets grow in: locked while their builder lives, taken up again by one that wants the same."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from node.errors import DatasetError

KEPT_S = 7 * 86_400.0
"""So long what a killed build has left waits for the same build; the next one of the same name removes it sooner."""

_NAME = re.compile(r"\.(?P<target>.+)\.(?P<key>[0-9a-f]{12})\.building(?P<old>\.old)?")


@contextlib.contextmanager
def building(target: Path, key: str) -> Iterator[Path]:
    """A folder beside `target` for the build that `key` (12 hexadecimal digits) stands for.

    What an interrupted build of this key has left is in it. An error removes it, an interruption does not.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f".{target.name}.{key}.building")
    _remove_others(target, part)
    lock = _create(part)
    try:
        yield part
    except Exception:
        shutil.rmtree(part, ignore_errors=True)
        raise
    else:
        shutil.rmtree(part, ignore_errors=True)
    finally:
        os.close(lock)


def show(part: Path, target: Path, key: str) -> None:
    """Put a finished folder in its place; what was there before goes away after."""
    old = target.with_name(f".{target.name}.{key}.building.old")
    if target.exists():
        target.rename(old)
    part.rename(target)
    shutil.rmtree(old, ignore_errors=True)


def _remove_others(target: Path, own: Path) -> None:
    """Remove what other builders that were killed have left; a dataset that one was just replacing comes back."""
    for path in sorted(target.parent.iterdir()):
        match = _NAME.fullmatch(path.name)
        if match is None or path == own:
            continue
        with contextlib.suppress(OSError):
            is_due = match["target"] == target.name or time.time() - path.stat().st_mtime > KEPT_S
            lock = _try_lock(path) if is_due or match["old"] else None
            if lock is None:
                continue
            try:
                if match["old"] and not (path.parent / match["target"]).exists():
                    path.rename(path.parent / match["target"])
                else:
                    shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(lock)


def _create(part: Path) -> int:
    while True:
        part.mkdir(exist_ok=True)
        lock = _try_lock(part)
        if lock is None:
            raise DatasetError(f"another build is at work on this: {part}")
        # another builder may have removed it before it was locked
        if part.exists() and os.fstat(lock).st_ino == part.stat().st_ino:
            return lock
        os.close(lock)


def _try_lock(path: Path) -> int | None:
    """A descriptor that holds the folder's lock, or None where somebody else does."""
    try:
        lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        return None
    return lock
