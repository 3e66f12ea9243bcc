"""Ending well: on signals, and when something inside breaks. The terminal is always given back as it was."""

from __future__ import annotations

import asyncio
import os
import signal
import traceback
from collections.abc import Callable, Mapping
from typing import Final

from hypha_tui.settings.folders import state_folder, write_private
from node.version import __version__

HUNG_UP: Final = 128 + signal.SIGHUP
CRASH_FILE: Final = "crash.log"
PATIENCE_S: Final = 5
"""After a signal, this long for an orderly end; then the kernel ends the process. A terminal that is gone cannot be
written to, and waiting for it would leave the process behind."""


def on_signals(end: Callable[[int], None]) -> None:
    """Call `end` with the exit code on SIGHUP and SIGTERM. To be called on the event loop."""

    def ended(signal_: int) -> None:
        signal.alarm(PATIENCE_S)
        end(128 + signal_)

    for one in (signal.SIGHUP, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(one, ended, one)


def let_go() -> None:
    """Nobody is there to write to any more: what is left unwritten must not fail the end of the process."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)


def crash_line(error: BaseException, environment: Mapping[str, str]) -> str:
    """Write what happened to a file in the state folder; one line that says so. Values of variables are not written:
    they may be secret."""
    what = f"{type(error).__name__}: {error}".split("\n", 1)[0]
    folder = state_folder(environment)
    line = f"the terminal broke: {what}"
    if folder is None:
        return line
    file = folder / CRASH_FILE
    head = f"hypha-tui {__version__}, TERM={environment.get('TERM', '')}, pid {os.getpid()}"
    try:
        write_private(file, "\n".join([head, "", *traceback.format_exception(error)]))
    except OSError:
        return line
    return f"{line}; the details are in {file}"
