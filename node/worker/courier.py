"""A training task's traffic with its group's parameter server: updates out, versions in.

The server may be replaced at any moment. Then what was under way is done again with the new one: an update is kept,
where the executor cannot reach it, until it is known what became of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from node.errors import DiskFull, HyphaError, PeerError, PeerProtocol, Refused
from node.network import bulk
from node.wire import UNDECODABLE, AnnounceUpdate, TrainTask, UpdateTaken
from node.worker.beneath import take
from node.worker.bridge_state import Destination, TaskProgress
from node.worker.context import TaskContext
from node.worker.dialect import names_in
from node.worker.digest import sha256_of
from node.worker.inbound import Inbound, Incoming
from node.worker.references import BridgeError
from node.worker.retrying import new_backoff
from node.worker.rows import count
from node.worker.transfers import Transfers
from node.worker.uplink import Uplink

if TYPE_CHECKING:
    from node.network.overlay import Overlay

log = logging.getLogger(__name__)

UPLOAD_STALL_S = 120.0
ANNOUNCE_S = 20.0
BROKEN_ALLOWED = 8
"""So often in a row a parameter server may answer with a fault of its own before the task is given up."""
TOLD_S = 10.0
"""So long an executor may go on after it was told that its update cannot be used."""


class Moved(Exception):
    """The group has another parameter server, or none."""


@dataclass(slots=True)
class Outgoing:
    """An update, from the executor's hands until it is known what became of it."""

    round: int
    path: Path
    size_bytes: int = 0
    sha256: str = ""
    attempt: int = 0
    problem: BridgeError | None = None
    is_told: asyncio.Event = field(default_factory=asyncio.Event)
    names: frozenset[str] = frozenset()


