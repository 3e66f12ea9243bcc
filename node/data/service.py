"""The data role: announces the datasets of this node and serves their manifests and slices."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

from aiohttp import web

from node.board import Board
from node.config import NodeConfig
from node.data.admission import Admission
from node.data.checked import Checked, is_intact, stamp_of
from node.data.datasets import (
    Dataset,
    Report,
    find_slices,
    load_manifest,
    make_manifest,
    name_of,
    parse_manifest,
    write_file,
)
from node.data.inbox import Inbox
from node.data.shelf import Shelf, datasets_in
from node.data.stored import StoredDataset
from node.errors import ConfigError, DatasetError, HyphaError, ObjectMissing, ObjectStoreError, Refused
from node.identity.caller import Caller
from node.manifest import MANIFEST
from node.network.cache import ContentCache
from node.network.overlay import Overlay
from node.network.ranges import etag_of
from node.network.serving import send_file
from node.objectstore import open_bucket
from node.store import Store
from node.telemetry import metrics, span
from node.views import DatasetView

log = logging.getLogger(__name__)

PLACES = 64
PLACES_PER_PEER = 8
QUEUE = 512
QUEUE_WAIT_S = 15.0
LOOK_EVERY_S = 5.0
LOOK_AT_STORE_EVERY_S = 60.0
WITHDRAW_WITHIN_S = 0.5
REPORT_EVERY_S = 2.0


@dataclass(slots=True)
class _Served:
    """A dataset that is served, and what is known of its files."""

    dataset: Dataset
    checked: Checked | None = None
    stored: StoredDataset | None = None
    checking: dict[int, asyncio.Lock] = field(default_factory=dict)
    spoiled: set[int] = field(default_factory=set)

    @property
    def place(self) -> str:
        """Where it lies."""
        return self.stored.url if self.stored is not None else str(self.dataset.folder)


class DataService:
    """Serves the datasets that `dataset_path` names, each under its folder's name, as they come and go."""

    def __init__(self, config: NodeConfig, overlay: Overlay, board: Board, store: Store) -> None:
        self._overlay = overlay
        self._board = board
        self._folders = config.dataset_folders
        self._urls = config.dataset_urls
        self._store_cache = ContentCache(config.cache_dir, *config.cache_limits)
        self._cache = config.state_dir / "datasets"
        self._served: dict[str, _Served] = {}
        self._shelf = Shelf(config.dataset_folders)
        self._loading: set[Path] = set()
        self._problem: HyphaError | None = None
        self._tried: set[Path] = set()
        self._hashing = asyncio.Semaphore(1)
        self._loaded = asyncio.Event()
        self._admission = Admission(places=PLACES, per_peer=PLACES_PER_PEER, queue=QUEUE, wait_s=QUEUE_WAIT_S)
        overlay.bulk_route("GET", "/bulk/datasets/{name}/manifest", self._send_manifest)
        overlay.bulk_route("GET", "/bulk/datasets/{name}/slices/{index}", self._send_slice)
        self._inbox = Inbox(config.results_path, overlay)

    async def run(self) -> None:
        """Load, announce and serve until cancelled.

        Raises `ConfigError` for a folder that does not exist, and `DatasetError` where no dataset can be used; one of
        several that cannot is reported, and the others are served.
        """
        await asyncio.to_thread(self._check_folders)
        await asyncio.to_thread(self._check_urls)
        for entry in self._folders:
            if not await asyncio.to_thread(datasets_in, entry):
                text = f"{entry} holds no dataset yet; what is put there will be served"
                log.warning("dataset.none folder=%s", entry)
                self._board.happened("dataset.none", text, level="warning")
        try:
            async with asyncio.TaskGroup() as tasks:
                for url in self._urls:
                    tasks.create_task(self._keep(StoredDataset(url, self._store_cache, self._cache, tasks)))
                while not self._is_useless():
                    await self._look(tasks)
                    self._loaded.clear()
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(LOOK_EVERY_S):
                            await self._loaded.wait()
                    await self._save()
            if self._problem is not None:
                raise self._problem
        finally:
            await self._withdraw()

    def _is_useless(self) -> bool:
        """Whether nothing is served, and nothing of what was configured can be."""
        if self._urls:  # what cannot be reached now may come back
            return False
        return bool(self._folders) and not (self._served or self._loading) and self._tried >= set(self._folders)

    # ---- datasets that come and go -------------------------------------------------------------------

    async def _look(self, tasks: asyncio.TaskGroup) -> None:
        changes = await asyncio.to_thread(self._shelf.look)
        for name, served in list(self._served.items()):
            if served.stored is None and served.dataset.folder in changes.gone:
                await self._take_away(name, "its folder is gone")
        for folder in changes.due:
            if folder not in self._loading:
                self._loading.add(folder)
                tasks.create_task(self._take(folder))

    async def _take(self, folder: Path) -> None:
        """Load and announce a dataset, or say why not."""
        try:
            other = self._served.get(name_of(folder))
            if other is not None and other.dataset.folder != folder:
                raise DatasetError(f"{other.place} has the same name", hint="rename one of the folders")
            served = await self._load(folder)
            if other is None or other.dataset.digest != served.dataset.digest:
                await self._announce(served)
            self._served[served.dataset.name] = served
            self._count()
            await asyncio.to_thread(self._shelf.note, folder)
        except HyphaError as error:
            self._problem = self._problem or error
            self._tried.add(folder)
            log.error("dataset.rejected folder=%s reason=%s", folder, error)
            text = f"{folder} is not served: {error}"
            self._board.happened("dataset.rejected", text, level="error", dataset=folder.name)
            known = self._served.get(folder.name)
            if known is not None and known.dataset.folder == folder:
                self._shelf.drop(folder)
                await self._take_away(folder.name, "it is no longer sound")
            elif known is None:
                self._board.drop("dataset", f"{self._overlay.peer_id}/{folder.name}")
        finally:
            self._loading.discard(folder)
            self._loaded.set()

    async def _keep(self, stored: StoredDataset) -> None:
        """Serve what lies in object storage, as it is there."""
        name, told = stored.name, ""
        while True:
            try:
                other = self._served.get(name)
                if other is not None and other.stored is not stored:
                    raise DatasetError(f"{other.place} has the same name", hint="rename one of the two")
                dataset = await stored.look(self._reporter(name))
                told = ""
                if other is None or other.dataset.digest != dataset.digest:
                    await self._announce(_Served(dataset, stored=stored))
                    self._count()
            except (ObjectStoreError, DatasetError) as error:
                if str(error) != told:
                    told = str(error)
                    log.error("dataset.rejected url=%s reason=%s", stored.url, error)
                    self._board.happened("dataset.rejected", f"{stored.url}: {error}", level="error", dataset=name)
                known = self._served.get(name)
                if known is None:
                    self._board.drop("dataset", f"{self._overlay.peer_id}/{name}")
                elif known.stored is stored and isinstance(error, (DatasetError, ObjectMissing)):
                    await self._take_away(name, "it is no longer sound in object storage")
            await asyncio.sleep(LOOK_AT_STORE_EVERY_S)

    async def _take_away(self, name: str, reason: str) -> None:
        del self._served[name]
        self._count()
        self._board.drop("dataset", f"{self._overlay.peer_id}/{name}")
        await self._overlay.withdraw(name)
        self._board.happened("dataset.withdrawn", f"{name} is no longer served: {reason}", dataset=name)
        log.info("dataset.withdrawn dataset=%s reason=%s", name, reason)

    def _count(self) -> None:
        held = [served.dataset for served in self._served.values()]
        slices = sum(len(dataset.manifest.slices) for dataset in held)
        metrics().datasets_held(slices, sum(dataset.size_bytes for dataset in held))

    # ---- loading ------------------------------------------------------------------------------------

    def _check_folders(self) -> None:
        names: dict[str, Path] = {}
        for entry in self._folders:
            if not entry.is_dir():
                raise ConfigError(f"dataset_path: {entry} is not a folder", hint="hypha-node dataset build makes one")
            if datasets_in(entry) != [entry]:
                continue
            name = name_of(entry)
            if name in names:
                raise ConfigError(f"dataset_path: {entry} and {names[name]} have the same name", hint="rename one")
            names[name] = entry
        self._cache.mkdir(parents=True, exist_ok=True)

    def _check_urls(self) -> None:
        for url in self._urls:
            try:
                open_bucket(url)
            except ObjectStoreError as error:
                raise ConfigError(f"dataset_path: {error.message}", hint=error.hint) from error

    async def _load(self, folder: Path) -> _Served:
        """The dataset of a folder; its manifest is made, with all slices read, where there is none yet."""
        name = name_of(folder)
        key = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:12]
        checked = await asyncio.to_thread(Checked, self._cache / f"{name}-{key}.checked.json")
        spare = self._cache / f"{name}-{key}.{MANIFEST}"
        dataset = await asyncio.to_thread(load_manifest, folder) or await asyncio.to_thread(
            load_manifest, folder, spare
        )
        if dataset is None:
            async with self._hashing:
                dataset = await self._make(folder, name, checked, spare)
        _, skipped = await asyncio.to_thread(find_slices, folder)
        if skipped:
            log.warning("dataset.skipped dataset=%s entries=%s reason=links and folders", name, ",".join(skipped[:5]))
        return _Served(dataset, checked)

    async def _make(self, folder: Path, name: str, checked: Checked, spare: Path) -> Dataset:
        report = self._reporter(name)

        def make() -> Dataset:
            before = {path.name: stamp_of(path) for path in find_slices(folder)[0]}
            dataset = parse_manifest(folder, make_manifest(folder, name, report=report))
            for info in dataset.manifest.slices:
                if info.name in before:
                    checked.note(info, before[info.name])
            checked.save()
            try:
                write_file(folder / MANIFEST, dataset.manifest_bytes)
            except OSError:  # a folder that only others may write
                write_file(spare, dataset.manifest_bytes)
            return dataset

        return await asyncio.to_thread(make)

    def _reporter(self, name: str) -> Report:
        """What tells, from any thread, how far the reading for a manifest is."""
        loop = asyncio.get_running_loop()
        next_report = 0.0

        def report(_: str, done: int, total: int) -> None:
            nonlocal next_report
            if time.monotonic() >= next_report:
                next_report = time.monotonic() + REPORT_EVERY_S
                loop.call_soon_threadsafe(self._show_hashing, name, done, total)

        return report

    def _show_hashing(self, name: str, done: int, total: int) -> None:
        if name in self._served:
            return
        part = done / max(total, 1)
        self._board.put(
            DatasetView(
                id=f"{self._overlay.peer_id}/{name}",
                name=name,
                peer_id=self._overlay.peer_id,
                slices=0,
                rows=0,
                size_bytes=total,
                digest="",
                state="hashing",
                progress=part,
            )
        )
        self._board.happened("dataset.hashing", f"{name}: {part:.0%} read for its manifest", dataset=name)

    async def _announce(self, served: _Served) -> None:
        dataset = served.dataset
        slices = len(dataset.manifest.slices)
        self._served[dataset.name] = served
        await self._overlay.provide(dataset.name, dataset.digest, slices, dataset.rows, dataset.size_bytes)
        self._board.put(
            DatasetView(
                id=f"{self._overlay.peer_id}/{dataset.name}",
                name=dataset.name,
                peer_id=self._overlay.peer_id,
                slices=slices,
                rows=dataset.rows,
                size_bytes=dataset.size_bytes,
                digest=dataset.digest,
                split_of=dataset.manifest.split_of,
            )
        )
        text = f"{dataset.name}: {slices} slices, {dataset.rows:,} rows, {dataset.size_bytes:,} bytes"
        self._board.happened("dataset.announced", text, dataset=dataset.name, digest=dataset.digest)
        log.info("dataset.announced dataset=%s slices=%d digest=%s", dataset.name, slices, dataset.digest)

    async def _withdraw(self) -> None:
        names = list(self._served)
        with contextlib.suppress(TimeoutError, HyphaError):
            async with asyncio.timeout(WITHDRAW_WITHIN_S):
                for name in names:
                    self._board.drop("dataset", f"{self._overlay.peer_id}/{name}")
                    await self._overlay.withdraw(name)
        await self._save()

    async def _save(self) -> None:
        for served in list(self._served.values()):
            if served.checked is not None:
                await asyncio.to_thread(served.checked.save)

    # ---- serving ------------------------------------------------------------------------------------

    def _find(self, request: web.Request) -> _Served:
        name = request.match_info["name"]
        if name not in self._served and any(folder.name == name for folder in self._loading):
            raise Refused("busy", f"the dataset {name} is being read here")
        if name not in self._served:
            raise Refused("unknown", f"no dataset {name[:128]!r} here")
        return self._served[name]

    async def _send_manifest(self, caller: Caller, request: web.Request) -> web.StreamResponse:
        dataset = self._find(request).dataset
        headers = {"ETag": etag_of(dataset.digest)}
        return web.Response(body=dataset.manifest_bytes, content_type="application/json", headers=headers)

    async def _send_slice(self, caller: Caller, request: web.Request) -> web.StreamResponse:
        served = self._find(request)
        dataset = served.dataset
        text = request.match_info["index"]
        count = len(dataset.manifest.slices)
        if not (text.isascii() and text.isdigit() and len(text) <= 9 and int(text) < count):
            raise Refused("unknown", f"no slice {text[:20]!r} in {dataset.name}, which has {count}")
        index = int(text)
        info = dataset.manifest.slices[index]
        began = time.monotonic()
        async with self._admission.place(caller.peer_id), self._slice(served, index) as path:
            with metrics().stream(), span("slice.serve", dataset=dataset.name, slice=index):
                answer = await send_file(
                    request,
                    path,
                    sha256=info.sha256,
                    on_bytes=lambda count: metrics().bytes_served(dataset.name, count),
                )
        metrics().slice_served(dataset.name, time.monotonic() - began)
        return answer

    @contextlib.asynccontextmanager
    async def _slice(self, served: _Served, index: int) -> AsyncIterator[Path]:
        """A slice's sound file, while the block runs. Raises `Refused`."""
        info = served.dataset.manifest.slices[index]
        if served.stored is not None:
            async with served.stored.slice(info) as path:
                yield path
            return
        assert served.checked is not None
        await self._check(served, served.checked, index)
        yield served.dataset.path_of(info)

    async def _check(self, served: _Served, checked: Checked, index: int) -> None:
        """Refuse a slice whose bytes are not, or no longer, those of the manifest."""
        dataset = served.dataset
        info = dataset.manifest.slices[index]
        async with served.checking.setdefault(index, asyncio.Lock()):
            intact = await asyncio.to_thread(is_intact, dataset, info, checked)
        if intact:
            served.spoiled.discard(index)
            return
        if index not in served.spoiled:
            served.spoiled.add(index)
            text = f"{dataset.name}: {info.name} is not what the manifest says; it is no longer served"
            self._board.happened("slice.changed", text, level="error", dataset=dataset.name, slice=str(index))
            log.error("slice.changed dataset=%s slice=%s", dataset.name, info.name)
        raise Refused("stale", f"{info.name} of {dataset.name} has changed on disk", hint="restore it, or rebuild")
