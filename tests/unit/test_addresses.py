"""Addresses of nodes."""

from __future__ import annotations

import pytest

from node import addresses
from node.addresses import Address
from node.errors import ConfigError

PEER = "12D3KooWDpJ7As7BWAwRMfu1VU2WCqNjvq387JEYKDBj4kx6nXTN"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/ip4/203.0.113.50/tcp/4001", Address("203.0.113.50", 4001)),
        ("/ip6/2001:db8::1/tcp/4001", Address("2001:db8::1", 4001)),
        ("/dns4/gw.example.org/tcp/443", Address("gw.example.org", 443)),
        ("/dns6/gw.example.org/tcp/443", Address("gw.example.org", 443)),
        ("/dns/gw_1.example.org/tcp/443/", Address("gw_1.example.org", 443)),
        (f"/ip4/203.0.113.50/tcp/4001/p2p/{PEER}", Address("203.0.113.50", 4001, PEER)),
        ("https://gw.example.org:8443", Address("gw.example.org", 8443)),
        ("https://203.0.113.50:8443/", Address("203.0.113.50", 8443)),
        ("https://[2001:db8::1]:8443", Address("2001:db8::1", 8443)),
        ("/ip4/0.0.0.0/tcp/0", Address("0.0.0.0", 0)),
    ],
)
def test_every_documented_form_is_understood(text: str, expected: Address) -> None:
    assert addresses.parse(text) == expected


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("203.0.113.50:4001", "neither a multiaddr nor"),
        ("http://gw:80", "neither a multiaddr nor"),
        ("/ip4/203.0.113.50", "incomplete"),
        ("/ip4/203.0.113.500/tcp/4001", "'203.0.113.500' is not an IPv4 address"),
        ("/ip4/2001:db8::1/tcp/4001", "is not an IPv4 address"),
        ("/ip4/203.0.113.50/udp/4001", "'udp' is not supported"),
        ("/ip4/203.0.113.50/tcp/70000", "'70000' is not a port"),
        ("/ip4/203.0.113.50/tcp/-1", "'-1' is not a port"),
        ("/dns4/bad host/tcp/1", "'bad host' is not a host name"),
        ("/onion/abc/tcp/1", "unknown protocol 'onion'"),
        ("/ip4/203.0.113.50/tcp/4001/ws", "/ws"),
        ("/ip4/203.0.113.50/tcp/4001/p2p/nobody", "'nobody' is not a peer id"),
        ("https://gw.example.org", "has no port"),
        ("https://gw.example.org:1/path", "more than a host and a port"),
        ("https://[::1]", "has no port"),
    ],
)
def test_an_error_names_the_part_that_is_wrong(text: str, named: str) -> None:
    with pytest.raises(ConfigError) as caught:
        addresses.parse(text)
    assert named in str(caught.value)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize("text", ["/ip4/203.0.113.50/tcp/4001", "/ip6/::1/tcp/1", f"/dns/gw/tcp/443/p2p/{PEER}"])
def test_an_address_is_written_as_it_was_read(text: str) -> None:
    assert addresses.format(addresses.parse(text)) == text


def test_a_url_shows_ipv6_in_brackets() -> None:
    assert Address("::1", 443).netloc == "[::1]:443"
    assert Address("gw", 443).netloc == "gw:443"
    assert Address("::", 0).is_unspecified
    assert not Address("gw", 0).is_unspecified
