"""Runs the terminal on a made-up cluster with a clock that only tests move, and reads what it shows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from hypha_tui.client.api import Client
from hypha_tui.client.endpoint import Endpoint
from hypha_tui.client.link import Backoff
from hypha_tui.screens.app import HyphaApp
from hypha_tui.settings.config import Settings
from hypha_tui.settings.contexts import Contexts
from tests.terminal.feed import FakeClient, fake_client
from tests.terminal.pilots import SurePilot

UTF8 = {"LANG": "C.UTF-8", "TERM": "xterm-256color"}
SIZES = ((80, 24), (120, 40), (200, 60))


class Clock:
    """Monotonic seconds, by hand."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


class NoWait(Backoff):
    """Tries again soon; not at once, or a dead link leaves no time for anything else."""

    def next_wait_s(self) -> float:
        super().next_wait_s()
        return 0.02


@dataclass
class Terminal:
    """A terminal under test."""

    app: HyphaApp
    client: FakeClient
    pilot: SurePilot
    clock: Clock

    async def settle(self) -> None:
        """Let what was sent arrive, and draw it."""
        for _ in range(2):
            await self.pilot.pause()
            self.app.draw_frame()
        await self.pilot.pause()

    async def press(self, *keys: str) -> None:
        """Keys, and what they lead to."""
        await self.pilot.press(*keys)
        await self.settle()

    async def until(self, done: Callable[[], bool], within_s: float = 5.0) -> None:
        """Until it is so, in real time."""
        async with asyncio.timeout(within_s):
            while not done():
                await asyncio.sleep(0.005)
                await self.settle()

    async def later(self, seconds: float) -> None:
        """Time goes by."""
        self.clock.now += seconds
        self.app._tick()
        await self.settle()

    @property
    def lines(self) -> list[str]:
        """What is on the screen."""
        return [strip.text for strip in self.app.screen._compositor.render_strips()]

    @property
    def text(self) -> str:
        """What is on the screen, in one string."""
        return "\n".join(self.lines)


@asynccontextmanager
async def terminal(
    workers: int = 4,
    *,
    size: tuple[int, int] = (120, 40),
    client: FakeClient | None = None,
    environment: dict[str, str] | None = None,
    theme: str = "",
    ascii_only: bool = False,
    settings: Settings | None = None,
    contexts: Contexts | None = None,
    open_client: Callable[[Endpoint, bool], Client] | None = None,
) -> AsyncIterator[Terminal]:
    """A terminal that shows a cluster with so many workers."""
    client = client or fake_client(workers)
    clock = Clock()
    app = HyphaApp(
        client,
        label="test node",
        theme=theme,
        ascii_only=ascii_only,
        environment=UTF8 if environment is None else environment,
        clock=clock,
        wall=lambda: 1_700_000_000.0 + clock.now,
        backoff=NoWait(),
        settings=settings,
        contexts=contexts,
        open_client=open_client,
    )
    async with app.run_test(size=size):
        found = Terminal(app, client, SurePilot(app), clock)
        await found.settle()
        yield found
