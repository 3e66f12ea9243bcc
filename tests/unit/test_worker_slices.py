"""The slices of a task: one ahead, none left behind, none lost."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import io
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import aiohttp
import pytest
import pytest_asyncio

from node.board import Board
from node.config import FetchConfig
from node.errors import PeerUnreachable
from node.network import bulk
from node.network.cache import ContentCache
from node.network.overlay import Overlay
from node.tensorfile import read_header, write_tensors
from node.wire import (
    Dispatch,
    ExecutorKind,
    InnerOptimizer,
    ModelSource,
    NextSlice,
    OuterOptimizer,
    SliceGrant,
    Span,
    Sync,
    TrainTask,
)
from node.worker import slices as slices_module
from node.worker.beneath import staging_of
from node.worker.bridge import Bridge, Work
from node.worker.context import TaskContext
from node.worker.job_json import job_json
from node.worker.references import BridgeError
from node.worker.rows import Rows
from node.worker.slices import SliceFeed, depth
from node.worker.training import TrainingTask
from node.worker.transfers import Transfers
from node.worker.web import Web

pytestmark = pytest.mark.asyncio

TASK = TrainTask(
    model=ModelSource(task="causal-lm", repository="a/b", filenames=["config.json"]),
    dataset="data",
    parameter_server="server",
    optimizer=InnerOptimizer(learning_rate=0.1, schedule="wsd", warmup_steps=1, decay_steps=5),
    batch_size=4,
    rounds=2,
    sync=Sync(codec="int8", fragments=2),
    outer=OuterOptimizer(learning_rate=0.7, momentum=0.9),
    precision="bf16",
)


class Source:
    """A scheduler and a data node in one: hands out slices by number."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.fail_times = 0
        self.empty_times = 0
        self.deaf_times = 0
        self.rows = (0, 10)
        self.content = b"x"
        self.downloads = 0
        self.holds: asyncio.Event | None = None

    async def call(self, peer_id: str, request: NextSlice, *, timeout_s: float) -> SliceGrant:
        """One grant."""
        if self.deaf_times:
            self.deaf_times -= 1
            raise PeerUnreachable("the scheduler is away")
        if self.empty_times:
            self.empty_times -= 1
            return SliceGrant(index=-1, wait_s=0.01)
        self.asked.append(request.number)
        start, end = self.rows
        return SliceGrant(
            index=request.number - 1,
            start=start,
            end=end,
            rows=10,
            name="s",
            sha256=hashlib.sha256(self.content).hexdigest(),
            size_bytes=len(self.content),
            providers=["d"],
        )

    async def providers(self, dataset: str) -> list[Any]:
        """Nobody else."""
        return []

    async def download(self, overlay: object, peers: list[str], path: str, target: Path, **more: Any) -> None:
        """A file, or trouble."""
        if self.fail_times:
            self.fail_times -= 1
            raise PeerUnreachable("the data node is away")
        self.downloads += 1
        if self.holds is not None:
            await self.holds.wait()
        target.write_bytes(self.content)


def context(tmp_path: Path) -> TaskContext:
    dispatch = Dispatch(
        lease_id="l", job_id="job", task_id="t1", epoch=0, executor=ExecutorKind(class_="train"), task=TASK, token="tok"
    )
    cache = ContentCache(tmp_path / "cache", 1 << 30)
    web = Web(cache, FetchConfig())
    return TaskContext("me", "scheduler", dispatch, tmp_path, tmp_path / "log", cache, web, "tok")


@pytest_asyncio.fixture
async def feed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> AsyncIterator[tuple[Source, SliceFeed, Path]]:
    """A feed over a `Source`, and the folder its slices lie in."""
    source = Source()
    monkeypatch.setattr(bulk, "download", source.download)
    monkeypatch.setattr(slices_module, "MOST_AHEAD", 1)
    async with asyncio.TaskGroup() as tasks:
        rows = Rows()
        made = SliceFeed(context(tmp_path), cast(Overlay, source), Transfers(Board("me")), "data", rows, tasks)
        yield source, made, tmp_path / "artifacts" / "slices"
        made.close()


async def settled(source: Source, asked: int) -> None:
    """Wait until so many grants were asked for, and their files are there."""
    async with asyncio.timeout(5):
        while len(source.asked) < asked:
            await asyncio.sleep(0.001)
    await asyncio.sleep(0.02)


