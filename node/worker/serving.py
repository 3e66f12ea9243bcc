"""The versions that a parameter server holds, and who may have them."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

from msgspec.structs import replace

from node.errors import Refused
from node.wire import ExportedFile, VersionFile
from node.worker.versions import Version

KEPT = 3
FRAGMENTED = ("weights", "momentum", "residual")
WHOLE = ("delta", "whole-weights", "whole-momentum")


class Shelf:
    """The last versions of the weights, in files; waiting for the next one is cheap. At most one is only prepared."""

    def __init__(self, folder: Path, fragments: int = 1) -> None:
        self._fragments = fragments
        self._whole: dict[int, list[VersionFile]] = {}
        self.folder = folder
        self.export_folder = folder / "export"
        self.exported: dict[str, ExportedFile] = {}
        self._held: dict[int, Version] = {}
        self._newest = -1
        self._changed = asyncio.Event()

    def path(self, kind: str, number: int) -> Path:
        """Where a file that is served lies."""
        if self._fragments > 1 and kind != "delta":
            kind = f"whole-{kind}"
        return self.folder / f"{kind}-{number}.safetensors"

    def prepare(self, version: Version) -> None:
        """A version is whole on disk; it may be fetched, and is not used before it is committed."""
        self._held[version.number] = version
        self._whole.pop(version.number, None)
        self._wake()

    def commit(self, number: int) -> None:
        """A prepared version is the newest one."""
        self._held[number] = replace(self._held[number], committed=True)
        self._newest = number
        self._wake()

    async def remove_old(self) -> None:
        """Remove all but the last three versions."""
        oldest = self._newest - KEPT + 1
        self._held = {number: version for number, version in self._held.items() if number >= oldest}
        self._whole = {number: files for number, files in self._whole.items() if number >= oldest}
        await asyncio.to_thread(_remove_before, self.folder, oldest, self._fragments)

    async def version(self, number: int | None, state: str, wait_s: float) -> Version:
        """A version once it is `committed`, or at least `prepared` (None: the newest that is committed), waited for if
        need be. Raises `Refused`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                while not self._is_here(number, state):
                    await self._changed.wait()
        if not self._is_here(number, state):
            raise Refused("busy", f"version {number or 0} is not {state} yet")
        return self.held(self._newest if number is None else number)

    def held(self, number: int) -> Version:
        """A version that is here. Raises `Refused`."""
        version = self._held.get(number)
        if version is None:
            if number > self._newest:
                raise Refused("busy", f"version {number} does not exist yet")
            raise Refused("stale", f"version {number} is not held any more, {self._newest} is the newest")
        return replace(version, newest=self._newest)

    def file(self, kind: str, number: int) -> VersionFile:
        """A file that is here whole. Raises `Refused`."""
        version = self.held(number)
        files = version.files if kind == "delta" else self.whole(number) or []
        found = next((file for file in files if file.kind == kind), None)
        if found is None:
            raise Refused("unknown", f"version {number} has no {kind}")
        return found

    def whole(self, number: int) -> list[VersionFile] | None:
        """Weights and momentum of a version as whole files; None where they are still to be made. Raises `Refused`."""
        version = self.held(number)
        if self._fragments == 1:
            return [file for file in version.files if file.kind != "delta"]
        return self._whole.get(number)

    def keep_whole(self, number: int, files: list[VersionFile]) -> None:
        """These whole files are there."""
        self._whole[number] = files

    def _is_here(self, number: int | None, state: str) -> bool:
        newest = max(self._held, default=-1) if state == "prepared" and number is not None else self._newest
        return newest >= (number or 0)

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


def _remove_before(folder: Path, oldest: int, fragments: int) -> None:
    """The oldest version that is held needs files of one round for each fragment."""
    limits = dict.fromkeys(FRAGMENTED, oldest - fragments + 1) | dict.fromkeys((*WHOLE, "digests"), oldest)
    for path in folder.iterdir():
        kind, _, number = path.stem.rpartition("-")
        if number.isdigit() and int(number) < limits.get(kind, 0):
            path.unlink(missing_ok=True)
