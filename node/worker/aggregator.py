"""The parameter server's arithmetic, in a process of its own: JSON lines in, JSON lines out."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from node.errors import JobError, Refused
from node.worker.logfile import LogFile
from node.worker.process import ExecutorProcess

ANSWER_S = 1800.0
COMMAND = (sys.executable, "-m", "node.executors.aggregate", "--work-dir")


class Aggregator:
    """Asks the aggregate process, one question at a time; starts it again where it died.

    All its state is in files, so that a new process goes on where another one was killed.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        work_dir: Path,
        log: LogFile,
        started: Callable[[int], Awaitable[None]],
    ) -> None:
        self._command = command
        self._environment = environment
        self._work_dir = work_dir
        self._log = log
        self._started = started
        self._lock = asyncio.Lock()
        self._process: ExecutorProcess | None = None
        self._drain: asyncio.Task[None] | None = None
        self._tasks: asyncio.TaskGroup | None = None
        self._number = 0
        self.grace_s = 1.0

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Have the process, while it is needed, for the length of the block."""
        async with asyncio.TaskGroup() as self._tasks:
            try:
                yield
            finally:
                await self._stop()

    async def warm(self) -> None:
        """Start the process, so that the first question need not wait for that."""
        async with self._lock:
            if self._process is None:
                await self._start()

    async def ask(self, do: str, **fields: Any) -> dict[str, Any]:
        """The answer to a request. Raises `Refused` with its error code, `JobError` where the process dies twice."""
        async with self._lock:
            for _ in range(2):
                answer = await self._exchange(do, fields)
                if answer is not None:
                    break
                code = await self._stop()
            else:
                raise JobError(f"the aggregate process died in {do!r} with exit code {code}, twice")
        if not answer.get("ok"):
            raise Refused(str(answer.get("error", "failed")), str(answer.get("detail", do)))
        return answer

    async def _exchange(self, do: str, fields: dict[str, Any]) -> dict[str, Any] | None:
        process = self._process or await self._start()
        self._number += 1
        try:
            async with asyncio.timeout(ANSWER_S):
                await process.say(msgspec.json.encode({"id": self._number, "do": do, **fields}))
                while line := await process.hear():
                    # Answers to whoever stopped waiting are passed over.
                    answer = msgspec.json.decode(line)
                    if isinstance(answer, dict) and answer.get("id") == self._number:
                        return answer
        except ConnectionError:
            return None
        except (TimeoutError, ValueError) as error:
            # ValueError: a line over the limit, or not JSON: this is not our program any more.
            await self._stop()
            raise JobError(f"the aggregate process gave no answer to {do!r}: {error or 'not in time'}") from error
        return None

    async def _start(self) -> ExecutorProcess:
        if self._tasks is None:
            raise AssertionError("the aggregator is not running")
        self._process = await ExecutorProcess.start(self._command, self._environment, self._work_dir, speaks=True)
        self._drain = self._tasks.create_task(self._process.drain(self._log))
        await self._started(self._process.pid)
        return self._process

    async def _stop(self) -> int | None:
        process, self._process = self._process, None
        drain, self._drain = self._drain, None
        if process is None:
            return None
        await process.stop(self.grace_s)
        if drain is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await asyncio.shield(drain)
            drain.cancel()
        return await process.wait()
