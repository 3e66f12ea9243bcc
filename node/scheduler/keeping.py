"""The journal's files: fetched from the parameter server, verified, served to the next one, cleared away.

The shell around `journal.py`. A file that lies here under its name is whole; which of them count, the store says.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING

from node.errors import HyphaError, PeerError, Refused
from node.network import bulk
from node.network.partfile import sync_directory
from node.scheduler import messages as m
from node.scheduler.holdings import Spawn
from node.scheduler.journal import Chain, file_name
from node.scheduler.wholes import Wholes
from node.wire import VersionFile

if TYPE_CHECKING:
    from node.network.overlay import Overlay

log = logging.getLogger(__name__)

WAIT_S = 4.0
"""How long a parameter server waits for an answer to a commit before it is told to ask again."""
AGAIN_S = 1.0
ATTEMPTS = 4


class _Fetch:
    """One file that is to be had."""

    def __init__(self, file: VersionFile) -> None:
        self.file = file
        self.is_over = asyncio.Event()
        self.problem = ""


class Journal:
    """The journal of one job on this machine."""

    def __init__(
        self,
        folder: Path,
        overlay: Overlay,
        job_id: str,
        chain: Callable[[], Chain],
        epoch: Callable[[], int],
        *,
        wholes: Wholes,
        take: Callable[[m.JobEvent], Awaitable[None]],
        spawn: Spawn,
    ) -> None:
        self._folder = folder
        self._overlay = overlay
        self._job_id = job_id
        self._chain = chain
        self._epoch = epoch
        self._wholes = wholes
        self._take = take
        self._spawn = spawn
        self._fetches: dict[str, _Fetch] = {}
        """By the file's name: the only one whose content may appear under it."""
        self._has_base = asyncio.Event()
        self._is_rebasing = False

    async def missing(self) -> list[VersionFile]:
        """The files of the chain that are not here. Makes the folder."""

        def look() -> list[VersionFile]:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            return [file for file in self._chain().files() if not self.path(file).is_file()]

        return await asyncio.to_thread(look)

    async def prepare(self) -> None:
        """Clear away what does not count. Raises `HyphaError` where something is missing."""
        if missing := await self.missing():
            names = ", ".join(map(file_name, missing))
            hint = "submit it again with [checkpoint] start_from, if it kept checkpoints"
            raise HyphaError(f"the journal of job {self._job_id} has lost {names}", hint=hint)
        await self._sweep(all_=True)

    def path(self, file: VersionFile) -> Path:
        """Where a file of the chain lies."""
        return self._folder / file_name(file)

    async def fetch(self, peer_id: str, file: VersionFile) -> None:
        """Have a round's delta here, verified. Raises `Refused` (`busy`) where that takes longer than a call should."""
        name = file_name(file)
        try:
            async with asyncio.timeout(WAIT_S):
                if self._chain().version is None:
                    await self._has_base.wait()
                fetch = self._fetches.get(name)
                if fetch is None or fetch.file != file or fetch.problem:
                    fetch = self._fetches[name] = _Fetch(file)
                    self._spawn(self._fetch(peer_id, fetch))
                await fetch.is_over.wait()
        except TimeoutError:
            raise Refused("busy", f"{name} is still on its way here") from None
        if fetch.problem:
            raise Refused("busy", f"{name} cannot be kept: {fetch.problem}")

    def settled(self, file: VersionFile) -> None:
        """The chain holds this delta, or never will: nothing is on its way under its name any more."""
        self._fetches.pop(file_name(file), None)

    async def take_base(self, effect: m.PullBase) -> None:
        """Fetch a whole version. The first one is tried for until its parameter server is gone; a later one once."""
        is_first = self._chain().version is None
        if self._is_rebasing and not is_first:
            return
        self._is_rebasing = True
        fetches: list[_Fetch] = []
        try:
            while effect.epoch == self._epoch():
                problem = ""
                try:
                    files = await self._wholes.of(effect.peer_id, effect.files)
                except (PeerError, TimeoutError) as error:
                    problem = str(error) or "no answer in time"
                else:
                    fetches = [_Fetch(file) for file in files]
                    self._fetches.update({file_name(fetch.file): fetch for fetch in fetches})
                    for fetch in fetches:
                        await self._fetch(effect.peer_id, fetch)
                    problem = next((fetch.problem for fetch in fetches if fetch.problem), "")
                if problem:
                    log.warning("journal.base_failed job=%s reason=%s", self._job_id, problem)
                    await self._take(m.BaseFailed(effect.epoch, problem))
                elif effect.epoch == self._epoch():
                    await self._take(m.BaseKept(effect.epoch, files))
                    self._has_base.set()
                if not problem or not is_first:
                    break
                await asyncio.sleep(AGAIN_S)
        finally:
            self._is_rebasing = False
            for fetch in fetches:
                self._fetches.pop(file_name(fetch.file), None)
        await self._sweep()

    async def _fetch(self, peer_id: str, fetch: _Fetch) -> None:
        """One file's way here. It is first whole under a name of its own: an earlier attempt may still be going on."""
        file, fetch.problem = fetch.file, ""
        path = f"/bulk/jobs/{self._job_id}/{file.kind}/{file.number}"
        incoming = self._folder / f"incoming-{secrets.token_hex(6)}"
        try:
            await bulk.download(
                self._overlay,
                [peer_id],
                path,
                incoming,
                sha256=file.sha256,
                size_bytes=file.size_bytes,
                attempts=ATTEMPTS,
            )
            if self._fetches.get(file_name(file)) is fetch:
                await asyncio.to_thread(_show, incoming, self.path(file))
        except (HyphaError, OSError) as error:
            fetch.problem = str(error) or type(error).__name__
        finally:
            fetch.is_over.set()
            await asyncio.to_thread(incoming.unlink, missing_ok=True)

    async def _sweep(self, *, all_: bool = False) -> None:
        """Remove what neither counts nor is on its way."""
        keep = {file_name(file) for file in self._chain().files()} | set(self._fetches)

        def sweep() -> None:
            for path in self._folder.iterdir():
                if path.name not in keep and (all_ or not path.name.startswith((".", "incoming-"))):
                    path.unlink(missing_ok=True)

        await asyncio.to_thread(sweep)


def _show(incoming: Path, path: Path) -> None:
    incoming.replace(path)
    sync_directory(path.parent)
