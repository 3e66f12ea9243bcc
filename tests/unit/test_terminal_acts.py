"""What can be done to an object, and what is said about it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from hypha_tui.client.api import ApiClient
from hypha_tui.client.endpoint import Endpoint
from hypha_tui.client.jobfile import Body
from hypha_tui.store.acts import act_named, acts_for, outcome, why_not
from node.errors import Refused
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
