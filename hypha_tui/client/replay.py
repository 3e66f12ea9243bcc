"""A client that tells what a recording holds, at any speed and from any moment. It changes nothing."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

import msgspec
from msgspec.structs import replace

from hypha_tui.client.api import Client
from hypha_tui.client.present import Present
from hypha_tui.client.tape import ANSWERS, FRAMES, POINTS, AnswerAt, FrameAt, PointsAt, Tape
from node.errors import Refused
from node.views import ClusterView, Frame, LeaseHistory, LogChunk, Point, SliceMap, Snapshot, SubmitResult

if TYPE_CHECKING:
    from hypha_tui.client.jobfile import Body

SPEEDS: Final = (1.0, 60.0)
STEPS_KEPT: Final = 1_000
TOLD_AT_ONCE: Final = 256
"""Frames that are told before others have a turn."""

T = TypeVar("T")


class ReplayClient:
    """Plays a recording. `now()` is its clock: seconds since the recording began."""

    is_replay: Final = True

    def __init__(
        self,
        path: Path,
        *,
        clock: Callable[[], float] = time.monotonic,
        at: float | None = None,
        speed: float = 1.0,
        playing: bool = True,
        behind: Client | None = None,
    ) -> None:
        """`at`: where to begin; `behind`: the client to go back to, which ends with this one."""
        self.path = path
        self.behind = behind
        self.speed = speed
        self.is_playing = playing
        self._clock = clock
        self._tape = Tape(path)
        self._begin = min(max(at if at is not None else self._tape.first, self._tape.first), self._tape.last)
        self._begun_at = clock()
        self._sought = 0
        self._next: float | None = None
        self._before: deque[float] = deque(maxlen=STEPS_KEPT)
        self._changed = asyncio.Event()
        self._reading = asyncio.Lock()

    async def close(self) -> None:
        """Close the file, and the client behind."""
        self._tape.close()
        if self.behind is not None:
            await self.behind.close()

    # ---- where it is -----------------------------------------------------------------------------------

    @property
    def first(self) -> float:
        """The moment of the first frame."""
        return self._tape.first

    @property
    def last(self) -> float:
        """The last moment that it knows of."""
        return self._tape.last

    def now(self) -> float:
        """The moment that is shown."""
        if not self.is_playing:
            return self._begin
        return min(self._begin + (self._clock() - self._begun_at) * self.speed, self._tape.last)

    def wall(self) -> float:
        """The time of day at that moment, as Unix time."""
        return self._tape.label.started_unix + self.now()

    # ---- steering --------------------------------------------------------------------------------------

    def play(self, on: bool) -> bool:
        """Play or pause; at the end, playing begins at the start, and everything comes anew: then True."""
        here = self.now()
        self._hold(here, on)
        if on and here >= self._tape.last:
            self.seek(self._tape.first)
            return True
        return False

    def set_speed(self, speed: float) -> None:
        """So many seconds of the recording in one."""
        here = self.now()
        self.speed = min(max(speed, SPEEDS[0]), SPEEDS[1])
        self._hold(here, self.is_playing)

    def seek(self, t: float) -> None:
        """Go to a moment; whoever reads frames gets everything anew."""
        self._sought += 1
        self._before.clear()
        self._next = None
        self._hold(min(max(t, self._tape.first), self._tape.last), self.is_playing)

    def step(self, by: int) -> bool:
        """Pause, and go to the next frame (1) or the one before (-1); whether that asks for everything anew."""
        here = self.now()
        self._hold(here, False)
        if by > 0:
            self._hold(self._next if self._next is not None else here, False)
            return False
        while self._before and self._before[-1] >= here:
            self._before.pop()
        self.seek(self._before[-1] if self._before else here - 1.0)
        return True

    def _hold(self, t: float, playing: bool) -> None:
        self._begin, self._begun_at, self.is_playing = t, self._clock(), playing
        self._changed.set()

    # ---- what it tells ---------------------------------------------------------------------------------

    async def frames(self) -> AsyncIterator[Frame]:
        """Everything at the present moment, then each frame when it is due. It does not end; at the end it waits."""
        seq, told = 1, 0
        while True:
            sought, start = self._sought, self.now()
            async with self._reading:
                snapshot = await asyncio.to_thread(self._snapshot, start, seq)
            yield snapshot
            for block in self._tape.of(FRAMES, self._tape.last, start):
                async with self._reading:
                    records = await asyncio.to_thread(self._tape.records, block, FrameAt)
                for record in records:
                    if record.t <= start:
                        continue
                    self._next = record.t
                    while self._sought == sought and self.now() < record.t:
                        await self._wait(record.t)
                    if self._sought != sought:
                        break
                    self._before.append(record.t)
                    seq += 1
                    yield replace(record.frame, seq=seq)
                    told += 1
                    if told % TOLD_AT_ONCE == 0:
                        await asyncio.sleep(0)
                if self._sought != sought:
                    break
            self._next = self._tape.last
            while self._sought == sought:
                await self._wait(None)
            seq += 1

    async def cluster(self) -> ClusterView:
        """The cluster in numbers, as it was told last."""
        return await self._answer("cluster", "", ClusterView)

    async def metrics(self, job_id: str) -> list[Point]:
        """A job's metrics up to now."""
        async with self._reading:
            return await asyncio.to_thread(self._points, job_id, self.now())

    async def spec(self, job_id: str) -> dict[str, Any]:
        """A job's file, if it was asked for while recording."""
        return await self._answer("spec", job_id, dict[str, Any])

    async def lease_history(self, lease_id: str) -> LeaseHistory:
        """The life of a lease, if it was asked for while recording."""
        return await self._answer("lease_history", lease_id, LeaseHistory)

    async def slice_map(self, job_id: str) -> SliceMap:
        """The slices of a job, if they were asked for while recording."""
        return await self._answer("slice_map", job_id, SliceMap)

    async def logs(self, job_id: str, task_id: str = "", lines: int = 200) -> list[LogChunk]:
        """Lines of a log, if they were asked for while recording."""
        return await self._answer("logs", f"{job_id} {task_id}", list[LogChunk])

    # ---- what it refuses -------------------------------------------------------------------------------

    async def submit(self, body: Body) -> SubmitResult:
        """Refused."""
        _refuse()

    async def cancel(self, job_id: str) -> None:
        """Refused."""
        _refuse()

    async def resume(self, job_id: str) -> None:
        """Refused."""
        _refuse()

    async def pause(self, job_id: str) -> None:
        """Refused."""
        _refuse()

    async def release(self, lease_id: str) -> None:
        """Refused."""
        _refuse()

    async def cordon(self, peer_id: str) -> None:
        """Refused."""
        _refuse()

    async def uncordon(self, peer_id: str) -> None:
        """Refused."""
        _refuse()

    async def drain(self, peer_id: str) -> None:
        """Refused."""
        _refuse()

    # ---- inside ----------------------------------------------------------------------------------------

    async def _wait(self, until: float | None) -> None:
        """Until a moment of the recording, or until somebody steers it."""
        waits_s = (until - self.now()) / self.speed if until is not None and self.is_playing else None
        self._changed.clear()
        try:
            async with asyncio.timeout(waits_s):
                await self._changed.wait()
        except TimeoutError:
            return

    def _snapshot(self, t: float, seq: int) -> Snapshot:
        """Everything as it was at `t`: from the last block that has it all, and the frames since."""
        present = Present()
        key = self._tape.key_before(t)
        for record in self._tape.records(key, FrameAt):
            present.apply(record.t, record.frame)
        for block in self._tape.of(FRAMES, t, key.first):
            for record in self._tape.records(block, FrameAt):
                if key.first < record.t <= t:
                    present.apply(record.t, record.frame)
        return present.snapshot(seq, t)

    def _points(self, job_id: str, until: float) -> list[Point]:
        found: dict[tuple[str, str, int, float], Point] = {}
        for block in self._tape.of(POINTS, until):
            for record in self._tape.records(block, PointsAt):
                if record.t <= until:
                    for point in record.points:
                        if point.job_id == job_id:
                            found[(point.name, point.worker, point.round, point.t_s if point.round == 0 else 0.0)] = (
                                point
                            )
        return list(found.values())

    async def _answer(self, what: str, key: str, type_: type[T]) -> T:
        async with self._reading:
            data = await asyncio.to_thread(self._last_answer, what, key, self.now())
        if data is None:
            raise Refused("recording", f"the recording does not hold this: {what.replace('_', ' ')} {key}".rstrip())
        return msgspec.msgpack.decode(data, type=type_)

    def _last_answer(self, what: str, key: str, until: float) -> bytes | None:
        for block in reversed(self._tape.of(ANSWERS, until)):
            for record in reversed(self._tape.records(block, AnswerAt)):
                if record.t <= until and record.what == what and record.key == key:
                    return record.data
        return None


def _refuse() -> NoReturn:
    raise Refused("recording", "this is a recording: nothing can be changed in it")
