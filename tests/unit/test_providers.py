"""Who serves a dataset: signed records that are renewed, run out, and are taken back."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from node.network import announcer
from node.network.overlay import Overlay
from node.network.records import Records
from tests.support import MakeIdentity
from tests.unit.network_loopback import eventually, overlay_for
from tests.unit.test_data_service import data_node, write_dataset
from tests.unit.test_records import opened, provider


@pytest.mark.asyncio
async def test_every_provider_of_a_dataset_is_found_and_one_that_stops_is_gone_at_once(
    make_identity: MakeIdentity, tmp_path: Path
) -> None:
    """H46: the same slices give the same digest, whoever made the manifest."""
    first, second = write_dataset(tmp_path / "a" / "texts"), write_dataset(tmp_path / "b" / "texts")
    async with data_node(make_identity("first"), tmp_path / "n1", first) as stays:
        gateways = {"gateway_addresses": [stays.addresses[0]]}
        async with overlay_for(make_identity("worker"), tmp_path / "worker", **gateways) as worker:

            async def found() -> dict[str, str]:
                return {record.peer_id: record.digest for record in await worker.providers("texts")}

            known = stays.addresses
            async with data_node(make_identity("second"), tmp_path / "n2", second, gateways=known) as leaves:
                async with asyncio.timeout(10):
                    while set(await found()) != {stays.peer_id, leaves.peer_id}:
                        await asyncio.sleep(0.01)
                assert len(set((await found()).values())) == 1
            async with asyncio.timeout(10):
                while set(await found()) != {stays.peer_id}:
                    await asyncio.sleep(0.01)


@pytest.mark.asyncio
async def test_a_record_is_renewed_while_its_node_runs(
    make_identity: MakeIdentity, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(announcer, "TICK_S", 0.02)
    monkeypatch.setattr(announcer, "refresh_s", lambda members: 0.2)
    async with overlay_for(make_identity("data"), tmp_path / "data") as data:
        await data.provide("books", "d" * 64, 3, 100, 4096)

        def seq(overlay: Overlay = data) -> int:
            return max((record.seq for record in overlay._knowledge.providers("books")), default=0)

        before = seq()
        await eventually(lambda: seq() > before + 1)


def test_a_provider_that_is_heard_of_no_more_is_forgotten_in_time() -> None:
    records = Records()
    records.merge(opened(provider("books")), 0.0)
    assert records.expire(59.0) == []
    assert [record.peer_id for record in records.expire(60.0)] == ["a"]
