"""The version that a parameter server begins with: made from the model, or from what the scheduler keeps."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from node.errors import Refused
from node.network import bulk
from node.wire import AggregateTask, VersionFile
from node.worker.arithmetic import Arithmetic, Made
from node.worker.context import TaskContext
from node.worker.fetch import Fetcher
from node.worker.references import ARTIFACTS, HubFiles, folder
from node.worker.serving import Shelf
from node.worker.transfers import Transfers
from node.worker.versions import journal_path

if TYPE_CHECKING:
    from node.network.overlay import Overlay

JOURNAL = "journal"


class Start:
    """Brings a parameter server to where its group is."""

    def __init__(
        self, context: TaskContext, task: AggregateTask, overlay: Overlay, transfers: Transfers, shelf: Shelf
    ) -> None:
        self._context = context
        self._task = task
        self._overlay = overlay
        self._transfers = transfers
        self._shelf = shelf
        self._has_artifacts = False

    @property
    def artifacts(self) -> Path:
        """Where the model's own files lie."""
        return self._context.work_dir / ARTIFACTS

    async def fetch_artifacts(self, fetcher: Fetcher) -> None:
        """Bring the model's own files here, once: to make version 0, and to export."""
        if self._has_artifacts:
            return
        model = self._task.model
        folder(self._context.work_dir, ARTIFACTS)
        if model.repository:
            files = HubFiles(model.repository, model.revision or "main", model.filenames)
            await fetcher.hub_files(files, ARTIFACTS)
        elif self._context.dispatch.folder_sha256:
            await fetcher.job_files(model.filenames, ARTIFACTS)
        self._has_artifacts = True

    async def first(self, arithmetic: Arithmetic, fetcher: Fetcher) -> Made:
        """The first version of this server, with its files on the shelf."""
        start = self._task.start
        if not start:
            await self.fetch_artifacts(fetcher)
            return await arithmetic.prepare()
        newest = newest_of(start)
        deltas = [file for file in start if file.kind == "delta"]
        if not deltas:
            await self._download(start, self._shelf.folder)
            return Made(number=newest, files=list(start))
        place = self._context.work_dir / JOURNAL
        place.mkdir()
        paths = await self._download(start, place)
        made = await arithmetic.replay(dict(zip(paths, start, strict=True)))
        if made.number != newest:
            raise Refused("invalid", f"the journal leads to version {newest}, its files make version {made.number}")
        # A member that holds the version before needs no more than the last delta.
        last = max(deltas, key=lambda file: file.number)
        await asyncio.to_thread((place / f"delta-{newest}.safetensors").rename, self._shelf.path("delta", newest))
        await asyncio.to_thread(shutil.rmtree, place, ignore_errors=True)
        return Made(number=newest, files=[*made.files, last])

    async def _download(self, files: Sequence[VersionFile], place: Path) -> list[Path]:
        paths = [place / f"{file.kind}-{file.number}.safetensors" for file in files]
        async with asyncio.TaskGroup() as tasks:
            for file, path in zip(files, paths, strict=True):
                tasks.create_task(self._fetch(file, path))
        return paths

    async def _fetch(self, file: VersionFile, path: Path) -> None:
        job_id, scheduler = self._context.job_id, self._context.scheduler
        with self._transfers.show(
            file.kind, path.name, job_id, scheduler, self._context.peer_id, file.size_bytes
        ) as transfer:
            await bulk.download(
                self._overlay,
                [scheduler],
                journal_path(job_id, file),
                path,
                sha256=file.sha256,
                size_bytes=file.size_bytes,
                on_progress=transfer.progress,
                durable=False,
            )


def newest_of(start: Sequence[VersionFile]) -> int:
    """The version that these files make; 0 for none."""
    return max((file.number for file in start), default=0)
