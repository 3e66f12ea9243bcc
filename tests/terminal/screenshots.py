"""`python -m tests.terminal.screenshots FOLDER`: SVG pictures of the terminal on the made-up cluster."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from hypha_tui.keymap import SCREENS
from tests.terminal.harness import terminal


async def take(folder: Path, size: tuple[int, int] = (120, 40), theme: str = "hypha-dark", workers: int = 12) -> None:
    """One picture of each screen."""
    async with terminal(workers, size=size, theme=theme) as shown:
        for number, name in enumerate(SCREENS, 1):
            await shown.press(str(number))
            (folder / f"{name}.svg").write_text(shown.app.export_screenshot(title="hypha-tui"))


def main() -> None:
    """Into the folder that is named."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    width, height = (int(part) for part in (sys.argv[2] if len(sys.argv) > 2 else "120x40").split("x"))
    asyncio.run(take(folder, (width, height), sys.argv[3] if len(sys.argv) > 3 else "hypha-dark"))


if __name__ == "__main__":
    main()
