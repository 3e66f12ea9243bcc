"""Signed commands are good for one time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from node.commanding import GOOD_FOR_S, KEPT_S, REPEAT_S, Orders, payload_of
from node.config import NodeConfig
from node.errors import Refused
from node.store import Store
from node.wire import Cancel, Command, Signed
from tests.unit.scheduler.fake_cluster import FakeOverlay


def signed(payload: bytes) -> Signed:
    return Signed(payload=payload, signature=b"good", chain=[b"operator:ada"])


class Wall:
    """The receiver's clock."""

    def __init__(self, now: float) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


@pytest.mark.asyncio
async def test_a_command_is_carried_out_once_however_often_it_is_sent(tmp_path: Path) -> None:
    """A node that forwarded a command cannot give it again, not even after the receiver was started anew."""
    once = msgspec.msgpack.decode(payload_of(Cancel(job_id="j")), type=dict[str, Any])
    wall = Wall(once["signed_unix"])
    message = signed(payload_of(Cancel(job_id="j")))
    config = NodeConfig(state_dir=tmp_path)
    async with Store.open(tmp_path / "state.db") as store:
        orders: Orders[Command] = Orders(Command, config, FakeOverlay(), store, wall)  # type: ignore[arg-type]
        opened = orders.open(message)
        assert (opened.by, opened.command) == ("ada", Cancel(job_id="j"))
        assert await orders.take(opened)
        assert not await orders.take(opened), "a call that a closing connection swallowed is sent again"
        wall.now += REPEAT_S + 1
        with pytest.raises(Refused, match="each is good for one time"):
            await orders.take(opened)
        assert await orders.take(orders.open(signed(payload_of(Cancel(job_id="j"))))), "the same word given anew"
    async with Store.open(tmp_path / "state.db") as store:
        orders = Orders(Command, config, FakeOverlay(), store, wall)  # type: ignore[arg-type]
        with pytest.raises(Refused, match="each is good for one time"):
            await orders.take(orders.open(message))
        for wrong_by in (GOOD_FOR_S + 60, -GOOD_FOR_S - 60):
            wall.now = once["signed_unix"] + wrong_by
            with pytest.raises(Refused, match="by this node's clock"):
                await orders.take(orders.open(message))
        wall.now = once["signed_unix"] + KEPT_S + 3600
        fresh = msgspec.msgpack.encode(once | {"signed_unix": wall.now, "nonce": "n" * 32})
        assert await orders.take(orders.open(signed(fresh)))
        assert await store.read("SELECT nonce FROM commands") == [("n" * 32,)], "nonces are kept for two days"


@pytest.mark.asyncio
async def test_a_command_without_a_nonce_is_refused(tmp_path: Path) -> None:
    async with Store.open(tmp_path / "state.db") as store:
        orders: Orders[Command] = Orders(Command, NodeConfig(state_dir=tmp_path), FakeOverlay(), store)  # type: ignore[arg-type]
        with pytest.raises(Refused, match="no nonce"):
            await orders.take(orders.open(signed(msgspec.msgpack.encode(Cancel(job_id="j")))))
