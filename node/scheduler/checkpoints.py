"""Whole copies of a job's versions: complete, verified, visible all at once, kept by a retention rule.

A checkpoint is a folder `version-<n>` with the weights, the outer momentum and `checkpoint.json`. Nothing that goes
wrong with one can disturb the training: it is told, and the next one that is due is tried afresh.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import secrets
import shutil
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from node.errors import HyphaError
from node.network import bulk
from node.network.partfile import sync_directory
from node.scheduler.messages import KeepCheckpoint
from node.scheduler.places import CHECKPOINT, FolderSource, is_remote, place_of, version_of
from node.scheduler.wholes import Wholes
from node.wire import VersionFile

if TYPE_CHECKING:
    from node.network.overlay import Overlay

log = logging.getLogger(__name__)

Tell = Callable[[str, str, str], None]
"""An event's name, text and level."""


class Checkpoints:
    """The checkpoints of one job."""

    def __init__(
        self,
        overlay: Overlay,
        job_id: str,
        *,
        to: str,
        keep: int,
        own_folder: Path,
        staging: Path,
        wholes: Wholes,
        here: Callable[[VersionFile], Path | None],
        record: Callable[[KeepCheckpoint], Awaitable[dict[str, Any]]],
        tell: Tell,
    ) -> None:
        self._overlay = overlay
        self._job_id = job_id
        self._is_remote = is_remote(to)
        self._to = to
        self._keep = keep
        self._folder = staging if self._is_remote else (Path(to) / job_id if to else own_folder)
        self._wholes = wholes
        self._here = here
        self._record = record
        self._tell = tell
        self._due: KeepCheckpoint | None = None
        self._is_busy = False

    async def take(self, effect: KeepCheckpoint) -> None:
        """Keep this version, after the one that is under way; of those that wait only the newest is kept."""
        self._due = effect
        if self._is_busy:
            return
        self._is_busy = True
        try:
            while (due := self._due) is not None:
                self._due = None
                await self._take(due)
        finally:
            self._is_busy = False

    async def _take(self, due: KeepCheckpoint) -> None:
        name = f"version-{due.version}"
        part = self._folder / f".{name}.{secrets.token_hex(6)}"
        try:
            await asyncio.to_thread(self._clear)
            await asyncio.to_thread(part.mkdir, parents=True)
            due = replace(due, files=await self._wholes.of(due.peer_id, due.files))
            for file in due.files:
                await self._place(due.peer_id, file, part / f"{file.kind}.safetensors")
            record = await self._record(due)
            await asyncio.to_thread(_write, part / CHECKPOINT, record)
            if self._is_remote:
                await self._put(part, name)
            else:
                await asyncio.to_thread(self._show, part, self._folder / name)
        except (HyphaError, OSError, TimeoutError) as error:
            reason = str(error) or type(error).__name__
            self._tell("checkpoint.failed", f"version {due.version} could not be kept: {reason}", "warning")
        else:
            place = f"{self._to}/{self._job_id}" if self._is_remote else str(self._folder)
            self._tell("checkpoint.kept", f"version {due.version} is in {place}/{name}", "info")
        finally:
            await asyncio.to_thread(shutil.rmtree, part, ignore_errors=True)

    async def _place(self, peer_id: str, file: VersionFile, target: Path) -> None:
        """A file out of our own journal, where it lies there; else from the parameter server. Verified either way."""
        source = self._here(file)
        if source is not None:
            try:
                await asyncio.to_thread(os.link, source, target)
                return
            except OSError:  # on another disk
                folder = FolderSource(source.parent)
                await folder.fetch(source.name, target, sha256=file.sha256, size_bytes=file.size_bytes)
                return
        path = f"/bulk/jobs/{self._job_id}/{file.kind}/{file.number}"
        await bulk.download(
            self._overlay, [peer_id], path, target, sha256=file.sha256, size_bytes=file.size_bytes, attempts=4
        )

    def _clear(self) -> None:
        """Remove what a killed process left half done."""
        for left in self._folder.glob(".version-*") if self._folder.is_dir() else ():
            shutil.rmtree(left, ignore_errors=True)

    def _show(self, part: Path, target: Path) -> None:
        sync_directory(part)
        if target.exists():
            target.replace(part.with_name(f"{part.name}.old"))
        part.replace(target)
        sync_directory(target.parent)
        for old in _versions(path.name for path in self._folder.iterdir())[: -self._keep]:
            path = self._folder / f"version-{old}"
            # Out of sight at once: half of a checkpoint must not look like one.
            hidden = path.with_name(f".{path.name}.old")
            path.replace(hidden)
            shutil.rmtree(hidden, ignore_errors=True)
        self._clear()

    async def _put(self, part: Path, name: str) -> None:
        """`checkpoint.json` goes last: where it is, the rest is whole."""
        remote = await place_of(self._overlay, self._to)
        for path in sorted(part.iterdir(), key=lambda path: path.name == CHECKPOINT):
            await remote.put(f"{self._job_id}/{name}/{path.name}", path)
        paths = [entry.name for entry in await remote.entries(self._job_id, is_deep=True)]
        for old in _versions(path.split("/")[-2] for path in paths)[: -self._keep]:
            gone = [path for path in paths if f"/version-{old}/" in path]
            await remote.delete(sorted(gone, key=lambda path: not path.endswith(CHECKPOINT)))


def _versions(names: Any) -> list[int]:
    return sorted({number for name in names if (number := version_of(name)) is not None})


def _write(path: Path, content: dict[str, Any]) -> None:
    with path.open("x") as file:
        json.dump(content, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
