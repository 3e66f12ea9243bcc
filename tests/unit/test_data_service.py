"""The data role over real mutual TLS: a data node and a worker in one process."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import socket
import ssl
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio

from node.addresses import parse
from node.board import Board
from node.data.admission import Admission
from node.data.service import DataService
from node.errors import ConfigError, DatasetError, PeerError, Refused
from node.network.bulk import download, download_unknown
from node.network.overlay import Overlay
from node.store import Store
from node.tensorfile import write_tensors
from node.views import DatasetView
from node.wire import Manifest
from tests.support import IdentityFiles, MakeIdentity
from tests.unit.network_loopback import config_for, eventually, overlay_for, running

pytestmark = pytest.mark.asyncio


def write_dataset(folder: Path, slices: int = 2, rows: int = 50) -> Path:
    folder.mkdir(parents=True)
    for index in range(slices):
        tensors = {"input_ids": ("U8", (rows, 100), bytes([index]) * (rows * 100))}
        write_tensors(folder / f"s{index}.safetensors", tensors)
    return folder


@contextlib.asynccontextmanager
async def data_node(
    files: IdentityFiles, state_dir: Path, *folders: Path, gateways: Sequence[str] = ()
) -> AsyncIterator[Overlay]:
    """A running data node that has announced its datasets."""
    state_dir.mkdir(parents=True, exist_ok=True)
    settings = {"dataset_path": [str(folder) for folder in folders], "gateway_addresses": list(gateways)}
    config = config_for(files, state_dir, roles=["gateway", "data"], **settings)
    async with Store.open(state_dir / "state.db") as store:
        overlay = Overlay(config, files.load(), Board(files.peer_id), store)
        service = DataService(config, overlay, overlay.board, store)
        async with running(overlay), asyncio.TaskGroup() as tasks:
            task = tasks.create_task(service.run())
            await eventually(lambda: task.done() or any(e.name == "dataset.announced" for e in overlay.board.events()))
            try:
                yield overlay
            finally:
                task.cancel()


@pytest_asyncio.fixture
async def pair(make_identity: MakeIdentity, tmp_path: Path) -> AsyncIterator[tuple[Overlay, Overlay, Path]]:
    """A data node with the dataset `texts`, a worker that knows it, and the dataset's folder."""
    folder = write_dataset(tmp_path / "texts")
    async with data_node(make_identity("data"), tmp_path / "data", folder) as data:
        address = data.addresses[0]
        async with overlay_for(make_identity("worker"), tmp_path / "worker", gateway_addresses=[address]) as worker:
            await eventually(lambda: any(peer.record.peer_id == data.peer_id for peer in worker.peers()))
            yield data, worker, folder


async def manifest_at(worker: Overlay, data: Overlay) -> tuple[Manifest, bytes]:
    async with worker.open(data.peer_id, "GET", "/bulk/datasets/texts/manifest") as answer:
        content = await answer.read()
        assert answer.headers["ETag"] == f'"sha256:{hashlib.sha256(content).hexdigest()}"'
    return msgspec.json.decode(content, type=Manifest), content


async def test_a_worker_finds_the_dataset_and_fetches_its_slices(
    pair: tuple[Overlay, Overlay, Path], tmp_path: Path
) -> None:
    data, worker, folder = pair
    providers = await worker.providers("texts")
    manifest, content = await manifest_at(worker, data)
    assert [(record.peer_id, record.digest, record.slices, record.rows) for record in providers] == [
        (data.peer_id, hashlib.sha256(content).hexdigest(), 2, 100)
    ]
    assert (folder / "manifest.json").read_bytes() == content
    for index, info in enumerate(manifest.slices):
        target = tmp_path / info.name
        path = f"/bulk/datasets/texts/slices/{index}"
        await download(worker, [data.peer_id], path, target, sha256=info.sha256, size_bytes=info.size_bytes)
        assert target.read_bytes() == (folder / info.name).read_bytes()
    size, sha256 = await download_unknown(
        worker, data.peer_id, "/bulk/datasets/texts/slices/1", tmp_path / "again", limit_bytes=1 << 20
    )
    assert (size, sha256) == (manifest.slices[1].size_bytes, manifest.slices[1].sha256)


async def test_what_does_not_exist_is_refused_and_the_node_goes_on(
    pair: tuple[Overlay, Overlay, Path], tmp_path: Path
) -> None:
    """H40: the index after the last one is answered 404, like everything else that is not there."""
    data, worker, _ = pair
    names = ["texts/slices/2", "texts/slices/-1", "texts/slices/x", "texts/slices/%C2%B2", f"texts/slices/{'9' * 40}"]
    for name in [*names, "none/slices/0", "none/manifest", "..%2ftexts/slices/0"]:
        with pytest.raises(Refused) as caught:
            async with worker.open(data.peer_id, "GET", f"/bulk/datasets/{name}"):
                pass
        assert caught.value.code == "unknown", name
    await manifest_at(worker, data)


