"""Files from the web: Hugging Face repositories through the owner's endpoint, http(s) addresses of the public net."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from node.errors import DiskFull
from node.network.partfile import PartFile
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


class Web:
    """Downloads for one task. `endpoint` is the hub the owner chose (`HF_ENDPOINT`)."""

    def __init__(self, endpoint: str | None = None, *, is_allowed: Callable[[Address], bool] = is_public) -> None:
        self._endpoint = (endpoint or os.environ.get("HF_ENDPOINT") or HUB).rstrip("/")
        self._is_allowed = is_allowed

    async def hub_file(self, files: HubFiles, name: str, token: str, target: Path, transfer: Transfer) -> Got:
        """One file of a repository. The token goes to the hub's own address only, never along a redirect."""
        path = "/".join((*files.repository.split("/"), "resolve", quote(files.revision, safe=""), quote(name)))
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return await self._download(f"{self._endpoint}/{path}", headers, target, transfer, is_checked=False)

    async def uri(self, address: str, target: Path, transfer: Transfer) -> Got:
        """One file behind an address of the public net."""
        return await self._download(address, {}, target, transfer, is_checked=True)

    async def _download(
        self, url: str, headers: Mapping[str, str], target: Path, transfer: Transfer, *, is_checked: bool
    ) -> Got:
        backoff = new_backoff()
        while True:
            try:
                return await self._attempt(url, headers, target, transfer, is_checked)
            except DiskFull as error:
                raise BridgeError(507, "full", error.message) from error
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
            wait_s = backoff.failed()
            if backoff.failures >= ATTEMPTS:
                raise problem
            await asyncio.sleep(wait_s)

    async def _attempt(
        self, url: str, headers: Mapping[str, str], target: Path, transfer: Transfer, is_checked: bool
    ) -> Got:
        sent, current = dict(headers), url
        for _ in range(REDIRECTS + 1):
            resolver = await self._pinned(current) if is_checked else None
            connector = aiohttp.TCPConnector(resolver=resolver, force_close=True)
            async with aiohttp.ClientSession(connector=connector, timeout=TIMEOUT, auto_decompress=False) as session:
                wanted = {**sent, "Accept-Encoding": "identity"}
                async with session.get(URL(current, encoded=True), headers=wanted, allow_redirects=False) as answer:
                    location = answer.headers.get("Location")
                    if answer.status in (301, 302, 303, 307, 308) and location:
                        following = str(answer.url.join(URL(location, encoded=True)))
                        if URL(following).origin() != answer.url.origin():
                            sent.pop("Authorization", None)
                        current = following
                        continue
                    _check_status(answer.status, url)
                    return await _store(answer, target, transfer)
        raise BridgeError(502, "source_failed", f"{_shown(url)} redirects more than {REDIRECTS} times")

    async def _pinned(self, url: str) -> AbstractResolver:
        """A resolver that knows the checked addresses of this host alone, so that they cannot change meanwhile."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise BridgeError(400, "invalid_reference", f"{_shown(url)} is not an http or https address")
        port = parts.port or (443 if parts.scheme == "https" else 80)
        async with asyncio.timeout(CONNECT_S):
            loop = asyncio.get_running_loop()
            found = await loop.getaddrinfo(parts.hostname, port, type=socket.SOCK_STREAM)
        for _, _, _, _, address in found:
            if not self._is_allowed(ipaddress.ip_address(str(address[0]).partition("%")[0])):
                raise BridgeError(
                    400, "invalid_reference", f"{_shown(url)} is at {address[0]}, which is not of the public net"
                )
        return _Pinned(parts.hostname, port, found)


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


async def _store(answer: aiohttp.ClientResponse, target: Path, transfer: Transfer) -> Got:
    size = answer.content_length or 0
    transfer.resize(size)
    part = await PartFile.create(target, size)
    try:
        async for piece in answer.content.iter_chunked(PIECE_BYTES):
            await part.append([piece])
            transfer.progress(part.written)
        digest = await part.digest()
        if answer.content_length is not None and part.written != size:
            raise aiohttp.ClientPayloadError(f"the answer ended after {part.written} of {size} bytes")
        await part.commit(durable=False)
        return Got(part.written, digest)
    finally:
        await part.discard()


def _check_status(status: int, url: str) -> None:
    if status == 200:
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