async def test_the_next_slice_is_fetched_while_this_one_is_trained_on(feed: tuple[Source, SliceFeed, Path]) -> None:
    source, slices, folder = feed
    first = await slices.next()
    await settled(source, 2)
    assert first.grant.index == 0
    assert len(list(folder.iterdir())) == 2
    assert source.asked == [1, 2]


async def test_the_rest_of_a_slice_is_used_when_the_next_is_asked_for_and_its_file_goes(
    feed: tuple[Source, SliceFeed, Path],
) -> None:
    """H43: confirmed on consumption. H42: files do not pile up."""
    source, slices, folder = feed
    for number in range(5):
        found = await slices.next()
        await settled(source, number + 2)
        assert found.grant.index == number
        assert len(list(folder.iterdir())) == 2
    assert source.asked == [1, 2, 3, 4, 5, 6]
    rows = cast(Rows, slices._hand)
    assert rows.open == [Span(0, number, 0, 10) for number in range(4)]
    assert rows.in_hand == Span(0, 4, 0, 10)


async def test_a_failed_fetch_is_an_error_and_the_same_slice_comes_with_the_next_try(
    feed: tuple[Source, SliceFeed, Path],
) -> None:
    source, slices, _ = feed
    source.fail_times = 1
    with pytest.raises(BridgeError, match="away") as told:
        await slices.next()
    assert told.value.status == 502
    assert (await slices.next()).grant.index == 0


async def test_an_executor_that_hangs_up_loses_no_slice(feed: tuple[Source, SliceFeed, Path]) -> None:
    _, slices, _ = feed
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await slices.next()
    assert (await slices.next()).grant.index == 0


