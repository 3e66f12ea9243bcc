"""Which node to talk to, and as whom: from flags, the environment, or a node that runs on this machine."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from node.addresses import Address, parse
from node.errors import ConfigError, PeerUnreachable

OPERATOR_FILE = "operator.json"


@dataclass(frozen=True, slots=True)
class Connection:
    """What the user said about the connection; empty fields were not given."""

    node: str = ""
    cert: Path | None = None
    key: Path | None = None
    trust: Path | None = None
    crls: Path | None = None
    state_dir: Path | None = None

    def with_environment(self, environment: Mapping[str, str]) -> Connection:
        """Fields that are not given, from `HYPHA_TUI_NODE`, `_CERT`, `_KEY`, `_TRUST`, `_CRLS` and `_STATE_DIR`. A node
        and a state folder stand for each other: who gives one asks for no other."""
        says_where = bool(self.node) or self.state_dir is not None

        def path(given: Path | None, name: str) -> Path | None:
            text = environment.get(f"HYPHA_TUI_{name}", "")
            return given or (Path(text) if text else None)

        return Connection(
            node=self.node if says_where else environment.get("HYPHA_TUI_NODE", ""),
            cert=path(self.cert, "CERT"),
            key=path(self.key, "KEY"),
            trust=path(self.trust, "TRUST"),
            crls=path(self.crls, "CRLS"),
            state_dir=self.state_dir if says_where else path(None, "STATE_DIR"),
        )


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A node's operator API: a Unix socket of this machine, or an address with the operator's certificate.

    `readonly`: who uses it asked that nothing be changed through it.
    """

    socket: Path | None = None
    address: Address | None = None
    cert: Path | None = None
    key: Path | None = None
    trust: Path | None = None
    crls: Path | None = None
    readonly: bool = False

    def __str__(self) -> str:
        return f"unix:{self.socket}" if self.socket is not None else str(self.address)


def resolve(given: Connection, environment: Mapping[str, str]) -> Endpoint:
    """The endpoint that `given` describes; without any hint, the newest node that runs here for this user."""
    given = given.with_environment(environment)
    if given.node:
        return _from_node(given)
    if given.state_dir is not None:
        return Endpoint(socket=_socket_of(given.state_dir))
    live = sorted(_live_files(_state_home(environment)), key=lambda file: file.stat().st_mtime)
    if not live:
        raise PeerUnreachable(
            "no node to connect to: none runs on this machine for this user",
            hint="start one with `hypha-node`, or name one: --node ADDRESS --cert FILE --key FILE --trust FILE",
        )
    return Endpoint(socket=_socket_of(live[-1].parent))


def _from_node(given: Connection) -> Endpoint:
    if given.node.startswith("unix:"):
        return Endpoint(socket=Path(given.node.removeprefix("unix:")))
    address = parse(given.node)
    if given.cert is None:
        raise ConfigError(
            f"{given.node} asks for an operator's certificate and none was given",
            hint="add --cert FILE (`hypha-node cert operator` makes one), or set HYPHA_TUI_CERT",
        )
    key = given.key or _beside(given.cert, "key")
    trust = given.trust or _beside(given.cert, "trust")
    return Endpoint(address=address, cert=given.cert, key=key, trust=trust, crls=given.crls)


def _beside(cert: Path, what: str) -> Path:
    """`NAME-key.pem` beside `NAME-cert.pem`, as the certificate tool writes them."""
    if cert.name.endswith("-cert.pem"):
        return cert.with_name(cert.name.removesuffix("-cert.pem") + f"-{what}.pem")
    raise ConfigError(
        f"--cert {cert} was given without --{what}", hint=f"add --{what} FILE, or set HYPHA_TUI_{what.upper()}"
    )


def _state_home(environment: Mapping[str, str]) -> Path:
    home = environment.get("XDG_STATE_HOME", "")
    if home.startswith("/"):
        return Path(home) / "hypha"
    return Path(environment.get("HOME", "~")).expanduser() / ".local" / "state" / "hypha"


def _live_files(home: Path) -> Iterable[Path]:
    """Operator files of nodes that are alive, in the state home and its direct folders."""
    for file in (*home.glob(OPERATOR_FILE), *home.glob(f"*/{OPERATOR_FILE}")):
        try:
            pid = int(json.loads(file.read_text())["pid"])
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if _is_alive(pid):
            yield file


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _socket_of(state_dir: Path) -> Path:
    """The socket that a node with this state folder serves."""
    file = state_dir / OPERATOR_FILE
    try:
        described = json.loads(file.read_text())
        return Path(described["socket"])
    except FileNotFoundError:
        raise PeerUnreachable(
            f"no node runs with the state folder {state_dir}: it has no {OPERATOR_FILE}",
            hint="start it with `hypha-node --state-dir`, or name another folder",
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{file} cannot be read: {error}", hint="restart the node, which writes it anew") from error
