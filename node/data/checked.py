"""Which slices on disk are known to be what the manifest says."""

from __future__ import annotations

import contextlib
from pathlib import Path

import msgspec

from node.data.datasets import Dataset, hash_file, write_file
from node.errors import DatasetError
from node.wire import UNDECODABLE, SliceInfo

Stamp = tuple[int, int, int]
"""A file's size, modification time in nanoseconds, and inode: another content has another stamp."""


class Checked:
    """Which slices were found to be what the manifest says, by their stamps then; kept in a file over restarts."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamps: dict[str, Stamp] = {}
        self._bad: dict[str, Stamp] = {}
        self._is_dirty = False
        with contextlib.suppress(OSError, *UNDECODABLE):
            self._stamps = msgspec.json.decode(path.read_bytes(), type=dict[str, Stamp])

    def is_known(self, info: SliceInfo, stamp: Stamp) -> bool:
        """Whether a file with this stamp was found to have the digest of `info`."""
        return self._stamps.get(f"{info.name}:{info.sha256}") == stamp

    def is_known_bad(self, info: SliceInfo, stamp: Stamp) -> bool:
        """Whether a file with this stamp was found to have another digest, since this node started."""
        return self._bad.get(info.name) == stamp

    def note(self, info: SliceInfo, stamp: Stamp) -> None:
        """Remember that a file with this stamp has the digest of `info`."""
        self._stamps[f"{info.name}:{info.sha256}"] = stamp
        self._is_dirty = True

    def note_bad(self, info: SliceInfo, stamp: Stamp) -> None:
        """Remember that a file with this stamp has another digest than `info` says."""
        self._bad[info.name] = stamp

    def save(self) -> None:
        """Write what has become known since; a node whose disk is full goes on without."""
        if not self._is_dirty:
            return
        self._is_dirty = False
        with contextlib.suppress(OSError):
            write_file(self._path, msgspec.json.encode(dict(self._stamps)))


def is_intact(dataset: Dataset, info: SliceInfo, checked: Checked) -> bool:
    """Whether a slice's bytes are those of the manifest; reads them only where its stamp is not known. Blocks."""
    path = dataset.path_of(info)
    try:
        stamp = stamp_of(path)
    except OSError:
        return False
    if checked.is_known(info, stamp):
        return True
    if stamp[0] != info.size_bytes or checked.is_known_bad(info, stamp):
        return False
    try:
        found = hash_file(path)
        is_same_file = stamp_of(path) == stamp
    except (DatasetError, OSError):
        return False
    if found != info.sha256:
        checked.note_bad(info, stamp)
        return False
    if is_same_file:
        checked.note(info, stamp)
    return is_same_file


def stamp_of(path: Path) -> Stamp:
    """A file's stamp; raises `OSError`."""
    status = path.stat(follow_symlinks=False)
    return status.st_size, status.st_mtime_ns, status.st_ino
