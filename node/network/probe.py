"""What listens at an address? For `hypha-node probe`."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from node.addresses import Address
from node.errors import PeerProtocol, Refused
from node.identity.credentials import Identity
from node.network.addressbook import AddressBook
from node.network.client import Client
from node.network.opening import open_record, peek
from node.wire import UNDECODABLE, Hello, Passed, PeerRecord, Signed, Welcome

PROBE_S = 5.0


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """A node that has answered, and after how long."""

    address: str
    peer_id: str
    name: str
    seconds: float
    certificate_days: float
    roles: list[str]
    version: str
    addresses: list[str]


async def probe(identity: Identity, address: Address, *, timeout_s: float = PROBE_S) -> ProbeResult:
    """Connect to an address over mutual TLS and ask who is there. Joins nothing.

    Raises PeerUnreachable, PeerUntrusted, PeerProtocol or Refused, each with a hint where there is one.
    """
    book = AddressBook()
    where: Address | str = address
    if address.peer_id is not None:
        book.dialled(address.peer_id, address)
        where = address.peer_id
    # an empty record introduces nobody: the other end answers who it is and takes nothing in
    hello = Hello(record=Passed(signed=Signed(payload=b"", signature=b"", chain=[]), remaining_s=0.0))
    async with Client(identity, book) as client:
        answer = await client.call(where, Hello.method, msgspec.msgpack.encode(hello), timeout_s)
    try:
        welcome = msgspec.msgpack.decode(answer.body, type=Welcome)
    except UNDECODABLE as error:
        raise PeerProtocol(f"{address} answers, but not as a node: {error}") from error
    record = open_record(identity.trust, welcome.record, peek(welcome.record)).record
    if not isinstance(record, PeerRecord) or record.peer_id != answer.caller.peer_id:
        raise Refused("invalid", f"{answer.caller.name} introduces itself with a record that is not its own")
    return ProbeResult(
        address=str(address),
        peer_id=record.peer_id,
        name=record.name,
        seconds=answer.seconds,
        certificate_days=answer.caller.days_left,
        roles=record.roles,
        version=record.version,
        addresses=record.addresses,
    )
