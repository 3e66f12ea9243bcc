"""Announcement and discovery on the local network: mDNS, service `_hypha._tcp`. Only hints: TLS checks every peer.

Imported after the node listens, because zeroconf takes its time. Where there is no multicast, nothing happens.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable

from zeroconf import Error, InterfaceChoice, IPVersion, ServiceStateChange, Zeroconf
from zeroconf.asyncio import AsyncServiceBrowser, AsyncServiceInfo, AsyncZeroconf

from node.addresses import Address
from node.identity.peer_id import is_peer_id
from node.wire import PROTOCOL

log = logging.getLogger(__name__)

SERVICE = "_hypha._tcp.local."
HOST_TTL_S = 60
OTHER_TTL_S = 120
RESOLVE_S = 3.0
GOODBYE_S = 0.6
QUESTIONS_WAITING = 256


class Lan:
    """This node's announcement, and those of other nodes with the same authority."""

    def __init__(
        self, peer_id: str, authority: str, hosts: list[str], port: int, found: Callable[[Address], None]
    ) -> None:
        self._peer_id = peer_id
        self._authority = authority
        self._hosts = hosts
        self._port = port
        self._found = found
        self._names: asyncio.Queue[str] = asyncio.Queue(QUESTIONS_WAITING)

    async def run(self) -> None:
        """Announce and look, until cancelled. Returns at once where there is no multicast."""
        try:
            zeroconf = AsyncZeroconf(interfaces=self._interfaces(), ip_version=IPVersion.V4Only)
        except (OSError, Error) as error:
            log.info("lan.off reason=no multicast here (%s)", error)
            return
        try:
            async with self._announced(zeroconf):
                browser = AsyncServiceBrowser(zeroconf.zeroconf, SERVICE, handlers=[self._noticed])
                try:
                    while True:
                        await self._resolve(zeroconf.zeroconf, await self._names.get())
                finally:
                    await browser.async_cancel()
        except (OSError, Error) as error:
            log.info("lan.off reason=%s", error or type(error).__name__)
        finally:
            await zeroconf.async_close()

    def _interfaces(self) -> InterfaceChoice | list[str]:
        # a node for this machine alone tells nobody else about itself
        local = [host for host in self._hosts if host.startswith("127.")]
        return local if local and len(local) == len(self._hosts) else InterfaceChoice.All

    @contextlib.asynccontextmanager
    async def _announced(self, zeroconf: AsyncZeroconf) -> AsyncIterator[None]:
        info = AsyncServiceInfo(
            SERVICE,
            f"hypha-{self._peer_id[-20:]}.{SERVICE}",
            port=self._port,
            properties={"peer": self._peer_id, "authority": self._authority, "protocol": str(PROTOCOL)},
            server=f"hypha-{self._peer_id[-20:].lower()}.local.",
            parsed_addresses=self._hosts,
            host_ttl=HOST_TTL_S,
            other_ttl=OTHER_TTL_S,
        )
        await (await zeroconf.async_register_service(info, allow_name_change=True))
        log.info("lan.announced hosts=%s port=%s", self._hosts, self._port)
        try:
            yield
        finally:
            with contextlib.suppress(TimeoutError, OSError, Error):
                async with asyncio.timeout(GOODBYE_S):
                    await (await zeroconf.async_unregister_service(info))

    def _noticed(self, zeroconf: Zeroconf, service_type: str, name: str, state_change: ServiceStateChange) -> None:
        if state_change is ServiceStateChange.Removed or self._peer_id[-20:] in name or self._names.full():
            return
        self._names.put_nowait(name)

    async def _resolve(self, zeroconf: Zeroconf, name: str) -> None:
        info = AsyncServiceInfo(SERVICE, name)
        if not await info.async_request(zeroconf, RESOLVE_S * 1000):
            return
        for address in candidates(info, self._peer_id, self._authority):
            self._found(address)


def candidates(info: AsyncServiceInfo, own_id: str, authority: str) -> list[Address]:
    """The addresses in an announcement, if it is of another node of this cluster."""
    texts = info.decoded_properties
    peer_id = texts.get("peer") or ""
    if texts.get("authority") != authority or peer_id == own_id or not is_peer_id(peer_id) or not info.port:
        return []
    return [Address(host, info.port, peer_id) for host in info.parsed_addresses(IPVersion.V4Only)[:4]]
