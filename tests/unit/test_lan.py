"""Announcement and discovery on the local network."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest
from zeroconf.asyncio import AsyncServiceInfo, AsyncZeroconf

from node.addresses import Address
from node.network import lan
from node.network.lan import SERVICE, Lan, candidates
from tests.support import MakeIdentity
from tests.unit.network_loopback import eventually, overlay_for


def announcement(peer_id: str, authority: str = "ca", port: int = 4001) -> AsyncServiceInfo:
    return AsyncServiceInfo(
        SERVICE,
        f"x.{SERVICE}",
        port=port,
        properties={"peer": peer_id, "authority": authority},
        parsed_addresses=["192.168.1.7"],
    )


def test_only_other_nodes_of_the_same_authority_are_candidates(make_identity: MakeIdentity) -> None:
    own, other = make_identity().peer_id, make_identity().peer_id
    assert candidates(announcement(other), own, "ca") == [Address("192.168.1.7", 4001, other)]
    assert candidates(announcement(other, authority="theirs"), own, "ca") == []
    assert candidates(announcement(own), own, "ca") == []
    assert candidates(announcement("[bold]not a peer[/]"), own, "ca") == []
    assert candidates(AsyncServiceInfo(SERVICE, f"x.{SERVICE}", port=1), own, "ca") == []


@pytest.mark.asyncio
async def test_a_host_without_multicast_is_no_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """U13."""

    def refuse(**_: object) -> AsyncZeroconf:
        raise OSError(19, "No such device")

    caplog.set_level(logging.INFO)
    monkeypatch.setattr(lan, "AsyncZeroconf", refuse)
    await Lan("p" * 52, "ca", ["192.168.1.5"], 4001, lambda address: None).run()
    assert [record.levelno for record in caplog.records] == [logging.INFO]


@pytest.mark.asyncio
async def test_two_nodes_without_gateways_find_each_other(make_identity: MakeIdentity, tmp_path: Path) -> None:
    """On the loopback interface, which a node that listens there alone announces itself on."""
    try:
        probe = AsyncZeroconf(interfaces=["127.0.0.1"])
    except OSError:
        pytest.skip("no multicast on the loopback interface")
    await probe.async_close()
    async with (
        overlay_for(make_identity(), tmp_path / "a", mdns=True) as first,
        overlay_for(make_identity(), tmp_path / "b", mdns=True) as second,
        overlay_for(make_identity(), tmp_path / "c", mdns=False) as silent,
    ):
        ids = {first.peer_id, second.peer_id}
        await eventually(lambda: all({peer.record.peer_id for peer in each.peers()} == ids for each in (first, second)))
        assert len(silent.peers()) == 1, "the flag switches it off"
        await asyncio.sleep(0)
