"""A scheduler's own store of what jobs measured and did."""

from __future__ import annotations

from pathlib import Path

import pytest

from node.scheduler import records
from node.scheduler.messages import SaveRound, UsedSlice
from node.scheduler.records import JobRow
from node.store import Store
from node.views import Point
from node.wire import Contribution, RoundCommitted

pytestmark = pytest.mark.asyncio


def row(job_id: str) -> JobRow:
    return JobRow(job_id, "same name", "{}", "b", "f", "ada")


def point(job_id: str, round_: int, value: float) -> Point:
    return Point(job_id=job_id, name="loss", worker="W", round=round_, t_s=float(round_), value=value)


def saved(
    epoch: int, round_: int, *, used: tuple[UsedSlice, ...] = (), in_hand: tuple[UsedSlice, ...] = ()
) -> SaveRound:
    share = Contribution(task_id="t", peer_id="W", samples=8, sha256="s", norm=1.0)
    report = RoundCommitted(task_id="ps", round=round_, digest=f"{epoch}-{round_}", contributions=[share])
    return SaveRound(epoch, report, 8, 1.0, used, in_hand)


async def test_the_curves_of_jobs_and_of_their_epochs_do_not_mix(tmp_path: Path) -> None:
    """H61: a store of our own, where runs with the same name, worker and rounds stay apart."""
    async with Store.open(tmp_path / "state.sqlite") as store:
        for job_id in ("a", "b"):
            await store.write(lambda db, job_id=job_id: records.insert_job(db, row(job_id)))
        await store.write(
            lambda db: records.insert_points(
                db, [(0, point("a", 0, 3.0)), (0, point("b", 0, 5.0)), (0, point("a", 1, 2.0))]
            )
        )
        assert [p.value for p in await records.points_of(store, "a")] == [3.0, 2.0]
        assert [p.value for p in await records.points_of(store, "b")] == [5.0]
        await store.write(
            lambda db: records.update_job(db, "a", state="waiting", reason="", epoch=1, round_=0, model_dir="")
        )
        await store.write(lambda db: records.insert_points(db, [(1, point("a", 0, 4.0))]))
        assert [p.value for p in await records.points_of(store, "a")] == [4.0], "a run that began again"
        assert [p.value for p in await records.points_of(store, "b")] == [5.0]
    async with Store.open(tmp_path / "state.sqlite") as store:
        assert [p.value for p in await records.points_of(store, "a")] == [4.0], "and they outlive the process"


async def test_the_rounds_tell_slices_in_the_order_of_training_and_what_was_in_hand_last(tmp_path: Path) -> None:
    def line(index: int, round_: int, task_id: str = "t") -> UsedSlice:
        return UsedSlice(0, index, task_id, round_)

    async with Store.open(tmp_path / "state.sqlite") as store:
        for job_id in ("a", "b"):
            await store.write(lambda db, job_id=job_id: records.insert_job(db, row(job_id)))
        first = saved(0, 0, used=(line(7, 0), line(2, 0)), in_hand=(line(5, 0), line(1, 0)))
        second = saved(0, 1, used=(line(5, 1),), in_hand=(line(1, 1), line(0, 1)))
        for save in (first, second):
            await store.write(lambda db, save=save: records.insert_round(db, "a", save))
        await store.write(lambda db: records.insert_round(db, "b", saved(0, 0, in_hand=(line(9, 0),))))
        rounds = await records.rounds_of(store, "a")
        assert [[entry["index"] for entry in made["slices"]] for made in rounds] == [[7, 2], [5]]
        assert [[entry["index"] for entry in made["in_hand"]] for made in rounds] == [[], [1, 0]]
        assert [made["contributions"][0]["samples"] for made in rounds] == [8, 8]
        await store.write(lambda db: records.insert_round(db, "a", saved(1, 0)))
        (again,) = await records.rounds_of(store, "a")
        assert (again["epoch"], again["slices"], again["in_hand"]) == (1, [], [])
