"""Code that arrives with a job, behind bubblewrap: no network, no view of the node's keys, state or other jobs.

Tasks outside of the sandbox see the machine as it is. Folders that they were given to read are read-only to them as
well; what else their user may write to stays so.
"""

from __future__ import annotations

import asyncio
import shutil
import site
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from node.errors import Refused
from node.worker import entering
from node.worker.environment import package_root

PROBE_S = 5.0
SYSTEM = ("/usr", "/lib", "/lib32", "/lib64", "/libx32", "/bin", "/sbin")
# Not /etc as a whole: keys live there.
SETTINGS = (
    "/etc/alternatives",
    "/etc/group",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/localtime",
    "/etc/nsswitch.conf",
    "/etc/passwd",
    "/etc/ssl/openssl.cnf",
    "/sys/devices/system/cpu",
    "/proc/driver/nvidia",
)
CONFINE = ("--die-with-parent", "--unshare-pid", "--cap-drop", "ALL")
"""Without the last one a node that runs as root, as in a container, would hand root's powers to the job's code; and
without processes of its own, a task would find other views of the machine in /proc."""
HIDE = (*CONFINE, "--unshare-net", "--unshare-ipc", "--unshare-uts")


@dataclass(frozen=True, slots=True)
class Mount:
    """A folder or file of this machine that a task sees at `target`. `device` and `inode` tell whether it is the one
    that was looked at."""

    source: str
    target: str
    read_only: bool
    device: int
    inode: int


@dataclass(frozen=True, slots=True)
class Sandbox:
    """How job code is run on this node: `sandboxed`, `allow` or `refuse` (with the reason). `problem`: why bubblewrap
    does not work here, where that was tried."""

    policy: str
    reason: str = ""
    problem: str = ""

    def check(self) -> None:
        """Raise `Refused` where no job code runs at all."""
        if self.policy == "refuse":
            raise Refused("denied", self.reason, hint='the owner of this worker can set job_code = "allow"')

    def wrap(
        self,
        command: Sequence[str],
        work_dir: Path,
        socket_path: Path | None,
        hidden: Sequence[Path],
        mounts: Sequence[Mount] = (),
    ) -> list[str]:
        """The command that runs `command` as the owner lets job code run. Raises `Refused`.

        `hidden` files and folders (keys, state) are not visible inside, wherever they lie.
        """
        self.check()
        if self.policy == "allow":
            return self.view(command, work_dir, mounts)
        return [*_bubblewrap(work_dir, socket_path, hidden, mounts), *_entering(mounts), *command]

    def view(self, command: Sequence[str], work_dir: Path, mounts: Sequence[Mount]) -> list[str]:
        """The command that runs `command` outside of the sandbox, with its read-only mounts read-only."""
        if all(not mount.read_only for mount in mounts):
            return list(command)
        view = ["bwrap", *CONFINE, "--dev-bind", "/", "/", "--proc", "/proc", *_binds(mounts)]
        return [*view, "--chdir", str(work_dir), "--", *_entering(mounts), *command]


async def find_sandbox(job_code: str | None, *, mounts: bool = False) -> Sandbox:
    """Carry out the owner's `job_code`; with none set, sandbox where that works here and refuse where it does not.
    `mounts`: bubblewrap is asked for in any case, for what is read-only."""
    problem = await _probe() if mounts or job_code in (None, "sandboxed") else ""
    if job_code == "allow":
        return Sandbox("allow", problem=problem)
    if job_code == "refuse":
        return Sandbox("refuse", "this worker runs no code that comes with a job", problem)
    if problem:
        reason = f"this worker runs job code only in a sandbox, and bubblewrap does not work: {problem}"
        return Sandbox("refuse", reason, problem)
    return Sandbox("sandboxed")


async def _probe() -> str:
    program = shutil.which("bwrap")
    if program is None:
        return "bwrap is not installed"
    process = await asyncio.create_subprocess_exec(
        program,
        *("--ro-bind", "/", "/", *HIDE, "--dev", "/dev", "--proc", "/proc", "true"),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(PROBE_S):
            _, complaint = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        return f"no answer in {PROBE_S:g} s"
    if process.returncode == 0:
        return ""
    lines = complaint.decode("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else f"exit code {process.returncode}"


def _bubblewrap(work_dir: Path, socket_path: Path | None, hidden: Sequence[Path], mounts: Sequence[Mount]) -> list[str]:
    command = ["bwrap", *HIDE, "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--tmpfs", "/dev/shm"]
    shown = [*SYSTEM, *SETTINGS, *python_folders()]
    for folder in shown:
        command += ["--ro-bind-try", folder, folder]
    for device in sorted(Path("/dev").glob("nvidia*")):
        command += ["--dev-bind-try", str(device), str(device)]
    for path in hidden:
        if any(path.is_relative_to(folder) for folder in shown):
            command += ["--tmpfs", str(path)] if path.is_dir() else ["--ro-bind", "/dev/null", str(path)]
    command += _binds(mounts)
    command += ["--bind", str(work_dir), str(work_dir)]
    if socket_path is not None:
        command += ["--bind", str(socket_path), str(socket_path)]
    return [*command, "--chdir", str(work_dir), "--"]


def _binds(mounts: Sequence[Mount]) -> list[str]:
    command = []
    for mount in sorted(mounts, key=lambda mount: Path(mount.target).parts):
        command += ["--ro-bind" if mount.read_only else "--bind", mount.source, mount.target]
    return command


def _entering(mounts: Sequence[Mount]) -> list[str]:
    if not mounts:
        return []
    checks = [f"{mount.device}:{mount.inode}:{mount.target}" for mount in mounts]
    return [sys.executable, "-I", "-S", entering.__file__, *checks, "--"]


def python_folders() -> list[str]:
    """Where this Python, its packages and ours lie."""
    folders = [sys.prefix, sys.base_prefix, str(package_root() / "node"), *site.getsitepackages()]
    executable = Path(sys.executable)
    folders.append(str(executable.parent))
    unique = dict.fromkeys(str(Path(folder).resolve()) for folder in folders)
    unique.update(dict.fromkeys(folders))
    return [folder for folder in unique if folder != "/"]
