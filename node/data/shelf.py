"""Which datasets lie in the folders of `dataset_path`, and which of them have come, changed or gone since."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from node.data.checked import Stamp, stamp_of
from node.data.datasets import find_slices
from node.errors import DatasetError
from node.manifest import MANIFEST

Identity = tuple[Stamp | None, int]
"""A manifest's stamp, and when an entry of the folder last came or went."""
Listing = tuple[tuple[str, Stamp], ...]


@dataclass(slots=True)
class Changes:
    """Folders to load, and folders that are no longer there."""

    due: list[Path] = field(default_factory=list)
    gone: list[Path] = field(default_factory=list)


class Shelf:
    """Looks at the folders; blocks. An entry without slices of its own is a folder of datasets.

    What is there at the first look is due at once. A folder that comes later is due when its files are as they were at
    the look before: it may still be being copied.
    """

    def __init__(self, entries: Sequence[Path]) -> None:
        self._entries = entries
        self._served: dict[Path, Identity | None] = {}
        self._seen: dict[Path, Listing] = {}
        self._tried: dict[Path, Listing] = {}
        self._is_first = True

    def look(self) -> Changes:
        """What has changed since the last look."""
        found = [folder for entry in self._entries for folder in datasets_in(entry)]
        changes = Changes(gone=[folder for folder in self._served if folder not in found])
        for folder in changes.gone:
            del self._served[folder]
        for folder in found:
            if folder in self._served and self._served[folder] == identity_of(folder):
                continue
            listing = _listing(folder)
            is_still = self._is_first or self._seen.get(folder) == listing
            self._seen[folder] = listing
            if is_still and self._tried.get(folder) != listing:
                self._tried[folder] = listing
                changes.due.append(folder)
        self._seen = {folder: listing for folder, listing in self._seen.items() if folder in found}
        self._tried = {folder: listing for folder, listing in self._tried.items() if folder in found}
        self._is_first = False
        return changes

    def note(self, folder: Path) -> None:
        """A folder is served as it is now: it is due again when that changes."""
        self._served[folder] = identity_of(folder)
        self._tried.pop(folder, None)

    def is_served(self, folder: Path) -> bool:
        """Whether `note` has been told of a folder."""
        return folder in self._served

    def drop(self, folder: Path) -> None:
        """A folder is no longer served; it is due again when its files change."""
        self._served.pop(folder, None)


def datasets_in(entry: Path) -> list[Path]:
    """The entry itself where it is a dataset, else the visible folders in it that are; nothing where it is gone."""
    if _is_dataset(entry):
        return [entry]
    try:
        inside = sorted(path for path in entry.iterdir() if not path.name.startswith(".") and path.is_dir())
    except OSError:
        return []
    return [path for path in inside if _is_dataset(path)]


def identity_of(folder: Path) -> Identity | None:
    """What changes when a dataset is replaced: cheap to look at; None where the folder cannot be read."""
    try:
        came_at = folder.stat().st_mtime_ns
    except OSError:
        return None
    try:
        return stamp_of(folder / MANIFEST), came_at
    except OSError:
        return None, came_at


def _is_dataset(folder: Path) -> bool:
    try:
        return (folder / MANIFEST).is_file() or bool(find_slices(folder)[0])
    except (DatasetError, OSError):
        return False


def _listing(folder: Path) -> Listing:
    found = []
    for path in [folder / MANIFEST, *find_slices(folder)[0]]:
        try:
            found.append((path.name, stamp_of(path)))
        except OSError:
            continue
    return tuple(found)
