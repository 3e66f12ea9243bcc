"""Training from a checkpoint on: `[checkpoint] start_from` of a job file.

The record of the checkpoint is read and written down when the job comes in, so that whoever submits it is told at once
what is wrong. Its job begins as one that an earlier process has brought to that version; the version's files follow.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
import sqlite3
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec.structs import replace

from node.errors import HyphaError, JobError, ObjectStoreError, PeerUnreachable, Refused
from node.jobspec import JobSpec
from node.network.backoff import Backoff
from node.scheduler import records, runs
from node.scheduler.places import (
    CHECKPOINT,
    RECORD_LIMIT_BYTES,
    check_place,
    files_in,
    is_remote,
    source_of,
    version_of,
    versions_at,
)
from node.views import Point
from node.wire import UNDECODABLE, Contribution, Span, VersionFile

if TYPE_CHECKING:
    from node.network.overlay import Overlay

log = logging.getLogger(__name__)

BACKOFF_FIRST_S = 0.5
BACKOFF_MOST_S = 20.0
LOOK_S = 20.0
"""So long whoever submits a job waits for the record of its checkpoint."""
HINT = "start_from is a folder with the checkpoints of one job, <to>/<job id>, or one version-<n> in it"


@dataclass(frozen=True, slots=True)
class Spot:
    """`<root>/<job>`, and a version there; without one the newest counts."""

    root: str
    job: str
    version: int | None

    @classmethod
    def of(cls, text: str) -> Spot:
        """What `start_from` names. Raises `JobError`."""
        place, _, last = text.rstrip("/").rpartition("/")
        version = version_of(last)
        root, _, job = (place if version is not None else text.rstrip("/")).rpartition("/")
        if not root or not job or root.endswith("/"):
            raise JobError(f"{text} names no checkpoints", hint=HINT)
        check_place(root)
        return cls(root, job, version)


class _Data(msgspec.Struct, frozen=True):
    name: str
    digest: str


class _Rows(msgspec.Struct, frozen=True):
    pass_: int = msgspec.field(name="pass")
    committed: list[Span]


class _Round(msgspec.Struct, frozen=True):
    epoch: int
    round: int
    digest: str
    samples: int
    seconds: float
    bytes_up: int
    bytes_down: int
    left_out: dict[str, str]
    contributions: list[Contribution]


class Record(msgspec.Struct, frozen=True):
    """What `checkpoint.json` says of a job up to its version."""

    version: Annotated[int, msgspec.Meta(ge=0)]
    dataset: _Data
    ledger: _Rows
    rounds: list[_Round]
    curve: list[Point]


@dataclass(frozen=True, slots=True)
class Start:
    """A checkpoint that a job begins with, as its record has it."""

    record: Record
    files: tuple[VersionFile, ...]

    @classmethod
    def read(cls, content: bytes) -> Start:
        """Take a `checkpoint.json` apart. Raises `HyphaError` where it is not a sound one."""
        try:
            record = msgspec.json.decode(content, type=Record)
        except UNDECODABLE as error:
            raise JobError(f"its {CHECKPOINT} is unreadable: {error}") from error
        found = files_in(content, record.version)
        files = tuple(
            VersionFile(kind=kind, number=record.version, sha256=about.sha256, size_bytes=about.size_bytes)
            for kind, about in found.items()
        )
        if list(found) != (["weights", "momentum"] if record.version else ["weights"]):
            raise JobError(f"its {CHECKPOINT} does not name weights and momentum")
        spans = sorted((s.pass_, s.index, s.start, s.end) for s in record.ledger.committed)
        is_apart = all(a[:2] != b[:2] or a[3] <= b[2] for a, b in itertools.pairwise(spans))
        if not is_apart or any(min(span) < 0 or span[2] >= span[3] for span in spans):
            raise JobError(f"its {CHECKPOINT} counts rows twice")
        if sorted(line.round for line in record.rounds) != list(range(record.version)):
            raise JobError(f"its {CHECKPOINT} lacks rounds")
        return cls(record, files)

    def check(self, spec: JobSpec) -> None:
        """Raise `JobError` where this job has no round left."""
        rounds = spec.rounds.update_rounds * spec.sync.fragments
        if self.record.version >= rounds:
            hint = "update_rounds counts those before the checkpoint, too"
            raise JobError(f"it is version {self.record.version}, and the job ends with round {rounds}", hint=hint)

    def save(self, db: sqlite3.Connection, job_id: str, dataset: str) -> None:
        """Write the job's row on as if it had come to this version itself. Another dataset begins with all its rows."""
        record = self.record
        epochs = [line.epoch for line in record.rounds]
        is_same = dataset == record.dataset.name
        age_s = max((point.t_s for point in record.curve), default=0.0)
        db.execute(
            "UPDATE jobs SET round = ?, epoch = ?, pass = ?, data_digest = ?, submitted_unix = submitted_unix - ?"
            " WHERE job_id = ?",
            (
                *(record.version, max(epochs, default=-1) + 1, record.ledger.pass_ if is_same else 0),
                *(record.dataset.digest if is_same else "", age_s, job_id),
            ),
        )
        for line in record.rounds:
            runs.insert_line(
                db,
                job_id,
                epoch=line.epoch,
                round_=line.round,
                digest=line.digest,
                samples=line.samples,
                seconds=line.seconds,
                bytes_up=line.bytes_up,
                bytes_down=line.bytes_down,
                left_out=line.left_out,
                contributions=line.contributions,
            )
        records.insert_points(db, [(0, replace(point, job_id=job_id)) for point in record.curve])
        runs.insert_start(db, job_id, record.version, record.ledger.committed if is_same else [], self.files)


