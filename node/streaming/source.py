"""Where a stream's slices come from."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from node.errors import DatasetError, TensorFileError
from node.manifest import MANIFEST, MAX_MANIFEST_BYTES, manifest_in
from node.tensorfile import read_header

if TYPE_CHECKING:
    from node.streaming.slicefile import Rows


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
    """A dataset in a folder of this machine: with its manifest, or else as the slices that are there, by name.

    A slice that the manifest names is read through when it is first opened, to compare its digest, and again when the
    file is another than then.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[int, tuple[int, int, int]] = {}
        """Size, modification time and inode of the files whose digest was right."""
        manifest = folder / MANIFEST
        if manifest.is_file():
            content = _bounded(manifest)
            infos = manifest_in(content, str(manifest)).slices
            self._names = [info.name for info in infos]
            self._sizes = [info.size_bytes for info in infos]
            self._digests = [info.sha256 for info in infos]
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
        self._digests = [""] * len(headers)
        self.rows = [header.rows or 0 for header in headers]
        told = repr(list(zip(self._names, self._sizes, self.rows, strict=True)))
        self.digest = hashlib.sha256(told.encode()).hexdigest()

    def open(self, index: int) -> Path:
        """The slice's file."""
        path = self._folder / self._names[index]
        try:
            status = path.stat()
            if status.st_size != self._sizes[index]:
                raise TensorFileError(
                    f"slice {path} has {status.st_size:,} bytes, expected were {self._sizes[index]:,}"
                )
            stamp = (status.st_size, status.st_mtime_ns, status.st_ino)
            if self._digests[index] and self._known.get(index) != stamp:
                with path.open("rb", buffering=0) as file:
                    found = hashlib.file_digest(file, "sha256").hexdigest()
                if found != self._digests[index]:
                    raise DatasetError(
                        f"slice {path} is not what {MANIFEST} says: its SHA-256 is {found}, not {self._digests[index]}",
                        hint="restore it, or build the dataset again",
                    )
                self._known[index] = stamp
        except OSError as error:
            raise DatasetError(f"slice {path} cannot be read: {error.strerror}") from error
        return path

    def is_here(self, index: int) -> bool:
        """Always."""
        return True

    def release(self, index: int) -> None:
        """Nothing is held."""

    def close(self) -> None:
        """Nothing is held."""


def _bounded(manifest: Path) -> bytes:
    try:
        if manifest.stat().st_size > MAX_MANIFEST_BYTES:
            raise DatasetError(f"{manifest} is larger than {MAX_MANIFEST_BYTES:,} bytes")
        return manifest.read_bytes()
    except OSError as error:
        raise DatasetError(f"{manifest} cannot be read: {error.strerror}") from error
