"""Where a stream's slices come from."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import msgspec

from node.errors import DatasetError, TensorFileError
from node.tensorfile import read_header
from node.wire import Manifest

if TYPE_CHECKING:
    from node.streaming.slicefile import Rows

MANIFEST = "manifest.json"
MANIFEST_MOST_BYTES = 64 << 20
_SHA256 = re.compile(r"[0-9a-f]{64}")


class Source(Protocol):
    """Slices by number. `open` and `is_here` are called by several threads at once."""

    digest: str
    """Names the dataset's content: a state only fits the dataset that it was taken of."""
    rows: Sequence[int]
    """The number of rows of each slice."""

    def open(self, index: int) -> Path:
        """The file of a slice, whole and verified; blocks while it is fetched. Raises `HyphaError`."""
        ...

    def is_here(self, index: int) -> bool:
        """Whether `open` is going to answer at once."""
        ...

    def release(self, index: int) -> None:
        """The slice is not used any more."""
        ...

    def close(self) -> None:
        """Nothing more is wanted."""
        ...


@runtime_checkable
class RowSource(Protocol):
    """A source that has no files to give, only rows. What is not said here is as with `Source`."""

    digest: str
    rows: Sequence[int]

    def open_rows(self, index: int, columns: Sequence[str], first: int, end: int) -> Rows:
        """Rows `first` to `end` (not included) of a slice; blocks while they are fetched. Raises `HyphaError`."""
        ...

    def is_here(self, index: int) -> bool:
        """Whether `open_rows` is going to answer at once."""
        ...

    def release(self, index: int) -> None:
        """The rows are not used any more."""
        ...

    def close(self) -> None:
        """Nothing more is wanted."""
        ...


class FolderSource:
    """A dataset in a folder of this machine: with its manifest, or else as the slices that are there, by name."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        manifest = folder / MANIFEST
        if manifest.is_file():
            content = manifest.read_bytes()
            infos = read_manifest(content, str(manifest)).slices
            self._names = [info.name for info in infos]
            self._sizes = [info.size_bytes for info in infos]
            self.rows: Sequence[int] = [info.rows for info in infos]
            self.digest = hashlib.sha256(content).hexdigest()
            return
        paths = sorted(path for path in folder.glob("*.safetensors") if not path.name.startswith("."))
        if not paths:
            raise DatasetError(f"{folder} has no slices (*.safetensors)", hint="`hypha-node dataset build` makes them")
        headers = [read_header(path) for path in paths]
        if without := next((p for p, header in zip(paths, headers, strict=True) if header.rows is None), None):
            raise DatasetError(f"{without} has no rows: its tensors differ in their first dimension")
        self._names = [path.name for path in paths]
        self._sizes = [header.size_bytes for header in headers]
        self.rows = [header.rows or 0 for header in headers]
        told = repr(list(zip(self._names, self._sizes, self.rows, strict=True)))
        self.digest = hashlib.sha256(told.encode()).hexdigest()

    def open(self, index: int) -> Path:
        """The slice's file."""
        path = self._folder / self._names[index]
        try:
            size = path.stat().st_size
        except OSError as error:
            raise DatasetError(f"slice {path} cannot be read: {error.strerror}") from error
        if size != self._sizes[index]:
            raise TensorFileError(f"slice {path} has {size:,} bytes, expected were {self._sizes[index]:,}")
        return path

    def is_here(self, index: int) -> bool:
        """Always."""
        return True

    def release(self, index: int) -> None:
        """Nothing is held."""

    def close(self) -> None:
        """Nothing is held."""


def read_manifest(content: bytes, where: str) -> Manifest:
    """A manifest's content; raises `DatasetError` where it is not one."""
    try:
        manifest = msgspec.json.decode(content, type=Manifest)
    except msgspec.DecodeError as error:
        raise DatasetError(f"{where} is not a manifest: {error}") from error
    for info in manifest.slices:
        if "/" in info.name or info.name.startswith(".") or not _SHA256.fullmatch(info.sha256):
            raise DatasetError(f"{where} has a bad entry: {info.name!r}")
    if not manifest.slices:
        raise DatasetError(f"{where} lists no slices")
    return manifest
