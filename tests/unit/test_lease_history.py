"""What is remembered of leases, and what an operator is told of it through any node."""

from __future__ import annotations

from typing import Any

import aiohttp
import msgspec
import pytest
from aiohttp import web

from node.leasehistory import ENDED_KEPT, RENEWALS_KEPT, LeaseHistories
from node.views import LeaseHistory, LeaseMark, SliceHolder, SliceMap, SlicePart
from tests.unit.test_api import Start, cluster, get, http, job  # noqa: F401
from tests.unit.test_view import lease


def test_a_life_is_told_in_order_with_its_last_renewals_and_the_count_of_the_others() -> None:
    lives = LeaseHistories()
    lives.note("l", "offered", 10.0, "at 1.2")
    lives.note("l", "accepted", 10.5)
    for number in range(RENEWALS_KEPT + 6):
        lives.renewed("l", 11.0 + number)
    lives.note("l", "dispatched", 11.5)
    lives.ended("l", "released", 200.0)
    lives.ended("l", "expired", 201.0)
    marks = lives.marks("l", 210.0)
    assert marks is not None
    assert [mark.name for mark in marks[:3]] == ["offered", "accepted", "dispatched"]
    assert (marks[-1].name, marks[-1].age_s) == ("released", 10.0)
    assert [mark.name for mark in marks].count("renewed") == RENEWALS_KEPT
    assert lives.earlier_renewals("l") == 6
    assert [mark.age_s for mark in marks] == sorted((mark.age_s for mark in marks), reverse=True)


def test_only_the_last_leases_that_ended_are_remembered_and_all_that_live() -> None:
    lives = LeaseHistories()
    lives.note("alive", "offered", 0.0)
    for number in range(ENDED_KEPT + 10):
        lives.note(str(number), "offered", 1.0)
        lives.ended(str(number), "lapsed", 2.0)
    assert lives.marks("alive", 3.0) is not None
    assert lives.marks("9", 3.0) is None
    assert lives.marks("10", 3.0) is not None


@pytest.mark.asyncio
async def test_the_life_of_a_lease_and_a_jobs_slices_are_told_through_any_node(
    cluster: Start,  # noqa: F811
    http: aiohttp.ClientSession,  # noqa: F811
) -> None:
    a, w = await cluster("a", "gateway"), await cluster("w", "worker", "scheduler")
    at_worker = LeaseHistory(lease_id="l", marks=[LeaseMark(name="offered", age_s=9.0)], earlier_renewals=3)
    lost = LeaseMark(name="lost", age_s=1.0, text="not renewed")
    at_scheduler = LeaseHistory(lease_id="l", marks=[LeaseMark(name="accepted", age_s=8.0), lost], next_renewal_s=2.5)
    part = SlicePart(slice=1, rows=8, assigned=8, holder=0)
    states = SliceMap(job_id="j", dataset="d", pass_=0, states=".au", parts=[part], holders=[SliceHolder(task_id="t")])

    def answering(content: Any) -> Any:
        async def answer(_: Any, __: web.Request) -> web.StreamResponse:
            return web.Response(body=msgspec.json.encode(content), content_type="application/json")

        return answer

    w.overlay.app._router._frozen = False
    w.overlay.bulk_route("GET", "/bulk/leases/{lease}", answering(at_worker))
    w.overlay.bulk_route("GET", "/bulk/jobs/{job}/leases/l", answering(at_scheduler))
    w.overlay.bulk_route("GET", "/bulk/jobs/{job}/slices", answering(states))
    w.board.put(job("j", w.overlay.peer_id, []))
    for id_, scheduler in (("l", w.overlay.peer_id), ("alone", "12D3KooWgone")):
        w.board.put(msgspec.structs.replace(lease(id_, w.overlay.peer_id), scheduler=scheduler))
    told = msgspec.convert(await get(http, a.url + "/api/v1/leases/l/history"), LeaseHistory)
    assert [mark.name for mark in told.marks] == ["offered", "lost"]
    assert (told.earlier_renewals, told.next_renewal_s, told.problems) == (3, 2.5, [])
    alone = msgspec.convert(await get(http, a.url + "/api/v1/leases/alone/history"), LeaseHistory)
    assert [mark.name for mark in alone.marks] == ["offered"]
    assert "its scheduler does not tell" in alone.problems[0]
    assert msgspec.convert(await get(http, a.url + "/api/v1/jobs/j/slices"), SliceMap) == states
    async with http.get(a.url + "/api/v1/leases/other/history") as answer:
        assert answer.status == 404
