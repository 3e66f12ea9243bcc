"""What the server tells the process of a session through a pipe, so that nobody reads it in a list of processes."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from hypha_tui.client.endpoint import Connection, Endpoint, resolve

_PATHS: Final = ("cert", "key", "trust", "crls")


class Orders(msgspec.Struct, frozen=True):
    """The node to show, as whom, and how. `readonly`: nothing can be changed from this session."""

    node: str
    paths: dict[str, str]
    readonly: bool
    production: bool = False
    context: str = ""
    theme: str = ""

    def endpoint(self) -> Endpoint:
        """The node to talk to."""
        from pathlib import Path

        return resolve(Connection(self.node, **{name: Path(path) for name, path in self.paths.items()}), {})

    def encoded(self) -> bytes:
        """As one line."""
        return msgspec.json.encode(self) + b"\n"


def orders_for(endpoint: Endpoint, *, readonly: bool, **look: Any) -> Orders:
    """Orders to show this node."""
    paths = {name: str(path.absolute()) for name in _PATHS if (path := getattr(endpoint, name)) is not None}
    return Orders(str(endpoint), paths, readonly, **look)


def decode(line: bytes) -> Orders:
    """The other end of `encoded`."""
    return msgspec.json.decode(line, type=Orders)
