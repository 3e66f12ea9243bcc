"""`python -m tests.terminal.goldens --write`: what every screen shows, as text files that a reviewer can read.

Every screen at three sizes; one screen in every theme with its styles; ASCII; and without colour.
"""

from __future__ import annotations

import asyncio
import math
import os
import sys
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from unittest.mock import patch

import textual._wait
from rich.segment import Segment
from rich.style import Style

from hypha_tui.keys.keymap import SCREENS
from hypha_tui.process import pace
from hypha_tui.themes import Themes
from tests.terminal.harness import SIZES, UTF8, Terminal, terminal

FOLDER: Final = Path(__file__).parent / "goldens"
WORKERS: Final = 12
LAYERS: Final = (("inspector", "3", "enter"), ("form", "5", "a"), ("help", "3", "question_mark"))
STYLED_SIZE: Final = (80, 24)
LETTERS: Final = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"

Golden = tuple[str, str]
"""The name of a file, and what is in it."""


async def of_size(size: tuple[int, int]) -> AsyncIterator[Golden]:
    """Every screen and what opens over them, in one app."""
    async with terminal(WORKERS, size=size) as shown:
        for number, name in enumerate(SCREENS, 1):
            await shown.pilot.press(str(number))
            shown.app.keystrokes.forget()  # the clock stands still: digits would become a number
            yield _name(name, size), await _plain(shown)
        for name, *keys in LAYERS:
            for key in keys:
                await shown.pilot.press(key)
            yield _name(name, size), await _plain(shown)
            await shown.pilot.press("escape")


async def of_themes() -> AsyncIterator[Golden]:
    """One screen in every theme; a letter under each cell tells its style, and a legend what the letters are."""
    for theme in Themes().names:
        async with terminal(WORKERS, size=STYLED_SIZE, theme=theme) as shown:
            await shown.pilot.press("3", "j")
            yield f"theme-{theme}.txt", await _styled(shown)


async def of_plain_terminals() -> AsyncIterator[Golden]:
    """ASCII, and without colour."""
    async with terminal(WORKERS, size=STYLED_SIZE, environment={"LC_ALL": "C", "TERM": "xterm-256color"}) as shown:
        for number, name in ((1, "overview"), (3, "leases"), (6, "curves")):
            await shown.pilot.press(str(number))
            shown.app.keystrokes.forget()
            yield f"ascii-{name}.txt", await _plain(shown)
    async with terminal(WORKERS, size=STYLED_SIZE, environment={**UTF8, "NO_COLOR": "1"}) as shown:
        await shown.pilot.press("3", "j")
        yield "no-colour.txt", await _styled(shown)


@contextmanager
def steady() -> Iterator[None]:
    """The same wherever and however fast this runs: Greenwich's time of day, and a rate that no slow frame lowers.

    The pilot's waits are made short, since `_plain` and `_styled` wait until nothing changes.
    """
    before = os.environ.get("TZ")
    os.environ["TZ"] = "UTC"
    time.tzset()
    try:
        with (
            patch.object(pace, "SLOW_S", math.inf),
            patch.object(textual._wait, "SLEEP_GRANULARITY", 0.004),
            patch.object(textual._wait, "SLEEP_IDLE", 0.0002),
        ):
            yield
    finally:
        if before is None:
            del os.environ["TZ"]
        else:
            os.environ["TZ"] = before
        time.tzset()


async def _at_rest(shown: Terminal) -> None:
    """Wait until the screen is the same three times in a row."""
    seen: list[list[str]] = []
    while len(seen) < 3 or seen[-1] != seen[-2] or seen[-2] != seen[-3]:
        await shown.pilot.pause()
        shown.app.draw_frame()
        seen.append(shown.lines)


def _name(screen: str, size: tuple[int, int]) -> str:
    return f"{screen}-{size[0]}x{size[1]}.txt"


async def _plain(shown: Terminal) -> str:
    await _at_rest(shown)
    return "\n".join(line.rstrip() for line in shown.lines) + "\n"


async def _styled(shown: Terminal) -> str:
    await _at_rest(shown)
    legend: dict[str, str] = {}
    drawn: list[str] = []
    filters = [one for one in shown.app._filters if one.enabled]
    for strip in shown.app.screen._compositor.render_strips():
        for one in filters:
            strip = strip.apply_filter(one, shown.app.screen.background_colors[1])
        letters = "".join(
            legend.setdefault(_described(segment.style), LETTERS[len(legend)]) * segment.cell_length
            for segment in Segment.simplify(strip)
        )
        drawn += [strip.text.rstrip(), letters.rstrip()]
    return "\n".join([*drawn, "", *(f"{letter} = {style}" for style, letter in legend.items())]) + "\n"


def _described(style: Style | None) -> str:
    if style is None:
        return "plain"
    words = [word for word in ("bold", "dim", "italic", "underline", "reverse", "strike") if getattr(style, word)]
    colour = style.color.name if style.color is not None else "default"
    behind = style.bgcolor.name if style.bgcolor is not None else "default"
    return " ".join([*words, f"{colour} on {behind}"])


async def everything() -> dict[str, str]:
    """All of them."""
    parts = [*(of_size(size) for size in SIZES), of_themes(), of_plain_terminals()]
    return {name: text for part in parts async for name, text in part}


def kept(names: Iterable[str] | None = None) -> dict[str, str]:
    """What is in the files."""
    files = FOLDER.glob("*.txt") if names is None else [FOLDER / name for name in names]
    return {file.name: file.read_text(encoding="utf-8") for file in files if file.is_file()}


def main() -> int:
    """Write them anew, or tell which differ."""
    with steady():
        found = asyncio.run(everything())
    before = kept()
    differing = sorted(name for name in found.keys() | before.keys() if found.get(name) != before.get(name))
    if "--write" in sys.argv[1:]:
        FOLDER.mkdir(exist_ok=True)
        for name in differing:
            if name in found:
                (FOLDER / name).write_text(found[name], encoding="utf-8")
            else:
                (FOLDER / name).unlink()
    sys.stdout.write("".join(f"{name}\n" for name in differing))
    return 0 if "--write" in sys.argv[1:] or not differing else 1


if __name__ == "__main__":
    sys.exit(main())
