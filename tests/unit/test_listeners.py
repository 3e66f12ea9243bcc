"""Listening, and what a node tells others about it."""

from __future__ import annotations

import os
import socket

import pytest

from node.errors import HyphaError
from node.network import listeners

INTERFACES = ["127.0.0.1", "::1", "192.168.1.5", "10.8.0.2", "169.254.3.3", "2001:db8::5", "fe80::1"]


def test_a_port_that_is_taken_is_one_error_that_says_which_and_by_whom() -> None:
    """U6: and nothing stays bound."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(HyphaError) as caught:
            listeners.listen(["/ip4/127.0.0.1/tcp/0", f"/ip4/127.0.0.1/tcp/{port}"])
    assert f"port {port} is taken by" in str(caught.value)
    assert f"process {os.getpid()}" in str(caught.value)
    assert caught.value.exit_code == 1
    assert "\n" not in str(caught.value)


def test_an_address_of_another_machine_is_told_as_such() -> None:
    with pytest.raises(HyphaError, match="is this an address of this machine"):
        listeners.listen(["/ip4/203.0.113.9/tcp/0"])


def test_several_addresses_are_bound_with_real_ports() -> None:
    sockets = listeners.listen(["/ip4/127.0.0.1/tcp/0", "/ip4/127.0.0.1/tcp/0"])
    try:
        places = listeners.places(sockets)
        assert len({port for _, port in places}) == 2
        assert all(port > 0 for _, port in places)
    finally:
        for bound in sockets:
            bound.close()


def test_an_unspecified_host_stands_for_the_interfaces_but_not_for_excluded_ones() -> None:
    found = listeners.advertised([("0.0.0.0", 4001)], INTERFACES, [], ["10.0.0.0/8"])
    assert found == ["/ip4/192.168.1.5/tcp/4001"]
    assert listeners.advertised([("::", 4001)], INTERFACES, [], []) == ["/ip6/2001:db8::5/tcp/4001"]


def test_external_addresses_come_first() -> None:
    found = listeners.advertised([("0.0.0.0", 4001)], INTERFACES, ["/dns4/gw.example.org/tcp/443"], ["10.0.0.0/8"])
    assert found == ["/dns4/gw.example.org/tcp/443", "/ip4/192.168.1.5/tcp/4001"]


def test_loopback_is_told_only_where_there_is_nothing_else() -> None:
    both = [("127.0.0.1", 1), ("192.168.1.5", 2)]
    assert listeners.advertised(both, INTERFACES, [], []) == ["/ip4/192.168.1.5/tcp/2"]
    assert listeners.advertised(both[:1], INTERFACES, [], []) == ["/ip4/127.0.0.1/tcp/1"]
    assert listeners.advertised([("0.0.0.0", 3)], ["127.0.0.1"], [], []) == ["/ip4/127.0.0.1/tcp/3"]


def test_a_node_reaches_itself_over_loopback_when_it_listens_everywhere() -> None:
    assert listeners.own_places([("0.0.0.0", 7), ("10.0.0.1", 8)]) == ["/ip4/127.0.0.1/tcp/7", "/ip4/10.0.0.1/tcp/8"]