async def look(overlay: Overlay, spec: JobSpec) -> Start:
    """The checkpoint that a job is to start from. Raises `Refused` with what is wrong."""
    place = spec.checkpoint.start_from
    try:
        spot = Spot.of(place)
        async with asyncio.timeout(LOOK_S):
            start = await asyncio.to_thread(Start.read, await _record_at(overlay, spot))
        start.check(spec)
    except TimeoutError:
        raise Refused("busy", f"start_from {place}: no answer in {LOOK_S:.0f} s", hint="submit it again") from None
    except OSError as error:
        raise Refused("invalid", f"start_from {place}: {error.strerror}", hint=HINT) from error
    except HyphaError as error:
        code = "busy" if may_pass(error) else "invalid"
        raise Refused(code, f"start_from {place}: {error.message}", hint=error.hint or HINT) from error
    return start


async def bring(
    overlay: Overlay, place: str, files: Sequence[VersionFile], path: Callable[[VersionFile], Path]
) -> None:
    """Fetch files of the checkpoint that a job starts from, for as long as that may still work.

    Raises `HyphaError`, `OSError` where it never will.
    """
    spot = Spot.of(place)
    backoff = Backoff(random.Random(), first_s=BACKOFF_FIRST_S, most_s=BACKOFF_MOST_S)
    for file in files:
        name = f"{spot.job}/version-{file.number}/{file.kind}.safetensors"
        while True:
            try:
                source = await source_of(overlay, spot.root)
                await source.fetch(name, path(file), sha256=file.sha256, size_bytes=file.size_bytes)
                break
            except (HyphaError, TimeoutError) as error:
                if not may_pass(error):
                    raise
                log.warning("start.not_fetched place=%s reason=%s", place, error)
                await asyncio.sleep(backoff.failed())


def may_pass(error: Exception) -> bool:
    """Whether trying again later may help."""
    if isinstance(error, Refused):
        return error.code == "busy"
    if isinstance(error, ObjectStoreError):
        return not error.is_final
    return isinstance(error, TimeoutError | PeerUnreachable)


async def _record_at(overlay: Overlay, spot: Spot) -> bytes:
    source = await source_of(overlay, spot.root)
    version = spot.version
    if version is None:
        there = await versions_at(source, spot.job)
        if not there:
            where = "there" if is_remote(spot.root) else "on this scheduler's machine"
            raise JobError(f"no whole checkpoint is {where}", hint=HINT)
        version = there[-1]
    with tempfile.TemporaryDirectory(prefix="hypha-start-") as folder:
        target = Path(folder) / CHECKPOINT
        await source.fetch_small(f"{spot.job}/version-{version}/{CHECKPOINT}", target, RECORD_LIMIT_BYTES)
        return await asyncio.to_thread(target.read_bytes)
