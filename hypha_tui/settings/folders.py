"""Where the terminal keeps its own files: configuration, and state that it writes itself."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

NAME: Final = "hypha-tui"


def config_folder(environment: Mapping[str, str]) -> Path | None:
    """`$XDG_CONFIG_HOME/hypha-tui`, else `~/.config/hypha-tui`; None where there is no home."""
    return _folder(environment, "XDG_CONFIG_HOME", ".config")


def state_folder(environment: Mapping[str, str]) -> Path | None:
    """`$XDG_STATE_HOME/hypha-tui`, else `~/.local/state/hypha-tui`; None where there is no home. It may not exist."""
    return _folder(environment, "XDG_STATE_HOME", ".local/state")


def write_private(file: Path, content: str) -> None:
    """Write a file that only its owner may read, whole or not at all, with the folder it is in."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    beside = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as stream:
            stream.write(content)
        beside.replace(file)
    except OSError:
        beside.unlink(missing_ok=True)
        raise


def _folder(environment: Mapping[str, str], variable: str, under_home: str) -> Path | None:
    base = environment.get(variable, "")
    if base.startswith("/"):
        return Path(base) / NAME
    home = environment.get("HOME", "")
    return Path(home) / under_home / NAME if home.startswith("/") else None
