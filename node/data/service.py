"""The data role: announces the datasets of this node and serves their manifests and slices."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import time
from dataclasses import dataclass, field
from pathlib import Path

from aiohttp import web

from node.board import Board
from node.config import NodeConfig
from node.data.admission import Admission
from node.data.checked import Checked, is_intact, stamp_of
from node.data.datasets import (
    MANIFEST,
    Dataset,
    find_slices,
    load_manifest,
    make_manifest,
    name_of,
    parse_manifest,
    write_file,
)
from node.data.inbox import Inbox
from node.errors import ConfigError, HyphaError, Refused
from node.identity.caller import Caller
from node.network.overlay import Overlay
from node.network.ranges import etag_of
from node.network.serving import send_file
from node.store import Store
from node.telemetry import metrics, span
from node.views import DatasetView

log = logging.getLogger(__name__)

PLACES = 64
PLACES_PER_PEER = 8
QUEUE = 512
QUEUE_WAIT_S = 15.0
SAVE_EVERY_S = 5.0
WITHDRAW_WITHIN_S = 0.5
REPORT_EVERY_S = 2.0


@dataclass(slots=True)
class _Served:
    """A dataset that is served, and what is known of its files."""

    dataset: Dataset
    checked: Checked
    checking: dict[int, asyncio.Lock] = field(default_factory=dict)
    spoiled: set[int] = field(default_factory=set)


class DataService:
    """Serves every folder of `dataset_path` under its own name."""

    def __init__(self, config: NodeConfig, overlay: Overlay, board: Board, store: Store) -> None:
        self._overlay = overlay
        self._board = board
        self._folders = config.dataset_path
        self._cache = config.state_dir / "datasets"
        self._served: dict[str, _Served] = {}
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
        problems: list[HyphaError] = []
        try:
            for folder in self._folders:
                try:
                    await self._announce(await self._load(folder))
                except HyphaError as error:
                    problems.append(error)
                    log.error("dataset.rejected folder=%s reason=%s", folder, error)
                    self._board.happened(
                        "dataset.rejected", f"{folder} is not served: {error}", level="error", dataset=folder.name
                    )
            if problems and not self._served:
                raise problems[0]
            while True:
                await asyncio.sleep(SAVE_EVERY_S)
                await self._save()
        finally:
            await self._withdraw()

    # ---- loading ------------------------------------------------------------------------------------

    def _check_folders(self) -> None:
        names: dict[str, Path] = {}
        for folder in self._folders:
            if not folder.is_dir():
                raise ConfigError(f"dataset_path: {folder} is not a folder", hint="hypha-node dataset build makes one")
            name = name_of(folder)
            if name in names:
                raise ConfigError(f"dataset_path: {folder} and {names[name]} have the same name", hint="rename one")
            names[name] = folder
        self._cache.mkdir(parents=True, exist_ok=True)

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
            dataset = await self._make(folder, name, checked, spare)
        _, skipped = await asyncio.to_thread(find_slices, folder)
        if skipped:
            log.warning("dataset.skipped dataset=%s entries=%s reason=links and folders", name, ",".join(skipped[:5]))
        return _Served(dataset, checked)

    async def _make(self, folder: Path, name: str, checked: Checked, spare: Path) -> Dataset:
        loop = asyncio.get_running_loop()
        next_report = time.monotonic() + REPORT_EVERY_S

        def report(slice_name: str, done: int, total: int) -> None:
            nonlocal next_report
            if time.monotonic() >= next_report:
                next_report = time.monotonic() + REPORT_EVERY_S
                text = f"{name}: {done * 100 // max(total, 1)} % read for its manifest, up to {slice_name}"
                loop.call_soon_threadsafe(lambda: self._board.happened("dataset.hashing", text, dataset=name))

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
            await asyncio.to_thread(served.checked.save)

    # ---- serving ------------------------------------------------------------------------------------

    def _find(self, request: web.Request) -> _Served:
        name = request.match_info["name"]
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
        async with self._admission.place(caller.peer_id):
            await self._check(served, index)
            with metrics().stream(), span("slice.serve", dataset=dataset.name, slice=index):
                return await send_file(
                    request,
                    dataset.path_of(info),
                    sha256=info.sha256,
                    on_bytes=lambda count: metrics().bytes_served(dataset.name, count),
                )

    async def _check(self, served: _Served, index: int) -> None:
        """Refuse a slice whose bytes are not, or no longer, those of the manifest."""
        dataset = served.dataset
        info = dataset.manifest.slices[index]
        async with served.checking.setdefault(index, asyncio.Lock()):
            intact = await asyncio.to_thread(is_intact, dataset, info, served.checked)
        if intact:
            served.spoiled.discard(index)
            return
        if index not in served.spoiled:
            served.spoiled.add(index)
            text = f"{dataset.name}: {info.name} is not what the manifest says; it is no longer served"
            self._board.happened("slice.changed", text, level="error", dataset=dataset.name, slice=str(index))
            log.error("slice.changed dataset=%s slice=%s", dataset.name, info.name)
        raise Refused("stale", f"{info.name} of {dataset.name} has changed on disk", hint="restore it, or rebuild")
