"""Overlays in one process, over mutual TLS on loopback: joining, gossip, providers, leaving."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import socket
import time
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest
from aiohttp import web

from node.errors import HyphaError, PeerUnreachable, Refused
from node.identity.caller import Caller
from node.network import bootstrap
from node.network.overlay import Overlay
from node.network.serving import send_file
from node.wire import Advertisement, ExecutorKind, FindProviders, Resources
from tests.support import MakeIdentity, make_authority, make_identity_in
from tests.unit.network_loopback import eventually, overlay_for

pytestmark = pytest.mark.asyncio


def members(overlay: Overlay) -> set[str]:
    return {peer.record.peer_id for peer in overlay.peers()}


def advert_of(overlay: Overlay, advert_id: str) -> Advertisement:
    return Advertisement(
        peer_id=overlay.peer_id,
        seq=overlay.next_seq(),
        advert_id=advert_id,
        job_id="job",
        executor=ExecutorKind(class_="train"),
        resources=Resources(),
        bid=1.0,
        count=1,
        ttl_s=10.0,
    )


def unused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.asynccontextmanager
async def cluster(make_identity: MakeIdentity, tmp_path: Path, count: int) -> AsyncIterator[list[Overlay]]:
    """A gateway and `count` others, which start at the same moment."""
    async with contextlib.AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(overlay_for(make_identity("gw"), tmp_path / "gw", roles=["gateway"]))
        others = [
            overlay_for(make_identity("n"), tmp_path / f"n{number}", gateway_addresses=gateway.addresses)
            for number in range(count)
        ]
        async with contextlib.AsyncExitStack() as ends:
            overlays = [await ends.enter_async_context(other) for other in others]
            yield [gateway, *overlays]


async def test_twenty_simultaneous_starts_make_one_membership(make_identity: MakeIdentity, tmp_path: Path) -> None:
    """U1."""
    async with cluster(make_identity, tmp_path, 20) as overlays:
        everybody = {overlay.peer_id for overlay in overlays}
        await eventually(lambda: all(len(members(overlay)) >= 21 for overlay in overlays), 20.0)
        assert {frozenset(members(overlay)) for overlay in overlays} == {frozenset(everybody)}


async def test_an_advert_reaches_everybody_within_a_moment(make_identity: MakeIdentity, tmp_path: Path) -> None:
    async with cluster(make_identity, tmp_path, 12) as overlays:
        await eventually(lambda: all(len(members(overlay)) == 13 for overlay in overlays), 20.0)
        seen: dict[str, list[str]] = {overlay.peer_id: [] for overlay in overlays}

        def remember(at: str) -> None:
            def noted(caller: Caller, advert: Advertisement) -> None:
                seen[at].append(f"{advert.advert_id} of {caller.peer_id}")

            overlays_by_id[at].subscribe(noted)

        overlays_by_id = {overlay.peer_id: overlay for overlay in overlays}
        for overlay in overlays:
            remember(overlay.peer_id)
        publisher = overlays[5]
        started = time.monotonic()
        await publisher.publish(advert_of(publisher, "a1"))
        await eventually(lambda: all(seen.values()))
        assert time.monotonic() - started < 3.0, "0.3 s on a machine that does nothing else"
        assert set(map(tuple, seen.values())) == {(f"a1 of {publisher.peer_id}",)}, "once each, the origin included"


async def test_a_subscriber_that_fails_does_not_keep_the_others_from_hearing(
    make_identity: MakeIdentity, tmp_path: Path
) -> None:
    async with overlay_for(make_identity(), tmp_path) as overlay:
        heard: list[str] = []

        def fail(caller: Caller, advert: Advertisement) -> None:
            raise ValueError("no")

        overlay.subscribe(fail)
        overlay.subscribe(lambda caller, advert: heard.append(advert.advert_id))
        await overlay.publish(advert_of(overlay, "a1"))
        assert heard == ["a1"]


async def test_providers_are_found_and_withdrawn(make_identity: MakeIdentity, tmp_path: Path) -> None:
    async with cluster(make_identity, tmp_path, 2) as (gateway, data, worker):
        await data.provide("books", "d" * 64, 3, 100, 4096)

        async def digests(overlay: Overlay) -> list[str]:
            return [record.digest for record in await overlay.providers("books")]

        await eventually(lambda: worker.find_name(data.peer_id) is not None)
        assert await digests(worker) == ["d" * 64], "known by gossip, or asked of the gateway"
        assert await digests(data) == ["d" * 64]
        await data.withdraw("books")
        async with asyncio.timeout(5):
            while await digests(worker) or await digests(gateway):
                await asyncio.sleep(0.01)


async def test_who_leaves_is_gone_from_the_others_at_once(make_identity: MakeIdentity, tmp_path: Path) -> None:
    async with overlay_for(make_identity(), tmp_path / "a", roles=["gateway"]) as stays:
        changes: list[int] = []
        stays.watch_peers(lambda: changes.append(len(stays.peers())))
        async with overlay_for(make_identity(), tmp_path / "b", gateway_addresses=stays.addresses):
            await eventually(lambda: len(stays.peers()) == 2)
            await stays.providers("nothing")
        await eventually(lambda: len(stays.peers()) == 1, within_s=1.0)
        assert changes[-1] == 1
        names = [event.name for event in stays.board.events()]
        assert names == ["peer.joined", "peer.left"], "a gateway tells who comes and goes"


async def test_all_nodes_are_back_after_a_gateway_restarts(
    make_identity: MakeIdentity, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H58, U13: the same gateway, on the same port, having forgotten everything."""
    monkeypatch.setattr(bootstrap, "KEEP_EVERY_S", 1.0)
    files, port = make_identity("gw"), unused_port()
    listen = [f"/ip4/127.0.0.1/tcp/{port}"]
    async with contextlib.AsyncExitStack() as stack:
        async with overlay_for(files, tmp_path / "first", roles=["gateway"], listen_addresses=listen) as gateway:
            nodes = [
                await stack.enter_async_context(
                    overlay_for(make_identity(), tmp_path / f"n{number}", gateway_addresses=gateway.addresses)
                )
                for number in range(3)
            ]
            await eventually(lambda: len(gateway.peers()) == 4)
        await eventually(lambda: all(len(node.peers()) == 3 for node in nodes))
        async with overlay_for(files, tmp_path / "second", roles=["gateway"], listen_addresses=listen) as gateway:
            await eventually(lambda: len(gateway.peers()) == 4 and all(len(node.peers()) == 4 for node in nodes), 15.0)
            await nodes[0].publish(advert_of(nodes[0], "a1"))


