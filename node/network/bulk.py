"""Files from and to other nodes: fetched with resume and failover, shown only when whole and verified."""

from __future__ import annotations

import asyncio
import http.client
import random
import ssl
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Protocol

import aiohttp

from node.errors import HyphaError, PeerProtocol, PeerUnreachable, PeerUntrusted, Refused
from node.network.backoff import Backoff
from node.network.connecting import in_thread
from node.network.filesource import FileSource
from node.network.partfile import PartFile
from node.network.ranges import etag_of, parse_content_range, sha256_of_etag
from node.network.stream import Stream

STALL_S = 30.0
BACKOFF_FIRST_S = 0.2
BACKOFF_MOST_S = 10.0
ATTEMPTS = 8
VERIFY_ATTEMPTS = 3

Report = Callable[[int], None]


class Connecting(Protocol):
    """What a transfer needs of the overlay."""

    async def connect(self, peer_id: str) -> ssl.SSLSocket:
        """A connection to a peer for a thread to use: it is the peer, and nothing is on its way on it."""

    def keep(self, peer_id: str, connection: ssl.SSLSocket) -> None:
        """Take back a connection whose last answer was read to its end."""


class Opener(Connecting, Protocol):
    """What asking for a file's size and digest needs, too."""

    def open(
        self,
        peer_id: str,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str] | None = None,
        stall_s: float = STALL_S,
    ) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        """Send a request to a peer; the answer's body is read inside the block. Not 2xx raises `Refused`.

        No piece of the body may take longer than `stall_s`.
        """


async def download(
    overlay: Connecting,
    peers: Sequence[str],
    path: str,
    target: Path,
    *,
    sha256: str,
    size_bytes: int,
    on_progress: Report | None = None,
    attempts: int = ATTEMPTS,
    stall_s: float = STALL_S,
    durable: bool = True,
) -> None:
    """Fetch `path` from the first of `peers` that delivers it, going on at the same byte after every break.

    Gives up after `attempts` failures in a row without a new byte, or when every peer has refused for good; then raises
    the last failure. `on_progress` gets the bytes had so far, which can go down where content proves wrong.
    """
    part = await PartFile.create(target, size_bytes)
    try:
        fetch = _Fetch(overlay, path, part, sha256, size_bytes, on_progress, stall_s)
        await fetch.run(list(dict.fromkeys(peers)), attempts)
        await part.commit(durable=durable)
    finally:
        await part.discard()


async def download_unknown(
    overlay: Opener, peer: str, path: str, target: Path, *, limit_bytes: int, durable: bool = True
) -> tuple[int, str]:
    """Fetch a file of which only the peer knows size and digest: it names both in its answer's head.

    Returns `(size, sha256)`; raises `PeerProtocol` where the answer has no digest or is over `limit_bytes`.
    """
    async with overlay.open(peer, "GET", path, headers={"Range": "bytes=0-0"}) as answer:
        sha256 = sha256_of_etag(answer.headers.get("ETag", ""))
        span = parse_content_range(answer.headers.get("Content-Range"))
        size = span[2] if span else answer.content_length
    if sha256 is None or size is None:
        raise PeerProtocol(f"{peer} sent {path} without a size and a SHA-256")
    if size > limit_bytes:
        raise PeerProtocol(f"{path} at {peer} has {size:,} bytes, at most {limit_bytes:,} are taken")
    await download(overlay, [peer], path, target, sha256=sha256, size_bytes=size, durable=durable)
    return size, sha256


async def upload(
    overlay: Connecting,
    peer: str,
    path: str,
    source: Path,
    *,
    headers: Mapping[str, str] | None = None,
    on_progress: Report | None = None,
    attempts: int = 4,
    stall_s: float = STALL_S,
) -> bytes:
    """`PUT` a file and return the answer's body. Sent again from the start after a break.

    Raises the last failure after `attempts` of them, `OSError` where the file cannot be read.
    """
    backoff = _backoff()
    file = await FileSource.open(source)
    try:
        while True:
            try:
                return await _upload_once(overlay, peer, path, file, headers or {}, on_progress, stall_s)
            except (PeerUnreachable, Refused) as error:
                wait_s = backoff.failed()
                if backoff.failures >= attempts or (isinstance(error, Refused) and error.code != "busy"):
                    raise
            await asyncio.sleep(wait_s)
    finally:
        file.close()


