"""Recordings: what comes back is what was told, at any moment, however the recorder ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import cast

import pytest

from hypha_tui.client.recording import FREE_BYTES, Recorder, RecordingClient
from hypha_tui.client.replay import ReplayClient
from hypha_tui.client.tape import FRAMES, KEY, FrameAt, Tape
from hypha_tui.store.cluster import ClusterStore
from hypha_tui.store.moments import moment
from hypha_tui.store.scales import clock as clock_text
from node.errors import ConfigError, Refused
from node.views import Delta, Event, Frame, Point, Snapshot
from tests.terminal.feed import FakeClient, cluster_items, events, fake_client, job, lease, points


class Clock:
    """Monotonic seconds, by hand."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


def recorded(path: Path, seconds: int = 200) -> Path:
    """A recording of a cluster whose job commits a round every ten seconds."""
    clock = Clock()
    recorder = Recorder(path, clock=clock, wall=lambda: 1_700_000_000.0)
    recorder.frame(Snapshot(seq=1, items=cluster_items(3), events=events(5)))
    recorder.answer("logs", "diloco-7 ", [])
    for second in range(1, seconds + 1):
        clock.now += 1
        round_ = second // 10
        new = [Point(job_id="diloco-7", name="eval_loss", round=round_, value=5.0 - round_ / 10, t_s=float(second))]
        recorder.frame(
            Delta(
                seq=1 + second,
                items=[job(round_=round_), lease(0, remaining_s=10.0)],
                dropped=[("lease", lease(1, remaining_s=0).id)] if second == 150 else [],
                events=[Event(node="n", seq=100 + second, name="tick", text=f"second {second}")],
                points=new if second % 10 == 0 else [],
            )
        )
    recorder.close()
    return path


