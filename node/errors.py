"""Errors that a user or another peer can cause, each with its exit code and a hint."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


class HyphaError(Exception):
    """A fault that is told to the user as one line: what happened, then what to do about it.

    `exit_code` is the process's exit status: 1 failed, 2 usage or configuration, 3 a link that may work later.
    """

    exit_code = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}; {self.hint}" if self.hint else self.message


class ConfigError(HyphaError):
    """The configuration, a flag or a file named by one cannot be used."""

    exit_code = 2


class IdentityError(ConfigError):
    """A certificate, key or revocation list is missing, unreadable or does not fit."""


class PeerError(HyphaError):
    """Something went wrong between this node and another."""

    exit_code = 3


class PeerUnreachable(PeerError):
    """No connection, or no answer before the deadline. Trying again later may work."""


class PeerUntrusted(PeerError):
    """The other end is not the peer we expect, or one of the two certificates is refused. Never retried."""

    exit_code = 1


class PeerProtocol(PeerError):
    """The other end answered something that is not of the protocol."""

    exit_code = 1


class Refused(PeerError):
    """The other end understood the request and declined it.

    `code` is a stable word from the table in `node.wire`, `message` the reason in words. `parts` says, where only a
    part of what the request lists is at fault, which of it (by position) and why.
    """

    exit_code = 1

    def __init__(self, code: str, message: str, *, hint: str = "", parts: Mapping[int, str] | None = None) -> None:
        super().__init__(message, hint=hint)
        self.code = code
        self.parts = dict(parts or {})


class TensorFileError(HyphaError):
    """A safetensors file is truncated, malformed or not of the expected schema."""


class DatasetError(HyphaError):
    """A dataset folder, manifest or slice cannot be used."""


class DiskFull(HyphaError):
    """A file does not fit where it is to be written."""

    def __init__(self, path: Path, need_bytes: int, room_bytes: int) -> None:
        super().__init__(
            f"no room for {path}: it needs {need_bytes:,} bytes, {room_bytes:,} are free",
            hint="make room, or choose another directory",
        )
        self.path = path
        self.need_bytes = need_bytes
        self.room_bytes = room_bytes


class ObjectStoreError(HyphaError):
    """Object storage did not do what was asked. `is_final`: trying again later is of no use."""

    exit_code = 3

    def __init__(self, message: str, *, hint: str = "", is_final: bool = False) -> None:
        super().__init__(message, hint=hint)
        self.is_final = is_final


class ObjectMissing(ObjectStoreError):
    """There is no such object."""

    def __init__(self, message: str) -> None:
        super().__init__(message, is_final=True)


class CacheTooSmall(HyphaError):
    """A file is larger than the whole cache may be: no waiting makes room for it."""

    def __init__(self, folder: Path, need_bytes: int, limit_bytes: int) -> None:
        super().__init__(
            f"the cache {folder} may hold {limit_bytes:,} bytes, one file needs {need_bytes:,}",
            hint="the node's owner can raise [cache] size",
        )


class StoreError(HyphaError):
    """The state database cannot be opened or belongs to a newer version."""


class JobError(HyphaError):
    """A job's description is not valid or the job cannot go on."""
