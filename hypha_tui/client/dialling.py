"""Connections to a node: over its Unix socket, or over mutual TLS to whom the address means and nobody else."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hypha_tui.client.transport import HEAD_BYTES, Streams, drop
from node.addresses import Address
from node.errors import PeerUntrusted

if TYPE_CHECKING:
    from node.identity.credentials import Identity
    from node.identity.trust import Trust

NEXT_ADDRESS_S: Final = 0.25
"""RFC 8305: how long one address of a name has before the next is tried beside it."""


def over_socket(path: Path) -> Callable[[], Awaitable[Streams]]:
    """Dials a Unix socket of this machine."""
    return lambda: asyncio.open_unix_connection(path, limit=HEAD_BYTES)


def over_tls(address: Address, identity: Identity) -> Callable[[], Awaitable[Streams]]:
    """Dials an address; PeerUntrusted where another answers than a node of the cluster, or than the peer it names."""
    context, trust = identity.client_context(), identity.trust

    async def dial() -> Streams:
        streams = await asyncio.open_connection(
            address.host, address.port, ssl=context, limit=HEAD_BYTES, happy_eyeballs_delay=NEXT_ADDRESS_S
        )
        try:
            _check_peer(streams, trust, address)
        except BaseException:
            drop(streams)
            raise
        return streams

    return dial


def _check_peer(streams: Streams, trust: Trust, address: Address) -> None:
    where = address.netloc
    tls: ssl.SSLObject | None = streams[1].get_extra_info("ssl_object")
    certificate = tls.getpeercert(binary_form=True) if tls is not None else None
    if certificate is None:
        raise PeerUntrusted(f"who answers at {where} shows no certificate")
    caller = trust.caller_of(certificate)
    if caller.role != "node":
        raise PeerUntrusted(f"{caller.name} at {where} is an operator, not a node")
    if address.peer_id is not None and caller.peer_id != address.peer_id:
        raise PeerUntrusted(
            f"{caller.name} ({caller.peer_id}) answers at {where}, not {address.peer_id}",
            hint="check the address; leave /p2p/.. out to accept any node of the cluster",
        )
