"""Files from the web: Hugging Face repositories through the owner's endpoint, and other hosts that the owner allows.

A file that is cut off goes on at the byte where it stopped, also in a later task or after a restart of the node. What
has been fetched once is asked for with its tag, and comes from the node's cache where it is still the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fnmatch
import hashlib
import ipaddress
import os
import shutil
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import aiohttp
import msgspec
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from node.config import FetchConfig
from node.errors import DiskFull
from node.network.cache import ContentCache, copy_file
from node.network.ownsocket import own_socket
from node.network.ranges import parse_content_range
from node.wire import UNDECODABLE
from node.worker.references import BridgeError, HubFiles
from node.worker.retrying import new_backoff
from node.worker.transfers import Transfer

HUB = "https://huggingface.co"
ATTEMPTS = 4
REDIRECTS = 5
CONNECT_S = 10.0
SILENCE_S = 30.0
PIECE_BYTES = 1 << 20
TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=SILENCE_S)
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
LINKED = (301, 302, 303, 307, 308)

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def is_public(address: Address) -> bool:
    """Whether an address is of the public net: nothing else may be probed through a worker."""
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour or (address.teredo[1] if address.teredo else None)
        if inner is not None and not is_public(inner):
            return False
        if address in ipaddress.ip_network("64:ff9b::/96"):
            return is_public(ipaddress.IPv4Address(address.packed[-4:]))
    return address.is_global and not address.is_multicast


@dataclass(frozen=True, slots=True)
class Got:
    """A file that is whole and in place."""

    size_bytes: int
    sha256: str


class _Note(msgspec.Struct):
    """What is known of an address: its tag, and the digest once the whole file is here."""

    etag: str = ""
    size_bytes: int = -1
    sha256: str = ""


class Web:
    """Downloads of one worker, for all its tasks. `endpoint` is the hub that the owner chose (`HF_ENDPOINT`)."""

    def __init__(
        self,
        cache: ContentCache,
        config: FetchConfig,
        endpoint: str | None = None,
        *,
        is_allowed: Callable[[Address], bool] = is_public,
    ) -> None:
        self._cache = cache
        self._config = config
        self._endpoint = (endpoint or os.environ.get("HF_ENDPOINT") or HUB).rstrip("/")
        self._is_allowed = is_allowed
        self._fetching: dict[str, asyncio.Lock] = {}

    async def hub_file(self, files: HubFiles, name: str, token: str, target: Path, transfer: Transfer) -> Got:
        """One file of a repository. The token goes to the hub's own address only, never along a redirect."""
        path = "/".join((*files.repository.split("/"), "resolve", quote(files.revision, safe=""), quote(name)))
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return await self._download(f"{self._endpoint}/{path}", headers, target, transfer)

    async def uri(self, address: str, target: Path, transfer: Transfer) -> Got:
        """One file behind an address of a host that the owner allows."""
        return await self._download(address, {}, target, transfer)

    async def _download(self, url: str, headers: Mapping[str, str], target: Path, transfer: Transfer) -> Got:
        """The file as `target`, which must not exist. Raises `BridgeError`, or `DiskFull`."""
        key = hashlib.sha256(url.encode()).hexdigest()
        lock = self._fetching.setdefault(key, asyncio.Lock())
        try:
            async with lock:
                note = await self._placed(url, headers, _Part(self._cache.folder, key), target, transfer)
        finally:
            if not lock.locked():
                self._fetching.pop(key, None)
        return Got(note.size_bytes, note.sha256)

    async def _placed(
        self, url: str, headers: Mapping[str, str], part: _Part, target: Path, transfer: Transfer
    ) -> _Note:
        while True:
            note = await self._fetched(url, headers, part, transfer)
            with contextlib.suppress(_Gone):
                async with self._cache.pinned(note.sha256, note.size_bytes, _gone) as whole:
                    await asyncio.to_thread(copy_file, whole, target)
                return note

    async def _fetched(self, url: str, headers: Mapping[str, str], part: _Part, transfer: Transfer) -> _Note:
        backoff = new_backoff()
        while True:
            before = await asyncio.to_thread(part.size)
            try:
                return await self._attempt(url, headers, part, transfer)
            except TimeoutError as error:
                problem = BridgeError(504, "timeout", f"{_shown(url)} sent nothing for {SILENCE_S:g} s")
                problem.__cause__ = error
            except (aiohttp.ClientError, ConnectionError, socket.gaierror) as error:
                problem = BridgeError(502, "source_failed", f"{_shown(url)}: {error or type(error).__name__}")
                problem.__cause__ = error
            except BridgeError as error:
                if error.status != 502:
                    raise
                problem = error
            if await asyncio.to_thread(part.size) > before:
                backoff.succeeded()
            wait_s = backoff.failed()
            if backoff.failures >= ATTEMPTS:
                raise problem
            await asyncio.sleep(wait_s)

    async def _attempt(self, url: str, headers: Mapping[str, str], part: _Part, transfer: Transfer) -> _Note:
        sent, current = dict(headers), url
        note = await asyncio.to_thread(part.note)
        is_here = bool(note.sha256) and self._cache.has(note.sha256)
        start = 0 if note.sha256 or not note.etag else await asyncio.to_thread(part.size)
        wanted = {"Accept-Encoding": "identity"}
        if is_here and note.etag:
            wanted["If-None-Match"] = note.etag
        elif start:
            wanted |= {"Range": f"bytes={start}-", "If-Range": note.etag}
        for _ in range(REDIRECTS + 1):
            connector = aiohttp.TCPConnector(
                resolver=await self._pinned(current), force_close=True, socket_factory=own_socket
            )
            async with aiohttp.ClientSession(connector=connector, timeout=TIMEOUT, auto_decompress=False) as session:
                request = session.get(URL(current, encoded=True), headers={**sent, **wanted}, allow_redirects=False)
                async with request as answer:
                    location = answer.headers.get("Location")
                    if answer.status in LINKED and location:
                        following = str(answer.url.join(URL(location, encoded=True)))
                        if URL(following).origin() != answer.url.origin():
                            sent.pop("Authorization", None)
                        current = following
                        continue
                    if answer.status == 304 and is_here:
                        transfer.resize(note.size_bytes)
                        return note
                    if answer.status == 416:
                        await asyncio.to_thread(part.forget)
                        raise BridgeError(502, "source_failed", f"{_shown(url)} has become shorter")
                    _check_status(answer.status, url)
                    return await self._store(answer, part, start, transfer)
        raise BridgeError(502, "source_failed", f"{_shown(url)} redirects more than {REDIRECTS} times")

    async def _store(self, answer: aiohttp.ClientResponse, part: _Part, start: int, transfer: Transfer) -> _Note:
        """Append the answer to what is here, and put the whole into the cache."""
        span = parse_content_range(answer.headers.get("Content-Range"))
        if answer.status != 206 or span is None or span[0] != start:
            if answer.status == 206:
                raise BridgeError(502, "source_failed", f"{_shown(str(answer.url))} sent another part than asked for")
            start = 0
        size = -1 if answer.content_length is None else start + answer.content_length
        etag = answer.headers.get("ETag", "")
        note = _Note(etag if not etag.startswith("W/") else "", size)
        transfer.resize(max(0, size))
        async with self._cache.room(part.path.name, max(0, size - start)):
            file = await asyncio.to_thread(part.open, start, note)
            done = start
            try:
                async for piece in answer.content.iter_chunked(PIECE_BYTES):
                    await asyncio.to_thread(file.write, piece)
                    done += len(piece)
                    transfer.progress(done)
            except OSError as error:
                if error.errno not in NO_ROOM:
                    raise
                raise DiskFull(part.path, size - done, shutil.disk_usage(part.path.parent).free) from error
            finally:
                await asyncio.to_thread(file.close)
            if size >= 0 and done != size:
                raise aiohttp.ClientPayloadError(f"the answer ended after {done} of {size} bytes")
            note.sha256, note.size_bytes = await asyncio.to_thread(part.digest), done
        await self._cache.adopt(note.sha256, part.path)
        await asyncio.to_thread(part.keep, note)
        return note

    async def _pinned(self, url: str) -> AbstractResolver:
        """A resolver that knows the checked addresses of this host alone, so that they cannot change meanwhile."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise BridgeError(400, "invalid_reference", f"{_shown(url)} is not an http or https address")
        host = parts.hostname.lower()
        is_endpoint = host == (urlsplit(self._endpoint).hostname or "").lower()
        if not is_endpoint and not any(fnmatch.fnmatchcase(host, one.lower()) for one in self._config.hosts):
            raise BridgeError(
                403, "denied", f"this worker fetches nothing from {host}; its owner can add it to [fetch] hosts"
            )
        port = parts.port or (443 if parts.scheme == "https" else 80)
        async with asyncio.timeout(CONNECT_S):
            loop = asyncio.get_running_loop()
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        for _, _, _, _, address in found:
            if is_endpoint or self._config.private:
                break
            if not self._is_allowed(ipaddress.ip_address(str(address[0]).partition("%")[0])):
                raise BridgeError(
                    403,
                    "denied",
                    f"{_shown(url)} is at {address[0]}, which is not of the public net; the worker's owner can allow "
                    "that by [fetch] private",
                )
        return _Pinned(host, port, found)


class _Part:
    """A file that is not whole yet, and the note beside it. All methods block: they are for a thread."""

    def __init__(self, folder: Path, key: str) -> None:
        self.path = folder / f".{key}.part"
        self._note = folder / f".{key}.note"

    def size(self) -> int:
        """How many bytes are here."""
        try:
            return self.path.stat().st_size
        except FileNotFoundError:
            return 0

    def note(self) -> _Note:
        """What is known of the file; what cannot be read is not known."""
        try:
            return msgspec.json.decode(self._note.read_bytes(), type=_Note)
        except (OSError, *UNDECODABLE):
            return _Note()

    def open(self, start: int, note: _Note) -> Any:
        """The file, to write from byte `start` on."""
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.keep(note)
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        os.ftruncate(descriptor, start)
        os.lseek(descriptor, start, os.SEEK_SET)
        return os.fdopen(descriptor, "wb")

    def keep(self, note: _Note) -> None:
        """Write the note."""
        fresh = self._note.with_suffix(".note.part")
        fresh.write_bytes(msgspec.json.encode(note))
        fresh.replace(self._note)

    def forget(self) -> None:
        """Begin from nothing the next time."""
        self.path.unlink(missing_ok=True)
        self._note.unlink(missing_ok=True)

    def digest(self) -> str:
        """The SHA-256 of what is here."""
        with self.path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()


class _Gone(Exception):
    pass


async def _gone(path: Path) -> None:
    """It left the cache before it could be pinned."""
    raise _Gone


class _Pinned(AbstractResolver):
    def __init__(self, host: str, port: int, found: list[Any]) -> None:
        self._answers = [
            ResolveResult(
                hostname=host, host=str(address[0]), port=port, family=family, proto=0, flags=socket.AI_NUMERICHOST
            )
            for family, _, _, _, address in found
        ]

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        return self._answers

    async def close(self) -> None:
        return None


def _check_status(status: int, url: str) -> None:
    if status in (200, 206):
        return
    if status in (404, 410):
        raise BridgeError(404, "unknown", f"{_shown(url)} does not exist")
    if status in (401, 403):
        raise BridgeError(403, "denied", f"{_shown(url)} answered {status}: it needs a token with access")
    if status < 500 and status not in (408, 425, 429):
        raise BridgeError(404, "unknown", f"{_shown(url)} answered {status}")
    raise BridgeError(502, "source_failed", f"{_shown(url)} answered {status}")


def _shown(url: str) -> str:
    """The address without what may be secret in it."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.hostname or ''}{f':{parts.port}' if parts.port else ''}{parts.path}"
