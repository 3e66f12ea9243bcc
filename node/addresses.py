"""Addresses of nodes: multiaddrs of the TCP kind, and `https://host:port`."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, replace

from node.errors import ConfigError

_HOST_NAME = re.compile(
    r"(?=.{1,253}\Z)[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9])?(\.[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9])?)*\.?"
)
_PEER_ID = re.compile(r"[1-9A-HJ-NP-Za-km-z]{46,60}")
_NAME_PROTOCOLS = ("dns", "dns4", "dns6")
_HINT = "write /ip4/203.0.113.50/tcp/4001, /dns4/gw.example.org/tcp/443 or https://host:port"


@dataclass(frozen=True, slots=True)
class Address:
    """A host (IP literal or name), a TCP port, and the peer that must answer there, if the address pins one."""

    host: str
    port: int
    peer_id: str | None = None

    def pinned(self, peer_id: str) -> Address:
        """The same place, for this peer only."""
        return replace(self, peer_id=peer_id)

    @property
    def is_ip(self) -> bool:
        """Whether the host is an IP literal."""
        return _ip(self.host) is not None

    @property
    def is_unspecified(self) -> bool:
        """Whether it stands for every local interface (`0.0.0.0`, `::`)."""
        ip = _ip(self.host)
        return ip is not None and ip.is_unspecified

    @property
    def netloc(self) -> str:
        """`host:port` as in a URL."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def __str__(self) -> str:
        return format(self)


def parse(text: str) -> Address:
    """The address that `text` writes down; ConfigError says which part of it is wrong."""
    text = text.strip()
    if text.startswith("https://"):
        return _parse_url(text)
    if not text.startswith("/"):
        raise ConfigError(f"address {text!r} is neither a multiaddr nor an https:// address", hint=_HINT)
    parts = text[1:].rstrip("/").split("/")
    if len(parts) < 4:
        raise ConfigError(f"address {text!r} is incomplete", hint=_HINT)
    host = _host(text, parts[0], parts[1])
    if parts[2] != "tcp":
        raise ConfigError(f"address {text!r}: {parts[2]!r} is not supported, only tcp", hint=_HINT)
    address = Address(host, _port(text, parts[3]))
    rest = parts[4:]
    if not rest:
        return address
    if len(rest) != 2 or rest[0] not in ("p2p", "ipfs"):
        raise ConfigError(
            f"address {text!r}: cannot use /{'/'.join(rest)} after the port", hint="only /p2p/PEER may follow"
        )
    if not _PEER_ID.fullmatch(rest[1]):
        raise ConfigError(f"address {text!r}: {rest[1]!r} is not a peer id", hint="a peer id starts with 12D3KooW")
    return address.pinned(rest[1])


def format(address: Address) -> str:
    """The address as a multiaddr."""
    ip = _ip(address.host)
    protocol = "dns" if ip is None else f"ip{ip.version}"
    text = f"/{protocol}/{address.host}/tcp/{address.port}"
    return f"{text}/p2p/{address.peer_id}" if address.peer_id else text


def _parse_url(text: str) -> Address:
    rest = text.removeprefix("https://").rstrip("/")
    if any(character in rest for character in "/?#@"):
        raise ConfigError(f"address {text!r} has more than a host and a port", hint="write https://host:port")
    host, colon, port = rest.rpartition(":")
    if not colon or host.endswith(":") or (rest.startswith("[") and rest.endswith("]")):
        raise ConfigError(f"address {text!r} has no port", hint="write https://host:port")
    if host.startswith("[") and host.endswith("]"):
        return Address(_host(text, "ip6", host[1:-1]), _port(text, port))
    return Address(_host(text, "dns" if _ip(host) is None else "ip4", host), _port(text, port))


def _host(text: str, protocol: str, host: str) -> str:
    if protocol in ("ip4", "ip6"):
        ip = _ip(host)
        if ip is None or ip.version != int(protocol[2]):
            raise ConfigError(f"address {text!r}: {host!r} is not an IPv{protocol[2]} address", hint=_HINT)
        return str(ip)
    if protocol not in _NAME_PROTOCOLS:
        raise ConfigError(f"address {text!r}: unknown protocol {protocol!r}", hint=_HINT)
    if not _HOST_NAME.fullmatch(host):
        raise ConfigError(f"address {text!r}: {host!r} is not a host name", hint=_HINT)
    return host


def _port(text: str, port: str) -> int:
    if not (port.isascii() and port.isdigit() and len(port) <= 5 and int(port) <= 65535):
        raise ConfigError(f"address {text!r}: {port!r} is not a port", hint="a port is 0 to 65535")
    return int(port)


def _ip(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
