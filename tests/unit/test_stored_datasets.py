"""Datasets in object storage: served by a data node, read by workers themselves, and checkpoints put there."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from hypha_tui.store.matching import datasets_line
from node.board import Board
from node.data import service as service_module
from node.data import stored as stored_module
from node.data.datasets import make_manifest
from node.data.service import DataService
from node.data.stored import StoredDataset
from node.errors import ConfigError, DatasetError, ObjectStoreError, Refused
from node.jobspec import parse_job
from node.manifest import MANIFEST
from node.network.bulk import download
from node.network.cache import ContentCache
from node.network.objects import download_object
from node.network.overlay import Overlay
from node.scheduler import starting
from node.scheduler.checkpoints import Checkpoints
from node.scheduler.datasets import Dataset
from node.scheduler.destinations import ObjectStore
from node.scheduler.messages import KeepCheckpoint
from node.scheduler.order import order_of_spec
from node.scheduler.places import fetch_checkpoint, place_of, versions_at
from node.scheduler.wholes import Wholes
from node.store import Store
from node.views import DatasetView
from node.wire import Manifest, Span, VersionFile
from node.worker.fetch import Fetcher
from node.worker.references import BridgeError, Validation
from node.worker.rows import Rows
from node.worker.slices import SliceFeed
from node.worker.stores import Stores
from node.worker.transfers import Transfers
from tests.support import MakeIdentity
from tests.unit.network_loopback import config_for, eventually, overlay_for, running
from tests.unit.object_storage import SECRET, Storage, storage, storage_server
from tests.unit.test_data_service import write_dataset
from tests.unit.test_worker_slices import Source, context

__all__ = ["storage", "storage_server"]
pytestmark = pytest.mark.asyncio


async def test_a_data_node_serves_what_lies_in_object_storage(
    storage: Storage,
    make_identity: MakeIdentity,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("DEBUG")
    monkeypatch.setattr(service_module, "LOOK_AT_STORE_EVERY_S", 0.05)
    folder = write_dataset(tmp_path / "texts")
    url = storage.upload(folder, "texts")
    files, state = make_identity("data"), tmp_path / "data"
    state.mkdir()
    config = config_for(files, state, roles=["gateway", "data"], dataset_path=[url, storage.url("nothing")])
    async with Store.open(state / "state.db") as store:
        data = Overlay(config, files.load(), Board(files.peer_id), store)
        service = DataService(config, data, data.board, store)

        def named(name: str) -> list[str]:
            return [event.text for event in data.board.events() if event.name == name]

        async with running(data), asyncio.TaskGroup() as tasks:
            task = tasks.create_task(service.run())
            await eventually(lambda: named("dataset.announced"))
            # A manifest is made where there is none, and put beside the slices.
            await eventually(lambda: f"sets/texts/{MANIFEST}" in storage.keys("texts"))
            assert storage.get(f"texts/{MANIFEST}") == make_manifest(folder, "texts")
            await eventually(lambda: any("nothing has no slices" in text for text in named("dataset.rejected")))
            async with overlay_for(
                make_identity("worker"), tmp_path / "worker", gateway_addresses=[data.addresses[0]]
            ) as worker:
                await eventually(lambda: any(peer.record.peer_id == data.peer_id for peer in worker.peers()))
                manifest = msgspec.json.decode(storage.get(f"texts/{MANIFEST}"), type=Manifest)

                async def fetch(index: int, name: str) -> bytes:
                    info, target = manifest.slices[index], tmp_path / name
                    path = f"/bulk/datasets/texts/slices/{index}"
                    await download(
                        worker, [data.peer_id], path, target, sha256=info.sha256, size_bytes=info.size_bytes, attempts=1
                    )
                    return target.read_bytes()

                # Many ask at once: it is fetched once, and served from this node's disk from then on.
                found = await asyncio.gather(*(fetch(0, f"copy-{number}") for number in range(4)))
                assert set(found) == {(folder / "s0.safetensors").read_bytes()}
                assert [path.name for path in config.cache_dir.iterdir()] == [manifest.slices[0].sha256]
                # What has another content than the manifest says is not served.
                storage.put("texts/s1.safetensors", bytes(manifest.slices[1].size_bytes))
                with pytest.raises(Refused, match="has changed in object storage"):
                    await fetch(1, "changed")
                # A new manifest is a new version; one that cannot be served is withdrawn, and comes back.
                (folder / "s1.safetensors").unlink()
                storage.put(f"texts/{MANIFEST}", make_manifest(folder, "texts"))
                await eventually(lambda: [v.slices for v in data.board.items() if isinstance(v, DatasetView)] == [1])
                storage.delete("texts/s0.safetensors")
                storage.put(f"texts/{MANIFEST}", make_manifest(folder, "texts") + b"\n")
                await eventually(lambda: named("dataset.withdrawn"))
                assert any("s0.safetensors is missing" in text for text in named("dataset.rejected"))
                storage.put("texts/s0.safetensors", (folder / "s0.safetensors").read_bytes())
                await eventually(lambda: len(named("dataset.announced")) == 3)
            assert not any(SECRET in str(event) for event in data.board.events())
            task.cancel()
    # Credentials are nowhere but in the environment: no log line, no file of the node's.
    assert SECRET not in caplog.text
    assert not any(SECRET.encode() in path.read_bytes() for path in state.rglob("*") if path.is_file())


async def test_a_slice_that_comes_slowly_is_asked_for_again_and_fetched_once(
    storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever gives up does not stop the fetch; a store that is away, or a full cache, is no final answer."""
    folder = write_dataset(tmp_path / "texts")
    (folder / MANIFEST).write_bytes(make_manifest(folder, "texts"))
    url = storage.upload(folder, "texts")
    fetched, gate = list[str](), asyncio.Event()

    async def slowly(bucket: Any, name: str, *rest: Any, **more: Any) -> None:
        fetched.append(name)
        await gate.wait()
        await download_object(bucket, name, *rest, **more)

    monkeypatch.setattr(stored_module, "download_object", slowly)
    monkeypatch.setattr(stored_module, "ANSWER_WITHIN_S", 0.01)
    cache = ContentCache(tmp_path / "cache", 8_000)
    async with asyncio.TaskGroup() as tasks:
        stored = StoredDataset(url, cache, tmp_path, tasks)
        dataset = await stored.look(lambda *_: None)
        assert await stored.look(lambda *_: None) is dataset
        first, second = dataset.manifest.slices
        for _ in range(2):
            with pytest.raises(Refused, match="on its way") as late:
                async with stored.slice(first):
                    pass
            assert late.value.code == "busy"
        gate.set()
        await eventually(lambda: cache.has(first.sha256))
        monkeypatch.setattr(stored_module, "ANSWER_WITHIN_S", 5)
        async with stored.slice(first) as path:
            assert path.read_bytes() == (folder / first.name).read_bytes()
            assert fetched == [first.name]
            with pytest.raises(Refused) as full:
                async with stored.slice(second):
                    pass
            assert full.value.code == "busy"
        async with stored.slice(second):
            assert not cache.has(first.sha256)
        storage.delete("texts/s0.safetensors")
        with pytest.raises(Refused) as gone:
            async with stored.slice(first):
                pass
        assert gone.value.code == "unknown" and storage.bucket not in str(gone.value)
        with pytest.raises(DatasetError, match=r"give \[cache\] size more"):
            await StoredDataset(url, ContentCache(tmp_path / "small", 100), tmp_path, tasks).look(lambda *_: None)


