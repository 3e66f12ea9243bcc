"""Work beside the message loop that a widget, a screen or the app owns: it ends with its owner."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from textual.dom import DOMNode


def start(
    owner: DOMNode, work: Callable[[], Awaitable[None]], group: str, *, exclusive: bool = True, fatal: bool = False
) -> None:
    """Run it. A function, not a coroutine: cancelled before it begins, it leaves nothing that was never awaited.

    `exclusive`: in the place of what runs in this group of the owner. `fatal`: what it raises ends the program.
    """
    made: Any = work  # mypy finds no one reading of Textual's type for it
    owner.run_worker(made, group=group, exclusive=exclusive, exit_on_error=fatal)
