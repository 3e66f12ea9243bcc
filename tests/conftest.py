"""Fixtures for all tests."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from node.identity.caller import Role
from node.identity.credentials import Identity
from tests.support import IdentityFiles, MakeIdentity, make_authority, make_identity_in


@pytest.fixture(scope="session")
def authority_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a root and an organization, made once."""
    return make_authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="session")
def make_identity(authority_dir: Path) -> MakeIdentity:
    """Makes certificate files of one authority: `make_identity("w1")`, `make_identity("ada", role="operator")`.

    Every call makes a new key; asking for a name again gives another peer with the files `<name>-<n>-..`.
    """
    taken: set[str] = set()

    def make(name: str = "node", role: Role = "node") -> IdentityFiles:
        unique = next(c for n in itertools.count(1) if (c := name if n == 1 else f"{name}-{n}") not in taken)
        taken.add(unique)
        return make_identity_in(authority_dir, unique, role)

    return make


@pytest.fixture
def identity(make_identity: MakeIdentity) -> Identity:
    """A node's identity, loaded."""
    return make_identity("node").load()


@pytest.fixture
def operator_identity(make_identity: MakeIdentity) -> Identity:
    """An operator's identity, loaded."""
    return make_identity("operator", role="operator").load()