async def test_reading_for_a_manifest_goes_on_after_a_restart(
    storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_dataset(tmp_path / "texts", slices=3)
    url = storage.upload(folder, "texts")
    read, reports = stored_module.read_through, list[tuple[int, int]]()
    names: list[str] = []

    async def interrupted(bucket: Any, entry: Any) -> Any:
        names.append(entry.name)
        if len(names) == 3:
            raise ObjectStoreError("it went away")
        return await read(bucket, entry)

    monkeypatch.setattr(stored_module, "read_through", interrupted)
    async with asyncio.TaskGroup() as tasks:
        cache = ContentCache(tmp_path / "cache", 1 << 30)
        with pytest.raises(ObjectStoreError, match="went away"):
            await StoredDataset(url, cache, tmp_path, tasks).look(lambda *_: None)
        again = StoredDataset(url, cache, tmp_path, tasks)
        dataset = await again.look(lambda _, done, total: reports.append((done, total)))
    assert names == ["s0.safetensors", "s1.safetensors", "s2.safetensors", "s2.safetensors"]
    assert dataset.manifest_bytes == make_manifest(folder, "texts")
    assert reports[-1] == (dataset.size_bytes, dataset.size_bytes) and len(reports) == 3


JOB = """
dataset = "{url}"
model = {{ type = "causal-lm", filenames = ["config.json"] }}
rounds = {{ update_rounds = 1, avg_samples_between_updates = 10 }}
inner_optimizer = {{ learning_rate = 0.1 }}
outer_optimizer = {{ learning_rate = 0.7, momentum = 0.9 }}
resources = {{ num_workers = 1, worker = {{}}, parameter_server = {{}}, worker_price = {{ bid = 1, max = 1 }}, parameter_server_price = {{ bid = 1, max = 1 }} }}
"""  # noqa: E501


async def test_workers_read_the_dataset_of_a_job_from_object_storage_themselves(
    storage: Storage, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    folder = write_dataset(tmp_path / "texts")
    (folder / MANIFEST).write_bytes(make_manifest(folder, "texts"))
    url = storage.upload(folder, "texts")
    spec = parse_job(JOB.format(url=f"{url}/"))
    assert (spec.name, spec.dataset) == ("texts", url)
    needs = order_of_spec("j", msgspec.structs.replace(spec, validation_dataset="held"), "").needs
    assert (needs["train"].stores, needs["aggregate"].stores) == ((url,), ())
    with pytest.raises(ConfigError, match="line 2: dataset: an address in object storage"):
        parse_job(JOB.format(url=f"s3://a:{SECRET}@bucket/x"))

    overlay = cast(Overlay, None)
    dataset = await Dataset.find(overlay, spec.dataset)
    await dataset.refresh(overlay)
    assert dataset.digest == hashlib.sha256((folder / MANIFEST).read_bytes()).hexdigest()
    with pytest.raises(DatasetError, match="not as it was when the job began"):
        await Dataset.find(overlay, url, "0" * 64)
    with pytest.raises(DatasetError, match="does not exist"):
        await Dataset.find(overlay, storage.url("none"))

    class Scheduler(Source):
        async def call(self, peer_id: str, request: Any, *, timeout_s: float) -> Any:
            return dataset.grant(Span(0, request.number - 1, 0, 50))

    async def first(stores: Stores, name: str) -> bytes | BridgeError:
        work_dir = tmp_path / name
        work_dir.mkdir()
        made = dataclasses.replace(context(work_dir), stores=stores)
        async with asyncio.TaskGroup() as tasks:
            source = cast(Overlay, Scheduler())
            feed = SliceFeed(made, source, Transfers(Board("me")), url, Rows(), tasks)
            try:
                return (await feed.next()).path.read_bytes()
            except BridgeError as error:
                return error
            finally:
                feed.close()

    denied = await first(Stores(), "denied")
    assert isinstance(denied, BridgeError)
    assert denied.status == 403 and "its owner can add it to [fetch] stores" in denied.detail
    allowed = Stores([storage.url("")])
    assert await first(allowed, "a") == (folder / "s0.safetensors").read_bytes()
    assert [info.name for info in (await allowed.manifest(url)).slices] == ["s0.safetensors", "s1.safetensors"]
    assert datasets_line(spec, []) == (f"{url}: the scheduler and the workers read it themselves", "ok")

    work_dir = tmp_path / "validation"
    work_dir.mkdir()
    measuring = context(work_dir)
    task = msgspec.structs.replace(measuring.dispatch.task, validation_dataset=url)
    dispatch = msgspec.structs.replace(measuring.dispatch, task=task)
    measuring = dataclasses.replace(measuring, dispatch=dispatch, stores=allowed)
    async with asyncio.TaskGroup() as tasks:
        fetcher = Fetcher(measuring, overlay, Transfers(Board("me")), tasks)
        entries = await fetcher.fetch(Validation(), "artifacts")
    assert [(work_dir / entry["path"]).read_bytes() for entry in entries] == [
        (folder / info.name).read_bytes() for info in dataset.manifest.slices
    ]
    assert SECRET not in caplog.text
    assert SECRET.encode() not in msgspec.json.encode(spec) + msgspec.json.encode(measuring.dispatch)
    for stores, address in ((Stores(), url), (allowed, f"s3://{storage.bucket}/other"), (allowed, f"{url}/../../x")):
        with pytest.raises((Refused, ConfigError)):
            await stores.manifest(address)


async def test_checkpoints_and_results_go_to_object_storage_and_old_ones_leave(
    storage: Storage, tmp_path: Path
) -> None:
    weights, told = tmp_path / "weights", list[tuple[str, str]]()
    weights.write_bytes(b"w" * (9 << 20))
    digest = hashlib.sha256(weights.read_bytes()).hexdigest()
    file = VersionFile(kind="weights", number=1, sha256=digest, size_bytes=9 << 20)
    overlay = cast(Overlay, None)

    async def record(due: KeepCheckpoint) -> dict[str, Any]:
        rounds = [
            {"epoch": 0, "round": n, "digest": "", "samples": 8, "seconds": 1.0, "bytes_up": 0, "bytes_down": 0,
             "left_out": {}, "contributions": []}
            for n in range(due.version)
        ]  # fmt: skip
        files = {file.kind: {"sha256": file.sha256, "size_bytes": file.size_bytes} for file in due.files}
        about = {"version": due.version, "files": files, "rounds": rounds, "curve": []}
        return about | {"dataset": {"name": "d", "digest": ""}, "ledger": {"pass": 0, "committed": [[0, 0, 0, 8]]}}

    def checkpoints(to: str) -> Checkpoints:
        return Checkpoints(
            overlay,
            "j1",
            to=to,
            keep=2,
            own_folder=tmp_path / "own",
            staging=tmp_path / "staging",
            wholes=Wholes(overlay, "j1", 1),
            here=lambda _: weights,
            record=record,
            tell=lambda name, text, level: told.append((name, text)),
        )

    momentum = msgspec.structs.replace(file, kind="momentum")
    kept = checkpoints(storage.url("runs"))
    for version in (1, 2, 10):
        await kept.take(KeepCheckpoint(version=version, peer_id="ps", files=(file, momentum), pass_=0, committed=()))
    assert [name for name, _ in told] == ["checkpoint.kept"] * 3
    expected = [
        f"sets/runs/j1/version-{n}/{name}"
        for n in (10, 2)
        for name in ("checkpoint.json", "momentum.safetensors", "weights.safetensors")
    ]
    assert storage.keys("runs") == expected
    assert storage.get("runs/j1/version-10/weights.safetensors") == weights.read_bytes()
    assert json.loads(storage.get("runs/j1/version-10/checkpoint.json"))["version"] == 10
    assert list((tmp_path / "staging").iterdir()) == []
    await checkpoints("s3://no-such-bucket/x").take(
        KeepCheckpoint(version=3, peer_id="ps", files=(file,), pass_=0, committed=())
    )
    assert told[-1][0] == "checkpoint.failed" and "no-such-bucket" in told[-1][1] and "127.0.0.1" not in told[-1][1]

    back = await place_of(overlay, storage.url("runs"))
    assert await versions_at(back, "j1") == [2, 10] and await versions_at(back, "j") == []
    await fetch_checkpoint(back, "j1", 2, tmp_path / "back")
    assert (tmp_path / "back" / "momentum.safetensors").read_bytes() == weights.read_bytes()
    text = JOB.format(url="d").replace("update_rounds = 1", "update_rounds = 12")
    spec = parse_job(text + f'checkpoint = {{ start_from = "{storage.url("runs")}/j1" }}')
    start = await starting.look(overlay, spec)
    assert start.record.version == 10
    await starting.bring(overlay, spec.checkpoint.start_from, start.files, lambda file: tmp_path / file.kind)
    assert (tmp_path / "momentum").read_bytes() == weights.read_bytes()
    for missing in (f"{storage.url('runs')}/j1/version-3", f"{storage.url('runs')}/j7", "s3://no-such-bucket/x/y"):
        named = msgspec.structs.replace(spec.checkpoint, start_from=missing)
        with pytest.raises(Refused) as refused:
            await starting.look(overlay, msgspec.structs.replace(spec, checkpoint=named))
        assert refused.value.code == "invalid" and missing in refused.value.message

    place = ObjectStore(storage.url("out"), tmp_path / "results")
    await place.prepare()
    part = place.incoming("a.jsonl")
    part.write_bytes(b"{}\n")
    await place.keep(part, "a.jsonl", hashlib.sha256(b"{}\n").hexdigest(), 3)
    assert storage.get("out/a.jsonl") == b"{}\n" and not part.exists()
