"""A scheduler's rows: jobs, rounds with all that belongs to them, curves."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from node.jobspec import JobSpec
from node.scheduler.result_rows import results_of
from node.store import Store
from node.views import JobView, Point

ENDED_SHOWN = 50
PAUSED = "paused"
"""The state of a job that has not ended, and that nobody runs."""
_COLUMNS = (
    "job_id, name, spec, body_sha256, folder_sha256, submitted_by, state, reason, epoch, round, model_dir,"
    " submitted_unix, ended_unix"
)


@dataclass(frozen=True, slots=True)
class JobRow:
    """A line of the table of jobs. Its `spec` is JSON, and holds no secret."""

    job_id: str
    name: str
    spec: str
    body_sha256: str
    folder_sha256: str
    submitted_by: str
    state: str = "queued"
    reason: str = ""
    epoch: int = 0
    round: int = 0
    model_dir: str = ""
    submitted_unix: float = 0.0
    ended_unix: float | None = None

    def job_spec(self) -> JobSpec:
        """The job's description."""
        return msgspec.json.decode(self.spec, type=JobSpec)


def insert_job(db: sqlite3.Connection, row: JobRow) -> None:
    """Add a job; one that is there already stays as it is."""
    values = tuple(getattr(row, name.strip()) for name in _COLUMNS.split(","))
    marks = ", ".join("?" * len(values))
    db.execute(f"INSERT INTO jobs ({_COLUMNS}) VALUES ({marks}) ON CONFLICT (job_id) DO NOTHING", values)


def update_job(
    db: sqlite3.Connection, job_id: str, *, state: str, reason: str, epoch: int, model_dir: str, data_digest: str
) -> None:
    """Write where a job stands; its round is written with the round itself."""
    ended_unix = time.time() if state in ("done", "failed", "cancelled") else None
    db.execute(
        "UPDATE jobs SET state = ?, reason = ?, epoch = ?, model_dir = ?, data_digest = ?, ended_unix = ?"
        " WHERE job_id = ?",
        (state, reason, epoch, model_dir, data_digest, ended_unix, job_id),
    )


def end_job(db: sqlite3.Connection, job_id: str, state: str, reason: str) -> None:
    """Write that a job which nobody runs has ended."""
    values = (state, reason, time.time(), job_id)
    db.execute("UPDATE jobs SET state = ?, reason = ?, ended_unix = ? WHERE job_id = ?", values)


def insert_points(db: sqlite3.Connection, points: Sequence[tuple[int, Point]]) -> None:
    """Add values to a job's curves, each with its epoch."""
    db.executemany(
        "INSERT INTO metrics (job_id, epoch, name, worker, round, t_s, value) VALUES (?, ?, ?, ?, ?, ?, ?)",
        [(p.job_id, epoch, p.name, p.worker, p.round, p.t_s, p.value) for epoch, p in points],
    )


async def find_job(store: Store, job_id: str) -> JobRow | None:
    """One job."""
    rows = await store.read(f"SELECT {_COLUMNS} FROM jobs WHERE job_id = ?", (job_id,))
    return JobRow(*rows[0]) if rows else None


async def unfinished_jobs(store: Store) -> list[JobRow]:
    """Jobs that have not ended, paused ones among them, oldest first."""
    rows = await store.read(f"SELECT {_COLUMNS} FROM jobs WHERE ended_unix IS NULL ORDER BY submitted_unix, job_id")
    return [JobRow(*row) for row in rows]


async def ended_jobs(store: Store) -> list[JobRow]:
    """The jobs that ended last, newest first."""
    rows = await store.read(
        f"SELECT {_COLUMNS} FROM jobs WHERE ended_unix IS NOT NULL ORDER BY ended_unix DESC LIMIT ?", (ENDED_SHOWN,)
    )
    return [JobRow(*row) for row in rows]


async def points_of(store: Store, job_id: str) -> list[Point]:
    """A job's curves, in the order they were drawn."""
    rows = await store.read(
        "SELECT name, worker, round, t_s, value FROM metrics WHERE job_id = ? ORDER BY t_s, rowid", (job_id,)
    )
    return [Point(job_id=job_id, name=r[0], worker=r[1], round=r[2], t_s=r[3], value=r[4]) for r in rows]


async def rounds_of(store: Store, job_id: str) -> list[dict[str, Any]]:
    """The committed rounds of a job: what went into each, and how to do it again.

    `spans` of a contribution are the rows that it was trained on, `[pass, slice, start, end]`, in that order. One that
    came late has the number of the round it was made for in `from_round`.
    """
    rounds = await store.read(
        "SELECT epoch, round, digest, samples, seconds, bytes_up, bytes_down, left_out FROM rounds"
        " WHERE job_id = ? ORDER BY round",
        (job_id,),
    )
    shares = await store.read(
        "SELECT round, task_id, peer_id, from_round, samples, weight, sha256, norm, spans FROM contributions"
        " WHERE job_id = ? ORDER BY round, task_id, from_round",
        (job_id,),
    )
    names = ("epoch", "round", "digest", "samples", "seconds", "bytes_up", "bytes_down")
    keys = ("task_id", "peer_id", "from_round", "samples", "weight", "sha256", "norm")
    by_round: dict[int, list[dict[str, Any]]] = {}
    for share in shares:
        line = {**dict(zip(keys, share[1:8], strict=True)), "spans": msgspec.json.decode(share[8])}
        by_round.setdefault(share[0], []).append(line)
    return [
        {
            **dict(zip(names, row, strict=False)),
            "left_out": msgspec.json.decode(row[7]),
            "contributions": by_round.get(row[1], []),
        }
        for row in rounds
    ]


async def view_of_ended(store: Store, row: JobRow, scheduler: str) -> JobView:
    """A job that ended, or was paused, before this process began, as far as it was written down."""
    spec = row.job_spec()
    points = await points_of(store, row.job_id)
    answered = [result["rows"] for result in await results_of(store, row.job_id)]
    rounds = await rounds_of(store, row.job_id)
    whole = [point for point in points if not point.worker]
    evaluations = sorted((p.round, p.value) for p in whole if p.name == "eval_loss")
    last = {point.name: point.value for point in whole}
    return JobView(
        id=row.job_id,
        name=row.name,
        scheduler=scheduler,
        state=row.state,
        reason=row.reason,
        dataset=spec.dataset,
        round=row.round,
        rounds=spec.rounds.update_rounds * spec.sync.fragments,
        workers=0,
        workers_wanted=spec.num_workers,
        samples=sum(line["samples"] for line in rounds) + sum(answered),
        slices={"used": len(answered)} if answered else {},
        loss=last.get("loss"),
        eval_loss=evaluations[-1][1] if evaluations else None,
        first_eval_loss=evaluations[0][1] if evaluations else None,
        samples_per_s=last.get("samples_per_s"),
        bytes_up=int(last.get("bytes_up", 0)),
        bytes_down=int(last.get("bytes_down", 0)),
        age_s=max(0.0, time.time() - row.submitted_unix),
        model_dir=row.model_dir,
        took_s=None if row.ended_unix is None else max(0.0, row.ended_unix - row.submitted_unix),
    )
