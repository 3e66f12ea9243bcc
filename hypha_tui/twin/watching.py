"""`--watch`: following a node's stream and printing what changed, until interrupted or the pipe is closed."""

from __future__ import annotations

import asyncio
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

from hypha_tui.client.api import Client
from hypha_tui.client.follow import follow
from hypha_tui.client.link import LinkState
from hypha_tui.store.cluster import Changes, ClusterStore
from hypha_tui.twin import output
from node.errors import PeerUnreachable, PeerUntrusted
from node.views import Delta, Frame, Point, Snapshot

POINTS_KEPT: Final = 20_000
LEAST_S: Final = 0.25
"""A node tells changes four times a second."""


@dataclass
class Watched:
    """The cluster as it is followed. `points`: values that came since the last print. `is_new`: a snapshot came, after
    which points may be missing."""

    store: ClusterStore = field(default_factory=ClusterStore)
    points: deque[Point] = field(default_factory=lambda: deque(maxlen=POINTS_KEPT))
    is_new: bool = False

    def apply(self, frame: Frame) -> bool:
        """Take in a frame; False asks for a snapshot."""
        self.store.apply(frame, time.monotonic())
        if isinstance(frame, Delta):
            self.points.extend(frame.points)
        self.is_new |= isinstance(frame, Snapshot)
        return not self.store.needs_resync


Show = Callable[[Watched, Changes], Awaitable[None]]


async def watch(client: Client, every_s: float, show: Show) -> int:
    """Call `show` with what changed, at most once in `every_s`. Ends only by an exception: a first try that fails, a
    refusal, a closed pipe, an interrupt. A link that breaks later is tried again, and that is said on stderr."""
    watched, changed = Watched(), asyncio.Event()
    told = ""
    ended: LinkState | None = None

    def say_broken(detail: str) -> None:
        nonlocal told
        if detail != told:
            told = detail
            output.note(f"hypha-tui: {detail}; trying again")

    def on_frame(frame: Frame) -> bool:
        is_whole = watched.apply(frame)
        changed.set()
        return is_whole

    def on_link(link: LinkState) -> None:
        nonlocal told, ended
        if link.state == "refused" or (link.state == "stale" and watched.store.last_frame_at is None):
            ended = link
            changed.set()
        elif link.state == "stale":
            say_broken(link.detail)
        elif link.state == "live":
            told = ""

    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(follow(client, on_frame, on_link))
            while True:
                await changed.wait()
                changed.clear()
                if ended is not None:
                    kind = PeerUntrusted if ended.state == "refused" else PeerUnreachable
                    raise kind(ended.detail, hint=ended.hint)
                try:
                    await show(watched, watched.store.take_changes())
                except PeerUnreachable as error:
                    say_broken(error.message)
                    watched.is_new = True  # what was to be asked is asked once more
                    changed.set()
                else:
                    watched.is_new = False
                    watched.points.clear()
                sys.stdout.flush()
                await asyncio.sleep(max(every_s, LEAST_S))
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None


async def repeat(every_s: float, step: Callable[[], Awaitable[None]]) -> int:
    """Do something again and again; for what no stream tells. As with `watch`, only a first try may fail."""
    has_begun = is_broken = False
    while True:
        try:
            await step()
        except PeerUnreachable as error:
            if not has_begun:
                raise
            if not is_broken:
                output.note(f"hypha-tui: {error.message}; trying again")
            is_broken = True
        else:
            has_begun, is_broken = True, False
        sys.stdout.flush()
        await asyncio.sleep(every_s)
