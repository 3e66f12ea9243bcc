"""One executor process: started through the launcher in its own session, ended with everything it started."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, STDOUT, Process
from collections.abc import Mapping, Sequence
from pathlib import Path

from node.worker import launcher
from node.worker.logfile import LogFile

GRACE_S = 2.0
READ_BYTES = 1 << 16
LINE_LIMIT = 64 << 20


class ExecutorProcess:
    """A running executor. Its output goes to a log; `stop` ends its whole group."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self.pid = process.pid

    @classmethod
    async def start(
        cls, command: Sequence[str], environment: Mapping[str, str], work_dir: Path, *, speaks: bool = False
    ) -> ExecutorProcess:
        """Start `command` in `work_dir`. One that `speaks` has stdin and stdout for us, and only stderr is its log."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-I",
            "-S",
            launcher.__file__,
            str(os.getpid()),
            *command,
            stdin=PIPE if speaks else DEVNULL,
            stdout=PIPE,
            stderr=PIPE if speaks else STDOUT,
            cwd=work_dir,
            env=dict(environment),
            start_new_session=True,
            limit=LINE_LIMIT,
        )
        return cls(process)

    async def drain(self, log: LogFile) -> None:
        """Copy the output to `log` until it is closed by the executor and all that it started."""
        stream = self._process.stderr or self._process.stdout
        while stream is not None and (data := await stream.read(READ_BYTES)):
            log.write(data)

    async def wait(self) -> int:
        """Its exit code; -9 for one that SIGKILL ended."""
        return await self._process.wait()

    async def say(self, line: bytes) -> None:
        """Write one line to a process that speaks."""
        stdin = self._process.stdin
        if stdin is None:
            raise AssertionError("this process does not speak")
        stdin.write(line + b"\n")
        await stdin.drain()

    async def hear(self) -> bytes:
        """The next line of a process that speaks; empty when it is gone."""
        stdout = self._process.stdout
        if stdout is None:
            raise AssertionError("this process does not speak")
        return await stdout.readline()

    async def stop(self, grace_s: float = GRACE_S) -> None:
        """TERM to the group, KILL after `grace_s`; afterwards none of its processes is left."""
        try:
            if self._process.returncode is None:
                self._signal(signal.SIGTERM)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(grace_s):
                        await self._process.wait()
        finally:
            self._signal(signal.SIGKILL)
        await self._process.wait()

    def _signal(self, number: int) -> None:
        # The group keeps the leader's number as long as one member lives, so it cannot be somebody else's.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)