class Courier:
    """Carries one task's updates and versions. `announce` hands a version over, `fail` ends the task."""

    def __init__(
        self,
        context: TaskContext,
        task: TrainTask,
        overlay: Overlay,
        transfers: Transfers,
        progress: TaskProgress,
        announce: Callable[[Incoming], Awaitable[None]],
        fail: Callable[[str], None],
    ) -> None:
        self._context = context
        self._sync = task.sync
        self._overlay = overlay
        self._transfers = transfers
        self._progress = progress
        self._announce = announce
        self._fail = fail
        self._inbound = Inbound(context, task.sync, overlay, transfers, progress)
        self._uplink = Uplink()
        self._outgoing: Outgoing | None = None
        self._has_outgoing = asyncio.Event()
        self._lock = asyncio.Lock()
        self._has_moved = asyncio.Event()
        self._scopes: set[asyncio.Timeout] = set()
        self._servers = {task.parameter_server} - {""}

    def knows(self, peers: Sequence[str]) -> bool:
        """Whether these are peers of the job, or nobody in particular: its parameter server, or one it had."""
        return self._servers.issuperset(peers)

    def codec(self) -> str | None:
        """The codec for the update that is due, where that is ours to choose."""
        if self._sync.codec != "auto":
            return None
        values = self._inbound.model_bytes / 4 / self._sync.fragments
        return self._uplink.codec(values, self._progress.round_s, self._sync.density)

    def moved(self) -> None:
        """The parameter server is another one now: what is under way with the old one ends."""
        if self._progress.destination.server:
            self._servers.add(self._progress.destination.server)
        changed, self._has_moved = self._has_moved, asyncio.Event()
        changed.set()
        while self._scopes:
            self._scopes.pop().reschedule(0)

    async def send(self, path: Path) -> None:
        """Take the round's update over; returns once a parameter server has it. Raises `BridgeError`."""
        async with self._lock:
            exchange = self._progress.exchange
            if exchange is None or exchange.arriving is not None:
                raise BridgeError(409, "conflict", f"nothing to send while {self._progress.phase.value}")
            outgoing = self._outgoing
            if outgoing is None or outgoing.round != exchange.round:
                # A name of our own, so that it stays whatever the executor does.
                taken = await asyncio.to_thread(take, path, self._context.work_dir)
                has_own_names = not self._progress.loads_weights
                names = await asyncio.to_thread(names_in, taken) if has_own_names else frozenset()
                outgoing = self._outgoing = Outgoing(exchange.round, taken, names=names)
                self._has_outgoing.set()
        await outgoing.is_told.wait()
        if outgoing.problem is not None:
            raise outgoing.problem

    @property
    def names(self) -> frozenset[str]:
        """What tensors are called in the last update of an executor that may have names of its own."""
        return frozenset() if self._outgoing is None else self._outgoing.names

    async def run(self) -> None:
        """Carry update after update, and bring the version that answers each."""
        while True:
            await self._has_outgoing.wait()
            self._has_outgoing.clear()
            outgoing = self._outgoing
            assert outgoing is not None
            try:
                await self._carry(outgoing)
                await asyncio.to_thread(outgoing.path.unlink, missing_ok=True)
            except BridgeError as error:
                if not outgoing.is_told.is_set():
                    outgoing.problem = error
                    outgoing.is_told.set()
                    await asyncio.sleep(TOLD_S)
                self._fail(f"round {outgoing.round}: {error}")
            except (HyphaError, OSError) as error:
                self._fail(f"no new weights after round {outgoing.round}: {error}")

    async def weights(self) -> Incoming:
        """The newest version, whole."""
        while True:
            destination = await self._server()
            with contextlib.suppress(Moved):
                async with self._until_moved():
                    return await self._inbound.newest(destination)

    async def _carry(self, outgoing: Outgoing) -> None:
        outgoing.size_bytes, outgoing.sha256 = await asyncio.to_thread(sha256_of, outgoing.path)
        while True:
            destination = await self._server()
            with contextlib.suppress(Moved):
                async with self._until_moved():
                    await self._deliver(outgoing, destination)
                    incoming = await self._inbound.answer_to(outgoing.round, destination)
                await self._announce(incoming)
                return
            log.info("server.moved task=%s round=%s", self._context.task_id, outgoing.round)

    async def _deliver(self, outgoing: Outgoing, destination: Destination) -> None:
        """Until the server has the update, or has refused it because its round is over."""
        backoff = new_backoff()
        broken = 0
        while True:
            try:
                taken = await self._upload(outgoing, destination)
                self._progress.rows.taken(outgoing.round, taken.round)
                break
            except Refused as error:
                if error.code == "stale":
                    log.warning("update.late task=%s round=%s", self._context.task_id, outgoing.round)
                    self._progress.rows.late(outgoing.round)
                    break
                if error.code not in ("busy", "full", "unknown"):
                    status = {"denied": 403, "conflict": 409}.get(error.code, 422)
                    raise BridgeError(status, error.code, f"the update was refused: {error}") from error
            except DiskFull as error:
                raise BridgeError(507, "full", error.message) from error
            except (PeerError, TimeoutError, OSError) as error:
                broken = broken + 1 if isinstance(error, PeerProtocol) else 0
                log.warning("update.not_sent task=%s round=%s reason=%s", self._context.task_id, outgoing.round, error)
                if broken > BROKEN_ALLOWED:
                    raise BridgeError(502, "failed", f"the parameter server takes no update: {error}") from error
            # The lease bounds how long a parameter server is waited for.
            await asyncio.sleep(backoff.failed())
        self._progress.sent()
        outgoing.is_told.set()

    async def _upload(self, outgoing: Outgoing, destination: Destination) -> UpdateTaken:
        header = self._header(outgoing, destination)
        outgoing.attempt += 1
        announced = await self._overlay.call(destination.server, header, timeout_s=ANNOUNCE_S)
        if announced.round is not None:
            return UpdateTaken(round=announced.round)
        began = time.monotonic()
        with self._transfers.show(
            "update",
            f"round {header.round}",
            header.job_id,
            self._context.peer_id,
            destination.server,
            header.size_bytes,
        ) as transfer:
            answer = await bulk.upload(
                self._overlay,
                destination.server,
                f"/bulk/jobs/{header.job_id}/updates/{header.task_id}/{header.sha256}",
                outgoing.path,
                on_progress=transfer.progress,
                stall_s=UPLOAD_STALL_S,
            )
        self._uplink.sent(header.size_bytes, time.monotonic() - began)
        try:
            return msgspec.json.decode(answer, type=UpdateTaken)
        except UNDECODABLE as error:
            raise PeerProtocol(f"{destination.server} answered an update unreadably: {error}") from error

    def _header(self, outgoing: Outgoing, destination: Destination) -> AnnounceUpdate:
        spans = self._progress.rows.outstanding[outgoing.round].spans
        return AnnounceUpdate(
            job_id=self._context.job_id,
            epoch=destination.epoch,
            task_id=self._context.task_id,
            round=outgoing.round,
            samples=count(spans),
            sha256=outgoing.sha256,
            size_bytes=outgoing.size_bytes,
            attempt=outgoing.attempt,
            spans=spans,
        )

    # ---- which server -----------------------------------------------------------------------------

    async def _server(self) -> Destination:
        while not self._progress.destination.server:
            await self._has_moved.wait()
        return self._progress.destination

    @contextlib.asynccontextmanager
    async def _until_moved(self) -> AsyncIterator[None]:
        """Raises `Moved` in the block when the parameter server becomes another one."""
        scope = asyncio.timeout(None)
        try:
            async with scope:
                self._scopes.add(scope)
                yield
        except TimeoutError:
            if not scope.expired():
                raise
            raise Moved from None
        finally:
            self._scopes.discard(scope)
