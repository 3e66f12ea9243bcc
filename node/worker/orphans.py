"""After a crash of the node: end the executors it left, and clear their sockets and work directories.

A process is only ended where its number, start time and boot are the recorded ones, or where it belongs to the session
that such a process led (a session's number is not given away again while a member lives).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sqlite3
from dataclasses import dataclass
from pathlib import Path

from node.worker.beneath import staging_of

FAILED_KEPT = 5
LOGS_KEPT = 40
PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class ExecutorRow:
    """An executor as the store remembers it; `pid` 0 is one that was about to start."""

    task_id: str
    pid: int
    start_ticks: int
    boot_id: str
    work_dir: str
    socket_path: str


def remember(row: ExecutorRow, db: sqlite3.Connection) -> None:
    """Write the row, in place of an older one of the task."""
    db.execute(
        "INSERT OR REPLACE INTO executors VALUES (?, ?, ?, ?, ?, ?)",
        (row.task_id, row.pid, row.start_ticks, row.boot_id, row.work_dir, row.socket_path),
    )


def forget(task_id: str, db: sqlite3.Connection) -> None:
    """The task's executor is gone and cleared away."""
    db.execute("DELETE FROM executors WHERE task_id = ?", (task_id,))


def boot_id() -> str:
    """Identifies this boot of the machine; empty where the system does not tell."""
    try:
        return (PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def start_ticks(pid: int) -> int:
    """When the process started, in clock ticks since boot; 0 where it is gone or the system does not tell."""
    fields = _stat(pid)
    return int(fields[19]) if fields else 0


def sweep(row: ExecutorRow) -> bool:
    """Clear away what a row stands for; whether a process had to be ended."""
    killed = False
    if row.pid > 1 and row.boot_id and row.boot_id == boot_id():
        killed = _kill_session(row.pid, row.start_ticks)
    if row.socket_path:
        Path(row.socket_path).unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            Path(row.socket_path).parent.rmdir()
    if Path(row.work_dir).name.startswith("hypha-"):
        shutil.rmtree(row.work_dir, ignore_errors=True)
        shutil.rmtree(staging_of(Path(row.work_dir)), ignore_errors=True)
    return killed


def prune(jobs_dir: Path, logs_dir: Path) -> None:
    """Keep the work directories of the last 5 failed tasks and the logs of the last tasks."""
    for path in _oldest_first(jobs_dir, "failed-*")[:-FAILED_KEPT]:
        shutil.rmtree(path, ignore_errors=True)
    for path in _oldest_first(logs_dir, "*.log*")[:-LOGS_KEPT]:
        path.unlink(missing_ok=True)


def _kill_session(leader: int, started: int) -> bool:
    now = start_ticks(leader)
    if now and now != started:
        return False
    killed = False
    for entry in PROC.iterdir():
        if not entry.name.isdigit():
            continue
        fields = _stat(int(entry.name))
        if fields and int(fields[3]) == leader and int(fields[19]) >= started:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(int(entry.name), signal.SIGKILL)
                killed = True
    return killed


def _stat(pid: int) -> list[str]:
    """Fields of /proc/<pid>/stat from the state on; the name before them may hold anything."""
    try:
        return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _oldest_first(folder: Path, pattern: str) -> list[Path]:
    found = []
    for path in folder.glob(pattern):
        with contextlib.suppress(FileNotFoundError):
            found.append((path.stat().st_mtime, path))
    return [path for _, path in sorted(found)]
