"""Whether this worker offers anything: cordoned it does not; drained it hands over what it runs as well.

Both outlive the process. Operators say so, and who is on this machine, over the node's own socket.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

from node.commanding import Orders
from node.errors import PeerError, Refused
from node.wire import Ack, Drain, HandOver, SteerWorker, Uncordon, WorkerCommand
from node.worker.leases import Lease

if TYPE_CHECKING:
    from node.board import Board
    from node.config import NodeConfig
    from node.identity.caller import Caller
    from node.network.overlay import Overlay
    from node.store import Store

log = logging.getLogger(__name__)

ASK_EVERY_S = 5.0
CALL_S = 3.0
_KEY = "cordon"


class CordonState(msgspec.Struct, frozen=True):
    """What is written down. `by` asked for it."""

    cordoned: bool = False
    draining: bool = False
    by: str = ""

    @property
    def reason(self) -> str:
        """Why advertisements are declined; empty where they are not."""
        return f"cordoned by {self.by}" if self.cordoned else ""


class Cordon:
    """Takes the commands, and has schedulers move what runs here. `leases`: those that are live now."""

    def __init__(
        self,
        config: NodeConfig,
        overlay: Overlay,
        board: Board,
        store: Store,
        leases: Callable[[], Sequence[Lease]],
    ) -> None:
        self.state = CordonState()
        self._config = config
        self._overlay = overlay
        self._board = board
        self._store = store
        self._leases = leases
        self._orders: Orders[WorkerCommand] = Orders(WorkerCommand, config, overlay, store)
        self._changed = asyncio.Event()
        overlay.on(SteerWorker, self._steer, operator=True)

    async def load(self) -> None:
        """Be as an earlier process was told to be."""
        rows = await self._store.read("SELECT value FROM meta WHERE key = ?", (_KEY,))
        if rows:
            self.state = msgspec.json.decode(rows[0][0], type=CordonState)
        self._show()

    async def keep(self) -> None:
        """While it is drained, ask the schedulers to move what runs here, until nothing does. Until cancelled."""
        while True:
            self._changed.clear()
            leases = list(self._leases())
            if not self.state.draining:
                await self._changed.wait()
                continue
            if not leases:
                by = self.state.by
                await self._become(CordonState(cordoned=True, by=by))
                text = f"drained for {by}: nothing runs here, and nothing is offered"
                self._board.happened("worker.drained", text)
                log.info("worker.drained by=%s", by)
                continue
            async with asyncio.TaskGroup() as tasks:
                for lease in leases:
                    tasks.create_task(self._ask(lease))
            try:
                async with asyncio.timeout(ASK_EVERY_S):
                    await self._changed.wait()
            except TimeoutError:
                pass

    def leases_changed(self) -> None:
        """A lease came or went: what is drained may be empty now."""
        if self.state.draining:
            self._changed.set()

    async def _ask(self, lease: Lease) -> None:
        reason = f"{self._config.name or 'its worker'} is drained by {self.state.by}"
        request = HandOver(lease_id=lease.lease_id, job_id=lease.job_id, reason=reason)
        try:
            await self._overlay.call(lease.scheduler, request, timeout_s=CALL_S)
        except PeerError as error:
            log.info("handover.not_asked lease=%s reason=%s", lease.lease_id, error)

    async def _steer(self, caller: Caller, request: SteerWorker) -> Ack:
        opened = self._orders.open(request.signed)
        by, command = opened.by, opened.command
        if command.peer_id != self._overlay.peer_id:
            raise Refused("denied", f"the command is for {command.peer_id[:80]}")
        if not await self._orders.take(opened):
            return Ack()
        before = self.state
        if isinstance(command, Uncordon):
            wanted, name, text = CordonState(), "worker.uncordoned", f"offers again, by {by}"
        elif isinstance(command, Drain):
            wanted = CordonState(cordoned=True, draining=True, by=by)
            name, text = "worker.draining", f"drained by {by}: its tasks move at their next commits"
        else:
            wanted = CordonState(cordoned=True, draining=before.draining, by=by)
            name, text = "worker.cordoned", f"offers nothing any more, by {by}"
        if (wanted.cordoned, wanted.draining) != (before.cordoned, before.draining):
            await self._become(wanted)
            self._board.happened(name, text)
            log.info("%s by=%s", name, by)
        return Ack()

    async def _become(self, state: CordonState) -> None:
        value = msgspec.json.encode(state).decode()
        await self._store.write(
            lambda db: db.execute("INSERT OR REPLACE INTO meta (key, value) VALUES (?, ?)", (_KEY, value)).close()
        )
        self.state = state
        self._show()
        self._changed.set()

    def _show(self) -> None:
        self._overlay.mark(cordoned=self.state.cordoned, draining=self.state.draining)
