"""The entry point of `hypha-tui`. Without words it opens the terminal and reads no command line, which takes time."""

from __future__ import annotations

import sys

from hypha_tui.exits import exit_code


def main() -> None:
    """Run a command line."""
    words = sys.argv[1:]
    if words == ["--version"]:
        from node.version import __version__

        sys.stdout.write(f"{__version__}\n")
        return
    if words:
        from hypha_tui.cli import run

        sys.exit(run(words))
    sys.exit(exit_code(_open))


def _open() -> int:
    import gc

    gc.disable()  # until the first frame nothing is garbage: the app turns it on again
    from hypha_tui.client.endpoint import Connection
    from hypha_tui.process.opening import open_terminal
    from hypha_tui.settings.config import Given

    return open_terminal(Given(), Connection(), None, None)


if __name__ == "__main__":
    main()