class _Fetch:
    """One file's way here: which peers are left, and how often what failed."""

    def __init__(
        self,
        overlay: Connecting,
        path: str,
        part: PartFile,
        sha256: str,
        size_bytes: int,
        on_progress: Report | None,
        stall_s: float,
    ) -> None:
        self._overlay = overlay
        self._path = path
        self._part = part
        self._sha256 = sha256
        self._size = size_bytes
        self._on_progress = on_progress
        self._stall_s = stall_s
        self._sources: set[str] = set()
        self._told = 0

    async def run(self, peers: list[str], attempts: int) -> None:
        """Fetch until the content is whole and right."""
        if not peers:
            raise PeerUnreachable(f"nobody provides {self._path}")
        backoff = _backoff()
        mismatches = 0
        while True:
            peer = peers[0]
            before = self._part.written
            try:
                await self._continue_from(peer)
                found = await self._part.digest()
                if found == self._sha256:
                    return
                await self._restart()
                mismatches += 1
                problem: HyphaError = PeerProtocol(
                    f"{self._path} has SHA-256 {found}, expected {self._sha256}",
                    hint=f"sent by {_names(self._sources)}",
                )
                is_final = len(self._sources) == 1 and len(peers) > 1
                self._sources.clear()
                if mismatches >= VERIFY_ATTEMPTS:
                    raise problem
            except (Refused, PeerUntrusted, PeerProtocol) as error:
                problem, is_final = error, not (isinstance(error, Refused) and error.code == "busy")
            except PeerUnreachable as error:
                problem, is_final = error, False
            if mismatches >= VERIFY_ATTEMPTS:
                raise problem
            peers.pop(0)
            if not is_final:
                peers.append(peer)
            if self._part.written > before:
                backoff.succeeded()
            wait_s = backoff.failed()
            if not peers or backoff.failures >= attempts:
                raise problem
            if peers[0] == peer or backoff.failures >= len(peers):
                await asyncio.sleep(wait_s)

    async def _continue_from(self, peer: str) -> None:
        start = self._part.written
        if start == self._size and self._size:
            return
        headers = {"If-Match": etag_of(self._sha256)}
        if start:
            headers["Range"] = f"bytes={start}-"
        connection = await self._overlay.connect(peer)
        stream = Stream(connection, peer, self._stall_s)
        try:
            answer = await in_thread(connection, lambda: stream.ask(self._path, headers))
            await self._check(peer, answer)
            self._sources.add(peer)
            await in_thread(connection, lambda: stream.take(answer, self._part), self._tell)
            if not answer.will_close:
                stream.release()
                self._overlay.keep(peer, connection)
                return
            stream.close()
        except BaseException:
            stream.close()
            raise
        finally:
            self._tell()

    async def _check(self, peer: str, answer: http.client.HTTPResponse) -> None:
        etag = etag_of(self._sha256)
        if answer.getheader("ETag", etag) != etag:
            raise Refused("stale", f"{peer} has another {self._path}")
        if answer.status == 200 and self._part.written:
            await self._restart()
        start = self._part.written
        extent: tuple[int, int, int] | None = (0, answer.length or 0, answer.length or 0)
        if answer.status == 206:
            extent = parse_content_range(answer.getheader("Content-Range"))
        if extent is None or answer.length is None or extent != (start, start + answer.length, self._size):
            raise PeerProtocol(f"{peer} answered with another part of {self._path} than asked for")

    def _tell(self) -> None:
        if self._on_progress is not None and self._part.written != self._told:
            self._told = self._part.written
            self._on_progress(self._told)

    async def _restart(self) -> None:
        await self._part.restart()
        self._tell()


async def _upload_once(
    overlay: Connecting,
    peer: str,
    path: str,
    source: FileSource,
    headers: Mapping[str, str],
    on_progress: Report | None,
    stall_s: float,
) -> bytes:
    connection = await overlay.connect(peer)
    stream = Stream(connection, peer, stall_s)
    told = 0

    def tell() -> None:
        nonlocal told
        if on_progress is not None and stream.sent != told:
            told = stream.sent
            on_progress(told)

    try:
        return await in_thread(connection, lambda: stream.put(path, headers, source), tell)
    finally:
        stream.close()
        tell()


def _backoff() -> Backoff:
    return Backoff(random.Random(), first_s=BACKOFF_FIRST_S, most_s=BACKOFF_MOST_S)


def _names(peers: set[str]) -> str:
    return ", ".join(sorted(peers))
