"""Peer ids, as libp2p derives them from an Ed25519 public key."""

from __future__ import annotations

import base64

_ALPHABET = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_VALUES = {character: value for value, character in enumerate(_ALPHABET)}
# identity multihash (code 0, 36 bytes) of the protobuf message {type: Ed25519 (1), data: 32 bytes}
_PREFIX = bytes((0x00, 0x24, 0x08, 0x01, 0x12, 0x20))
_SUFFIX = ".peer"
KEY_BYTES = 32


def peer_id_of(raw_public_key: bytes) -> str:
    """The peer id (`12D3KooW..`) of a raw Ed25519 public key."""
    if len(raw_public_key) != KEY_BYTES:
        raise ValueError(f"an Ed25519 public key has {KEY_BYTES} bytes, not {len(raw_public_key)}")
    return _base58(_PREFIX + raw_public_key)


def raw_public_key_of(peer_id: str) -> bytes:
    """The raw public key inside a peer id; ValueError when it is not the id of an Ed25519 key."""
    number = 0
    for character in peer_id:
        value = _VALUES.get(character)
        if value is None:
            raise ValueError(f"{peer_id!r} is not a peer id: {character!r} is not of base58")
        number = number * 58 + value
    size = len(_PREFIX) + KEY_BYTES
    # the leading zero byte of the multihash is the leading "1" of the text
    if number.bit_length() > 8 * size or not peer_id.startswith("1"):
        raise ValueError(f"{peer_id!r} is not the peer id of an Ed25519 key")
    raw = number.to_bytes(size, "big")
    if not raw.startswith(_PREFIX) or _base58(raw) != peer_id:
        raise ValueError(f"{peer_id!r} is not the peer id of an Ed25519 key")
    return raw[len(_PREFIX) :]


def is_peer_id(text: str) -> bool:
    """Whether `text` is the peer id of an Ed25519 key."""
    try:
        raw_public_key_of(text)
    except ValueError:
        return False
    return True


def dial_host(peer_id: str) -> str:
    """A host name that stands for a peer in URLs and TLS: base58 does not survive the lower-casing of host names."""
    label = base64.b32encode(raw_public_key_of(peer_id)).decode().rstrip("=").lower()
    return label + _SUFFIX


def peer_id_of_host(host: str) -> str | None:
    """The peer a `dial_host` name stands for, None for any other host name."""
    label = host.removesuffix(_SUFFIX)
    if label == host or len(label) != 52:
        return None
    try:
        raw = base64.b32decode(label.upper() + "====")
    except ValueError:
        return None
    return peer_id_of(raw)


def _base58(raw: bytes) -> str:
    number = int.from_bytes(raw, "big")
    characters = []
    while number:
        number, value = divmod(number, 58)
        characters.append(_ALPHABET[value])
    zeros = len(raw) - len(raw.lstrip(b"\0"))
    return _ALPHABET[0] * zeros + "".join(reversed(characters))
