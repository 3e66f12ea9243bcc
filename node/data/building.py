"""Hidden folders that datasets grow in: locked while their builder lives, removed by the next one if it was killed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

_NAME = re.compile(r"\.(?P<target>.+)\.[0-9a-f]{12}\.building(?P<old>\.old)?")


@contextlib.contextmanager
def building(target: Path) -> Iterator[Path]:
    """A new folder beside `target`. At the end it is removed, unless it has been shown by then."""
    target.parent.mkdir(parents=True, exist_ok=True)
    remove_stale(target.parent)
    part, lock = _create(target)
    try:
        yield part
    finally:
        shutil.rmtree(part, ignore_errors=True)
        os.close(lock)


def show(part: Path, target: Path) -> None:
    """Put a finished folder in its place; what was there before goes away after."""
    old = part.with_name(f"{part.name}.old")
    if target.exists():
        target.rename(old)
    part.rename(target)
    shutil.rmtree(old, ignore_errors=True)


def remove_stale(parent: Path) -> None:
    """Remove what builders that were killed have left; a dataset that one of them was just replacing comes back."""
    for path in sorted(parent.iterdir()):
        match = _NAME.fullmatch(path.name)
        lock = _try_lock(path) if match else None
        if match is None or lock is None:
            continue
        try:
            if match["old"] and not (parent / match["target"]).exists():
                path.rename(parent / match["target"])
            else:
                shutil.rmtree(path, ignore_errors=True)
        finally:
            os.close(lock)


def _create(target: Path) -> tuple[Path, int]:
    while True:
        part = target.with_name(f".{target.name}.{secrets.token_hex(6)}.building")
        part.mkdir()
        lock = _try_lock(part)
        # another builder may have taken it for stale before it was locked
        if lock is not None:
            if part.exists():
                return part, lock
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
