"""Commands about leases and workers over HTTP: who may give them, and who is told."""

from __future__ import annotations

from typing import Any

import aiohttp
import msgspec
import pytest
from msgspec.structs import replace

from node.errors import Refused
from node.identity.credentials import Identity
from node.wire import Accepted, Ack, Command, Cordon, Drain, Release, RunCommand, SteerWorker, Uncordon, WorkerCommand
from tests.unit.test_api import Node, Start, cluster, http, lease, signed, unix  # noqa: F401

pytestmark = pytest.mark.asyncio


def take_orders(node: Node) -> list[Any]:
    """Have a node obey; what it was told, and by whose word."""
    told: list[Any] = []

    def opened(request: RunCommand | SteerWorker, kind: Any) -> tuple[str, Any]:
        signer, payload = node.overlay.identity.trust.open(request.signed)
        return signer.role, msgspec.msgpack.decode(payload, type=kind)

    async def run(request: RunCommand) -> Accepted:
        told.append((*opened(request, Command), request.worker))
        return Accepted(job_id="", scheduler=node.overlay.peer_id)

    async def steer(request: SteerWorker) -> Ack:
        told.append(opened(request, WorkerCommand))
        return Ack()

    node.overlay.handlers |= {RunCommand: run, SteerWorker: steer}
    return told


async def post(session: aiohttp.ClientSession, url: str, headers: dict[str, str] | None = None) -> tuple[int, Any]:
    async with session.post(url, headers=headers) as answer:
        return answer.status, msgspec.json.decode(await answer.read())


async def test_a_lease_is_released_by_its_scheduler_at_an_operator_s_word_through_any_node(
    cluster: Start,  # noqa: F811
    http: aiohttp.ClientSession,  # noqa: F811
    operator_identity: Identity,
    identity: Identity,
) -> None:
    a, s, w = await cluster("a", "gateway"), await cluster("s", "scheduler"), await cluster("w", "worker")
    told = take_orders(s)
    held = replace(lease("l1", w.overlay.peer_id), scheduler=s.overlay.peer_id)
    w.board.put(held)
    w.board.put(replace(held, id="l2", state="expired"))
    url, good = f"{a.url}/api/v1/leases/l1/release", signed(operator_identity, Release(lease_id="l1"))
    assert await post(http, url, good) == (202, {"id": "l1", "node": s.overlay.peer_id})
    assert told == [("operator", Release(lease_id="l1"), w.overlay.peer_id)]
    for target, headers, status in (
        (url, None, 403),
        (url, signed(identity, Release(lease_id="l1")), 403),
        (url, signed(operator_identity, Release(lease_id="l2")), 422),
        (f"{a.url}/api/v1/leases/none/release", signed(operator_identity, Release(lease_id="none")), 404),
        (f"{a.url}/api/v1/leases/l2/release", signed(operator_identity, Release(lease_id="l2")), 409),
    ):
        assert (await post(http, target, headers))[0] == status, target
    assert len(told) == 1
    async with unix(a) as local:
        assert (await post(local, "/api/v1/leases/l1/release"))[0] == 202
    assert told[1][0] == "node", "the node's own word, for who is on its machine"


async def test_a_worker_is_cordoned_uncordoned_and_drained_by_its_id_or_its_name(
    cluster: Start,  # noqa: F811
    http: aiohttp.ClientSession,  # noqa: F811
    operator_identity: Identity,
    identity: Identity,
) -> None:
    a, w = await cluster("a", "gateway"), await cluster("w", "worker")
    told, peer = take_orders(w), w.overlay.peer_id
    kinds: tuple[type[Cordon | Uncordon | Drain], ...] = (Cordon, Uncordon, Drain)
    for kind, called in zip(kinds, (peer, "w", "w"), strict=True):
        name = kind.__name__.lower()
        headers = signed(operator_identity, kind(peer_id=peer))  # type: ignore[arg-type]
        answer = await post(http, f"{a.url}/api/v1/peers/{called}/{name}", headers)
        assert answer == (202, {"id": peer, "node": peer})
    assert told == [("operator", kind(peer_id=peer)) for kind in kinds]
    drain = f"{a.url}/api/v1/peers/w/drain"
    for target, headers, status in (
        (drain, {}, 403),
        (drain, signed(identity, Drain(peer_id=peer)), 403),  # type: ignore[arg-type]
        (drain, signed(operator_identity, Cordon(peer_id=peer)), 422),  # type: ignore[arg-type]
        (drain, signed(operator_identity, Drain(peer_id="12D3other")), 422),  # type: ignore[arg-type]
        (f"{a.url}/api/v1/peers/nobody/drain", {}, 404),
        (f"{a.url}/api/v1/peers/a/drain", {}, 409),
    ):
        assert (await post(http, target, headers))[0] == status, target
    assert len(told) == 3

    async def refuses(request: SteerWorker) -> Ack:
        raise Refused("denied", "a is not among its operators")

    w.overlay.handlers[SteerWorker] = refuses
    async with unix(a) as local:
        status, problem = await post(local, f"/api/v1/peers/{peer}/cordon")
    assert (status, problem["detail"]) == (403, "a is not among its operators")
