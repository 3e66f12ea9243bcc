"""Every slice of a job's present pass in one letter: what an operator's map of slices is drawn from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from node.scheduler.ledger import Ledger
from node.views import SLICE_ASSIGNED, SLICE_AVAILABLE, SLICE_PARTLY, SLICE_USED, SliceHolder, SliceMap, SlicePart

if TYPE_CHECKING:
    from node.store import Store

PARTS_TOLD: Final = 1_000
"""So many slices are told in detail; the letters tell all of them."""


def slice_map(job_id: str, dataset: str, ledger: Ledger, peer_of: Callable[[str], str]) -> SliceMap:
    """The map of a job whose rows are known. `peer_of` gives the peer of a task."""
    used = ledger.used_rows()
    states = _states(ledger.rows, used)
    parts: list[SlicePart] = []
    places: dict[str, int] = {}
    for task_id, span in ledger.granted():
        if span.pass_ != ledger.pass_:
            continue
        states[span.index] = SLICE_ASSIGNED
        if len(parts) < PARTS_TOLD:
            holder = places.setdefault(task_id, len(places))
            rows, count = ledger.rows[span.index], used.get(span.index, 0)
            assigned = span.end - span.start
            parts.append(SlicePart(slice=span.index, rows=rows, used=count, assigned=assigned, holder=holder))
    for index, count in used.items():
        if states[index] == SLICE_PARTLY:
            parts.append(SlicePart(slice=index, rows=ledger.rows[index], used=count))
    return SliceMap(
        job_id=job_id,
        dataset=dataset,
        pass_=ledger.pass_,
        states="".join(states),
        parts=parts[:PARTS_TOLD],
        holders=[SliceHolder(task_id=task_id, peer_id=peer_of(task_id)) for task_id in places],
    )


async def slice_map_of_store(store: Store, job_id: str, dataset: str) -> SliceMap:
    """The map of a job that no process here runs: what was written down of it, and no more.

    How many rows a slice has was not, so the longest that is known is taken for a whole one.
    """
    rows = await store.read(
        "SELECT c.pass, c.slice, sum(c.high - c.low), max(c.high),"
        " EXISTS (SELECT 1 FROM results r WHERE r.job_id = c.job_id AND r.slice = c.slice)"
        " FROM committed c JOIN jobs j ON j.job_id = c.job_id AND j.pass = c.pass"
        " WHERE c.job_id = ? GROUP BY c.slice ORDER BY c.slice",
        (job_id,),
    )
    if not rows:
        return SliceMap(job_id=job_id, dataset=dataset, pass_=0, states="", is_whole=False)
    whole = max(row[3] for row in rows)
    states = [SLICE_AVAILABLE] * (rows[-1][1] + 1)
    parts: list[SlicePart] = []
    for _, index, count, _, is_result in rows:
        states[index] = SLICE_USED if is_result or count >= whole else SLICE_PARTLY
        if states[index] == SLICE_PARTLY:
            parts.append(SlicePart(slice=index, rows=whole, used=count))
    return SliceMap(
        job_id=job_id,
        dataset=dataset,
        pass_=rows[0][0],
        states="".join(states),
        parts=parts[:PARTS_TOLD],
        is_whole=False,
    )


def _states(rows: Sequence[int], used: dict[int, int]) -> list[str]:
    states = [SLICE_AVAILABLE if count else SLICE_USED for count in rows]
    for index, count in used.items():
        states[index] = SLICE_USED if count >= rows[index] else SLICE_PARTLY
    return states
