"""The map of a job's slices, from its ledger and from the store."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import msgspec
import pytest

from node.scheduler.ledger import Ledger
from node.scheduler.slicestates import slice_map, slice_map_of_store
from node.store import Store
from node.wire import Span


def test_every_slice_is_one_letter_and_those_in_between_are_told_in_detail() -> None:
    ledger = Ledger([10, 10, 10, 10, 0], seed=1)
    spans = [ledger.give("t1", number)[0] for number in range(2)]
    ledger.commit("t1", [spans[0]])
    ledger.commit("t1", [Span(0, spans[1].index, 0, 4)])
    ledger.returned("t1", [Span(0, spans[1].index, 4, 10)])
    ledger.give("t2", 0)
    held, _ = ledger.give("t3", 0)
    found = slice_map("j", "d", ledger, {"t2": "w2", "t3": "w3"}.__getitem__)
    letters = list(found.states)
    assert letters[spans[0].index] == "u"
    assert letters[spans[1].index] == "a", "another task has what was given back"
    assert letters[held.index] == "a"
    assert letters[4] == "u", "an empty slice is not waited for"
    assert letters.count(".") == 1
    by_slice = {part.slice: part for part in found.parts}
    assert (by_slice[spans[1].index].used, by_slice[spans[1].index].assigned) == (4, 6)
    assert found.holders[by_slice[held.index].holder].peer_id == "w3"
    ledger.lost("t2")
    assert slice_map("j", "d", ledger, str).states[spans[1].index] == "p"


def test_a_hundred_thousand_slices_are_told_in_less_than_200_kb() -> None:
    ledger = Ledger([4] * 100_000, seed=1)
    for number in range(600):
        ledger.give(f"some-job-1a2b3c.0.{number % 200}", number)
    found = slice_map("j", "d", ledger, lambda _: "12D3KooW" + "x" * 44)
    assert len(found.states) == 100_000
    assert len(found.parts) == 600
    assert len(msgspec.json.encode(found)) < 200_000


@pytest.mark.asyncio
async def test_of_a_job_that_runs_no_more_the_store_tells_what_was_used(tmp_path: Path) -> None:
    def write(db: sqlite3.Connection) -> None:
        db.execute(
            "INSERT INTO jobs (job_id, name, spec, submitted_by, state, pass, submitted_unix)"
            " VALUES ('j', 'j', '{}', 'me', 'failed', 1, 0)"
        )
        rows = [(0, 0, 0, 8), (1, 0, 0, 8), (1, 2, 0, 3), (1, 2, 3, 5)]
        db.executemany("INSERT INTO committed VALUES ('j', ?, ?, ?, ?, 0)", rows)

    async with Store.open(tmp_path / "state.db") as store:
        await store.write(write)
        found = await slice_map_of_store(store, "j", "d")
        assert (found.states, found.pass_, found.is_whole) == ("u.p", 1, False)
        assert (found.parts[0].slice, found.parts[0].used, found.parts[0].rows) == (2, 5, 8)
        assert (await slice_map_of_store(store, "other", "d")).states == ""
