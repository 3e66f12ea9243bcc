"""What tasks may see of this machine: the owner's list, the sandbox that there is, and what a path really leads to.

A path is looked at in a thread and for a short while only: one on a file server that is gone does not answer at all.
"""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from node import mounts
from node.errors import Refused
from node.wire import BindMount, Mountable
from node.worker.sandbox import Mount, Sandbox, python_folders

if TYPE_CHECKING:
    from node.config import NodeConfig

LOOK_S = 2.0
_PART = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


class Mounts:
    """Says what can be mounted here, and finds it."""

    def __init__(self, config: NodeConfig, sandbox: Sandbox) -> None:
        self._own = config.own_paths
        self._programs = [*python_folders(), str(config.jobs_dir)]
        self._sandbox = sandbox
        self._silent: dict[str, asyncio.Future[Mount]] = {}
        self._listed = [Mountable(path=str(mount.path), read_only=mount.read_only) for mount in config.mounts]

    @property
    def given(self) -> list[Mountable]:
        """What jobs may mount here: of the owner's list, not what is to be read-only where nothing can be made so."""
        return [mount for mount in self._listed if not (mount.read_only and self._sandbox.problem)]

    def objection(self, wanted: Sequence[BindMount]) -> str:
        """Why a job that needs these cannot work here, as far as can be told without looking; empty if it can."""
        reason = mounts.objection(wanted, self._listed)
        if reason:
            return reason
        problem = self._sandbox.problem
        for mount in wanted:
            if mount.read_only and problem:
                return f"no mount {mount.host_path}: nothing can be made read-only here: {problem}"
            if mount.container_path != mount.host_path and self._sandbox.policy != "sandboxed":
                return f"no mount {mount.host_path} as {mount.container_path}: there is no sandbox here"
            if mount.container_path != mount.host_path and self._is_taken(mount.container_path):
                return f"no mount {mount.host_path} as {mount.container_path}: programs of this node lie there"
        return ""

    def _is_taken(self, target: str) -> bool:
        places = [Path(folder) for folder in self._programs]
        return any(place.is_relative_to(target) or Path(target).is_relative_to(place) for place in places)

    async def find(self, wanted: Sequence[BindMount]) -> list[Mount]:
        """The folders and files behind these paths. Raises `Refused` (`denied`: to be asked again would not help)."""
        if not wanted:
            return []
        reason = self.objection(wanted)
        if reason:
            raise Refused("denied", reason)
        self._silent = {path: look for path, look in self._silent.items() if not look.done()}
        silent = [mount.host_path for mount in wanted if mount.host_path in self._silent]
        looks: list[asyncio.Future[Mount]] = []
        if not silent:
            loop = asyncio.get_running_loop()
            looks = [loop.run_in_executor(None, self._look, mount) for mount in wanted]
            for look in looks:
                look.add_done_callback(_take_note)
            await asyncio.wait(looks, timeout=LOOK_S)
            late = {m.host_path: look for m, look in zip(wanted, looks, strict=True) if not look.done()}
            self._silent.update(late)
            silent = list(late)
        if silent:
            raise Refused("denied", f"no mount {', '.join(silent)}: it does not answer")
        return [look.result() for look in looks]

    def _look(self, mount: BindMount) -> Mount:
        try:
            return self._found(mount)
        except (OSError, RuntimeError) as error:
            what = (error.strerror or str(error)).lower() if isinstance(error, OSError) else "a loop of links"
            raise Refused("denied", f"no mount {mount.host_path}: {what}") from error

    def _found(self, mount: BindMount) -> Mount:
        entry = mounts.entry_for(mount.host_path, self._listed)
        assert entry is not None, "looked for what is not allowed"
        root, path = Path(entry.path).resolve(strict=True), Path(mount.host_path).resolve(strict=True)
        if not path.is_relative_to(root):
            raise Refused("denied", f"no mount {mount.host_path}: a link leads out of {entry.path}")
        for own in (own.resolve() for own in self._own):
            if path.is_relative_to(own) or own.is_relative_to(path):
                raise Refused("denied", f"no mount {mount.host_path}: it holds files of this node")
        if not os.access(path, os.R_OK if mount.read_only else os.R_OK | os.W_OK):
            what = "read" if mount.read_only else "written"
            raise Refused("denied", f"no mount {mount.host_path}: this node may not have it {what}")
        found = _status(root, path)
        if not (stat.S_ISDIR(found.st_mode) or stat.S_ISREG(found.st_mode)):
            raise Refused("denied", f"no mount {mount.host_path}: it is neither a folder nor a file")
        return Mount(str(path), mount.container_path, mount.read_only, found.st_dev, found.st_ino)


def _take_note(look: asyncio.Future[Mount]) -> None:
    """A look that nobody waits for any more may fail as well."""
    if not look.cancelled():
        look.exception()


def _status(root: Path, path: Path) -> os.stat_result:
    """Of what lies at `path`, reached from `root` over no link: another task may just be putting one there."""
    here = os.open(root, _PART)
    try:
        for part in path.relative_to(root).parts:
            inner = os.open(part, _PART, dir_fd=here)
            os.close(here)
            here = inner
        return os.fstat(here)
    finally:
        os.close(here)
