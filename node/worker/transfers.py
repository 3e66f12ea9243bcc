"""Transfers of this worker on the board: progress and speed, four times a second at most."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from node.board import Board
from node.views import TransferView

SHOW_EVERY_S = 0.25
KEEP_S = 10.0


class Transfer:
    """One file on its way here or from here."""

    def __init__(
        self, board: Board, what: str, name: str, job_id: str, source: str, target: str, size_bytes: int
    ) -> None:
        self._board = board
        self._began = self._shown_at = time.monotonic()
        self._done = self._shown = 0
        self._speed = 0.0
        self._id = uuid.uuid4().hex[:16]
        self.ended_at: float | None = None
        self._fields = {"what": what, "name": name, "job_id": job_id, "source": source, "target": target}
        self._size = size_bytes
        self._show("active")

    @property
    def view_id(self) -> str:
        """Its id on the board."""
        return self._id

    def progress(self, done_bytes: int) -> None:
        """So many bytes are there; it may go down where a transfer starts again."""
        self._done = done_bytes
        now = time.monotonic()
        if now - self._shown_at >= SHOW_EVERY_S:
            speed = max(0, done_bytes - self._shown) / (now - self._shown_at)
            self._speed = speed if self._speed == 0 else 0.5 * self._speed + 0.5 * speed
            self._shown_at, self._shown = now, done_bytes
            self._show("active")

    def resize(self, size_bytes: int) -> None:
        """The size is known now."""
        self._size = size_bytes

    def end(self, state: str, reason: str = "") -> None:
        """`done` or `failed`."""
        self.ended_at = time.monotonic()
        if state == "done":
            self._size = self._size or self._done
            self._done = self._size
            self._speed = self._size / max(1e-6, self.ended_at - self._began)
        self._show(state, reason)

    def _show(self, state: str, reason: str = "") -> None:
        self._board.put(
            TransferView(
                id=self._id,
                size_bytes=self._size,
                done_bytes=self._done,
                bytes_per_s=self._speed,
                state=state,
                age_s=time.monotonic() - self._began,
                reason=reason,
                **self._fields,
            )
        )


class Transfers:
    """All transfers of this worker; finished ones stay on the board for ten seconds."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._all: dict[str, Transfer] = {}

    @contextmanager
    def show(self, what: str, name: str, job_id: str, source: str, target: str, size_bytes: int) -> Iterator[Transfer]:
        """Show a transfer for the length of the block; an exception that leaves it is its reason to have failed."""
        transfer = Transfer(self._board, what, name, job_id, source, target, size_bytes)
        self._all[transfer.view_id] = transfer
        try:
            yield transfer
        except BaseException as error:
            transfer.end("failed", str(error) or type(error).__name__)
            raise
        transfer.end("done")

    def blocked(self, text: str, **fields: str) -> None:
        """Tell that bytes wait for room on the disk."""
        self._board.happened("disk.full", text, level="warning", **fields)

    def sweep(self, now: float) -> None:
        """Take transfers that ended ten seconds ago off the board."""
        for view_id, transfer in list(self._all.items()):
            if transfer.ended_at is not None and now - transfer.ended_at >= KEEP_S:
                del self._all[view_id]
                self._board.drop("transfer", view_id)
