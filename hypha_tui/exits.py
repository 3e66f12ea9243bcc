"""How commands end: an exit code, and for every failure one line on stderr."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Final

from node.errors import HyphaError

INTERRUPTED: Final = 130
PIPE_CLOSED: Final = 141


def exit_code(work: Callable[[], int]) -> int:
    """What became of a command."""
    try:
        code = work()
        sys.stdout.flush()
    except HyphaError as error:
        words = " ".join(str(error).split())
        shown = "".join(one if one.isprintable() else "\ufffd" for one in words)  # a node may have had a part in it
        sys.stderr.write(f"hypha-tui: {shown}\n")
        return error.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    return code
