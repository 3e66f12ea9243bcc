"""The options of the terminal and of the connection, in one place for both who reads them: `cli.py`, which knows the
whole command line, and `plain`, which knows these options alone and costs no time."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final

from hypha_tui.client.endpoint import Connection, Endpoint
from hypha_tui.settings.config import Given, load
from node.errors import ConfigError


def _help(words: str) -> dict[str, str]:
    return {"help": words}


@dataclass(frozen=True, slots=True)
class Reach:
    """How to reach a node, and as whom. Each option has an environment variable."""

    node: str = field(
        default="", metadata=_help("Address: /ip4/../tcp/.., https://host:port or unix:PATH [HYPHA_TUI_NODE]")
    )
    cert: Path | None = field(default=None, metadata=_help("An operator's certificate [HYPHA_TUI_CERT]"))
    key: Path | None = field(
        default=None, metadata=_help("Its key; beside the certificate if not given [HYPHA_TUI_KEY]")
    )
    trust: Path | None = field(default=None, metadata=_help("The cluster's authority, likewise [HYPHA_TUI_TRUST]"))
    crls: Path | None = field(default=None, metadata=_help("Revocation lists [HYPHA_TUI_CRLS]"))
    state_dir: Path | None = field(
        default=None, metadata=_help("A node of this machine, by folder [HYPHA_TUI_STATE_DIR]")
    )
    context: str | None = field(default=None, metadata=_help("A cluster of config.toml [HYPHA_TUI_CONTEXT]"))
    readonly: bool = field(default=False, metadata=_help("Change nothing [HYPHA_TUI_READONLY]"))

    def connection(self) -> Connection:
        """What the flags say about the node."""
        return Connection(self.node, self.cert, self.key, self.trust, self.crls, self.state_dir)

    def endpoint(self) -> Endpoint:
        """The node to talk to."""
        from hypha_tui.settings.contexts import Contexts

        settings = load(os.environ, Given(context=self.context, readonly=self.readonly or None))
        return Contexts(settings, os.environ).first(self.connection())[1]


@dataclass(frozen=True, slots=True)
class Display:
    """What the terminal shows, and how."""

    theme: str | None = field(default=None, metadata=_help("Colour theme [HYPHA_TUI_THEME]"))
    hz: float | None = field(default=None, metadata=_help("Frames a second, 0.2 to 10; 0: on r only [HYPHA_TUI_HZ]"))
    glyphs: str | None = field(default=None, metadata=_help("auto, unicode, block or ascii [HYPHA_TUI_GLYPHS]"))
    ascii: bool = field(default=False, metadata=_help("Draw with ASCII only"))
    mouse: bool = field(default=False, metadata=_help("Take the mouse [HYPHA_TUI_MOUSE]"))
    no_mouse: bool = field(default=False, metadata=_help("Leave the mouse to the terminal"))
    preset: str | None = field(default=None, metadata=_help("Keys: default, vim or plain [HYPHA_TUI_PRESET]"))
    record: Path | None = field(default=None, metadata=_help("Keep what the node tells in this new file"))
    replay: Path | None = field(default=None, metadata=_help("Show a recording instead of a cluster"))

    def given(self, reach: Reach) -> Given:
        """What the flags say about the settings."""
        if self.mouse and self.no_mouse:
            raise ConfigError("--mouse and --no-mouse exclude each other")
        mouse = self.mouse if self.mouse or self.no_mouse else None
        glyphs = "ascii" if self.ascii else self.glyphs
        return Given(reach.context, self.theme, self.hz, glyphs, mouse, self.preset, reach.readonly or None)


_NUMBER: Final = re.compile(r"\d{1,9}(?:\.\d{1,9})?")
_READ: Final[dict[str, Callable[[str], Any]]] = {
    "str": str,
    "str | None": str,
    "Path | None": Path,
    "float | None": float,
}
"""By the annotation of a field; every other is a switch."""


def plain(words: Sequence[str]) -> tuple[Reach, Display] | None:
    """What a command line says that has nothing but these options, each once and written in full; None for every other,
    which is then `cli.py`'s to read, or to refuse."""
    kinds = {f"--{one.name.replace('_', '-')}": one for part in (Reach, Display) for one in fields(part)}
    found: dict[str, Any] = {}
    rest = list(words)
    while rest:
        name, equals, value = rest.pop(0).partition("=")
        option = kinds.get(name)
        if option is None or option.name in found:
            return None
        read = _READ.get(str(option.type))
        if read is None:
            if equals:
                return None
            found[option.name] = True
            continue
        if not equals:
            value = rest.pop(0) if rest else "-"
        if value.startswith("-") or (read is float and not _NUMBER.fullmatch(value)):
            return None
        found[option.name] = read(value)
    reach = {one.name for one in fields(Reach)}
    here = Reach(**{name: value for name, value in found.items() if name in reach})
    return here, Display(**{name: value for name, value in found.items() if name not in reach})
