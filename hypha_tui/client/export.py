"""A model's way onto this machine: verified, shown only when whole, gone on with after a break.

Everything happens inside the folder that the user named. What the other end calls its files is not believed.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final

from hypha_tui.client.link import Backoff
from node.errors import ConfigError, DiskFull, HyphaError, PeerProtocol, PeerUnreachable
from node.views import ModelFile, ModelView

if TYPE_CHECKING:
    from hypha_tui.client.api import ApiClient

FILES_ALLOWED: Final = 1_000
ATTEMPTS: Final = 6
PIECE_BYTES: Final = 4 << 20

Report = Callable[[int, int], None]
"""Bytes that are here, and bytes of all files."""


@dataclass(frozen=True, slots=True)
class Exported:
    """A model that is here."""

    path: Path
    model: ModelView
    was_here: bool


async def export(client: ApiClient, job_id: str, version: str, folder: Path, on_progress: Report) -> Exported:
    """Put a job's model into `folder`, as `<job>`, or `<job>-v<number>` where it is not the final one."""
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder} is not a folder", hint="--to names the folder to put the model into")
    model = await client.model(job_id, version)
    _check(model, job_id)
    name = job_id if model.is_final else f"{job_id}-v{model.version}"
    target, part = folder / name, folder / f".{name}.part"
    if os.path.lexists(target):
        if await asyncio.to_thread(_is_same, target, model):
            return Exported(target, model, was_here=True)
        raise HyphaError(f"{target} is there already, with other content", hint="move it away, or name another --to")
    try:
        await _fetch_all(client, model, part, on_progress)
        await asyncio.to_thread(_show, part, target, model)
    except OSError as error:
        raise HyphaError(f"{error.filename or folder}: {error.strerror or error}") from error
    return Exported(target, model, was_here=False)


async def _fetch_all(client: ApiClient, model: ModelView, part: Path, on_progress: Report) -> None:
    total = sum(file.size_bytes for file in model.files)
    await asyncio.to_thread(_make_room, part, total)
    done = 0
    for file in model.files:
        path = part / file.name
        await asyncio.to_thread(path.parent.mkdir, parents=True, exist_ok=True)
        await _fetch(client, model, file, path, partial(_report, on_progress, done, total))
        done += file.size_bytes


def _report(on_progress: Report, before: int, total: int, here: int) -> None:
    on_progress(before + here, total)


async def _fetch(
    client: ApiClient, model: ModelView, file: ModelFile, path: Path, on_bytes: Callable[[int], None]
) -> None:
    """One file. Each break is followed by another try at the same byte, until several in a row bring none."""
    waits = Backoff()
    handle, digest = await asyncio.to_thread(_reopen, path, file.size_bytes)
    try:
        while True:
            size = before = os.fstat(handle).st_size
            on_bytes(size)
            try:
                if size < file.size_bytes:
                    async with aclosing(client.model_bytes(model, file, size)) as pieces:
                        async for piece in pieces:
                            size += len(piece)
                            if size > file.size_bytes:
                                raise PeerProtocol(f"{file.name} has more than its {file.size_bytes:,} bytes")
                            await asyncio.to_thread(_append, handle, piece, digest)
                            on_bytes(size)
                if size == file.size_bytes:
                    break
                raise PeerUnreachable(f"{file.name} ended after {size:,} of {file.size_bytes:,} bytes")
            except PeerUnreachable as error:
                if size > before:
                    waits.reset()
                if waits.attempt >= ATTEMPTS:
                    hint = "the same command goes on where this one stopped"
                    raise PeerUnreachable(f"the export broke off: {error.message}", hint=hint) from error
            await asyncio.sleep(waits.next_wait_s())
        if digest.hexdigest() != file.sha256:
            await asyncio.to_thread(os.ftruncate, handle, 0)
            raise PeerProtocol(f"{file.name} is not what it should be: its SHA-256 differs", hint="try again")
        await asyncio.to_thread(os.fsync, handle)
    finally:
        os.close(handle)


def _check(model: ModelView, job_id: str) -> None:
    names = [file.name for file in model.files]
    is_odd = model.job_id != job_id or not 0 < len(names) <= FILES_ALLOWED or len(set(names)) != len(names)
    if is_odd or any(file.size_bytes < 0 for file in model.files):
        raise PeerProtocol(f"the list of {len(names)} files is not one of {job_id}'s model")
    for name in names:
        path = PurePosixPath(name)
        is_inside = path.parts and not path.is_absolute() and ".." not in path.parts
        if not is_inside or str(path) != name or not name.isprintable() or "\\" in name:
            raise PeerProtocol(f"the model has a file with the name {name!r}")


def _make_room(part: Path, total: int) -> None:
    if part.is_symlink():
        raise HyphaError(f"{part} is a link", hint="remove it")
    part.mkdir(parents=True, exist_ok=True)
    have = sum(path.lstat().st_size for path in part.rglob("*") if path.is_file() and not path.is_symlink())
    room = shutil.disk_usage(part).free
    if room < total - have:
        raise DiskFull(part, total - have, room)


def _reopen(path: Path, size_bytes: int) -> tuple[int, hashlib._Hash]:
    """The file, for going on at its end, and the digest of what it holds."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    digest = hashlib.sha256()
    if os.fstat(handle).st_size > size_bytes:
        os.ftruncate(handle, 0)
    while piece := os.read(handle, PIECE_BYTES):
        digest.update(piece)
    return handle, digest


def _append(handle: int, piece: bytes, digest: hashlib._Hash) -> None:
    view = memoryview(piece)
    while view:
        view = view[os.write(handle, view) :]
    digest.update(piece)


def _show(part: Path, target: Path, model: ModelView) -> None:
    """Give the folder its name. What an earlier, other try left in it does not go along."""
    wanted = {part / file.name for file in model.files}
    for path in part.rglob("*"):
        if path not in wanted and (path.is_symlink() or not path.is_dir()):
            path.unlink()
    for folder in (part, *(path for path in part.rglob("*") if path.is_dir())):
        _sync(folder)
    part.rename(target)
    _sync(target.parent)


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _is_same(target: Path, model: ModelView) -> bool:
    if not target.is_dir():
        return False
    for file in model.files:
        path = target / file.name
        if not path.is_file() or path.stat().st_size != file.size_bytes:
            return False
        with path.open("rb") as content:
            if hashlib.file_digest(content, "sha256").hexdigest() != file.sha256:
                return False
    return True
