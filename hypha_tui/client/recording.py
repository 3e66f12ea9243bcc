"""Keeping all that a node tells in a file, beside what it is used for."""

from __future__ import annotations

import asyncio
import queue
import shutil
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from hypha_tui.client.api import Client
from hypha_tui.client.present import Present
from hypha_tui.client.tape import (
    ANSWERS,
    FRAMES,
    KEY,
    POINTS,
    AnswerAt,
    FrameAt,
    Label,
    PointsAt,
    Record,
    TapeWriter,
    packed_answer,
)
from node.views import (
    ClusterView,
    Delta,
    Frame,
    LeaseHistory,
    LogChunk,
    Point,
    SliceMap,
    Snapshot,
    SubmitResult,
)

if TYPE_CHECKING:
    from hypha_tui.client.jobfile import Body

WAITING: Final = 4_096
"""Records that may wait for the disk."""
FLUSH_S: Final = 5.0
FLUSH_BYTES: Final = 256 << 10
KEY_EVERY_S: Final = 60.0
FREE_BYTES: Final = 100_000_000
"""Below this the disk is not ours to fill."""
CLOSE_WITHIN_S: Final = 5.0

Tell = Callable[[str], None]


class Recorder:
    """Writes records in a thread of its own. What it cannot take, it says: `has_gap` asks for a fresh snapshot."""

    def __init__(
        self,
        path: Path,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        free: Callable[[Path], int] = lambda folder: shutil.disk_usage(folder).free,
    ) -> None:
        self.path = path
        self.problem = ""
        """Why it stopped by itself."""
        self.has_gap = False
        self._tell: Tell | None = None
        self._clock = clock
        self._free = free
        self._began = clock()
        self._writer = TapeWriter(path, Label(wall()))
        self._queue: queue.Queue[Record | None] = queue.Queue(WAITING)
        self._present = Present()
        self._key_at: float | None = None
        self._pending: dict[int, list[tuple[float, bytes]]] = {FRAMES: [], POINTS: [], ANSWERS: []}
        self._thread = threading.Thread(target=self._run, name="recorder", daemon=True)
        self._thread.start()

    @property
    def size_bytes(self) -> int:
        """What is on the disk."""
        return self._writer.size_bytes

    def tell_to(self, tell: Tell) -> None:
        """Call `tell`, from another thread, when the recording stops by itself."""
        self._tell = tell

    def frame(self, frame: Frame) -> None:
        """Keep a frame."""
        if self.has_gap and not isinstance(frame, Snapshot):
            return
        self.has_gap = False
        self._put(FrameAt(self._now(), frame))
        if isinstance(frame, Delta) and frame.points:
            self.points(frame.points)

    def points(self, points: list[Point]) -> None:
        """Keep values of metrics."""
        if points:
            self._put(PointsAt(self._now(), points))

    def answer(self, what: str, key: str, value: object) -> None:
        """Keep what a node answered."""
        self._put(AnswerAt(self._now(), what, key, packed_answer(value)))

    def close(self) -> None:
        """Write what waits, and end. Blocks for a while; not for the loop's thread."""
        while self._thread.is_alive():
            try:
                self._queue.put(None, timeout=0.1)
                break
            except queue.Full:
                continue
        self._thread.join(CLOSE_WITHIN_S)

    def _now(self) -> float:
        return self._clock() - self._began

    def _put(self, record: Record) -> None:
        if self.problem:
            return
        try:
            self._queue.put_nowait(record)
        except queue.Full:
            self.has_gap = True

    # ---- the thread ------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._write_all()
        except OSError as error:
            self._stop(f"recording stopped: {self.path.name} cannot be written: {error.strerror or error}")
        finally:
            self._writer.close()

    def _write_all(self) -> None:
        size, flush_at = 0, 0.0
        while not self.problem:
            waits_s = max(0.0, flush_at - time.monotonic()) if size else None
            try:
                record = self._queue.get(timeout=waits_s)
            except queue.Empty:
                size = self._flush()
                continue
            if record is None:
                self._flush()
                return
            if not size:
                flush_at = time.monotonic() + FLUSH_S
            size += self._take(record)
            if size >= FLUSH_BYTES:
                size = self._flush()

    def _take(self, record: Record) -> int:
        kind = FRAMES if isinstance(record, FrameAt) else POINTS if isinstance(record, PointsAt) else ANSWERS
        packed = msgspec.msgpack.encode(record)
        if isinstance(record, FrameAt):
            is_first = self._key_at is None
            self._present.apply(record.t, record.frame)
            if self._key_at is None or record.t - self._key_at >= KEY_EVERY_S:
                key = FrameAt(record.t, self._present.snapshot(0, record.t))
                self._flush()
                self._writer.append(KEY, record.t, record.t, [msgspec.msgpack.encode(key)])
                self._key_at = record.t
            if is_first:
                return 0
        self._pending[kind].append((record.t, packed))
        return len(packed)

    def _flush(self) -> int:
        """Write what is pending; nothing is, after it."""
        if any(self._pending.values()) and self._free(self.path.absolute().parent) < FREE_BYTES:
            self._stop("recording stopped: less than 100 MB are free on its disk")
            return 0
        for kind, records in self._pending.items():
            if records:
                self._writer.append(kind, records[0][0], records[-1][0], [packed for _, packed in records])
                records.clear()
        return 0

    def _stop(self, why: str) -> None:
        self.problem = why
        if self._tell is not None:
            self._tell(why)


