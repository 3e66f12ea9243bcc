"""Checkpoints that lie elsewhere, brought here for who wants to have them: one at a time, the last one kept."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from node.errors import HyphaError, Refused
from node.scheduler.files import SchedulerFiles
from node.scheduler.places import fetch_checkpoint, is_remote, place_of, versions_at
from node.scheduler.records import JobRow

if TYPE_CHECKING:
    from node.network.overlay import Overlay

log = logging.getLogger(__name__)

LOOK_EVERY_S = 0.05
WAIT_S = 15.0
"""So long an operator's request waits for a copy; then it is told to ask again, and the copy goes on."""


class Copies:
    """`run` fetches what `copy` asks for."""

    def __init__(self, overlay: Overlay, files: SchedulerFiles) -> None:
        self._overlay = overlay
        self._files = files
        self._wanted: tuple[JobRow, int] | None = None
        self._problems: dict[Path, str] = {}
        self._changed = asyncio.Event()

    async def run(self) -> None:
        """Bring copies here until cancelled."""
        while True:
            while self._wanted is None:
                await self._changed.wait()
                self._changed.clear()
            row, number = self._wanted
            try:
                await self._fetch(row, number)
            except (HyphaError, OSError, TimeoutError) as error:
                problem = str(error) or type(error).__name__
                self._problems = {self._place(row, number): problem}
                log.warning("checkpoint.not_fetched job=%s version=%s reason=%s", row.job_id, number, problem)
            self._wanted = None

    async def versions(self, row: JobRow) -> list[int]:
        """The checkpoints of a job that lie at a data node or in object storage; none where these cannot be asked."""
        to = row.job_spec().checkpoint.to
        if not is_remote(to):
            return []
        try:
            return await versions_at(await place_of(self._overlay, to), row.job_id)
        except (HyphaError, TimeoutError) as error:
            log.warning("checkpoints.not_listed job=%s reason=%s", row.job_id, error)
            return []

    async def copy(self, row: JobRow, number: int) -> Path:
        """The folder of a copy. Raises `Refused` (`busy`) where it is still on its way."""
        target = self._place(row, number)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(WAIT_S):
                while not await asyncio.to_thread(target.is_dir):
                    if problem := self._problems.pop(target, ""):
                        raise Refused("conflict", f"version {number} cannot be had: {problem}")
                    if self._wanted is None:
                        self._wanted = (row, number)
                        self._changed.set()
                    await asyncio.sleep(LOOK_EVERY_S)
                return target
        raise Refused("busy", f"version {number} is on its way here", hint="ask again in a moment")

    async def _fetch(self, row: JobRow, number: int) -> None:
        target = self._place(row, number)
        part = target.with_name(f".{target.name}")
        await asyncio.to_thread(shutil.rmtree, target.parent, ignore_errors=True)
        place = await place_of(self._overlay, row.job_spec().checkpoint.to)
        await fetch_checkpoint(place, row.job_id, number, part)
        await asyncio.to_thread(part.rename, target)

    def _place(self, row: JobRow, number: int) -> Path:
        return self._files.copies() / f"{row.job_id}-version-{number}"
