"""A scheduler's rows of stored results."""

from __future__ import annotations

import sqlite3
from typing import Any

from node.scheduler.messages import SaveResult
from node.store import Store


def insert_result(db: sqlite3.Connection, job_id: str, effect: SaveResult) -> None:
    """A slice has its result. A second one breaks the key, and the transaction with it."""
    span = effect.span
    db.execute(
        "INSERT INTO results (job_id, slice, rows, name, sha256, size_bytes, task_id) VALUES (?, ?, ?, ?, ?, ?, ?)",
        (job_id, span.index, span.end - span.start, effect.name, effect.sha256, effect.size_bytes, effect.task_id),
    )
    db.execute(
        "INSERT INTO committed (job_id, pass, slice, low, high, round) VALUES (?, ?, ?, ?, ?, 0)",
        (job_id, span.pass_, span.index, span.start, span.end),
    )
    db.execute(
        "DELETE FROM granted WHERE task_id = ? AND pass = ? AND slice = ?", (effect.task_id, span.pass_, span.index)
    )


async def results_of(store: Store, job_id: str) -> list[dict[str, Any]]:
    """The results of a job, in the order of their slices."""
    names = ("slice", "rows", "name", "sha256", "size_bytes")
    rows = await store.read(f"SELECT {', '.join(names)} FROM results WHERE job_id = ? ORDER BY slice", (job_id,))
    return [dict(zip(names, row, strict=True)) for row in rows]
