"""A scheduler's own store of what jobs measured and did."""

from __future__ import annotations

import contextlib
import dataclasses
import sqlite3
from pathlib import Path

import pytest

from node.scheduler import messages as m
from node.scheduler import records, runs
from node.scheduler.machine import Saved
from node.scheduler.records import JobRow
from node.store import MIGRATIONS, Store
from node.views import Point
from node.wire import CommitRound, Contribution, Span, VersionFile

pytestmark = pytest.mark.asyncio


def row(job_id: str) -> JobRow:
    return JobRow(job_id, "same name", "{}", "b", "f", "ada")


def point(job_id: str, round_: int, value: float) -> Point:
    return Point(job_id=job_id, name="loss", worker="W", round=round_, t_s=float(round_), value=value)


def file(kind: str, number: int) -> VersionFile:
    return VersionFile(kind=kind, number=number, sha256=f"{kind}{number}", size_bytes=5)


def commit(round_: int, spans: list[Span], epoch: int = 0, pass_: int = 0) -> m.SaveRound:
    share = Contribution(
        task_id="a.0.1", peer_id="W", samples=8, sha256="s", norm=1.0, from_round=round_, weight=8.0, spans=spans
    )
    late = Contribution(
        task_id="a.0.1", peer_id="W", samples=2, sha256="l", norm=1.0, from_round=round_ - 1, weight=1.0
    )
    report = CommitRound(
        task_id="a.0.0",
        epoch=epoch,
        round=round_,
        weights=file("weights", round_ + 1),
        momentum=file("momentum", round_ + 1),
        delta=file("delta", round_ + 1),
        contributions=[share, late],
    )
    return m.SaveRound(report, 10, 1.0, 100 * (round_ + 1), 7, pass_)


async def saved(store: Store, *effects: m.SaveEffect, job_id: str = "a") -> None:
    def write(db: sqlite3.Connection) -> None:
        for effect in effects:
            runs.save(db, job_id, effect)

    await store.write(write)


async def test_the_curves_of_jobs_do_not_mix_and_go_on_over_epochs(tmp_path: Path) -> None:
    """H61: a store of our own, where runs with the same name, worker and rounds stay apart."""
    async with Store.open(tmp_path / "state.sqlite") as store:
        for job_id in ("a", "b"):
            await store.write(lambda db, job_id=job_id: records.insert_job(db, row(job_id)))
        await store.write(
            lambda db: records.insert_points(
                db, [(0, point("a", 0, 3.0)), (0, point("b", 0, 5.0)), (1, point("a", 1, 2.0))]
            )
        )
        assert [p.value for p in await records.points_of(store, "a")] == [3.0, 2.0]
        assert [p.value for p in await records.points_of(store, "b")] == [5.0]
    async with Store.open(tmp_path / "state.sqlite") as store:
        assert [p.value for p in await records.points_of(store, "a")] == [3.0, 2.0], "and they outlive the process"


async def test_what_was_written_of_a_run_is_read_again(tmp_path: Path) -> None:
    task = m.SavedTask("a.0.1", "train", "W", "l1", 0, 0, "running", return_number=2)
    lease = m.HeldLease("train", "l1", "W", 1.5)
    first, second = Span(0, 3, 0, 8), Span(0, 1, 0, 4)
    async with Store.open(tmp_path / "state.sqlite") as store:
        for job_id in ("a", "b"):
            await store.write(lambda db, job_id=job_id: records.insert_job(db, row(job_id)))
        await saved(store, m.SaveLease(lease), m.SaveTask(task), m.SaveBase((file("weights", 0),)))
        await saved(store, m.SaveGrant("a.0.1", 1, first), m.SaveGrant("a.0.1", 2, second))
        await saved(store, commit(0, [Span(0, 3, 0, 5)]), m.SaveGranted("a.0.1", (Span(0, 3, 5, 8), second)))
        await saved(store, m.SaveTask(dataclasses.replace(task, state="lost")))
        run = await runs.saved_run(store, "a")
        assert (run.epoch, run.round, run.next_number, run.digest) == (0, 1, 2, "weights1")
        assert run.leases == [lease]
        assert run.tasks == [dataclasses.replace(task, state="lost", slice_number=2, slice=second)]
        assert run.granted == [("a.0.1", Span(0, 3, 5, 8)), ("a.0.1", second)]
        assert run.committed == [Span(0, 3, 0, 5)]
        assert run.chain.files() == [file("weights", 0), file("delta", 1)]
        assert (run.samples, run.bytes_up, run.bytes_before_up) == (10, 100, 0)
        assert await runs.saved_run(store, "b") == Saved(), "another job's is empty"
        await saved(
            store, commit(1, [Span(0, 1, 0, 4)], epoch=1), m.SaveBase((file("weights", 1), file("momentum", 1)))
        )
        run = await runs.saved_run(store, "a")
        assert run.chain.files() == [file("weights", 1), file("momentum", 1), file("delta", 2)]
        assert (run.epoch, run.bytes_up, run.bytes_before_up) == (1, 200, 100)
        await saved(store, m.SaveLeaseGone("l1"))
        assert (await runs.saved_run(store, "a")).leases == []


