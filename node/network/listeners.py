"""Sockets that this node listens on, and the addresses it tells others."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable

import psutil

from node.addresses import Address, format, parse
from node.errors import ConfigError, HyphaError

BACKLOG = 512
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Place = tuple[str, int]


def listen(addresses: Iterable[str]) -> list[socket.socket]:
    """Bind every address. Raises HyphaError that says which port is taken and by whom; then nothing stays bound."""
    sockets: list[socket.socket] = []
    try:
        for text in addresses:
            address = parse(text)
            sockets.extend(_bind(address, place) for place in _places(address))
    except BaseException:
        for bound in sockets:
            bound.close()
        raise
    return sockets


def places(sockets: Iterable[socket.socket]) -> list[Place]:
    """Hosts and real ports of bound sockets."""
    return [(str(bound.getsockname()[0]), int(bound.getsockname()[1])) for bound in sockets]


def interface_hosts() -> list[str]:
    """IP addresses of this machine's interfaces that are up."""
    up = {name for name, stats in psutil.net_if_stats().items() if stats.isup}
    return [
        address.address
        for name, addresses in psutil.net_if_addrs().items()
        for address in addresses
        if name in up and address.family in (socket.AF_INET, socket.AF_INET6) and "%" not in address.address
    ]


def advertised(
    bound: Iterable[Place], interfaces: Iterable[str], external: Iterable[str], excluded: Iterable[str]
) -> list[str]:
    """The addresses to tell others: external ones first; an unspecified host stands for the interfaces outside
    `excluded`; loopback only where there is nothing else."""
    bound = list(bound)
    networks = [ipaddress.ip_network(text, strict=False) for text in excluded]
    hosts = [ip for text in interfaces if _is_usable(ip := ipaddress.ip_address(text), networks)]
    found: list[Place] = []
    loopback: list[Place] = []
    for host, port in bound:
        ip = ipaddress.ip_address(host.partition("%")[0])
        if ip.is_unspecified:
            found.extend((str(other), port) for other in hosts if other.version == ip.version)
            loopback.append(("127.0.0.1" if ip.version == 4 else "::1", port))
        else:
            (loopback if ip.is_loopback else found).append((str(ip), port))
    named = list(external)
    if not found and not named:
        found = loopback
    return list(dict.fromkeys([*named, *(format(Address(host, port)) for host, port in found)]))


def own_places(bound: Iterable[Place]) -> list[str]:
    """Addresses under which this node reaches itself."""
    local = {"0.0.0.0": "127.0.0.1", "::": "::1"}
    return [format(Address(local.get(host, host), port)) for host, port in bound]


def _is_usable(ip: ipaddress.IPv4Address | ipaddress.IPv6Address, excluded: list[Network]) -> bool:
    if ip.is_loopback or ip.is_link_local or ip.is_unspecified:
        return False
    return not any(ip.version == network.version and ip in network for network in excluded)


def _places(address: Address) -> list[tuple[socket.AddressFamily, Place]]:
    try:
        found = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE | socket.AI_ADDRCONFIG
        )
    except socket.gaierror:
        try:  # an IPv6 literal where no interface has IPv6, or loopback alone
            found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        except socket.gaierror as error:
            raise ConfigError(f"cannot listen on {address}: {address.host}: {error.strerror}") from error
    return list(dict.fromkeys((family, (str(where[0]), int(where[1]))) for family, _, _, _, where in found))


def _bind(address: Address, where: tuple[socket.AddressFamily, Place]) -> socket.socket:
    family, (host, port) = where
    try:
        bound = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        raise HyphaError(f"cannot listen on {address}: {error.strerror}") from error
    try:
        bound.setblocking(False)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        bound.bind((host, port))
        bound.listen(BACKLOG)
    except OSError as error:
        bound.close()
        raise _told(address, port, error) from error
    return bound


def _told(address: Address, port: int, error: OSError) -> HyphaError:
    if isinstance(error, PermissionError):
        hint = "ports below 1024 need privileges" if port < 1024 else ""
        return HyphaError(f"may not listen on port {port} ({address})", hint=hint)
    if error.errno != 98 and "in use" not in str(error):
        return HyphaError(f"cannot listen on {address}: {error.strerror}", hint="is this an address of this machine?")
    return HyphaError(
        f"port {port} is taken by {_owner(port)} (listening on {address} failed)",
        hint="stop that, or listen elsewhere with --listen (port 0 takes any free one)",
    )


def _owner(port: int) -> str:
    try:
        connections = psutil.net_connections(kind="tcp")
        for connection in connections:
            if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port and connection.pid:
                return f"{psutil.Process(connection.pid).name()} (process {connection.pid})"
    except (psutil.Error, OSError):
        pass
    return "another program"
