"""Slices of data nodes, for a program that is no node itself: over mutual TLS, verified, into a cache of its own."""

from __future__ import annotations

import asyncio
import hashlib
import socket
import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import Final
from urllib.parse import quote

from node.addresses import Address, parse
from node.errors import DatasetError, PeerError, PeerUnreachable, PeerUntrusted
from node.identity.credentials import Identity, load_identity
from node.network import bulk
from node.network.addressbook import AddressBook
from node.network.client import CONNECT_S
from node.network.connecting import Connector, translated
from node.network.stream import Stream
from node.streaming.cached import CACHE_BYTES, CachedSource
from node.streaming.source import MANIFEST_MOST_BYTES, read_manifest

STALL_S: Final = 30.0


class RemoteSource(CachedSource):
    """The slices of a dataset at one data node or several that have the same one.

    `cert`, `key` and `trust` are those of a node of the cluster (`hypha-node cert node NAME`). `digest`: the manifest's
    SHA-256, if only that version will do. A slice is asked of every address until one delivers it, and goes on at the
    byte where a connection broke. Several processes may share a cache folder. Raises `HyphaError`.
    """

    def __init__(
        self,
        dataset: str,
        addresses: Sequence[str],
        *,
        cert: Path,
        key: Path,
        trust: Path,
        cache: Path,
        cache_bytes: int = CACHE_BYTES,
        digest: str = "",
    ) -> None:
        self._path = f"/bulk/datasets/{quote(dataset, safe='')}"
        self._identity = load_identity(cert, key, trust)
        super().__init__(cache, cache_bytes, "remote-source")
        try:
            greeting = self._greet(dataset, [parse(one) for one in addresses], digest)
            book, self._peers, content = self._loop.run(greeting)
        except BaseException:
            self.close()
            raise
        self._opener = _Opener(Connector(self._identity, book))
        self._infos = read_manifest(content, f"the manifest of {dataset}").slices
        self.digest = hashlib.sha256(content).hexdigest()
        self.rows = [info.rows for info in self._infos]

    async def _fetch(self, index: int, path: Path) -> None:
        info = self._infos[index]
        await bulk.download(
            self._opener,
            self._peers,
            f"{self._path}/slices/{index}",
            path,
            sha256=info.sha256,
            size_bytes=info.size_bytes,
            durable=False,
        )

    async def _greet(self, dataset: str, addresses: list[Address], digest: str) -> tuple[AddressBook, list[str], bytes]:
        """Who answers at the addresses, and the manifest of the first that has the dataset (and the version)."""
        book = AddressBook()
        peers: list[str] = []
        found: bytes | None = None
        problem: PeerError = PeerUnreachable("no address of a data node was given")
        for address in addresses:
            try:
                peer_id, content = await asyncio.to_thread(self._manifest, address)
            except PeerError as error:
                problem = error
                continue
            its_digest = hashlib.sha256(content).hexdigest()
            if its_digest == (digest or hashlib.sha256(found if found is not None else content).hexdigest()):
                found = content
                book.dialled(peer_id, address.pinned(peer_id))
                peers.append(peer_id)
        if found is None and digest:
            raise DatasetError(f"nobody has the version {digest[:12]} of {dataset}", hint=str(problem))
        if found is None:
            raise problem
        return book, peers, found

    def _manifest(self, address: Address) -> tuple[str, bytes]:
        connection, peer_id = _connect(self._identity, address)
        stream = Stream(connection, peer_id, STALL_S)
        try:
            answer = stream.ask(f"{self._path}/manifest", {})
            with translated(peer_id):
                return peer_id, answer.read(MANIFEST_MOST_BYTES)
        finally:
            stream.close()


class _Opener:
    """What transfers need of an overlay: connections."""

    def __init__(self, connector: Connector) -> None:
        self._connector = connector

    async def connect(self, peer_id: str) -> ssl.SSLSocket:
        return await self._connector.connect(peer_id)


def _connect(identity: Identity, address: Address) -> tuple[ssl.SSLSocket, str]:
    """A connection to whichever node of the cluster answers there, or to the one that the address names."""
    shown = str(address)
    with translated(shown):
        raw = socket.create_connection((address.host, address.port), timeout=CONNECT_S)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            connection = identity.client_context().wrap_socket(raw)
        except BaseException:
            raw.close()
            raise
    caller = identity.trust.caller_of(connection.getpeercert(True) or b"")
    if caller.is_operator or address.peer_id not in (None, caller.peer_id):
        connection.close()
        raise PeerUntrusted(f"{caller.name} ({caller.peer_id}) answers at {shown}", hint="check the address")
    return connection, caller.peer_id