async def test_a_round_or_a_row_that_is_committed_twice_breaks_its_transaction(tmp_path: Path) -> None:
    async with Store.open(tmp_path / "state.sqlite") as store:
        await store.write(lambda db: records.insert_job(db, row("a")))
        await saved(store, m.SaveBase((file("weights", 0),)), commit(0, [Span(0, 3, 0, 5)]))
        with pytest.raises(sqlite3.IntegrityError):
            await saved(store, commit(0, [], epoch=1))
        with pytest.raises(sqlite3.IntegrityError):
            await saved(store, commit(1, [Span(0, 3, 0, 2)]))
        assert (await runs.saved_run(store, "a")).round == 1


async def test_the_rounds_tell_what_went_into_each(tmp_path: Path) -> None:
    async with Store.open(tmp_path / "state.sqlite") as store:
        await store.write(lambda db: records.insert_job(db, row("a")))
        await saved(store, m.SaveBase((file("weights", 0),)), commit(0, [Span(0, 7, 0, 5), Span(0, 2, 1, 4)]))
        (made,) = await records.rounds_of(store, "a")
        assert (made["round"], made["digest"], made["samples"]) == (0, "weights1", 10)
        late, share = made["contributions"]
        assert share["spans"] == [[0, 7, 0, 5], [0, 2, 1, 4]]
        assert (late["from_round"], late["weight"], late["spans"]) == (-1, 1.0, [])


async def test_a_store_of_the_version_before_is_taken_over(tmp_path: Path) -> None:
    """Jobs that had ended keep their rounds; one that had not begins anew, for nothing of its versions was kept."""
    path = tmp_path / "state.sqlite"
    with contextlib.closing(sqlite3.connect(path)) as db:
        for statement in MIGRATIONS[0].split(";"):
            db.execute(statement)
        for job_id, ended in (("done", 5.0), ("open", None)):
            db.execute(
                "INSERT INTO jobs (job_id, name, spec, submitted_by, state, epoch, round, submitted_unix, ended_unix)"
                " VALUES (?, 'n', '{}', 'ada', 'x', 1, 2, 1.0, ?)",
                (job_id, ended),
            )
            for epoch, round_ in ((0, 0), (1, 0), (1, 1)):
                key = (job_id, epoch, round_)
                db.execute("INSERT INTO rounds VALUES (?, ?, ?, 'd', 8, 1.0, 1.0, 1, 1, '{}')", key)
                db.execute("INSERT INTO contributions VALUES (?, ?, ?, 't', 'W', 8, 's', 1.0)", key)
                db.execute("INSERT INTO metrics VALUES (?, ?, 'loss', '', ?, 1.0, 2.0)", key)
        db.execute("PRAGMA user_version=1")
        db.commit()
    async with Store.open(path) as store:
        assert [line["epoch"] for line in await records.rounds_of(store, "done")] == [1, 1]
        assert len((await records.rounds_of(store, "done"))[0]["contributions"]) == 1
        assert len(await records.points_of(store, "done")) == 2
        assert await records.rounds_of(store, "open") == []
        run = await runs.saved_run(store, "open")
        assert (run.round, run.epoch, run.points) == (0, 2, [])
