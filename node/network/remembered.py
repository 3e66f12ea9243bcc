"""What the network keeps over a restart: the highest sequence number, and where peers were."""

from __future__ import annotations

import sqlite3

import msgspec

from node.store import Store

KEY = "network"
SEQ_MARGIN = 100_000
"""More sequence numbers than are used between two times of saving."""


class _Saved(msgspec.Struct, frozen=True):
    seq: int
    peers: dict[str, list[str]]


async def load(store: Store) -> tuple[int, dict[str, list[str]]]:
    """A sequence number above all that were ever used, and addresses by peer id."""
    rows = await store.read("SELECT value FROM meta WHERE key = ?", (KEY,))
    if not rows:
        return 0, {}
    saved = msgspec.json.decode(rows[0][0], type=_Saved)
    return saved.seq + SEQ_MARGIN, saved.peers


async def save(store: Store, seq: int, peers: dict[str, list[str]]) -> None:
    """Keep both."""
    text = msgspec.json.encode(_Saved(seq, peers)).decode()

    def change(db: sqlite3.Connection) -> None:
        db.execute("INSERT INTO meta VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value", (KEY, text))

    await store.write(change)
