"""Addresses in object storage, `s3://bucket/path/name`. They are shown and logged: nothing secret may be in one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final
from urllib.parse import urlsplit

from node.errors import ConfigError

OBJECT_STORES: Final = ("s3://", "gs://", "az://")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def is_store_url(text: str) -> bool:
    """Whether this is an address in object storage, and no name or path."""
    return text.startswith(OBJECT_STORES)


def checked_dataset_url(text: str) -> str:
    """The address of a dataset, without a slash at its end. Raises `ConfigError`, which never shows the address."""
    scheme = text[: text.index("://") + 3]
    parts = urlsplit(text)
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise ConfigError(
            f"an address in object storage ({scheme}..) with a user, '?' or '#' would show what may be secret",
            hint="credentials come from the environment of the node that reads it",
        )
    steps = text.removeprefix(scheme).rstrip("/").split("/")
    if not text.isprintable() or any(step in ("", ".", "..") or "\\" in step for step in steps):
        raise ConfigError(f"{text!r} is not of the form {scheme}bucket/path/name")
    if not _NAME.fullmatch(steps[-1]):
        raise ConfigError(
            f"{text}: {steps[-1]!r} cannot be a dataset's name",
            hint="letters, digits, '.', '_' and '-', at most 128 of them",
        )
    return text.rstrip("/")


def name_in(url: str) -> str:
    """The name of what lies at an address: its last part."""
    return url.rstrip("/").rsplit("/", 1)[-1]


def is_within(url: str, allowed: str) -> bool:
    """Whether an address is `allowed` or below it."""
    return f"{url.rstrip('/')}/".startswith(f"{allowed.rstrip('/')}/")


def first_outside(urls: Iterable[str], allowed: Sequence[str]) -> str:
    """The first address that lies in nothing of what is allowed; empty where all do."""
    return next((url for url in urls if not any(is_within(url, one) for one in allowed)), "")
