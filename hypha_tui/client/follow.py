"""Keeping a stream of frames alive: reconnecting with back-off, and stopping where trying again cannot help."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from typing import Protocol, cast

from hypha_tui.client.link import Backoff, LinkState
from node.errors import ConfigError, HyphaError, PeerUntrusted
from node.views import Frame


class FrameSource(Protocol):
    """Anything that gives frames until it breaks."""

    def frames(self) -> AsyncIterator[Frame]:
        """A snapshot, then deltas."""
        ...


async def follow(
    source: FrameSource,
    on_frame: Callable[[Frame], bool],
    on_link: Callable[[LinkState], None],
    *,
    backoff: Backoff | None = None,
) -> None:
    """Hand on frames until cancelled or refused. `on_frame` returns False to ask for a fresh snapshot (a gap)."""
    waits = backoff or Backoff()
    on_link(LinkState("connecting"))
    while True:
        try:
            await _stream(source, on_frame, on_link, waits)
            continue
        except (PeerUntrusted, ConfigError) as error:
            on_link(LinkState("refused", error.message, error.hint))
            return
        except HyphaError as error:
            wait_s = waits.next_wait_s()
            on_link(LinkState("stale", error.message, error.hint, waits.attempt, wait_s))
        await asyncio.sleep(wait_s)


async def _stream(
    source: FrameSource, on_frame: Callable[[Frame], bool], on_link: Callable[[LinkState], None], waits: Backoff
) -> None:
    """One connection; returns when `on_frame` wants a new snapshot."""
    async with aclosing(cast("AsyncGenerator[Frame, None]", source.frames())) as frames:
        async for frame in frames:
            waits.reset()
            on_link(LinkState("live"))
            if not on_frame(frame):
                return
