"""The versions that a parameter server holds, and who may have them."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

from node.errors import Refused
from node.wire import ExportedFile
from node.worker.versions import Version

KEPT = 3


class Shelf:
    """The last versions of the weights, in files; waiting for the next one is cheap."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.export_folder = folder / "export"
        self.exported: dict[str, ExportedFile] = {}
        self._held: dict[int, Version] = {}
        self._newest = -1
        self._changed = asyncio.Event()

    def weights(self, number: int) -> Path:
        """The file of a version's weights."""
        return self.folder / f"weights-{number}.safetensors"

    def step(self, number: int) -> Path:
        """The file of the step that leads to a version."""
        return self.folder / f"step-{number}.safetensors"

    async def add(self, version: Version) -> None:
        """A version is whole on disk: it is the newest. Versions older than the last three are removed."""
        self._held[version.number] = version
        self._newest = version.number
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
        await asyncio.to_thread(self._remove_old, version.number)

    async def version(self, number: int | None, wait_s: float) -> Version:
        """A version (None: the newest), waited for if it does not exist yet. Raises `Refused`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                while self._newest < (number or 0):
                    await self._changed.wait()
        if self._newest < (number or 0):
            raise Refused("busy", f"version {number or 0} does not exist yet")
        return self.held(self._newest if number is None else number)

    def held(self, number: int) -> Version:
        """A version that is here. Raises `Refused`."""
        version = self._held.get(number)
        if version is None:
            if number > self._newest:
                raise Refused("busy", f"version {number} does not exist yet")
            raise Refused("stale", f"version {number} is not held any more, {self._newest} is the newest")
        return Version(
            number=version.number,
            newest=self._newest,
            weights_sha256=version.weights_sha256,
            weights_bytes=version.weights_bytes,
            step_sha256=version.step_sha256,
            step_bytes=version.step_bytes,
        )

    def _remove_old(self, newest: int) -> None:
        for number in [n for n in self._held if n <= newest - KEPT]:
            del self._held[number]
            self.weights(number).unlink(missing_ok=True)
            self.step(number).unlink(missing_ok=True)
        for path in self.folder.glob("momentum-*.safetensors"):
            if path.name != f"momentum-{newest}.safetensors":
                path.unlink(missing_ok=True)
