"""Slices of data nodes, for a program that is no node itself: over mutual TLS, verified, into a cache of its own."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import socket
import ssl
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final
from urllib.parse import quote

from node.addresses import Address, parse
from node.errors import DatasetError, PeerError, PeerUnreachable, PeerUntrusted, Refused
from node.identity.credentials import Identity, load_identity
from node.manifest import MAX_MANIFEST_BYTES, manifest_in
from node.network import bulk
from node.network.addressbook import AddressBook
from node.network.client import CONNECT_S
from node.network.connecting import Connector, translated
from node.network.stream import Stream
from node.streaming.cached import CACHE_BYTES, CachedSource

STALL_S: Final = 30.0
PATIENCE_S: Final = 120.0
"""So long a slice is asked for where nobody delivers it: who has run for days outlives the restart of a data node."""
AGAIN_S: Final = 1.0
ATTEMPTS: Final = 3
"""After so many failures in a row those are asked, too, who were away when the source was opened."""


class RemoteSource(CachedSource):
    """The slices of a dataset at one data node or several that have the same one.

    `cert`, `key` and `trust` are those of a node of the cluster (`hypha-node cert node NAME`). `digest`: the manifest's
    SHA-256, if only that version will do. A slice is asked of every address until one delivers it, for two minutes at
    least, and goes on at the byte where a connection broke. Several processes may share a cache folder. Raises
    `HyphaError`.
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
        self._dataset = dataset
        self._away = [parse(one) for one in addresses]
        self._peers: list[str] = []
        self._book = AddressBook()
        self._connector = Connector(self._identity, self._book)
        try:
            content = self._loop.run(self._greet(digest))
        except BaseException:
            self.close()
            raise
        self._infos = manifest_in(content, f"the manifest of {dataset}").slices
        self.digest = hashlib.sha256(content).hexdigest()
        self.rows = [info.rows for info in self._infos]

    async def _fetch(self, index: int, path: Path) -> None:
        info = self._infos[index]
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                return await bulk.download(
                    self._connector,
                    self._peers,
                    f"{self._path}/slices/{index}",
                    path,
                    sha256=info.sha256,
                    size_bytes=info.size_bytes,
                    attempts=ATTEMPTS,
                    durable=False,
                )
            except (PeerUnreachable, Refused):  # one that starts again listens before it has read its datasets
                if time.monotonic() > deadline:
                    raise
            await asyncio.sleep(AGAIN_S)
            with contextlib.suppress(PeerError, DatasetError):
                await self._greet(self.digest)

    async def _end(self) -> None:
        await super()._end()
        self._connector.close()

    async def _greet(self, digest: str) -> bytes:
        """Ask at the addresses where nobody has answered yet; the manifest of the first that has the dataset (and the
        version)."""
        found: bytes | None = None
        problem: PeerError = PeerUnreachable("no address of a data node was given")
        for address in tuple(self._away):
            try:
                peer_id, content = await asyncio.to_thread(self._manifest, address)
            except PeerError as error:
                problem = error
                continue
            its_digest = hashlib.sha256(content).hexdigest()
            if its_digest == (digest or hashlib.sha256(found if found is not None else content).hexdigest()):
                found = content
                if address in self._away:
                    self._away.remove(address)
                    self._book.dialled(peer_id, address.pinned(peer_id))
                    self._peers.append(peer_id)
        if found is None and digest:
            raise DatasetError(f"nobody has the version {digest[:12]} of {self._dataset}", hint=str(problem))
        if found is None:
            raise problem
        return found

    def _manifest(self, address: Address) -> tuple[str, bytes]:
        connection, peer_id = _connect(self._identity, address)
        stream = Stream(connection, peer_id, STALL_S)
        try:
            answer = stream.ask(f"{self._path}/manifest", {})
            with translated(peer_id):
                return peer_id, answer.read(MAX_MANIFEST_BYTES)
        finally:
            stream.close()


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
