"""Questions to a node over its local socket, without a client's start-up time."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
from typing import Any

from hypha_tui.local_cluster import LocalNode


def ask(node: LocalNode, path: str, *, within_s: float = 30.0) -> Any:
    """What the node answers to a GET, on a connection of its own."""
    with contextlib.closing(_Connection(node.socket, within_s)) as connection:
        connection.request("GET", path)
        return json.loads(connection.getresponse().read())


class _Connection(http.client.HTTPConnection):
    def __init__(self, path: str, within_s: float) -> None:
        super().__init__("node", timeout=within_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)
