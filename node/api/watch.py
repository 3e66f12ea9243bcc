"""Observes the whole cluster while somebody looks at it through this node, and for 30 s after."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable, Iterator

import aiohttp
import msgspec

from node.api.observe import PATH, read_frame
from node.api.view import Cluster, Feed
from node.board import Board
from node.errors import HyphaError, PeerProtocol, PeerUnreachable
from node.network.overlay import Overlay
from node.views import Frame
from node.wire import UNDECODABLE, ObserveHeader

log = logging.getLogger(__name__)

LINGER_S = 30.0
TICK_S = 1.0
PACE_S = 0.25
OPEN_WITHIN_S = 5.0
STALL_S = 25.0
DIALS_AT_ONCE = 32
RETRY_FIRST_S = 0.25
RETRY_MOST_S = 8.0
FAILURES = (HyphaError, aiohttp.ClientError, OSError, TimeoutError, EOFError, *UNDECODABLE)
_decoder = msgspec.msgpack.Decoder(Frame)


class Watch:
    """The merged view of the cluster, kept up to date on demand."""

    def __init__(self, overlay: Overlay, board: Board, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._overlay = overlay
        self._board = board
        self._clock = clock
        self.cluster = Cluster(overlay.peer_id)
        self._feeds = 0
        self._wanted_until = 0.0
        self._wanted = asyncio.Event()
        self._members_changed = asyncio.Event()
        self._filled = asyncio.Event()
        self._dialling = asyncio.Semaphore(DIALS_AT_ONCE)
        overlay.watch_peers(self._members_changed.set)

    async def run(self) -> None:
        """Wait until somebody looks, observe until nobody does, again and again, until cancelled."""
        while True:
            await self._wanted.wait()
            async with asyncio.TaskGroup() as tasks:
                await self._session(tasks)

    @contextlib.contextmanager
    def feed(self, on_change: Callable[[], None]) -> Iterator[Feed]:
        """The cluster's changes for one client, for the length of the block."""
        cluster = self.cluster
        feed = cluster.open_feed(on_change)
        self._feeds += 1
        self._look()
        try:
            yield feed
        finally:
            self._feeds -= 1
            self._look()
            cluster.close_feed(feed)

    async def fill(self, within_s: float) -> Cluster:
        """The view, once every peer that can be reached has shown its board, or after `within_s` at the latest."""
        self._look()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while not self._is_filled():
                    self._filled.clear()
                    await self._filled.wait()
        return self.cluster

    def now(self) -> float:
        """The clock that the view's times are on."""
        return self._clock()

    def _look(self) -> None:
        self._wanted_until = self._clock() + LINGER_S
        self._wanted.set()

    def _is_filled(self) -> bool:
        peers = self._overlay.peers()
        return all(self.cluster.heard_of(peer.record.peer_id) for peer in peers if peer.reachable)

    async def _session(self, tasks: asyncio.TaskGroup) -> None:
        own_id, cluster = self._overlay.peer_id, self.cluster
        following = {own_id: tasks.create_task(self._follow_own(cluster), name="watch:self")}
        while self._feeds or self._clock() < self._wanted_until:
            peers = self._overlay.peers()
            cluster.membership(peers, self._clock())
            cluster.tick(self._clock())
            leaving = {peer.record.peer_id for peer in peers if peer.record.leaving} - {own_id}
            present = {peer.record.peer_id for peer in peers} - leaving | {own_id}
            for peer_id in following.keys() - present:
                following.pop(peer_id).cancel()
                if peer_id in leaving:
                    cluster.lost(peer_id, "it has left", self._clock(), is_unreachable=True)
            for peer_id in present - following.keys():
                following[peer_id] = tasks.create_task(self._follow(cluster, peer_id), name=f"watch:{peer_id}")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TICK_S):
                    await self._members_changed.wait()
            self._members_changed.clear()
        # In one step, so that whoever looks from now on gets a new session with a new view.
        self._wanted.clear()
        self.cluster = Cluster(own_id)
        for task in following.values():
            task.cancel()

    async def _follow_own(self, cluster: Cluster) -> None:
        changed = asyncio.Event()
        observer = self._board.observe()
        observer.wake(changed.set)
        try:
            frame: Frame | None = observer.snapshot()
            while True:
                if frame is not None:
                    self._apply(cluster, self._overlay.peer_id, frame)
                await changed.wait()
                await asyncio.sleep(PACE_S)
                changed.clear()
                frame = observer.take()
        finally:
            observer.close()

    async def _follow(self, cluster: Cluster, peer_id: str) -> None:
        """Observe one peer; when that ends, for whatever reason, again after a pause."""
        pause_s = RETRY_FIRST_S
        while True:
            began = self._clock()
            try:
                await self._observe(cluster, peer_id)
            except FAILURES as error:
                reason = _reason(error)
                log.debug("watch.lost peer=%s reason=%s", peer_id, reason)
                # A stream that broke says little; a connection that cannot be made anew does.
                is_unreachable = isinstance(error, PeerUnreachable) and not cluster.is_live(peer_id)
                cluster.lost(peer_id, reason, self._clock(), is_unreachable=is_unreachable)
                self._filled.set()
            if self._clock() - began > RETRY_MOST_S:
                pause_s = RETRY_FIRST_S
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))
            pause_s = min(2 * pause_s, RETRY_MOST_S)

    async def _observe(self, cluster: Cluster, peer_id: str) -> None:
        async with contextlib.AsyncExitStack() as stack:
            async with self._dialling, asyncio.timeout(OPEN_WITHIN_S):
                opening = self._overlay.open(peer_id, "GET", PATH, stall_s=STALL_S)
                answer = await stack.enter_async_context(opening)
                header = msgspec.msgpack.decode(await read_frame(answer.content), type=ObserveHeader)
            if header.peer_id != peer_id:
                raise PeerProtocol(f"{peer_id} sent the board of {header.peer_id}")
            stack.callback(answer.close)
            while True:
                frame = _decoder.decode(await read_frame(answer.content))
                if not self._apply(cluster, peer_id, frame):
                    raise PeerProtocol(f"{peer_id} left out a frame")

    def _apply(self, cluster: Cluster, peer_id: str, frame: Frame) -> bool:
        is_whole = cluster.apply(peer_id, frame, self._clock())
        self._filled.set()
        return is_whole


def _reason(error: Exception) -> str:
    if isinstance(error, EOFError):
        return "the connection broke"
    return error.message if isinstance(error, HyphaError) else str(error) or type(error).__name__
