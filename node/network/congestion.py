"""Bulk transfers that leave room for the small messages beside them."""

from __future__ import annotations

import contextlib
import socket
from ipaddress import ip_address

CONTROL = b"bbr"


def leave_room(connection: socket.socket, host: str) -> None:
    """Let this connection send at the line's measured speed, instead of filling the queue in front of the line.

    With the usual control an upload over a slow line delays everything else by the length of that queue, often seconds,
    heartbeats and renewals too. Only where the system has BBR and lets us choose it; and not within one machine, where
    there is no line and it costs half the speed.
    """
    if hasattr(socket, "TCP_CONGESTION") and not _is_own_machine(host):
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, CONTROL)


def _is_own_machine(host: str) -> bool:
    try:
        return ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False
