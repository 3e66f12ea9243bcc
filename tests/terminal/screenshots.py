"""`python -m tests.terminal.screenshots [FOLDER]`: a picture of each screen, from the recording beside this file.

The same bytes each time: the recording stands still, and its time is the only one that is shown.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from textual.pilot import Pilot

from hypha_tui.client.replay import ReplayClient
from hypha_tui.keys.keymap import SCREENS
from hypha_tui.screens.app import HyphaApp
from hypha_tui.widgets.live_table import LiveTable

TAPE: Final = Path(__file__).with_name("demo.hyp")
FOLDER: Final = Path(__file__).parents[2] / "docs" / "screens"
ENVIRONMENT: Final = {"LANG": "C.UTF-8", "TERM": "xterm-256color"}
IN_TRAINING: Final = 84.0
AFTER_BOTH: Final = 1e9
"""Beyond the end: the last moment."""


@dataclass(frozen=True, slots=True)
class Shot:
    """A picture: its name, the keys that lead to it, the moment, the size."""

    name: str
    keys: tuple[str, ...]
    at: float = IN_TRAINING
    size: tuple[int, int] = (120, 40)


SHOTS: Final = (
    *(Shot(name, (str(number),)) for number, name in enumerate(SCREENS, 1)),
    Shot("inspector", ("3", "enter")),
    Shot("form", ("5", "a")),
    Shot("runs", ("6", "m", "R", "down", "space", "enter", "h", "h", "h"), AFTER_BOTH, (160, 48)),
)


class Still(HyphaApp):
    """It does not tell how fast this machine draws."""

    @property
    def hz(self) -> float:
        """The rate that is wanted."""
        return 4.0


@asynccontextmanager
async def replayed(at: float, size: tuple[int, int]) -> AsyncIterator[tuple[HyphaApp, Pilot[None]]]:
    """The terminal on the recording, which stands at a moment."""
    client = ReplayClient(TAPE, at=at, playing=False)
    app = Still(client, label="demo", environment=ENVIRONMENT)
    async with app.run_test(size=size) as pilot:
        await settled(app, pilot)
        yield app, pilot


async def settled(app: HyphaApp, pilot: Pilot[None]) -> None:
    """What the recording tells has arrived and is drawn."""
    for _ in range(200):
        await pilot.pause()
        app.draw_frame()
        if app.store.series and app.store.cluster is not None and not app.store.is_dirty:
            break
        await asyncio.sleep(0.01)
    app.main.sync(None)
    seen: list[str] = []
    while len(seen) < 3 or len({*seen[-3:]}) > 1 or not all(table.plan for table in app.main.view.query(LiveTable)):
        await pilot.pause()
        seen.append("\n".join(strip.text for strip in app.screen._compositor.render_strips()))


async def take(folder: Path) -> None:
    """All of them."""
    for shot in SHOTS:
        async with replayed(shot.at, shot.size) as (app, pilot):
            for key in shot.keys:
                await pilot.press(key)
                await pilot.pause()
            await settled(app, pilot)
            (folder / f"{shot.name}.svg").write_text(app.export_screenshot(title="hypha-tui"), encoding="utf-8")


def main() -> None:
    """Into the folder that is named, else where the docs have them."""
    os.environ["TZ"] = "UTC"
    time.tzset()
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    asyncio.run(take(folder))


if __name__ == "__main__":
    main()
