"""Folders of a worker's machine that a job sees: what a job asks for, and what an owner allows. Paths as text alone.

Whether a path exists, and where its links lead, only the worker can tell (`node.worker.mounts`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath

from node.schema import Origin
from node.wire import BindMount, Mountable

MOUNTS_ALLOWED = 32
PATH_LIMIT = 1024
KERNEL = ("/proc", "/dev", "/sys")
SYSTEM = ("/usr", "/lib", "/lib32", "/lib64", "/libx32", "/bin", "/sbin", "/etc")


def checked(mounts: Sequence[BindMount], origin: Origin, *, has_code: bool) -> list[BindMount]:
    """The mounts of a job file, each with its `container_path`; the error names the key. `has_code`: the job brings
    code, and so runs in a sandbox where paths can be made up."""
    if len(mounts) > MOUNTS_ALLOWED:
        raise origin.error([], f"{len(mounts)} mounts; at most {MOUNTS_ALLOWED} can be asked for")
    found: list[BindMount] = []
    for index, mount in enumerate(mounts):
        host = _plain(mount.host_path)
        whole = BindMount(
            host_path=host, container_path=_plain(mount.container_path or host), read_only=mount.read_only
        )
        key, problem = _objection(whole)
        if problem:
            raise origin.error([index, key], problem)
        if whole.container_path != whole.host_path and not has_code:
            hint = 'leave it out; only jobs with code of their own (type = "torch") run where it can be chosen'
            raise origin.error([index, "container_path"], "is another path than host_path", hint)
        if any(other.container_path == whole.container_path for other in found):
            raise origin.error([index], f"two mounts are seen at {whole.container_path}")
        found.append(whole)
    return found


def check_allowed(allowed: Sequence[tuple[Path, bool]], own: Sequence[Path], origin: Origin) -> None:
    """Refuse an owner's list of (path, read-only) that gives away what is in `own`, or that contradicts itself."""
    for index, (path, read_only) in enumerate(allowed):
        problem = path_problem(str(path))
        if problem:
            raise origin.error([index, "path"], problem)
        for other in own:
            if path.is_relative_to(other) or other.is_relative_to(path):
                hint = "this node's state, work and key stay out of reach of jobs"
                raise origin.error([index, "path"], f"{path} and {other} lie in one another", hint)
        for number, (other, other_read_only) in enumerate(allowed):
            if path == other and number < index:
                raise origin.error([index, "path"], f"{path} is listed twice")
            if read_only and not other_read_only and path.is_relative_to(other):
                raise origin.error([index, "read_only"], f"jobs may write to {path}, as part of {other}")


def objection(wanted: Sequence[BindMount], allowed: Sequence[Mountable]) -> str:
    """What an owner who allows these does not give: `no mount /data`; empty where all is given."""
    if len(wanted) > MOUNTS_ALLOWED:
        return f"no {len(wanted)} mounts"
    for mount in wanted:
        entry = entry_for(mount.host_path, allowed)
        if _objection(mount)[1] or entry is None:
            return f"no mount {mount.host_path}"
        if entry.read_only and not mount.read_only:
            return f"no writable mount {mount.host_path}"
    return ""


def entry_for(path: str, allowed: Iterable[Mountable]) -> Mountable | None:
    """The narrowest of the allowed paths that holds `path`."""
    holding = [entry for entry in allowed if PurePosixPath(path).is_relative_to(entry.path)]
    return max(holding, key=lambda entry: len(PurePosixPath(entry.path).parts), default=None)


def path_problem(path: str) -> str:
    """Why this cannot be a mount's path; empty if it can."""
    if not path.startswith("/"):
        return f"{path!r} is not an absolute path"
    if not path.isprintable() or len(path) > PATH_LIMIT:
        return f"{path[:80]!r} is no path"
    if ".." in path.split("/") or str(PurePosixPath(path)) != path or path.startswith("//"):
        return f"{path!r} is not in its plain form, without '..'"
    if path == "/" or _is_below(path, KERNEL):
        return f"{path} cannot be mounted"
    return ""


def _objection(mount: BindMount) -> tuple[str, str]:
    """(key, problem) of a mount with both paths."""
    for key in ("host_path", "container_path"):
        problem = path_problem(getattr(mount, key))
        if problem:
            return key, problem
    if mount.container_path != mount.host_path and _is_below(mount.container_path, SYSTEM):
        return "container_path", f"{mount.container_path} belongs to the system"
    return "", ""


def _plain(path: str) -> str:
    """Without a `/` at the end, and the like. `..` stays, to be refused: what it means depends on links."""
    return str(PurePosixPath(path)) if path.startswith("/") else path


def _is_below(path: str, places: Iterable[str]) -> bool:
    return any(PurePosixPath(path).is_relative_to(place) for place in places)
