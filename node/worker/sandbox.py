"""Code that arrives with a job, behind bubblewrap: no network, no view of the node's keys, state or other jobs."""

from __future__ import annotations

import asyncio
import shutil
import site
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from node.errors import Refused
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
HIDE = ("--die-with-parent", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--cap-drop", "ALL")
"""Without the last one a node that runs as root, as in a container, would hand root's powers to the job's code."""


@dataclass(frozen=True, slots=True)
class Sandbox:
    """How job code is run on this node: `sandboxed`, `allow` or `refuse` (with the reason)."""

    policy: str
    reason: str = ""

    def check(self) -> None:
        """Raise `Refused` where no job code runs at all."""
        if self.policy == "refuse":
            raise Refused("denied", self.reason, hint='the owner of this worker can set job_code = "allow"')

    def wrap(
        self, command: Sequence[str], work_dir: Path, socket_path: Path | None, hidden: Sequence[Path]
    ) -> list[str]:
        """The command that runs `command` as the owner lets job code run. Raises `Refused`.

        `hidden` files and folders (keys, state) are not visible inside, wherever they lie.
        """
        self.check()
        if self.policy == "allow":
            return list(command)
        return [*_bubblewrap(work_dir, socket_path, hidden), *command]


async def find_sandbox(job_code: str | None) -> Sandbox:
    """Carry out the owner's `job_code`; with none set, sandbox where that works here and refuse where it does not."""
    if job_code == "allow":
        return Sandbox("allow")
    if job_code == "refuse":
        return Sandbox("refuse", "this worker runs no code that comes with a job")
    problem = await _probe()
    if problem:
        return Sandbox(
            "refuse", f"this worker runs job code only in a sandbox, and bubblewrap does not work: {problem}"
        )
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


def _bubblewrap(work_dir: Path, socket_path: Path | None, hidden: Sequence[Path]) -> list[str]:
    command = ["bwrap", *HIDE, "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--tmpfs", "/dev/shm"]
    shown = [*SYSTEM, *SETTINGS, *_python_folders()]
    for folder in shown:
        command += ["--ro-bind-try", folder, folder]
    for device in sorted(Path("/dev").glob("nvidia*")):
        command += ["--dev-bind-try", str(device), str(device)]
    for path in hidden:
        if any(path.is_relative_to(folder) for folder in shown):
            command += ["--tmpfs", str(path)] if path.is_dir() else ["--ro-bind", "/dev/null", str(path)]
    command += ["--bind", str(work_dir), str(work_dir)]
    if socket_path is not None:
        command += ["--bind", str(socket_path), str(socket_path)]
    return [*command, "--chdir", str(work_dir), "--"]


def _python_folders() -> list[str]:
    folders = [sys.prefix, sys.base_prefix, str(package_root() / "node"), *site.getsitepackages()]
    executable = Path(sys.executable)
    folders.append(str(executable.parent))
    unique = dict.fromkeys(str(Path(folder).resolve()) for folder in folders)
    unique.update(dict.fromkeys(folders))
    return [folder for folder in unique if folder != "/"]