async def test_a_restarted_node_finds_its_peers_again_without_gateways(
    make_identity: MakeIdentity, tmp_path: Path
) -> None:
    """U13, U30: from the addresses it has kept."""
    files = make_identity("restarts")
    async with overlay_for(make_identity(), tmp_path / "stays") as stays:
        async with overlay_for(files, tmp_path / "restarts", gateway_addresses=stays.addresses) as first:
            await eventually(lambda: len(stays.peers()) == 2)
            seq = first.next_seq()
        for _ in range(3):
            async with overlay_for(files, tmp_path / "restarts") as again:
                assert again.next_seq() > seq
                seq = again.next_seq()
                await eventually(lambda: again.peer_id in members(stays) and stays.peer_id in members(again))
            await eventually(lambda: len(stays.peers()) == 1)


async def test_a_gateway_that_does_not_answer_is_one_line_and_tried_again(
    make_identity: MakeIdentity, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """U6: address and cause, no traceback, and it goes on trying."""
    monkeypatch.setattr(bootstrap, "MOST_S", 0.3)
    port = unused_port()
    address = f"/ip4/127.0.0.1/tcp/{port}"
    async with overlay_for(make_identity(), tmp_path / "a", gateway_addresses=[address]) as overlay:
        await asyncio.sleep(1.2)
        lines = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
        assert len(lines) == 1
        assert address in lines[0]
        assert "Connect call failed" in lines[0] or "refused" in lines[0].lower()
        assert all(record.exc_info is None for record in caplog.records)
        async with overlay_for(make_identity(), tmp_path / "b", roles=["gateway"], listen_addresses=[address]):
            await eventually(lambda: len(overlay.peers()) == 2)
        assert [event.name for event in overlay.board.events()] == ["gateway.unreachable", "gateway.joined"]


async def test_a_gateway_of_another_authority_is_told_once_with_a_hint(
    make_identity: MakeIdentity, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bootstrap, "MOST_UNTRUSTED_S", 0.3)
    (tmp_path / "ca").mkdir()
    stranger = make_identity_in(make_authority(tmp_path / "ca", "other"), "stranger")
    async with (
        overlay_for(stranger, tmp_path / "s", roles=["gateway"]) as gateway,
        overlay_for(make_identity(), tmp_path / "a", gateway_addresses=gateway.addresses) as overlay,
    ):
        await asyncio.sleep(1.0)
        assert len(overlay.peers()) == len(gateway.peers()) == 1
    lines = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(lines) == 1
    assert "certificate" in lines[0]
    assert all(record.exc_info is None for record in caplog.records)


async def test_a_gateway_that_names_itself_in_its_list_is_no_fault(make_identity: MakeIdentity, tmp_path: Path) -> None:
    address = f"/ip4/127.0.0.1/tcp/{unused_port()}"
    files = make_identity()
    async with overlay_for(
        files, tmp_path, roles=["gateway"], listen_addresses=[address], gateway_addresses=[address]
    ) as overlay:
        await asyncio.sleep(0.2)
        assert [event.level for event in overlay.board.events()] == []
        assert len(overlay.peers()) == 1


async def test_a_port_that_is_taken_ends_run_with_one_clear_error(make_identity: MakeIdentity, tmp_path: Path) -> None:
    async with overlay_for(make_identity(), tmp_path / "a") as first:
        with pytest.raises(BaseExceptionGroup) as caught:
            async with overlay_for(make_identity(), tmp_path / "b", listen_addresses=first.addresses):
                pytest.fail("both listen on one port")
    faults, _ = caught.value.split(HyphaError)
    assert faults is not None
    assert "is taken by" in str(faults.exceptions[0])


async def test_nothing_is_left_when_run_has_ended(make_identity: MakeIdentity, tmp_path: Path) -> None:
    process = psutil.Process()
    gc.collect()
    tasks, sockets = len(asyncio.all_tasks()), len(process.net_connections(kind="tcp"))
    async with cluster(make_identity, tmp_path, 4) as overlays:
        await eventually(lambda: all(len(members(overlay)) == 5 for overlay in overlays))
    await eventually(lambda: len(asyncio.all_tasks()) == tasks, within_s=3.0)
    await eventually(lambda: len(process.net_connections(kind="tcp")) == sockets, within_s=3.0)


async def test_this_node_is_on_its_board_and_among_its_peers(make_identity: MakeIdentity, tmp_path: Path) -> None:
    async with overlay_for(make_identity("w"), tmp_path, roles=["worker", "data"]) as overlay:
        overlay.describe(Resources(cpu=4), Resources(cpu=1))
        (view,) = overlay.board.items()
        assert (view.id, view.state, view.total, view.free) == (  # type: ignore[union-attr]
            overlay.peer_id,
            "up",
            Resources(cpu=4),
            Resources(cpu=1),
        )
        (own,) = overlay.peers("data")
        assert own.reachable
        assert own.record.addresses == overlay.addresses
        assert overlay.addresses[0].startswith("/ip4/127.0.0.1/tcp/")


async def test_a_caller_that_leaves_in_the_middle_of_an_answer_is_no_error_of_the_node(
    make_identity: MakeIdentity, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, broken = tmp_path / "large", asyncio.Event()
    path.write_bytes(bytes(64 << 20))

    async def file(_: Caller, request: web.Request) -> web.StreamResponse:
        try:
            return await send_file(request, path, sha256="")
        except ConnectionError:
            broken.set()
            raise

    async def refused(_: Caller, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        response.content_length = 10
        await response.prepare(request)
        await response.write(b"half")
        raise Refused("failed", "no more of it")

    def prepare(overlay: Overlay) -> None:
        overlay.bulk_route("GET", "/bulk/file", file)
        overlay.bulk_route("GET", "/bulk/refused", refused)

    async with (
        overlay_for(make_identity(), tmp_path / "a", roles=["gateway"], prepare=prepare) as serves,
        overlay_for(make_identity(), tmp_path / "b", gateway_addresses=serves.addresses) as asks,
    ):
        await eventually(lambda: len(asks.peers()) == 2)
        async with asks.open(serves.peer_id, "GET", "/bulk/file") as response:
            await response.content.readexactly(100_000)
            response.close()
        async with asyncio.timeout(5):
            await broken.wait()
        with pytest.raises(PeerUnreachable):
            async with asks.open(serves.peer_id, "GET", "/bulk/refused") as response:
                await response.read()
        assert (await asks.call(serves.peer_id, FindProviders(dataset="x"))).records == []
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []
