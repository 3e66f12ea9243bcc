"""Datasets that come, change and go while their node runs, and clients that do not read."""

from __future__ import annotations

import asyncio
import hashlib
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from node.data import service
from node.data.datasets import make_manifest, write_file
from node.data.shelf import Shelf
from node.errors import Refused
from node.manifest import MANIFEST
from node.network.bulk import download
from node.network.overlay import Overlay
from node.telemetry import metrics
from node.tensorfile import write_tensors
from node.views import DatasetView
from tests.support import MakeIdentity
from tests.unit.network_loopback import eventually, overlay_for
from tests.unit.test_data_service import data_node, write_dataset

pytestmark = pytest.mark.asyncio


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "LOOK_EVERY_S", 0.02)


def views(data: Overlay) -> dict[str, DatasetView]:
    return {view.name: view for view in data.board.items() if isinstance(view, DatasetView)}


def counted(name: str, label: str) -> float:
    (series,) = [series for series in metrics().series() if series.name == name]
    return series.values().get(label, 0.0)


def ready(data: Overlay) -> set[str]:
    return {name for name, view in views(data).items() if view.state == "ready"}


async def test_datasets_of_a_folder_come_change_and_go_while_the_node_runs(
    make_identity: MakeIdentity, tmp_path: Path
) -> None:
    """One `dataset_path` for all of them; each has its own name, and a version that is its manifest's digest."""
    shelf = tmp_path / "shelf"
    write_dataset(shelf / "a")
    write_dataset(shelf / ".hidden")
    (shelf / "not-one").mkdir()
    async with data_node(make_identity("data"), tmp_path / "data", shelf) as data:
        address = data.addresses[0]
        async with overlay_for(make_identity("worker"), tmp_path / "worker", gateway_addresses=[address]) as worker:

            async def digest_of(name: str) -> str:
                found = await worker.providers(name)
                return found[0].digest if found else ""

            await eventually(lambda: ready(data) == {"a"})
            first = views(data)["a"].digest
            write_dataset(shelf / "b", slices=3)
            await eventually(lambda: ready(data) == {"a", "b"})
            assert counted("hypha_data_slices", "") == 5
            before = counted("hypha_data_slice_requests", "b")
            async with worker.open(data.peer_id, "GET", "/bulk/datasets/b/slices/0") as answer:
                await answer.read()
            await eventually(lambda: counted("hypha_data_slice_requests", "b") == before + 1)
            assert counted("hypha_data_serving_seconds", "b") > 0
            assert await digest_of("b") == hashlib.sha256((shelf / "b" / MANIFEST).read_bytes()).hexdigest()
            # Copied in without its manifest's slices: served when they are all there.
            shutil.copytree(shelf / "b", tmp_path / "c")
            (shelf / "c").mkdir()
            shutil.copy(tmp_path / "c" / MANIFEST, shelf / "c")
            await eventually(lambda: any(event.name == "dataset.rejected" for event in data.board.events()))
            for path in (tmp_path / "c").glob("*.safetensors"):
                shutil.copy(path, shelf / "c")
            await eventually(lambda: ready(data) == {"a", "b", "c"})
            # Built anew: another version.
            write_tensors(shelf / "a" / "s9.safetensors", {"input_ids": ("U8", (50, 100), bytes(5000))})
            write_file(shelf / "a" / MANIFEST, make_manifest(shelf / "a", "a"))
            await eventually(lambda: views(data)["a"].digest != first)
            assert views(data)["a"].slices == 3
            shutil.rmtree(shelf / "b")
            await eventually(lambda: ready(data) == {"a", "c"})
            async with asyncio.timeout(5):
                while await digest_of("b"):
                    await asyncio.sleep(0.01)
            (shelf / "c" / MANIFEST).write_text("{")
            await eventually(lambda: ready(data) == {"a"})
    assert views(data) == {}


async def test_others_are_served_while_a_dataset_is_hashed_and_its_progress_is_shown(
    make_identity: MakeIdentity, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    going, go_on = threading.Event(), threading.Event()
    original = service.make_manifest

    def slow(folder: Path, name: str, *, report: Any = None) -> bytes:
        if name == "slow":
            report("s0.safetensors", 1, 4)
            going.set()
            assert go_on.wait(10)
        return original(folder, name, report=report)

    monkeypatch.setattr(service, "make_manifest", slow)
    first, second = write_dataset(tmp_path / "slow"), write_dataset(tmp_path / "known")
    write_file(second / MANIFEST, make_manifest(second, "known"))
    try:
        async with data_node(make_identity("data"), tmp_path / "data", first, second) as data:
            await eventually(lambda: going.is_set() and ready(data) == {"known"} and "slow" in views(data))
            assert (views(data)["slow"].state, views(data)["slow"].progress) == ("hashing", 0.25)
            assert await data.providers("slow") == []
            go_on.set()
            await eventually(lambda: ready(data) == {"known", "slow"})
            assert views(data)["slow"].rows == 100
    finally:
        go_on.set()


async def test_a_folder_that_is_still_being_copied_is_not_due(tmp_path: Path) -> None:
    shelf = Shelf([tmp_path])
    assert shelf.look().due == []
    folder = write_dataset(tmp_path / "a", slices=1)
    assert shelf.look().due == []
    write_tensors(folder / "s1.safetensors", {"input_ids": ("U8", (50, 100), bytes(5000))})
    assert shelf.look().due == []
    assert shelf.look().due == [folder]
    assert shelf.look().due == []
    shelf.note(folder)
    assert shelf.look().due == []
    shutil.rmtree(folder)
    assert shelf.look().gone == [folder]


async def test_a_dataset_that_is_being_read_is_not_an_unknown_one(
    make_identity: MakeIdentity, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that starts again listens first: whoever knows its datasets from before is to ask again."""
    gate, load = asyncio.Event(), service.DataService._load

    async def slowly(self: service.DataService, folder: Path) -> Any:
        if folder.name == "slow":
            await gate.wait()
        return await load(self, folder)

    monkeypatch.setattr(service.DataService, "_load", slowly)
    folders = [write_dataset(tmp_path / name) for name in ("quick", "slow")]
    async with data_node(make_identity("data"), tmp_path / "data", *folders) as data:
        for name, code in (("slow", "busy"), ("other", "unknown")):
            with pytest.raises(Refused) as refusal:
                async with data.open(data.peer_id, "GET", f"/bulk/datasets/{name}/manifest"):
                    pass
            assert refusal.value.code == code
        gate.set()
        await eventually(lambda: "slow" in views(data))


async def test_clients_that_do_not_read_keep_nobody_from_fetching_and_are_cut_off(
    make_identity: MakeIdentity, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H38: of one peer so many at most, in bounded memory, and after the stall time none."""
    folder = tmp_path / "large"
    folder.mkdir()
    write_tensors(folder / "s0.safetensors", {"x": ("U8", (64, 1 << 20), bytes(64 << 20))})
    slices = "/bulk/datasets/large/slices/0"
    real, limits = service.send_file, []

    async def send(*args: Any, **more: Any) -> Any:
        limits.append(1)
        return await real(*args, **more, stall_s=1.0)

    monkeypatch.setattr(service, "send_file", send)
    async with data_node(make_identity("data"), tmp_path / "data", folder) as data:
        gateways = {"gateway_addresses": [data.addresses[0]]}
        async with (
            overlay_for(make_identity("slow"), tmp_path / "slow", **gateways) as slow,
            overlay_for(make_identity("good"), tmp_path / "good", **gateways) as good,
            asyncio.TaskGroup() as tasks,
        ):
            for overlay in (slow, good):
                await eventually(
                    lambda peers=overlay: any(peer.record.peer_id == data.peer_id for peer in peers.peers())
                )
            ended = asyncio.Event()

            async def hang() -> None:
                async with slow.open(data.peer_id, "GET", slices) as answer:
                    await ended.wait()
                    answer.close()

            for _ in range(service.PLACES_PER_PEER):
                tasks.create_task(hang())
            await eventually(lambda: len(limits) == service.PLACES_PER_PEER)
            with pytest.raises(Exception, match="transfers to you are running"):
                async with slow.open(data.peer_id, "GET", slices):
                    pass
            info = views(data)["large"]
            digest = hashlib.sha256((folder / "s0.safetensors").read_bytes()).hexdigest()
            target = tmp_path / "got"
            size = info.size_bytes
            async with asyncio.timeout(5):
                await download(good, [data.peer_id], slices, target, sha256=digest, size_bytes=size)
            # their places are free again once they have stalled for too long
            async with asyncio.timeout(10):
                while True:
                    try:
                        async with slow.open(data.peer_id, "GET", slices, headers={"Range": "bytes=0-7"}) as answer:
                            assert len(await answer.read()) == 8
                        break
                    except Exception:
                        await asyncio.sleep(0.05)
            ended.set()
