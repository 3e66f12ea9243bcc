"""Signed records are believed only when their origin speaks of itself."""

from __future__ import annotations

import msgspec
import pytest

from node.errors import PeerProtocol, PeerUntrusted
from node.identity.credentials import Identity
from node.network.opening import MAX_PAYLOAD_BYTES, open_record, peek
from node.wire import Passed, PeerRecord, Signed
from tests.support import MakeIdentity


def record_of(peer_id: str, **changes: object) -> PeerRecord:
    values = {"peer_id": peer_id, "seq": 1, "name": "n", "roles": ["worker"], "addresses": [], "ttl_s": 60.0}
    return PeerRecord(**{**values, **changes})  # type: ignore[arg-type]


def passed_by(identity: Identity, record: PeerRecord) -> Passed:
    return Passed(signed=identity.sign(msgspec.msgpack.encode(record)), remaining_s=50.0)


def test_a_record_that_its_origin_signed_is_opened(identity: Identity, make_identity: MakeIdentity) -> None:
    other = make_identity("other").load()
    passed = passed_by(other, record_of(other.peer_id))
    found = open_record(identity.trust, passed, peek(passed))
    assert (found.record.peer_id, found.origin.peer_id, found.remaining_s) == (other.peer_id, other.peer_id, 50.0)


def test_a_record_of_another_peer_is_refused(identity: Identity, make_identity: MakeIdentity) -> None:
    other = make_identity("other").load()
    passed = passed_by(other, record_of(identity.peer_id))
    with pytest.raises(PeerUntrusted, match="record of another peer"):
        open_record(identity.trust, passed, peek(passed))


def test_a_record_of_an_operator_is_refused(identity: Identity, operator_identity: Identity) -> None:
    passed = passed_by(operator_identity, record_of(operator_identity.peer_id))
    with pytest.raises(PeerUntrusted, match="operator"):
        open_record(identity.trust, passed, peek(passed))


def test_a_record_that_was_altered_on_its_way_is_refused(identity: Identity, make_identity: MakeIdentity) -> None:
    other = make_identity("other").load()
    signed = passed_by(other, record_of(other.peer_id)).signed
    altered = msgspec.structs.replace(
        signed, payload=msgspec.msgpack.encode(record_of(other.peer_id, addresses=["/ip4/10.0.0.1/tcp/1"]))
    )
    passed = Passed(signed=altered, remaining_s=50.0)
    with pytest.raises(PeerUntrusted):
        open_record(identity.trust, passed, peek(passed))


@pytest.mark.parametrize("remaining_s", [float("nan"), float("inf"), -1.0])
def test_a_life_that_never_ends_is_an_error_of_the_protocol(identity: Identity, remaining_s: float) -> None:
    passed = msgspec.structs.replace(passed_by(identity, record_of(identity.peer_id)), remaining_s=remaining_s)
    with pytest.raises(PeerProtocol):
        peek(passed)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xff\x00garbage",
        b"\x93" * 5000,
        b"x" * (MAX_PAYLOAD_BYTES + 1),
        msgspec.msgpack.encode(record_of("p", seq=-1)),
        msgspec.msgpack.encode(record_of("p", ttl_s=-1.0)),
        msgspec.msgpack.encode(record_of("p", ttl_s=float("nan"))),
        msgspec.msgpack.encode(record_of("p", roles=["root"])),
        msgspec.msgpack.encode(record_of("p", name="n" * 300)),
        msgspec.msgpack.encode(record_of("p", addresses=["/ip4/10.0.0.1/tcp/1"] * 40)),
        msgspec.msgpack.encode({"type": "peer"}),
        msgspec.msgpack.encode(record_of("p", name="no-text")).replace(b"no-text", b"no-te\xff\xfe"),
        b"\x82\xa4type\xa4peer\xa7unknown" + b"\x91" * 2000 + b"\xc0",
    ],
)
def test_what_is_not_a_sound_record_is_an_error_of_the_protocol(payload: bytes) -> None:
    passed = Passed(signed=Signed(payload=payload, signature=b"", chain=[]), remaining_s=1.0)
    with pytest.raises(PeerProtocol):
        peek(passed)
