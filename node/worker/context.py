"""What every part of one task needs to know about it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from node.errors import Refused
from node.network.cache import ContentCache
from node.wire import Dispatch
from node.worker.stores import Stores
from node.worker.web import Web

_SAFE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True, slots=True)
class TaskContext:
    """A dispatched task: whose it is, and where it lives on this worker."""

    peer_id: str
    scheduler: str
    dispatch: Dispatch
    work_dir: Path
    log_path: Path
    cache: ContentCache
    web: Web
    stores: Stores = field(default_factory=Stores)
    token: str = field(default="", repr=False)

    @property
    def task_id(self) -> str:
        """The task's id."""
        return self.dispatch.task_id

    @property
    def job_id(self) -> str:
        """The id of its job."""
        return self.dispatch.job_id


def check_id(what: str, value: str) -> str:
    """`value`, if it can stand in a file name and in a path of ours. Raises `Refused`."""
    if not _SAFE_ID.fullmatch(value):
        raise Refused("invalid", f"{what} {value[:40]!r} is not made of letters, digits, '.', '_' and '-'")
    return value
