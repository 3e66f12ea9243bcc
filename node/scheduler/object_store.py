"""Object storage, through obstore where it is installed. Credentials come from this node's environment alone."""

from __future__ import annotations

from typing import Any

from node.errors import JobError

OBJECT_STORES = ("s3://", "gs://", "az://")
NEEDS_OBSTORE = "install it on the scheduler's machine: pip install 'hypha-tui[s3]'"
PUT_S = 3600.0


def open_store(to: str) -> Any:
    """obstore's handle of a bucket. Raises `JobError` where it can never work."""
    try:
        from obstore.store import from_url
    except ImportError as error:
        raise JobError(f"{to} needs obstore", hint=NEEDS_OBSTORE) from error
    try:
        return from_url(to)
    except Exception as error:
        # Its texts can hold credentials.
        raise JobError(f"{to} cannot be used: {type(error).__name__}") from error
