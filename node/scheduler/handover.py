"""Models handed to operators: the final one, or a whole version on the way to it, file by file with its digest.

Only an operator's signature opens this, whichever node brings it. Nothing outside the job's own folders is read.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import stat
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from aiohttp import web

from node.errors import Refused
from node.network.serving import send_file
from node.scheduler import records
from node.scheduler.copies import Copies
from node.scheduler.export import FILES_ALLOWED, RECORD
from node.scheduler.files import SchedulerFiles
from node.scheduler.intake import Intake
from node.scheduler.places import CHECKPOINT, version_of
from node.scheduler.records import JobRow
from node.views import ModelFile, ModelView

if TYPE_CHECKING:
    from node.identity.caller import Caller
    from node.network.overlay import Overlay
    from node.store import Store

LATEST = "latest"
DIGESTS_KEPT = 10_000
CHECKPOINT_FILES = ("weights.safetensors", "momentum.safetensors", CHECKPOINT)
_WEIGHTS = re.compile(r"weights-(\d{1,9})\.safetensors")


@dataclass(frozen=True, slots=True)
class Version:
    """A whole version that lies here: its files by the names they are handed over under."""

    number: int
    is_final: bool
    files: Mapping[str, Path]


class Handover:
    """Answers `GET /bulk/jobs/<job>/model` and, for a file, `../model/<name>`."""

    def __init__(self, overlay: Overlay, store: Store, files: SchedulerFiles, intake: Intake, copies: Copies) -> None:
        self._store = store
        self._files = files
        self._intake = intake
        self._digests: OrderedDict[tuple[Path, int, int, int], str] = OrderedDict()
        self._hashing = asyncio.Lock()
        self._copies = copies
        overlay.bulk_route("GET", "/bulk/jobs/{job_id}/model", self._list, operator=None)
        overlay.bulk_route("GET", "/bulk/jobs/{job_id}/model/{name:.+}", self._send, operator=None)

    async def _list(self, caller: Caller, request: web.Request) -> web.StreamResponse:
        return await self.describe(*await self._asked_for(request))

    async def _send(self, caller: Caller, request: web.Request) -> web.StreamResponse:
        _, version = await self._asked_for(request)
        return await self.send(request, version)

    async def final(self, job_id: str) -> Version:
        """The final model of a job that is done. Raises `Refused`."""
        row = await records.find_job(self._store, job_id)
        versions = [] if row is None else await asyncio.to_thread(versions_of, self._files, row)
        found = next((version for version in versions if version.is_final), None)
        if found is None:
            raise Refused("unknown", f"no final model of a job {job_id[:80]!r} is kept here")
        return found

    async def describe(self, job_id: str, version: Version) -> web.Response:
        """Answer with the files of a version."""
        files = [
            ModelFile(
                name=name, sha256=await self._digest(path), size_bytes=(await asyncio.to_thread(path.stat)).st_size
            )
            for name, path in sorted(version.files.items())
        ]
        view = ModelView(job_id=job_id, version=version.number, is_final=version.is_final, files=files)
        return web.Response(body=msgspec.json.encode(view), content_type="application/json")

    async def send(self, request: web.Request, version: Version) -> web.StreamResponse:
        """Answer with the file of a version that the address names."""
        path = version.files.get(request.match_info["name"])
        if path is None:
            raise Refused("conflict", f"version {version.number} has no file {request.match_info['name'][:80]!r}")
        return await send_file(request, path, sha256=await self._digest(path))

    async def _asked_for(self, request: web.Request) -> tuple[str, Version]:
        job_id = request.match_info["job_id"]
        self._intake.open_export(request, job_id)
        row = await records.find_job(self._store, job_id)
        if row is None:
            raise Refused("unknown", f"no job {job_id[:80]!r} here")
        versions = await asyncio.to_thread(versions_of, self._files, row)
        elsewhere = set(await self._copies.versions(row)) - {version.number for version in versions}
        versions += [Version(number, False, {}) for number in elsewhere]
        wanted = request.query.get("version", LATEST)
        found = [version for version in versions if wanted in (LATEST, str(version.number))]
        if not found:
            there = ", ".join(str(number) for number in sorted(version.number for version in versions))
            what = f"version {wanted[:20]}" if wanted != LATEST else "whole version"
            hint = f"there are {there}" if there else "a version is there once the first round has begun"
            raise Refused("conflict", f"no {what} of job {job_id} is kept here", hint=hint)
        best = max(found, key=lambda version: (version.is_final, version.number))
        if not best.files:
            copy = await self._copies.copy(row, best.number)
            best = replace(best, files={name: copy / name for name in CHECKPOINT_FILES if _is_file(copy / name)})
        return job_id, best

    async def _digest(self, path: Path) -> str:
        """The SHA-256 of a file; computed once for as long as it stays as it is."""
        async with self._hashing:
            try:
                key, digest = await asyncio.to_thread(_hashed, path, self._digests)
            except OSError as error:
                raise Refused("stale", f"{path.name} cannot be read here: {error.strerror}") from error
            self._digests[key] = digest
            self._digests.move_to_end(key)
            while len(self._digests) > DIGESTS_KEPT:
                self._digests.popitem(last=False)
            return digest


def versions_of(files: SchedulerFiles, row: JobRow) -> list[Version]:
    """The whole versions of a job that lie on this machine, by number: final model, checkpoints, the journal's base."""
    found: dict[int, Version] = {}
    journal = files.journal(row.job_id)
    for number in _numbers(journal, _weights):
        kept = {f"{kind}.safetensors": journal / f"{kind}-{number}.safetensors" for kind in ("weights", "momentum")}
        found[number] = Version(number, False, {name: path for name, path in kept.items() if _is_file(path)})
    to = row.job_spec().checkpoint.to
    place = Path(to) / row.job_id if to.startswith("/") else files.checkpoints(row.job_id)
    for number in _numbers(place, version_of):
        folder = place / f"version-{number}"
        inside = {name: folder / name for name in CHECKPOINT_FILES if _is_file(folder / name)}
        found[number] = Version(number, False, inside)
    model = files.model(row.job_id)
    if row.state == "done" and _is_file(model / RECORD):
        paths = [path for path in model.rglob("*") if _is_file(path)][:FILES_ALLOWED]
        named = {path.relative_to(model).as_posix(): path for path in paths}
        found[row.round] = Version(row.round, True, named)
    return [version for _, version in sorted(found.items()) if version.files]


def _numbers(folder: Path, number_of: Callable[[str], int | None]) -> list[int]:
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    return [number for name in names if (number := number_of(name)) is not None]


def _weights(name: str) -> int | None:
    match = _WEIGHTS.fullmatch(name)
    return int(match[1]) if match else None


def _is_file(path: Path) -> bool:
    """A regular file, and no link to one."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False


def _hashed(path: Path, known: Mapping[tuple[Path, int, int, int], str]) -> tuple[tuple[Path, int, int, int], str]:
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as file:
        status = os.fstat(handle)
        key = (path, status.st_ino, status.st_size, status.st_mtime_ns)
        return key, known.get(key) or hashlib.file_digest(file, "sha256").hexdigest()