async def test_garbage_silence_and_broken_requests_stop_nobody_else(
    pair: tuple[Overlay, Overlay, Path], make_identity: MakeIdentity, tmp_path: Path
) -> None:
    """H38: one bad client ends its own connection only."""
    data, worker, _ = pair
    where = parse(data.addresses[0])
    context = make_identity("stranger").load().client_context()

    def hostile(payload: bytes, *, tls: bool) -> ssl.SSLSocket | socket.socket:
        plain = socket.create_connection((where.host, where.port), timeout=5)
        link = context.wrap_socket(plain) if tls else plain
        link.sendall(payload)
        return link

    payloads = [b"\xff" * 4096, b"GET /bulk/datasets/texts/slices/0 HTTP/1.1\r\nRange: bytes=", b"GET", b""]
    links = [await asyncio.to_thread(hostile, payload, tls=tls) for payload in payloads for tls in (True, False)]
    try:
        manifest, _ = await manifest_at(worker, data)
        info = manifest.slices[0]
        async with asyncio.timeout(5):
            await download(
                worker,
                [data.peer_id],
                "/bulk/datasets/texts/slices/0",
                tmp_path / "x",
                sha256=info.sha256,
                size_bytes=info.size_bytes,
            )
    finally:
        for link in links:
            link.close()


async def test_a_slice_whose_bytes_changed_is_refused_until_it_is_restored(
    pair: tuple[Overlay, Overlay, Path], tmp_path: Path
) -> None:
    data, worker, folder = pair
    manifest, _ = await manifest_at(worker, data)
    info = manifest.slices[0]
    good = (folder / info.name).read_bytes()

    async def fetch() -> None:
        await download(
            worker,
            [data.peer_id],
            "/bulk/datasets/texts/slices/0",
            tmp_path / "x",
            sha256=info.sha256,
            size_bytes=info.size_bytes,
        )

    await fetch()
    (folder / info.name).write_bytes(good[:-1] + b"?")
    for _ in range(2):
        with pytest.raises(Refused, match=r"s0\.safetensors of texts has changed on disk"):
            await fetch()
    assert [event.name for event in data.board.events()].count("slice.changed") == 1
    (folder / info.name).write_bytes(good)
    await fetch()


async def test_an_operator_may_not_fetch_data(
    pair: tuple[Overlay, Overlay, Path], make_identity: MakeIdentity, tmp_path: Path
) -> None:
    data, _, _ = pair
    files = make_identity("ada", role="operator")
    async with overlay_for(files, tmp_path / "ada") as operator:
        with pytest.raises(PeerError):
            async with operator._client.open(
                parse(data.addresses[0]), "GET", "/bulk/datasets/texts/manifest", headers=None, stall_s=5.0
            ):
                pass


async def test_the_board_shows_the_dataset_and_a_stopped_node_withdraws_it(
    make_identity: MakeIdentity, tmp_path: Path
) -> None:
    folder = write_dataset(tmp_path / "texts")
    async with data_node(make_identity("data"), tmp_path / "data", folder) as data:
        board = data.board
        (view,) = [item for item in board.items() if isinstance(item, DatasetView)]
        assert (view.id, view.slices, view.rows) == (f"{data.peer_id}/texts", 2, 100)
    assert not [item for item in board.items() if isinstance(item, DatasetView)]


async def test_one_bad_dataset_does_not_keep_the_others_from_being_served(
    make_identity: MakeIdentity, tmp_path: Path
) -> None:
    good, bad = write_dataset(tmp_path / "good"), write_dataset(tmp_path / "bad")
    (bad / "s1.safetensors").write_bytes(b"\xff" * 64)
    async with data_node(make_identity("data"), tmp_path / "data", bad, good) as data:
        assert [record.dataset for record in await data.providers("good")] == ["good"]
        assert await data.providers("bad") == []
        (event,) = [event for event in data.board.events() if event.name == "dataset.rejected"]
        assert "s1.safetensors is not a sound safetensors file" in event.text


async def test_a_node_that_could_serve_nothing_ends_with_the_reason(
    make_identity: MakeIdentity, tmp_path: Path
) -> None:
    files = make_identity("data")
    bad = write_dataset(tmp_path / "bad")
    (bad / "manifest.json").write_text("{")
    for folders, error, match in (
        ([tmp_path / "none"], ConfigError, "dataset_path: .*none is not a folder"),
        ([bad], DatasetError, r"manifest\.json is not a manifest"),
        ([bad, tmp_path / "a" / "bad"], ConfigError, "have the same name|is not a folder"),
    ):
        config = config_for(files, tmp_path / "state", roles=["data"], dataset_path=[str(folder) for folder in folders])
        config.state_dir.mkdir(exist_ok=True)
        async with Store.open(config.state_dir / "state.db") as store:
            overlay = Overlay(config, files.load(), Board(files.peer_id), store)
            with pytest.raises(error, match=match):
                await DataService(config, overlay, overlay.board, store).run()


async def test_a_peer_cannot_take_all_places_and_a_full_queue_says_busy() -> None:
    admission = Admission(places=2, per_peer=2, queue=1, wait_s=0.05)
    async with admission.place("greedy"), admission.place("greedy"):
        with pytest.raises(Refused, match="2 transfers to you"):
            async with admission.place("greedy"):
                pass
        with pytest.raises(Refused, match=r"no transfer ended within 0\.05 s"):
            async with admission.place("other"):
                pass
    async with admission.place("other"), admission.place("greedy"):
        pass


async def test_a_waiting_request_is_served_when_a_place_is_free() -> None:
    admission = Admission(places=1, per_peer=2, queue=1, wait_s=5)
    order: list[str] = []

    async def waiter() -> None:
        async with admission.place("b"):
            order.append("b")

    async with asyncio.TaskGroup() as tasks, admission.place("a"):
        tasks.create_task(waiter())
        await asyncio.sleep(0)
        with pytest.raises(Refused, match="1 requests are waiting"):
            async with admission.place("c"):
                pass
        order.append("a")
    assert order == ["a", "b"]
