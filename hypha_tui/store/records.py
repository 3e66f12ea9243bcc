"""Columns of what is no object of the cluster: events, values of metrics, slices of a job. For the twin commands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from hypha_tui.store import text
from hypha_tui.store.columns import COLUMNS, Column
from node.views import SLICE_ASSIGNED, SLICE_AVAILABLE, SLICE_PARTLY, SLICE_USED, SliceMap

SLICE_STATES: Final = {
    SLICE_AVAILABLE: "available",
    SLICE_ASSIGNED: "assigned",
    SLICE_PARTLY: "partly",
    SLICE_USED: "used",
}


@dataclass(frozen=True, slots=True)
class SliceRow:
    """One slice of a job's data. Rows are counted where they are not all in one state."""

    slice: int
    state: str
    rows: int | None = None
    used: int | None = None
    assigned: int | None = None
    task_id: str = ""
    peer_id: str = ""


def slice_rows(found: SliceMap) -> list[SliceRow]:
    """Every slice of a map, in the order of their numbers."""
    parts = {part.slice: part for part in found.parts}
    rows: list[SliceRow] = []
    for number, letter in enumerate(found.states):
        state, part = SLICE_STATES.get(letter, letter), parts.get(number)
        if part is None:
            rows.append(SliceRow(number, state))
            continue
        has_holder = 0 <= part.holder < len(found.holders)
        task_id = found.holders[part.holder].task_id if has_holder else ""
        peer_id = found.holders[part.holder].peer_id if has_holder else ""
        rows.append(SliceRow(number, state, part.rows, part.used, part.assigned, task_id, peer_id))
    return rows


def slice_counts(found: SliceMap) -> dict[str, int]:
    """How many slices are in each state."""
    return {word: found.states.count(letter) for letter, word in SLICE_STATES.items()}


EVENT_COLUMNS: Final[list[Column[Any]]] = [
    Column("age", "AGE", 5, lambda v, k: (text.age(v.age_s), "dim"), lambda v, k: v.age_s, right=True, measure="s"),
    Column("level", "LEVEL", 7, lambda v, k: (v.level, "text")),
    Column("node", "NODE", 14, lambda v, k: k.name(v.node)),
    Column("event", "EVENT", 18, lambda v, k: (v.name, "text")),
    Column("text", "TEXT", 60, lambda v, k: (k.store.with_names(v.text), "text"), grow=True),
]

POINT_COLUMNS: Final[list[Column[Any]]] = [
    Column("metric", "METRIC", 14, lambda v, k: (v.name, "text")),
    Column("worker", "WORKER", 14, lambda v, k: k.name(v.worker)),
    Column("round", "ROUND", 6, lambda v, k: (str(v.round), "text"), lambda v, k: v.round, right=True),
    Column("value", "VALUE", 10, lambda v, k: (f"{v.value:.6g}", "text"), lambda v, k: v.value, right=True),
    Column("after", "AFTER", 9, lambda v, k: (f"{v.t_s:.1f}s", "dim"), lambda v, k: v.t_s, right=True, measure="s"),
]

SLICE_COLUMNS: Final[list[Column[Any]]] = [
    Column("slice", "SLICE", 7, lambda v, k: (str(v.slice), "text"), lambda v, k: v.slice, right=True),
    Column("state", "STATE", 10, lambda v, k: (v.state, "text")),
    Column("rows", "ROWS", 7, lambda v, k: _count(v.rows), lambda v, k: v.rows or 0, right=True),
    Column("used", "USED", 7, lambda v, k: _count(v.used), lambda v, k: v.used or 0, right=True),
    Column("assigned", "ASSIGNED", 8, lambda v, k: _count(v.assigned), lambda v, k: v.assigned or 0, right=True),
    Column("task", "TASK", 24, lambda v, k: (v.task_id or "-", "dim")),
    Column("worker", "WORKER", 14, lambda v, k: k.name(v.peer_id)),
]


def _count(value: int | None) -> tuple[str, str]:
    return ("-", "dim") if value is None else (text.count(value), "text")


TABLES: Final[dict[str, list[Column[Any]]]] = {
    "peers": COLUMNS["peer"],
    "leases": COLUMNS["lease"],
    "transfers": COLUMNS["transfer"],
    "jobs": COLUMNS["job"],
    "datasets": COLUMNS["dataset"],
    "events": EVENT_COLUMNS,
    "metrics": POINT_COLUMNS,
    "slices": SLICE_COLUMNS,
}
"""The columns of each twin command."""
