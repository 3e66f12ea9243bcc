"""What a job wants written down, gathered and written in order, in one transaction at a time."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from node.scheduler import records
from node.views import Point

if TYPE_CHECKING:
    from node.store import Store

log = logging.getLogger(__name__)

POINTS_EVERY_S = 5.0
AGAIN_S = 1.0

Change = Callable[[sqlite3.Connection], None]


class Saver:
    """The way of one job's changes to the store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._changes: list[Change] = []
        self._points: list[tuple[int, Point]] = []
        self._writing = asyncio.Lock()
        self._wrote_at = time.monotonic()

    def add(self, change: Change) -> None:
        """Write this with the next `flush`."""
        self._changes.append(change)

    def plot(self, epoch: int, point: Point) -> None:
        """Write this value with the next change, or a little later."""
        self._points.append((epoch, point))

    def points(self) -> list[Point]:
        """Values that are not in the store yet."""
        return [point for _, point in self._points]

    async def flush(self) -> None:
        """Write what is to be written; all of it is on disk when this returns.

        Raises `sqlite3.Error` where it cannot be; it stays to be written then.
        """
        async with self._writing:
            if not self._changes:
                return
            changes, self._changes = self._changes, []
            points, self._points = self._points, []

            def write(db: sqlite3.Connection) -> None:
                records.insert_points(db, points)
                for change in changes:
                    change(db)

            try:
                await self._store.write(write)
            except Exception:
                # A cancelled caller's write goes on: it must not be written twice.
                self._changes = changes + self._changes
                self._points = points + self._points
                raise
            self._wrote_at = time.monotonic()

    async def flush_in_time(self) -> float | None:
        """As `flush`, now and then with the values alone; answers with when to try again where the disk is full."""
        now = time.monotonic()
        if self._points and now - self._wrote_at >= POINTS_EVERY_S:
            self.add(lambda db: None)
        try:
            await self.flush()
        except sqlite3.OperationalError as error:
            log.error("store.not_written reason=%s", error)
            return now + AGAIN_S
        return None
