"""What can be done to an object, and what is said about it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from hypha_tui.client.api import ApiClient
from hypha_tui.client.endpoint import Endpoint
from hypha_tui.client.jobfile import Body
from hypha_tui.store.acts import act_named, acts_for, details, outcome, why_not
from hypha_tui.store.cluster import ClusterStore
from node.errors import Refused
from node.views import LeaseView, PeerView, Snapshot
from node.wire import Resources
from tests.terminal.feed import job, lease, peers


def names(view: object) -> list[str]:
    return [act.name for act in acts_for(view.kind, view)]  # type: ignore[attr-defined,arg-type]


def test_only_what_fits_the_state_is_offered_and_what_asks_first_comes_first() -> None:
    states = {
        "running": ["cancel", "pause"],
        "waiting": ["cancel", "pause"],
        "pausing": ["cancel"],
        "paused": ["cancel", "resume"],
        "exporting": ["cancel"],
        "failed": ["resume"],
        "done": [],
    }
    assert {state: names(replace(job(), state=state)) for state in states} == states
    held = lease(0, remaining_s=5.0)
    assert (names(held), names(replace(held, state="expired"))) == (["release"], [])
    worker = next(peer for peer in peers(1) if "worker" in peer.roles)
    gateway = next(peer for peer in peers(1) if "worker" not in peer.roles)
    assert names(worker) == ["cordon", "drain"]
    assert names(replace(worker, cordoned=True)) == ["uncordon", "drain"]
    assert names(replace(worker, cordoned=True, draining=True)) == ["uncordon"]
    assert names(gateway) == []
    assert why_not(act_named("drain"), gateway) == "is no worker"
    assert why_not(act_named("pause"), replace(job(), state="done")) == "is done"


def test_a_drain_says_beforehand_who_is_free_for_what_runs_and_gives_no_room_away_twice() -> None:
    def worker(number: int, free: float, **other: object) -> PeerView:
        room = Resources(cpu=16, memory=64, gpu=free)
        return replace(peers(6)[3 + number], total=replace(room, gpu=48), free=room, **other)  # type: ignore[arg-type]

    held = [replace(lease(number, remaining_s=5.0), worker=worker(0, 0).id, task_id=str(number)) for number in (0, 1)]

    def told(*others: PeerView, of: list[LeaseView] | None = None) -> list[str]:
        store = ClusterStore()
        leases = held if of is None else of
        store.apply(Snapshot(seq=1, items=[worker(0, 0), *others, *leases], events=[]), 1.0)
        return details(act_named("drain"), [worker(0, 0)], store)[2:-1]

    taken, stays = "train of diloco-7: w-fra-01 is free for it", "train of diloco-7: stays, others are busy"
    assert told(worker(1, 24)) == [taken, stays], "one has room for one"
    assert told(worker(1, 48)) == [taken, taken]
    assert told(worker(1, 24), worker(2, 24, price=0.5)) == [taken, "train of diloco-7: w-nyc-02 is free for it"]
    assert told(worker(1, 48, cordoned=True))[0].endswith("stays, others take no new work (cordoned)")
    assert told()[0].endswith("stays, there is no other worker")
    assert told(of=[]) == ["It runs nothing now."]
    many = [replace(held[0], id=f"l{number}") for number in range(9)]
    assert told(worker(1, 48), of=many) == ["2 of 9 tasks have a free worker to move to; the others stay."]


def test_one_line_tells_how_many_were_done_and_why_the_others_were_not() -> None:
    leases = [lease(number, remaining_s=5.0) for number in range(3)]
    told = outcome(act_named("release"), [(leases[0], ""), (leases[1], "no such lease"), (leases[2], "")])
    assert told.startswith("2 of 3 released; ")
    assert told.endswith(": no such lease")


@pytest.mark.asyncio
async def test_a_read_only_client_changes_nothing_and_asks_nobody() -> None:
    """No session is opened: the endpoint leads nowhere."""
    client = ApiClient(Endpoint(), readonly=True)
    calls = (client.cancel, client.pause, client.resume, client.release, client.cordon, client.uncordon, client.drain)
    for call in calls:
        with pytest.raises(Refused, match="read-only"):
            await call("x")
    with pytest.raises(Refused, match="read-only"):
        await client.submit(Body(b"", "application/toml", "j", "", ""))
    await client.close()
