"""The way to one sink: a bounded queue, and a process that writes what is in it.

The process may hang, die, raise or find the disk full. It is killed at its deadline, started again with growing pauses,
and sent the same batch once more; meanwhile the queue drops its oldest values, and counts them. Nothing here ever waits
for it but its own task.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import msgspec

import node
from node.scheduler.exporters_program import Answer
from node.scheduler.exporters_sinks import Value
from node.telemetry import metrics

log = logging.getLogger(__name__)

QUEUE_LIMIT = 20_000
BATCH = 500
GATHER_S = 0.5
DEADLINE_S = 60.0
TRIES = 5
PAUSE_FIRST_S = 0.5
PAUSE_LIMIT_S = 60.0
FLUSH_S = 1.0
ANSWER_LIMIT_BYTES = 1 << 16

Tell = Callable[[str, str, str], None]
"""Name, text and level of an event."""


class SinkFailed(Exception):
    """The sink's process did not write a batch. `is_final`: no other would."""

    def __init__(self, reason: str, *, is_final: bool = False) -> None:
        super().__init__(reason)
        self.is_final = is_final


class Feed:
    """Values on their way to one sink. `put` never blocks."""

    def __init__(self, kind: str, target: str, work_dir: Path, tell: Tell) -> None:
        self.kind = kind
        self.dropped = 0
        self._command = (sys.executable, "-m", "node.scheduler.exporters_program", kind, target)
        self._work_dir = work_dir / kind
        self._tell = tell
        self._queue: deque[Value] = deque()
        self._has_values = asyncio.Event()
        self._batch: list[Value] = []
        self._tries = 0
        self._is_useless = False
        self._told = ""

    def put(self, value: Value) -> None:
        """Queue a value; the oldest go where there are too many."""
        if self._is_useless:
            return
        if len(self._queue) >= QUEUE_LIMIT:
            self._queue.popleft()
            self._drop(1)
        self._queue.append(value)
        self._has_values.set()

    async def run(self) -> None:
        """Feed the sink until cancelled, or until it is known that it cannot be used on this machine."""
        pause_s = PAUSE_FIRST_S
        while not self._is_useless:
            written = 0
            try:
                async with self._process() as process:
                    while True:
                        await self._next_batch()
                        await self._exchange(process, self._batch)
                        written += len(self._batch)
                        metrics().values_exported(self.kind, len(self._batch))
                        self._batch, self._tries = [], 0
                        self._recovered()
            except (SinkFailed, OSError, TimeoutError, ValueError, msgspec.MsgspecError) as error:
                self._failed(error)
            if written:
                pause_s = PAUSE_FIRST_S
            await asyncio.sleep(pause_s)
            pause_s = min(PAUSE_LIMIT_S, pause_s * 2)

    async def _next_batch(self) -> None:
        """Fill the batch, unless one is left that was not written."""
        if self._batch:
            return
        while not self._queue:
            self._has_values.clear()
            await self._has_values.wait()
        if len(self._queue) < BATCH:
            await asyncio.sleep(GATHER_S)
        self._batch = [self._queue.popleft() for _ in range(min(BATCH, len(self._queue)))]

    async def _exchange(self, process: asyncio.subprocess.Process, batch: Sequence[Value]) -> None:
        """Have a batch written; without one, hear whether the sink can be used."""
        if process.stdin is None or process.stdout is None:
            raise AssertionError("the process has no pipes")
        try:
            async with asyncio.timeout(DEADLINE_S):
                if batch:
                    process.stdin.write(_framed(batch))
                    await process.stdin.drain()
                line = await process.stdout.readline()
        except TimeoutError:
            raise SinkFailed(f"it did nothing for {DEADLINE_S:g} s") from None
        if not line:
            raise SinkFailed("its process ended")
        answer = msgspec.json.decode(line, type=Answer)
        if answer.failed:
            raise SinkFailed(answer.failed, is_final=answer.is_final)

    @contextlib.asynccontextmanager
    async def _process(self) -> AsyncIterator[asyncio.subprocess.Process]:
        await asyncio.to_thread(self._work_dir.mkdir, parents=True, exist_ok=True)
        process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            cwd=self._work_dir,
            env=_environment(),
            start_new_session=True,
            limit=ANSWER_LIMIT_BYTES,
        )
        try:
            await self._exchange(process, ())
            yield process
        except asyncio.CancelledError:
            await self._flush(process)
            raise
        finally:
            await _kill(process)

    async def _flush(self, process: asyncio.subprocess.Process) -> None:
        """The node stops: what is queued goes out, as far as there is time."""
        left, self._batch = [*self._batch, *self._queue], []
        self._queue.clear()
        if process.stdin is not None:
            for start in range(0, len(left), BATCH):
                process.stdin.write(_framed(left[start : start + BATCH]))
            process.stdin.close()
        try:
            async with asyncio.timeout(FLUSH_S):
                code = await process.wait()
        except TimeoutError:
            code = None
        if code != 0:
            self._drop(len(left))

    def _failed(self, error: Exception) -> None:
        reason = str(error) or type(error).__name__
        self._tries += 1 if self._batch else 0
        if isinstance(error, SinkFailed) and error.is_final:
            self._is_useless = True
            self._drop(len(self._batch) + len(self._queue))
            self._batch = []
            self._queue.clear()
        elif self._tries >= TRIES:
            # it may be this batch that is at fault
            self._drop(len(self._batch))
            self._batch, self._tries = [], 0
        if reason != self._told:
            self._told = reason
            log.warning("exports.failed sink=%s reason=%s", self.kind, reason)
            self._tell("exports.failed", f"metrics are not exported to {self.kind}: {reason}", "warning")

    def _recovered(self) -> None:
        if self._told:
            self._told = ""
            text = f"metrics are exported to {self.kind} again; {self.dropped} values were lost so far"
            log.info("exports.recovered sink=%s dropped=%d", self.kind, self.dropped)
            self._tell("exports.recovered", text, "info")

    def _drop(self, count: int) -> None:
        self.dropped += count
        metrics().values_dropped(self.kind, count)


def _framed(batch: Sequence[Value]) -> bytes:
    body = msgspec.msgpack.encode(batch)
    return len(body).to_bytes(4, "big") + body


def _environment() -> dict[str, str]:
    """The node's own, since API keys are in it; the program is found wherever the node was."""
    paths = [str(Path(node.__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


async def _kill(process: asyncio.subprocess.Process) -> None:
    """End the process with all that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    if process.stdin is not None:
        process.stdin.close()
    # A process in an uninterruptible write (a dead network disk) outlives even this; nobody waits for it.
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(FLUSH_S):
            await process.wait()
