"""What tests of several parts share: certificates made on the spot."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from node.identity import authority
from node.identity.caller import Role
from node.identity.credentials import Identity, load_identity

ORG = "acme"


class IdentityFiles(NamedTuple):
    """The files of one node or operator."""

    cert: Path
    key: Path
    trust: Path
    peer_id: str

    def load(self, crls: Path | None = None) -> Identity:
        """The identity in them."""
        return load_identity(self.cert, self.key, self.trust, crls)


MakeIdentity = Callable[..., IdentityFiles]


def make_authority(directory: Path, org: str = ORG) -> Path:
    """A root and an organization below it, in `directory`."""
    authority.make_root(directory, org)
    authority.make_org(directory, org)
    return directory


def make_identity_in(directory: Path, name: str, role: Role = "node") -> IdentityFiles:
    """A certificate of the organization in `directory`."""
    files = authority.make_member(directory, name, role=role)
    return IdentityFiles(files.cert, files.key, files.trust, files.peer_id)
