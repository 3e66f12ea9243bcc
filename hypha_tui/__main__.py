"""The entry point of `hypha-tui`. The terminal opens without the reading of a whole command line, which takes time."""

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
    if words and not words[0].startswith("--"):
        sys.exit(_run(words))
    sys.exit(exit_code(lambda: _open(words)))


def _open(words: list[str]) -> int:
    import gc

    gc.disable()  # until the first frame nothing is garbage: the app turns it on again
    from hypha_tui.options import plain

    options = plain(words)
    if options is None:
        gc.enable()
        return _run(words)
    from hypha_tui.process.opening import open_terminal

    return open_terminal(*options)


def _run(words: list[str]) -> int:
    from hypha_tui.cli import run

    return run(words)


if __name__ == "__main__":
    main()
