"""Who gets which congestion control."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from node.network.congestion import leave_room

ALLOWED = Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control")


@pytest.mark.skipif(not hasattr(socket, "TCP_CONGESTION"), reason="the system has one congestion control")
@pytest.mark.parametrize(
    ("host", "is_line"),
    [
        ("127.0.0.1", False),
        ("::1", False),
        ("127.9.9.9", False),
        ("192.0.2.1", True),
        ("fe80::1%eth0", True),
        ("a.name", True),
    ],
)
def test_a_connection_over_a_line_leaves_room_where_the_system_can_do_that(host: str, *, is_line: bool) -> None:
    """U25: renewals are not held up by an update."""
    with socket.socket() as usual, socket.socket() as made:
        before = usual.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
        leave_room(made, host)
        has_it = is_line and ALLOWED.exists() and "bbr" in ALLOWED.read_text().split()
        found = made.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
    assert found.rstrip(b"\0") == (b"bbr" if has_it else before.rstrip(b"\0"))
