"""The version that a parameter server begins with: made from the model, or from what the scheduler keeps."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from node.errors import Refused
from node.network import bulk
from node.wire import AggregateTask, ModelSource, VersionFile
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
PREPROCESSOR = "preprocessor"


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

    @property
    def preprocessor(self) -> Path | None:
        """Where the preprocessor's own files lie, if the job has one."""
        return self._context.work_dir / PREPROCESSOR if self._task.preprocessor is not None else None

    async def fetch_artifacts(self, fetcher: Fetcher) -> None:
        """Bring the files of model and preprocessor here, once: to make version 0, and to export."""
        if self._has_artifacts:
            return
        folder(self._context.work_dir, ARTIFACTS)
        await self._fetch_source(fetcher, self._task.model, ARTIFACTS)
        if self._task.preprocessor is not None:
            folder(self._context.work_dir, PREPROCESSOR)
            await self._fetch_source(fetcher, self._task.preprocessor, PREPROCESSOR)
        self._has_artifacts = True

    async def _fetch_source(self, fetcher: Fetcher, source: ModelSource, out: str) -> None:
        if source.repository:
            await fetcher.hub_files(HubFiles(source.repository, source.revision or "main", source.filenames), out)
        elif self._context.dispatch.folder_sha256:
            await fetcher.job_files(source.filenames, out)

    async def first(self, arithmetic: Arithmetic, fetcher: Fetcher) -> Made:
        """The first version of this server, with its files on the shelf."""
        start = self._task.start
        if not start:
            await self.fetch_artifacts(fetcher)
            return await arithmetic.prepare()
        newest = newest_of(start)
        deltas = [file for file in start if file.kind == "delta"]
        if not deltas and (newest == 0 or self._task.sync.fragments == 1):
            await self._download(start, self._shelf.folder)
            return Made(number=newest, files=list(start))
        place = self._context.work_dir / JOURNAL
        place.mkdir()
        paths = await self._download(start, place)
        made = await arithmetic.replay(dict(zip(paths, start, strict=True)))
        if made.number != newest:
            raise Refused("invalid", f"the journal leads to version {newest}, its files make version {made.number}")
        last = [delta for delta in deltas if delta.number == newest]
        if last:
            # A member that holds the version before needs no more than the last delta.
            await asyncio.to_thread((place / f"delta-{newest}.safetensors").rename, self._shelf.path("delta", newest))
        await asyncio.to_thread(shutil.rmtree, place, ignore_errors=True)
        return Made(number=newest, files=[*made.files, *last])

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
