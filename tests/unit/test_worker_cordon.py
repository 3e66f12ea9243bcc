"""A worker that is cordoned or drained stays so over a restart, and asks each of its leases' schedulers to move."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from node.board import Board
from node.commanding import payload_of
from node.config import NodeConfig
from node.errors import PeerUnreachable, Refused
from node.store import Store
from node.views import Event
from node.wire import Ack, Drain, HandOver, Signed, SteerWorker, Uncordon, WorkerCommand
from node.wire import Cordon as CordonCommand
from node.worker.cordon import Cordon
from tests.unit.network_loopback import eventually
from tests.unit.scheduler.fake_cluster import FakeTrust, caller

pytestmark = pytest.mark.asyncio

PEER = "W1"


class Overlay:
    """What a cordon needs of one: schedulers that listen, or do not answer."""

    def __init__(self) -> None:
        self.peer_id = PEER
        self.identity = SimpleNamespace(trust=FakeTrust())
        self.marks: list[tuple[bool, bool]] = []
        self.asked: list[tuple[str, HandOver]] = []
        self.silent: set[str] = set()
        self.steer: Any = None

    def on(self, request: type, handler: Any, *, operator: bool = False) -> None:
        self.steer = handler

    def mark(self, *, cordoned: bool, draining: bool) -> None:
        self.marks.append((cordoned, draining))

    async def call(self, peer_id: str, request: HandOver, *, timeout_s: float = 5.0) -> Ack:
        if peer_id in self.silent:
            raise PeerUnreachable(f"{peer_id} does not answer")
        self.asked.append((peer_id, request))
        return Ack()


class Process:
    """One process of a worker: its cordon, and what it runs."""

    def __init__(self, tmp_path: Path, store: Store) -> None:
        self.overlay, self.board = Overlay(), Board(PEER)
        self.leases: list[Any] = []
        config = NodeConfig(name="w-1", state_dir=tmp_path)
        self.cordon = Cordon(config, self.overlay, self.board, store, lambda: self.leases)  # type: ignore[arg-type]

    async def tell(self, command: WorkerCommand, signer: str = "operator:ada") -> None:
        signed = Signed(payload=payload_of(command), signature=b"good", chain=[signer.encode()])
        await self.overlay.steer(caller("gateway"), SteerWorker(signed=signed))

    def hold(self, lease_id: str, job_id: str, scheduler: str) -> None:
        self.leases.append(SimpleNamespace(lease_id=lease_id, job_id=job_id, scheduler=scheduler))

    def events(self) -> list[str]:
        return [item.name for item in self.board.events() if isinstance(item, Event)]


@asynccontextmanager
async def process(tmp_path: Path) -> AsyncIterator[Process]:
    async with Store.open(tmp_path / "state.db") as store:
        one = Process(tmp_path, store)
        await one.cordon.load()
        async with asyncio.TaskGroup() as tasks:
            keeping = tasks.create_task(one.cordon.keep())
            try:
                yield one
            finally:
                keeping.cancel()


async def test_a_cordoned_worker_is_cordoned_after_a_restart_until_it_is_told_otherwise(tmp_path: Path) -> None:
    async with process(tmp_path) as one:
        assert one.cordon.state.reason == ""
        await one.tell(CordonCommand(peer_id=PEER))
        assert (one.cordon.state.reason, one.overlay.marks[-1]) == ("cordoned by ada", (True, False))
        for command, words in ((CordonCommand(peer_id="W2"), "for W2"), (Drain(peer_id=PEER), "not an operator")):
            with pytest.raises(Refused, match=words):
                await one.tell(command, "node:N9" if isinstance(command, Drain) else "operator:ada")
        assert one.events() == ["worker.cordoned"]
    async with process(tmp_path) as again:
        assert (again.cordon.state.reason, again.overlay.marks) == ("cordoned by ada", [(True, False)])
        await again.tell(Uncordon(peer_id=PEER))
    async with process(tmp_path) as last:
        assert (last.cordon.state.reason, last.overlay.marks) == ("", [(False, False)])


async def test_a_drained_worker_asks_the_schedulers_of_two_jobs_and_goes_on_after_a_restart(tmp_path: Path) -> None:
    async with process(tmp_path) as one:
        one.hold("l1", "a", "S1")
        one.hold("l2", "b", "S2")
        one.overlay.silent.add("S2")
        await one.tell(Drain(peer_id=PEER))
        await eventually(lambda: len(one.overlay.asked) == 1)
        peer, wish = one.overlay.asked[0]
        assert (peer, wish.job_id, wish.lease_id, wish.reason) == ("S1", "a", "l1", "w-1 is drained by ada")
        one.leases.pop(0)
        one.overlay.silent.clear()
        one.cordon.leases_changed()
        await eventually(lambda: len(one.overlay.asked) == 2)
        assert one.overlay.asked[1][0] == "S2", "a scheduler that did not answer is asked again"
        assert one.overlay.marks[-1] == (True, True)
    async with process(tmp_path) as again:
        await eventually(lambda: "worker.drained" in again.events())
        assert again.overlay.marks == [(True, True), (True, False)], "what it ran is gone with the process"
        assert again.cordon.state.reason == "cordoned by ada"
