"""The final model's way here: every file verified, the folder shown only when whole, its training record beside it."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec
from msgspec.structs import replace

from node.errors import PeerProtocol
from node.network import bulk
from node.scheduler import records
from node.scheduler.files import SchedulerFiles, place_model, write_json
from node.scheduler.records import JobRow
from node.views import Point, TransferView
from node.wire import ExportedFile

if TYPE_CHECKING:
    from node.board import Board
    from node.network.overlay import Overlay
    from node.store import Store

RECORD = "training.json"
FILES_ALLOWED = 1_000
SHOW_EVERY_S = 0.25


def check_files(files: Sequence[ExportedFile]) -> None:
    """Raise `PeerProtocol` unless these names can all be put into one folder."""
    names = [file.name for file in files]
    if not 0 < len(names) <= FILES_ALLOWED or len(set(names)) != len(names):
        raise PeerProtocol(f"an export of {len(names)} files, or with one twice, is not acceptable")
    for name in names:
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or not path.parts or str(path) != name or not name.isprintable():
            raise PeerProtocol(f"the export has a file with the name {name!r}")
        if name == RECORD:
            raise PeerProtocol(f"the export has a {RECORD}, which is ours to write")


async def training_record(store: Store, row: JobRow, digest: str, unsaved: Sequence[Point]) -> dict[str, Any]:
    """How a model was trained: its job, data, rounds and curves. Holds no secret."""
    spec = row.job_spec()
    curve = [*await records.points_of(store, row.job_id), *unsaved]
    return {
        "job_id": row.job_id,
        "name": row.name,
        "submitted_by": row.submitted_by,
        "job": msgspec.to_builtins(spec.without_secrets()),
        "dataset": {"name": spec.dataset, "digest": digest},
        "rounds": await records.rounds_of(store, row.job_id),
        "curve": [msgspec.to_builtins(point) for point in curve],
    }


async def pull_model(
    overlay: Overlay,
    board: Board,
    files: SchedulerFiles,
    job_id: str,
    peer_id: str,
    exported: Sequence[ExportedFile],
    record: dict[str, Any],
) -> Path:
    """Fetch an exported model; answers with its folder. Raises `PeerError` (try again) or `OSError` (no use)."""
    check_files(exported)
    target = files.model(job_id)
    part = await asyncio.to_thread(files.model_part, job_id)
    shown = _Shown(board, overlay.peer_id, job_id, peer_id, sum(file.size_bytes for file in exported))
    try:
        for file in exported:
            path = part / file.name
            await asyncio.to_thread(path.parent.mkdir, parents=True, exist_ok=True)
            await bulk.download(
                overlay,
                [peer_id],
                f"/bulk/jobs/{job_id}/export/{quote(file.name)}",
                path,
                sha256=file.sha256,
                size_bytes=file.size_bytes,
                on_progress=shown.progress,
            )
            shown.next_file(file.size_bytes)
        await asyncio.to_thread(write_json, part / RECORD, record)
        await asyncio.to_thread(place_model, part, target)
    except BaseException:
        shown.end("failed")
        await asyncio.to_thread(shutil.rmtree, part, ignore_errors=True)
        raise
    shown.end("done")
    return target


class _Shown:
    """The transfer on the board."""

    def __init__(self, board: Board, target: str, job_id: str, source: str, size_bytes: int) -> None:
        self._board = board
        self._began_at = time.monotonic()
        self._shown_at = 0.0
        self._before = 0
        self._done = 0
        self._view = TransferView(
            id=f"export:{job_id}",
            what="export",
            name=job_id,
            job_id=job_id,
            source=source,
            target=target,
            size_bytes=size_bytes,
            done_bytes=0,
            bytes_per_s=0.0,
            state="active",
        )
        self._put("active")

    def progress(self, done_bytes: int) -> None:
        """Bytes of the present file that are here."""
        self._done = self._before + done_bytes
        if time.monotonic() - self._shown_at >= SHOW_EVERY_S:
            self._put("active")

    def next_file(self, size_bytes: int) -> None:
        """The present file is whole."""
        self._before += size_bytes
        self._done = self._before

    def end(self, state: str) -> None:
        """The transfer is over."""
        self._put(state)

    def _put(self, state: str) -> None:
        now = time.monotonic()
        self._shown_at = now
        age_s = now - self._began_at
        rate = self._done / age_s if age_s > 0 else 0.0
        self._board.put(replace(self._view, done_bytes=self._done, bytes_per_s=rate, state=state, age_s=age_s))
