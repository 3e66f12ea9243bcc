"""Peer ids."""

from __future__ import annotations

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from node.identity.peer_id import dial_host, is_peer_id, peer_id_of, peer_id_of_host, raw_public_key_of

# ids that libp2p implementations print for the secret keys (n, 0, 0, ..)
KNOWN = {
    0: "12D3KooWDpJ7As7BWAwRMfu1VU2WCqNjvq387JEYKDBj4kx6nXTN",
    1: "12D3KooWPjceQrSwdWXPyLLeABRXmuqt69Rg3sBYbU1Nft9HyQ6X",
    2: "12D3KooWH3uVF6wv47WnArKHk5p6cvgCJEb74UTmxztmQDc298L3",
}


def public_key(first: int) -> bytes:
    return Ed25519PrivateKey.from_private_bytes(bytes([first]) + bytes(31)).public_key().public_bytes_raw()


@pytest.mark.parametrize(("first", "peer_id"), KNOWN.items())
def test_peer_ids_are_those_of_libp2p(first: int, peer_id: str) -> None:
    assert peer_id_of(public_key(first)) == peer_id


@pytest.mark.parametrize(("first", "peer_id"), KNOWN.items())
def test_the_key_is_read_back_from_the_peer_id(first: int, peer_id: str) -> None:
    assert raw_public_key_of(peer_id) == public_key(first)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1",
        "12D3KooW",
        KNOWN[0][:-1],
        KNOWN[0] + "1",
        "1" + KNOWN[0],
        KNOWN[0].replace("p", "0"),
        "QmYwAPJzv5CZsnA625s3Xf2nemtYgPpHdWEz79ojWnPbdG",
        "z" * 500,
    ],
)
def test_what_is_no_ed25519_peer_id_is_refused(text: str) -> None:
    assert not is_peer_id(text)
    with pytest.raises(ValueError, match="peer id"):
        raw_public_key_of(text)


def test_the_dial_host_of_a_peer_survives_lower_casing() -> None:
    host = dial_host(KNOWN[1])
    assert host == host.lower()
    assert max(len(label) for label in host.split(".")) <= 63
    assert peer_id_of_host(host.upper().replace(".PEER", ".peer")) == KNOWN[1]


@pytest.mark.parametrize("host", ["example.org", "short.peer", "!" * 52 + ".peer", "gw.peer.example"])
def test_other_host_names_stand_for_no_peer(host: str) -> None:
    assert peer_id_of_host(host) is None


def test_a_key_of_another_length_has_no_peer_id() -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        peer_id_of(bytes(31))
