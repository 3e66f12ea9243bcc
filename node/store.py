"""SQLite: the one place that persists.

One connection does all writes and checkpoints (several on an SQLite before 3.51.3 can lose pages, sqlite.org/wal.html,
"The WAL-reset bug"); every change is one function run inside one IMMEDIATE transaction on its thread, so that a
cancelled caller can never leave a transaction open.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import aiosqlite

from node.errors import StoreError

T = TypeVar("T")
Row = tuple[Any, ...]

MIGRATIONS: list[str] = [
    """
    CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;

    CREATE TABLE jobs (
        job_id TEXT PRIMARY KEY, name TEXT NOT NULL, spec TEXT NOT NULL, body_sha256 TEXT NOT NULL DEFAULT '',
        folder_sha256 TEXT NOT NULL DEFAULT '', submitted_by TEXT NOT NULL, state TEXT NOT NULL,
        reason TEXT NOT NULL DEFAULT '', epoch INTEGER NOT NULL DEFAULT 0, round INTEGER NOT NULL DEFAULT 0,
        model_dir TEXT NOT NULL DEFAULT '', submitted_unix REAL NOT NULL,
        ended_unix REAL
    ) STRICT;

    CREATE TABLE rounds (
        job_id TEXT NOT NULL REFERENCES jobs, epoch INTEGER NOT NULL, round INTEGER NOT NULL, digest TEXT NOT NULL,
        samples INTEGER NOT NULL, committed_unix REAL NOT NULL, seconds REAL NOT NULL, bytes_up INTEGER NOT NULL,
        bytes_down INTEGER NOT NULL, left_out TEXT NOT NULL DEFAULT '{}',
        PRIMARY KEY (job_id, epoch, round)
    ) STRICT;

    CREATE TABLE contributions (
        job_id TEXT NOT NULL REFERENCES jobs, epoch INTEGER NOT NULL, round INTEGER NOT NULL, task_id TEXT NOT NULL,
        peer_id TEXT NOT NULL, samples INTEGER NOT NULL, sha256 TEXT NOT NULL, norm REAL NOT NULL,
        PRIMARY KEY (job_id, epoch, round, task_id)
    ) STRICT;

    CREATE TABLE metrics (
        job_id TEXT NOT NULL REFERENCES jobs, epoch INTEGER NOT NULL, name TEXT NOT NULL, worker TEXT NOT NULL,
        round INTEGER NOT NULL, t_s REAL NOT NULL, value REAL NOT NULL
    ) STRICT;
    CREATE INDEX metrics_of_job ON metrics (job_id, name, t_s);

    CREATE TABLE slices (
        job_id TEXT NOT NULL REFERENCES jobs, epoch INTEGER NOT NULL, pass INTEGER NOT NULL, slice INTEGER NOT NULL,
        task_id TEXT NOT NULL, round INTEGER NOT NULL,
        PRIMARY KEY (job_id, epoch, pass, slice)
    ) STRICT;

    CREATE TABLE slices_in_hand (
        job_id TEXT NOT NULL REFERENCES jobs, epoch INTEGER NOT NULL, pass INTEGER NOT NULL, slice INTEGER NOT NULL,
        task_id TEXT NOT NULL, round INTEGER NOT NULL
    ) STRICT;
    CREATE INDEX slices_in_hand_of_job ON slices_in_hand (job_id, epoch);

    CREATE TABLE executors (
        task_id TEXT PRIMARY KEY, pid INTEGER NOT NULL, start_ticks INTEGER NOT NULL, boot_id TEXT NOT NULL,
        work_dir TEXT NOT NULL, socket_path TEXT NOT NULL
    ) STRICT;
    """,
    # Rounds are committed at the scheduler, in whatever epoch, once each. What an earlier epoch had done over again is
    # gone; jobs that had not ended begin anew, for nothing of their versions was kept.
    """
    DELETE FROM metrics WHERE epoch <> (SELECT epoch FROM jobs WHERE jobs.job_id = metrics.job_id)
        OR job_id IN (SELECT job_id FROM jobs WHERE ended_unix IS NULL);
    DELETE FROM contributions WHERE epoch <> (SELECT epoch FROM jobs WHERE jobs.job_id = contributions.job_id)
        OR job_id IN (SELECT job_id FROM jobs WHERE ended_unix IS NULL);
    DELETE FROM rounds WHERE epoch <> (SELECT epoch FROM jobs WHERE jobs.job_id = rounds.job_id)
        OR job_id IN (SELECT job_id FROM jobs WHERE ended_unix IS NULL);
    UPDATE jobs SET round = 0, epoch = epoch + 1 WHERE ended_unix IS NULL;
    ALTER TABLE jobs ADD COLUMN pass INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE jobs ADD COLUMN data_digest TEXT NOT NULL DEFAULT '';
    CREATE UNIQUE INDEX one_commit_of_a_round ON rounds (job_id, round);

    DROP TABLE slices_in_hand;
    DROP TABLE slices;
    ALTER TABLE contributions RENAME TO contributions_1;
    CREATE TABLE contributions (
        job_id TEXT NOT NULL REFERENCES jobs, round INTEGER NOT NULL, task_id TEXT NOT NULL,
        from_round INTEGER NOT NULL, peer_id TEXT NOT NULL, samples INTEGER NOT NULL, weight REAL NOT NULL,
        sha256 TEXT NOT NULL, norm REAL NOT NULL, spans TEXT NOT NULL DEFAULT '[]',
        PRIMARY KEY (job_id, round, task_id, from_round)
    ) STRICT;
    INSERT INTO contributions SELECT job_id, round, task_id, round, peer_id, samples, samples, sha256, norm, '[]'
        FROM contributions_1;
    DROP TABLE contributions_1;

    CREATE TABLE committed (
        job_id TEXT NOT NULL REFERENCES jobs, pass INTEGER NOT NULL, slice INTEGER NOT NULL, low INTEGER NOT NULL,
        high INTEGER NOT NULL, round INTEGER NOT NULL,
        PRIMARY KEY (job_id, pass, slice, low)
    ) STRICT, WITHOUT ROWID;

    CREATE TABLE granted (
        job_id TEXT NOT NULL REFERENCES jobs, task_id TEXT NOT NULL, pass INTEGER NOT NULL, slice INTEGER NOT NULL,
        low INTEGER NOT NULL, high INTEGER NOT NULL
    ) STRICT;
    CREATE INDEX granted_to_task ON granted (task_id);

    CREATE TABLE tasks (
        job_id TEXT NOT NULL REFERENCES jobs, task_id TEXT PRIMARY KEY, number INTEGER NOT NULL, saved TEXT NOT NULL,
        slice_number INTEGER NOT NULL DEFAULT 0, slice TEXT NOT NULL DEFAULT 'null'
    ) STRICT;
    CREATE INDEX tasks_of_job ON tasks (job_id);

    CREATE TABLE held_leases (
        lease_id TEXT PRIMARY KEY, job_id TEXT NOT NULL REFERENCES jobs, role TEXT NOT NULL, peer_id TEXT NOT NULL,
        price REAL NOT NULL
    ) STRICT;

    CREATE TABLE journal (
        job_id TEXT NOT NULL REFERENCES jobs, kind TEXT NOT NULL, number INTEGER NOT NULL, sha256 TEXT NOT NULL,
        size_bytes INTEGER NOT NULL,
        PRIMARY KEY (job_id, kind, number)
    ) STRICT
    """,
    # One result for each slice of an inference job.
    """
    CREATE TABLE results (
        job_id TEXT NOT NULL REFERENCES jobs, slice INTEGER NOT NULL, rows INTEGER NOT NULL, name TEXT NOT NULL,
        sha256 TEXT NOT NULL, size_bytes INTEGER NOT NULL, task_id TEXT NOT NULL,
        PRIMARY KEY (job_id, slice)
    ) STRICT, WITHOUT ROWID
    """,
    # Commands of operators are good for one time.
    """
    CREATE TABLE commands (nonce TEXT PRIMARY KEY, taken_unix REAL NOT NULL) STRICT, WITHOUT ROWID
    """,
]


class Store:
    """The state of one node. Open it with `Store.open`; a second process on the same file is refused."""

    def __init__(self, connection: aiosqlite.Connection) -> None:
        self._connection = connection

    @classmethod
    @asynccontextmanager
    async def open(cls, path: Path) -> AsyncIterator[Store]:
        """Open or create the database at `path`.

        Raises `StoreError` where another process has it open, or where it was written by a newer version.
        """
        lock = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise StoreError(
                    f"{path.parent} is in use by another hypha-node",
                    hint="stop that one, or give this one its own --state-dir",
                ) from None
            connection = await aiosqlite.connect(path, isolation_level=None)
            try:
                store = cls(connection)
                await store._call(_prepare)
                yield store
            finally:
                await asyncio.shield(connection.close())
        finally:
            os.close(lock)

    async def write(self, change: Callable[[sqlite3.Connection], T]) -> T:
        """Run `change` in one transaction: all of it is on disk when this returns, or none of it.

        `change` runs on the store's thread; it must touch nothing but the connection and its own arguments.
        """
        return await asyncio.shield(self._call(lambda db: _in_transaction(db, change)))

    async def read(self, sql: str, parameters: Sequence[Any] = ()) -> list[Row]:
        """All rows of a query."""
        return await self._call(lambda db: db.execute(sql, parameters).fetchall())

    async def _call(self, function: Callable[[sqlite3.Connection], T]) -> T:
        # aiosqlite has no public way to run several statements in one hop of its thread.
        result: T = await self._connection._execute(lambda: function(self._connection._conn))  # type: ignore[no-untyped-call]
        return result


def _in_transaction(db: sqlite3.Connection, change: Callable[[sqlite3.Connection], T]) -> T:
    db.execute("BEGIN IMMEDIATE")
    try:
        result = change(db)
    except BaseException:
        db.execute("ROLLBACK")
        raise
    db.execute("COMMIT")
    return result


def _prepare(db: sqlite3.Connection) -> None:
    db.execute("PRAGMA journal_mode=WAL")
    db.execute("PRAGMA synchronous=FULL")
    db.execute("PRAGMA foreign_keys=ON")
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if version > len(MIGRATIONS):
        raise StoreError(
            f"the state database is of version {version}, this program knows {len(MIGRATIONS)}",
            hint="start the newer hypha-node, or use another --state-dir",
        )
    for number, script in enumerate(MIGRATIONS[version:], start=version + 1):
        db.execute("BEGIN IMMEDIATE")
        try:
            for statement in script.split(";"):
                if statement.strip():
                    db.execute(statement)
            db.execute(f"PRAGMA user_version={number}")
        except BaseException:
            db.execute("ROLLBACK")
            raise
        db.execute("COMMIT")