class RecordingClient:
    """A client that records what another one is told. Acts pass through and are not recorded."""

    def __init__(self, inner: Client, path: Path) -> None:
        self.inner = inner
        self.recorder = Recorder(path)

    async def stop(self) -> Client:
        """End the recording; the client beneath goes on."""
        await asyncio.to_thread(self.recorder.close)
        return self.inner

    async def close(self) -> None:
        """End the recording and the client beneath."""
        await (await self.stop()).close()

    async def frames(self) -> AsyncIterator[Frame]:
        """The frames, as they come. After a gap in the recording it asks for everything anew."""
        while True:
            async with aclosing(cast("AsyncGenerator[Frame, None]", self.inner.frames())) as frames:
                async for frame in frames:
                    self.recorder.frame(frame)
                    yield frame
                    if self.recorder.has_gap:
                        break
                else:
                    return

    async def cluster(self) -> ClusterView:
        """The cluster in numbers."""
        answer = await self.inner.cluster()
        self.recorder.answer("cluster", "", answer)
        return answer

    async def metrics(self, job_id: str) -> list[Point]:
        """The history of a job's metrics."""
        points = await self.inner.metrics(job_id)
        self.recorder.points(points)
        return points

    async def spec(self, job_id: str) -> dict[str, Any]:
        """A job's file as a table."""
        answer = await self.inner.spec(job_id)
        self.recorder.answer("spec", job_id, answer)
        return answer

    async def lease_history(self, lease_id: str) -> LeaseHistory:
        """The life of a lease."""
        answer = await self.inner.lease_history(lease_id)
        self.recorder.answer("lease_history", lease_id, answer)
        return answer

    async def slice_map(self, job_id: str) -> SliceMap:
        """Every slice of a job's present pass over its data."""
        answer = await self.inner.slice_map(job_id)
        self.recorder.answer("slice_map", job_id, answer)
        return answer

    async def logs(self, job_id: str, task_id: str = "", lines: int = 200) -> list[LogChunk]:
        """The last lines that a job's tasks wrote."""
        answer = await self.inner.logs(job_id, task_id, lines)
        self.recorder.answer("logs", f"{job_id} {task_id}", answer)
        return answer

    async def submit(self, body: Body) -> SubmitResult:
        """Run a job."""
        return await self.inner.submit(body)

    async def cancel(self, job_id: str) -> None:
        """End a job."""
        await self.inner.cancel(job_id)

    async def resume(self, job_id: str) -> None:
        """Go on with a job that failed or was cancelled."""
        await self.inner.resume(job_id)

    async def pause(self, job_id: str) -> None:
        """Let a job go on to its next commit, then let its leases go."""
        await self.inner.pause(job_id)

    async def release(self, lease_id: str) -> None:
        """Let a lease go; its job looks for another worker."""
        await self.inner.release(lease_id)

    async def cordon(self, peer_id: str) -> None:
        """Have a worker offer nothing any more."""
        await self.inner.cordon(peer_id)

    async def uncordon(self, peer_id: str) -> None:
        """Have a worker offer again."""
        await self.inner.uncordon(peer_id)

    async def drain(self, peer_id: str) -> None:
        """Have a worker offer nothing, and hand over what it runs."""
        await self.inner.drain(peer_id)


def beneath(client: Client) -> Client:
    """The client that talks to a node: what a recording is made of, or the client itself."""
    return client.inner if isinstance(client, RecordingClient) else client