@pytest.fixture(scope="module")
def tape(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recorded(tmp_path_factory.mktemp("tapes") / "day.hyp")


async def first_frames(client: ReplayClient, count: int) -> list[Frame]:
    found: list[Frame] = []
    async with asyncio.timeout(5), aclosing(cast("AsyncGenerator[Frame, None]", client.frames())) as frames:
        async for frame in frames:
            found.append(frame)
            if len(found) == count:
                break
    return found


def store_at(frames: list[Frame], now: float) -> ClusterStore:
    store = ClusterStore()
    for frame in frames:
        store.apply(frame, now)
    return store


def test_a_recording_is_its_owners_alone_and_never_overwrites(tape: Path, tmp_path: Path) -> None:
    assert tape.stat().st_mode & 0o777 == 0o600
    with pytest.raises(ConfigError, match="is there already"):
        Recorder(tape)
    with pytest.raises(ConfigError, match="cannot be written"):
        Recorder(tmp_path / "none" / "x.hyp")
    (tmp_path / "x").write_bytes(b"something else altogether")
    for path, words in ((tmp_path / "x", "is not a recording"), (tmp_path / "no", "cannot be read")):
        with pytest.raises(ConfigError, match=words):
            Tape(path)


def test_everything_is_written_down_again_each_minute(tape: Path) -> None:
    read = Tape(tape)
    assert [block.first for block in read.blocks if block.kind == KEY] == [0.0, 60.0, 120.0, 180.0]
    assert (read.first, read.last) == (0.0, 200.0)
    assert sum(len(read.records(block, FrameAt)) for block in read.of(FRAMES, 200.0)) == 200
    assert len(read.of(FRAMES, 70.0, 65.0)) < len(read.of(FRAMES, 200.0))
    read.close()


def test_a_recorder_that_was_killed_in_a_block_leaves_all_blocks_before_it(tape: Path, tmp_path: Path) -> None:
    whole = tape.read_bytes()
    read = Tape(tape)
    last = read.blocks[-1]
    read.close()
    cut = tmp_path / "cut.hyp"
    for size in (last.offset - 3, last.offset, last.offset + last.length // 2):
        cut.write_bytes(whole[:size])
        short = Tape(cut)
        assert short.blocks == read.blocks[:-1]
        short.close()
    damaged = bytearray(whole)
    damaged[last.offset + 5] ^= 0xFF
    cut.write_bytes(damaged)
    short = Tape(cut)
    assert short.records(short.blocks[-1], FrameAt) == []
    short.close()


@pytest.mark.asyncio
async def test_any_moment_is_shown_as_it_was(tape: Path) -> None:
    for at in (0.0, 59.0, 60.0, 61.0, 149.5, 150.0, 200.0):
        client = ReplayClient(tape, at=at, playing=False, clock=Clock())
        store = store_at(await first_frames(client, 1), client.now())
        shown = {job.id: job for job in store.jobs_by_activity()}["diloco-7"]
        assert shown.round == (int(at) // 10 if at else 12)
        assert (lease(1, remaining_s=0).id in store.items("lease")) == (at < 150)
        assert store.remaining_s(lease(0, remaining_s=0).id, client.now()) == pytest.approx(
            10.0 - at % 1 if at else 1.0
        )
        told = await client.metrics("diloco-7")
        assert len(told) == int(at) // 10
        assert client.wall() == 1_700_000_000.0 + at
        await client.close()


@pytest.mark.asyncio
async def test_frames_come_when_they_are_due_at_the_speed_that_is_set(tape: Path) -> None:
    clock = Clock()
    client = ReplayClient(tape, clock=clock, speed=60.0)
    async with aclosing(cast("AsyncGenerator[Frame, None]", client.frames())) as frames:
        assert isinstance(await anext(frames), Snapshot)
        clock.now += 1.0
        for number in range(60):
            frame = await asyncio.wait_for(anext(frames), 5)
            assert isinstance(frame, Delta)
            assert frame.seq == number + 2
        assert client.now() == 60.0
        waiting = asyncio.ensure_future(anext(frames))
        await asyncio.sleep(0)
        assert not waiting.done()
        client.set_speed(1.0)
        clock.now += 1.0
        client.play(False)
        assert (await asyncio.wait_for(waiting, 5)).events[0].text == "second 61"
    await client.close()


@pytest.mark.asyncio
async def test_stepping_goes_a_frame_on_and_a_frame_back(tape: Path) -> None:
    client = ReplayClient(tape, clock=Clock(), at=30.0)
    async with aclosing(cast("AsyncGenerator[Frame, None]", client.frames())) as frames:
        await anext(frames)
        for second in (31, 32, 33):
            waiting = asyncio.ensure_future(anext(frames))
            while client._next != second:
                await asyncio.sleep(0.001)
            assert not client.step(1)
            assert (await asyncio.wait_for(waiting, 5)).events[0].text == f"second {second}"
            assert client.now() == second
        assert client.step(-1)
        assert client.now() == 32.0
        snapshot = await asyncio.wait_for(anext(frames), 5)
        assert isinstance(snapshot, Snapshot)
        assert snapshot.events[-1].text == "second 32"
        client.seek(1_000.0)
        assert client.now() == 200.0
        assert isinstance(await asyncio.wait_for(anext(frames), 5), Snapshot)
        assert client.play(True)
        assert client.now() == 0.0
    await client.close()


@pytest.mark.asyncio
async def test_a_recording_answers_what_was_asked_and_refuses_to_change_anything(tape: Path) -> None:
    client = ReplayClient(tape, clock=Clock())
    assert await client.logs("diloco-7") == []
    with pytest.raises(Refused, match="does not hold this: cluster"):
        await client.cluster()
    for act in (client.cancel("j"), client.resume("j")):
        with pytest.raises(Refused, match="this is a recording"):
            await act
    await client.close()


@pytest.mark.asyncio
async def test_what_a_client_is_told_is_recorded_and_told_again(tmp_path: Path) -> None:
    inner = fake_client(2)
    recording = RecordingClient(inner, tmp_path / "x.hyp")
    async with aclosing(cast("AsyncGenerator[Frame, None]", recording.frames())) as frames:
        assert isinstance(await anext(frames), Snapshot)
        inner.send(items=[job(round_=40)])
        assert isinstance(await anext(frames), Delta)
        cluster = await recording.cluster()
        assert len(await recording.metrics("diloco-7")) == len(points())
        logs = await recording.logs("diloco-7")
        await recording.cancel("diloco-7")
        assert inner.cancelled == ["diloco-7"]
    await recording.stop()
    client = ReplayClient(tmp_path / "x.hyp", clock=Clock(), at=1_000.0, playing=False)
    assert await client.cluster() == cluster
    assert await client.logs("diloco-7") == logs
    assert sorted(await client.metrics("diloco-7"), key=repr) == sorted(points(), key=repr)
    store = store_at(await first_frames(client, 1), client.now())
    assert store.jobs_by_activity()[0].round == 40
    await client.close()


@pytest.mark.asyncio
async def test_after_a_gap_everything_is_asked_for_anew(tmp_path: Path) -> None:
    inner = fake_client(1)
    recording = RecordingClient(inner, tmp_path / "x.hyp")
    async with aclosing(cast("AsyncGenerator[Frame, None]", recording.frames())) as frames:
        await anext(frames)
        recording.recorder.has_gap = True
        assert isinstance(await anext(frames), Snapshot)
        assert not recording.recorder.has_gap
        assert inner.connections == 2
    await recording.stop()


def test_a_full_disk_ends_the_recording_with_one_line(tmp_path: Path) -> None:
    told: list[str] = []
    recorder = Recorder(tmp_path / "x.hyp", free=lambda _folder: FREE_BYTES - 1)
    recorder.tell_to(told.append)
    recorder.frame(Snapshot(seq=1, items=cluster_items(1)))
    recorder.frame(Delta(seq=2, items=[job()]))
    recorder.close()
    assert told == ["recording stopped: less than 100 MB are free on its disk"]
    recorder.frame(Delta(seq=3))
    assert recorder._queue.empty(), "nothing is kept for a recorder that has stopped"


@pytest.mark.parametrize(
    ("words", "at"),
    [
        ("12:30", 750.0),
        ("1:02:03", 3_600.0),
        ("90s", 90.0),
        ("5m", 300.0),
        ("45", 45.0),
        ("50%", 1_800.0),
        ("+30s", 130.0),
        ("-1m", 40.0),
        ("start", 0.0),
        ("end", 3_600.0),
    ],
)
def test_moments_are_read_as_they_are_written(words: str, at: float) -> None:
    assert moment(words, 100.0, 0.0, 3_600.0) == at


def test_a_moment_that_is_none_is_told() -> None:
    with pytest.raises(ConfigError, match="no such moment"):
        moment("noon", 0.0, 0.0, 9.0)
    assert clock_text(3_725.0) == "1:02:05"
    assert FakeClient().connections == 0
