"""From bytes that anybody may have passed on to a record that its origin has signed."""

from __future__ import annotations

import msgspec

from node.errors import PeerProtocol, PeerUntrusted
from node.identity.trust import Trust
from node.network.records import Opened
from node.wire import UNDECODABLE, Passed, PeerRecord, ProviderRecord, Record

MAX_PAYLOAD_BYTES = 16 << 10
MAX_NAME = 256
MAX_LIFE_S = 1e6
ROLES = frozenset({"gateway", "scheduler", "worker", "data"})

_decoder: msgspec.msgpack.Decoder[Record] = msgspec.msgpack.Decoder(Record)


def peek(passed: Passed) -> Record:
    """What a record says, its signature not yet checked: only to see whether it is news. Raises PeerProtocol."""
    if not 0.0 <= passed.remaining_s < MAX_LIFE_S:
        raise PeerProtocol(f"a record with {passed.remaining_s} s to live")
    payload = passed.signed.payload
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise PeerProtocol(f"a record of {len(payload)} bytes, {MAX_PAYLOAD_BYTES} are allowed")
    try:
        record = _decoder.decode(payload)
    except UNDECODABLE as error:
        raise PeerProtocol(f"a record that cannot be read: {error}") from error
    fault = _fault(record)
    if fault:
        raise PeerProtocol(f"a record with {fault}")
    return record


def open_record(trust: Trust, passed: Passed, record: Record) -> Opened:
    """Check the signature over a record that `peek` has read, and that its origin speaks of itself and is a node.

    Raises PeerUntrusted.
    """
    origin, _ = trust.open(passed.signed)
    if origin.role != "node":
        raise PeerUntrusted(f"{origin.name} is an operator, records come from nodes")
    if origin.peer_id != record.peer_id:
        raise PeerUntrusted(f"{origin.name} ({origin.peer_id}) has signed a record of another peer, {record.peer_id}")
    return Opened(record, passed.signed, origin, min(passed.remaining_s, record.ttl_s), max(0, passed.hops))


def _fault(record: Record) -> str:
    if not 0 <= record.seq < 1 << 62:
        return "a sequence number out of bounds"
    if not 0 < record.ttl_s < MAX_LIFE_S:
        return "a life out of bounds"
    if isinstance(record, PeerRecord):
        if len(record.addresses) > 32 or any(len(address) > MAX_NAME for address in record.addresses):
            return "too many or too long addresses"
        if not record.name or len(record.name) > MAX_NAME or len(record.version) > MAX_NAME:
            return "a name out of bounds"
        if not ROLES.issuperset(record.roles) or len(record.roles) > len(ROLES):
            return "roles that do not exist"
    elif isinstance(record, ProviderRecord):
        if not 0 < len(record.dataset) <= MAX_NAME or len(record.digest) > MAX_NAME:
            return "a dataset's name out of bounds"
        if min(record.slices, record.rows, record.size_bytes) < 0:
            return "a size below zero"
    elif not 0 < len(record.advert_id) <= MAX_NAME or len(record.job_id) > MAX_NAME:
        return "an id out of bounds"
    return ""
