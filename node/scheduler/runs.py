"""What a scheduler writes down while a job runs, and reads again when it goes on: tasks, leases, rows, versions."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from node.scheduler import messages as m
from node.scheduler.journal import DELTA, Chain
from node.scheduler.machine import Saved
from node.scheduler.messages import HeldLease, SavedTask, SaveEffect
from node.scheduler.records import points_of
from node.scheduler.result_rows import insert_result
from node.store import Store
from node.wire import Contribution, Span, VersionFile


def save(db: sqlite3.Connection, job_id: str, effect: SaveEffect) -> None:
    """Carry out one effect of a machine that saves something."""
    match effect:
        case m.SaveLease(lease):
            values = (lease.lease_id, job_id, lease.role, lease.peer_id, lease.price)
            db.execute(
                "INSERT OR REPLACE INTO held_leases (lease_id, job_id, role, peer_id, price) VALUES (?, ?, ?, ?, ?)",
                values,
            )
        case m.SaveLeaseGone(lease_id):
            db.execute("DELETE FROM held_leases WHERE lease_id = ?", (lease_id,))
        case m.SaveTask(task):
            number = int(task.task_id.rpartition(".")[2])
            saved = msgspec.json.encode(task).decode()
            db.execute(
                "INSERT INTO tasks (job_id, task_id, number, saved) VALUES (?, ?, ?, ?)"
                " ON CONFLICT (task_id) DO UPDATE SET saved = excluded.saved",
                (job_id, task.task_id, number, saved),
            )
        case m.SaveGrant(task_id, number, span):
            db.execute(
                "UPDATE tasks SET slice_number = ?, slice = ? WHERE task_id = ?",
                (number, msgspec.json.encode(span).decode(), task_id),
            )
            _insert_granted(db, job_id, task_id, (span,))
        case m.SaveGranted(task_id, spans):
            db.execute("DELETE FROM granted WHERE task_id = ?", (task_id,))
            _insert_granted(db, job_id, task_id, spans)
        case m.SaveResult():
            insert_result(db, job_id, effect)
        case m.SaveRound():
            _insert_round(db, job_id, effect)
        case m.SaveBase(files):
            number = files[0].number
            db.execute("DELETE FROM journal WHERE job_id = ? AND (kind <> ? OR number <= ?)", (job_id, DELTA, number))
            for file in files:
                _insert_file(db, job_id, file)


def _insert_granted(db: sqlite3.Connection, job_id: str, task_id: str, spans: tuple[Span, ...]) -> None:
    db.executemany(
        "INSERT INTO granted (job_id, task_id, pass, slice, low, high) VALUES (?, ?, ?, ?, ?, ?)",
        [(job_id, task_id, span.pass_, span.index, span.start, span.end) for span in spans],
    )


def _insert_file(db: sqlite3.Connection, job_id: str, file: VersionFile) -> None:
    db.execute(
        "INSERT OR REPLACE INTO journal (job_id, kind, number, sha256, size_bytes) VALUES (?, ?, ?, ?, ?)",
        (job_id, file.kind, file.number, file.sha256, file.size_bytes),
    )


def insert_line(
    db: sqlite3.Connection,
    job_id: str,
    *,
    epoch: int,
    round_: int,
    digest: str,
    samples: int,
    seconds: float,
    bytes_up: int,
    bytes_down: int,
    left_out: Mapping[str, str],
    contributions: Sequence[Contribution],
) -> None:
    """A committed round, and what went into it."""
    db.execute(
        "INSERT INTO rounds (job_id, epoch, round, digest, samples, committed_unix, seconds, bytes_up, bytes_down,"
        " left_out) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            *(job_id, epoch, round_, digest, samples, time.time(), seconds, bytes_up, bytes_down),
            msgspec.json.encode(left_out).decode(),
        ),
    )
    db.executemany(
        "INSERT INTO contributions (job_id, round, task_id, from_round, peer_id, samples, weight, sha256, norm, spans)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        [
            (
                *(job_id, round_, share.task_id, share.from_round, share.peer_id, share.samples, share.weight),
                *(share.sha256, share.norm, msgspec.json.encode(share.spans).decode()),
            )
            for share in contributions
        ],
    )


def insert_start(
    db: sqlite3.Connection, job_id: str, version: int, committed: Sequence[Span], files: Sequence[VersionFile]
) -> None:
    """The version that a job begins with, and the rows that count in it."""
    _insert_committed(db, job_id, version - 1, committed)
    for file in files:
        _insert_file(db, job_id, file)


def _insert_committed(db: sqlite3.Connection, job_id: str, round_: int, spans: Iterable[Span]) -> None:
    # A row that is committed twice breaks the key, and the transaction with it.
    db.executemany(
        "INSERT INTO committed (job_id, pass, slice, low, high, round) VALUES (?, ?, ?, ?, ?, ?)",
        [(job_id, span.pass_, span.index, span.start, span.end, round_) for span in spans],
    )


def _insert_round(db: sqlite3.Connection, job_id: str, effect: m.SaveRound) -> None:
    report = effect.report
    insert_line(
        db,
        job_id,
        epoch=report.epoch,
        round_=report.round,
        digest=report.weights.sha256,
        samples=effect.samples,
        seconds=effect.seconds,
        bytes_up=effect.bytes_up,
        bytes_down=effect.bytes_down,
        left_out=report.left_out,
        contributions=report.contributions,
    )
    _insert_committed(db, job_id, report.round, [span for share in report.contributions for span in share.spans])
    db.execute("DELETE FROM committed WHERE job_id = ? AND pass < ?", (job_id, effect.pass_))
    _insert_file(db, job_id, report.delta)
    db.execute(
        "UPDATE jobs SET round = ?, epoch = ?, pass = ? WHERE job_id = ?",
        (report.round + 1, report.epoch, effect.pass_, job_id),
    )


async def saved_run(store: Store, job_id: str) -> Saved:
    """All that was written down of a job's run."""

    async def read(what: str, table: str, more: str = "") -> list[Any]:
        return await store.read(f"SELECT {what} FROM {table} WHERE job_id = ? {more}", (job_id,))

    ((epoch, round_, pass_, data_digest),) = await read("epoch, round, pass, data_digest", "jobs")
    tasks = await read("saved, slice_number, slice", "tasks", "ORDER BY number")
    digests = await read("digest", "rounds", f"AND round = {int(round_) - 1}")
    ((samples, up, down),) = await read("total(samples), max(bytes_up), max(bytes_down)", "rounds")
    ((up_before, down_before),) = await read("max(bytes_up), max(bytes_down)", "rounds", f"AND epoch < {int(epoch)}")
    ((number,),) = await read("max(number)", "tasks")
    return Saved(
        epoch=epoch,
        round=round_,
        pass_=pass_,
        next_number=0 if number is None else number + 1,
        data_digest=data_digest,
        digest=digests[0][0] if digests else "",
        contributors=[
            (row[0], row[1])
            for row in await read("task_id, from_round", "contributions", f"AND round = {int(round_) - 1}")
        ],
        leases=[HeldLease(*row) for row in await read("role, lease_id, peer_id, price", "held_leases")],
        tasks=[_saved_task(*row) for row in tasks],
        granted=[
            (row[0], Span(*row[1:]))
            for row in await read("task_id, pass, slice, low, high", "granted", "ORDER BY rowid")
        ],
        committed=[Span(*row) for row in await read("pass, slice, low, high", "committed")],
        chain=Chain.of(
            VersionFile(**dict(zip(("kind", "number", "sha256", "size_bytes"), row, strict=True)))
            for row in await read("kind, number, sha256, size_bytes", "journal")
        ),
        points=await points_of(store, job_id),
        samples=int(samples),
        bytes_up=up or 0,
        bytes_down=down or 0,
        bytes_before_up=up_before or 0,
        bytes_before_down=down_before or 0,
    )


def _saved_task(saved: str, slice_number: int, slice_: str) -> SavedTask:
    task = msgspec.json.decode(saved, type=SavedTask)
    span = msgspec.json.decode(slice_, type=Span | None)
    return replace(task, slice_number=slice_number, slice=span)


async def resume(store: Store, job_id: str, epoch: int) -> None:
    """An ended job goes on: in a new epoch, without the tasks and leases that it had."""

    def write(db: sqlite3.Connection) -> None:
        db.execute("DELETE FROM granted WHERE job_id = ?", (job_id,))
        db.execute("DELETE FROM held_leases WHERE job_id = ?", (job_id,))
        db.execute(
            "UPDATE jobs SET state = 'waiting', reason = '', epoch = ?, ended_unix = NULL WHERE job_id = ?",
            (epoch, job_id),
        )

    await store.write(write)