async def test_a_scheduler_that_is_away_or_has_nothing_is_asked_again_under_the_same_number(
    feed: tuple[Source, SliceFeed, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """U34: a grant whose answer was lost is not lost."""
    monkeypatch.setattr("node.worker.retrying.FIRST_S", 0.001)
    source, slices, _ = feed
    source.deaf_times, source.empty_times = 3, 2
    assert (await slices.next()).grant.index == 0
    assert source.asked == [1]


async def test_a_part_of_a_slice_reaches_the_executor_as_a_smaller_file(feed: tuple[Source, SliceFeed, Path]) -> None:
    source, slices, folder = feed
    whole = folder.parent.parent / "whole.safetensors"
    write_tensors(whole, {"ids": ("I32", [10, 2], bytes(range(80))), "labels": ("U8", [10], bytes(range(10)))})
    source.content, source.rows = whole.read_bytes(), (3, 7)
    found = await slices.next()
    header = read_header(found.path)
    content = found.path.read_bytes()
    assert {name: info.shape for name, info in header.tensors.items()} == {"ids": (4, 2), "labels": (4,)}
    assert content[header.data_start :] == bytes(range(24, 56)) + bytes(range(3, 7))
    assert (found.size_bytes, found.sha256) == (len(content), hashlib.sha256(content).hexdigest())
    assert cast(Rows, slices._hand).in_hand == Span(0, 0, 3, 7)
    await settled(source, 2)
    assert list(staging_of(folder.parent.parent).iterdir()) == []


async def test_a_slice_that_has_not_the_rows_that_were_granted_is_an_error(
    feed: tuple[Source, SliceFeed, Path],
) -> None:
    source, slices, folder = feed
    whole = folder.parent.parent / "whole.safetensors"
    write_tensors(whole, {"ids": ("I32", [5, 2], bytes(40))})
    source.content, source.rows = whole.read_bytes(), (3, 7)
    with pytest.raises(BridgeError, match="has 5 rows, not 3 to 7"):
        await slices.next()


async def test_as_many_are_fetched_ahead_as_the_measured_times_ask_for() -> None:
    assert [depth(fetch_s, 1.0) for fetch_s in (0.0, 0.2, 1.0, 1.1, 2.5, 60.0)] == [1, 1, 1, 2, 3, 4]
    assert (depth(1.0, 0.0), depth(0.0, 0.0)) == (4, 1)


async def test_slices_that_take_longer_to_fetch_than_to_use_come_in_order_several_at_once(
    feed: tuple[Source, SliceFeed, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slices_module, "depth", lambda fetch_s, use_s: 3)
    source, slices, _ = feed
    assert (await slices.next()).grant.index == 0
    await settled(source, 4)
    assert source.asked == [1, 2, 3, 4]
    source.fail_times = 1
    indexes = []
    for _ in range(5):
        try:
            indexes.append((await slices.next()).grant.index)
        except BridgeError:
            indexes.append((await slices.next()).grant.index)
    assert indexes == [1, 2, 3, 4, 5]


async def test_two_tasks_that_want_one_slice_at_once_fetch_it_once(
    feed: tuple[Source, SliceFeed, Path], tmp_path: Path
) -> None:
    source, slices, _ = feed
    source.holds = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        its = dataclasses.replace(slices._context, work_dir=tmp_path / "other")
        its.work_dir.mkdir()
        other = SliceFeed(its, cast(Overlay, source), Transfers(Board("me")), "data", Rows(), tasks)
        both = [asyncio.ensure_future(one.next()) for one in (slices, other)]
        await settled(source, 2)
        source.holds.set()
        first, second = await asyncio.gather(*both)
        other.close()
    assert source.downloads == 1 and first.path != second.path
    first.path.write_bytes(b"a task may do with its copy as it likes")
    assert second.path.read_bytes() == source.content


async def test_a_full_disk_is_told_once_and_the_task_goes_on_when_there_is_room(
    feed: tuple[Source, SliceFeed, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("node.worker.room.FULL_WAIT_S", 0.001)
    source, slices, _ = feed
    source.content = b"x" * 100
    board, cache = slices._transfers._board, slices._context.cache
    cache._keep_free = 1 << 60
    waiting = asyncio.ensure_future(slices.next())
    async with asyncio.timeout(5):
        while not board.events():
            await asyncio.sleep(0.001)
    await asyncio.sleep(0.02)
    (event,) = board.events()
    assert event.name == "disk.full" and str(cache.folder) in event.text
    assert "needs 100 bytes, 0 are free" in event.text
    cache._keep_free = 0
    assert (await waiting).path.read_bytes() == source.content


async def test_the_job_s_description_has_the_contract_s_keys_and_no_secret(tmp_path: Path) -> None:
    """H32, H25."""
    text = job_json(context(tmp_path), TASK)
    job = json.loads(text)
    config = job["executor"]["config"]
    assert "tok" not in text
    assert job["job_id"] == "job"
    assert config["model"]["artifact"] == {"type": "huggingface", "repository": "a/b", "filenames": ["config.json"]}
    assert config["data"] == {"type": "scheduler", "peer": "scheduler", "dataset": "data"}
    assert config["updates"]["peers"] == ["server"]
    assert config["optimizer"]["learning-rate"] == 0.1
    assert config["scheduler"]["type"] == "wsd"
    assert {"task", "artifact", "input-names"} <= config["model"].keys()
    assert (config["sync"]["codec"], config["sync"]["fragments"]) == ("int8", 2)
    assert config["outer"] == {"learning_rate": 0.7, "momentum": 0.9}
    assert (config["precision"], config["rounds"]) == ("bf16", 2)


async def test_the_bridge_describes_itself_and_answers_in_json_whatever_comes(tmp_path: Path) -> None:
    work = TrainingTask(context(tmp_path), TASK, cast(Overlay, Source()), Transfers(Board("me")), tmp_path / "s")
    socket = tmp_path / "s.sock"
    connector = aiohttp.UnixConnector(str(socket))
    async with (
        Bridge(cast(Work, work)).listening(socket),
        aiohttp.ClientSession("http://b", connector=connector) as web,
    ):
        async with web.get("/openapi.json") as answer:
            paths = (await answer.json())["paths"]
        assert set(paths) >= {"/resources/fetch", "/resources/send", "/resources/receive", "/status/send"}
        for path, body, status in [
            ("/status/send", b"{not json", 400),
            ("/status/send", b'"nonsense"', 400),
            ("/status/send", b'{"status": {"batch_size": 0}}', 400),
            ("/resources/send", b'{"resource": {"type": "peers"}, "path": "none"}', 404),
            ("/nowhere", b"{}", 404),
            ("/status/send", io.BytesIO(b"x" * (2 << 20)), 413),
        ]:
            async with web.post(path, data=body) as answer:
                assert (answer.status, set(await answer.json())) == (status, {"error", "detail"})
        async with web.post("/status/send", json="update") as answer:
            assert (await answer.json())["type"] == "Error"
    assert not socket.exists()
