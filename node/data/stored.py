"""A dataset in object storage that a data node serves: its manifest, and its slices by way of the node's cache."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec

from node.data.datasets import Dataset, Report, check_alike, encode_manifest, write_file
from node.data.objects import ReadThrough, read_through, slices_below
from node.errors import DatasetError, DiskFull, HyphaError, ObjectMissing, ObjectStoreError, Refused
from node.manifest import MANIFEST, MAX_MANIFEST_BYTES, manifest_in
from node.network.cache import ContentCache
from node.network.objects import download_object
from node.objectstore import Bucket, Entry, open_bucket
from node.storeurl import name_in
from node.wire import UNDECODABLE, Manifest, SliceInfo

log = logging.getLogger(__name__)

FETCHES = 8
MOST_COMING = 256
ANSWER_WITHIN_S = 15.0
"""Whoever asks for a slice that takes longer is told to ask again: it must hear something before it gives up."""


class StoredDataset:
    """One dataset below an address. `tasks` owns the fetches, which go on when whoever asked has gone."""

    def __init__(self, url: str, cache: ContentCache, state: Path, tasks: asyncio.TaskGroup) -> None:
        self.url = url
        self.name = name_in(url)
        self._bucket: Bucket | None = None
        self._cache = cache
        self._tasks = tasks
        self._notes = state / f"{self.name}-{hashlib.sha256(url.encode()).hexdigest()[:12]}.read.json"
        self._dataset: Dataset | None = None
        self._seen: tuple[Entry, ...] = ()
        self._coming: dict[str, asyncio.Task[HyphaError | None]] = {}
        self._places = asyncio.Semaphore(FETCHES)

    async def look(self, report: Report) -> Dataset:
        """The dataset as it is now; the same object as before where nothing has changed.

        Without a manifest all slices are read once, and the manifest is put beside them where that is allowed. Raises
        `ObjectStoreError` or `DatasetError`.
        """
        if self._bucket is None:
            self._bucket = await asyncio.to_thread(open_bucket, self.url)
        with contextlib.suppress(ObjectMissing):
            about = await self._bucket.about(MANIFEST)
            if self._dataset is None or self._seen != (about,):
                content, about = await self._bucket.read(MANIFEST, MAX_MANIFEST_BYTES)
                dataset = self._dataset_of(content)
                await self._check(self._bucket, dataset)
                self._dataset, self._seen = dataset, (about,)
            return self._dataset
        found = await slices_below(self._bucket)
        if not found:
            raise DatasetError(f"{self.url} has no slices (*.safetensors)", hint="upload the dataset's whole folder")
        if self._dataset is None or self._seen != tuple(found):
            content = await self._make(self._bucket, found, report)
            self._dataset, self._seen = self._dataset_of(content), tuple(found)
            try:
                await self._bucket.put_new(MANIFEST, content)
            except ObjectStoreError as error:
                log.info("manifest.not_put dataset=%s reason=%s", self.name, error.message)
        return self._dataset

    @contextlib.asynccontextmanager
    async def slice(self, info: SliceInfo) -> AsyncIterator[Path]:
        """A slice's verified file, while the block runs. Raises `Refused`."""
        await self._bring(info)
        try:
            async with self._cache.pinned(
                info.sha256, info.size_bytes, lambda path: self._download(info, path)
            ) as path:
                yield path
        except (DiskFull, ObjectStoreError, DatasetError) as error:
            raise _refused(info, error) from error

    async def _bring(self, info: SliceInfo) -> None:
        if self._cache.has(info.sha256):
            return
        task = self._coming.get(info.sha256)
        if task is None:
            if len(self._coming) >= MOST_COMING:
                raise Refused("busy", "too many slices are on their way from object storage")
            task = self._coming[info.sha256] = self._tasks.create_task(self._fetch(info))
        try:
            async with asyncio.timeout(ANSWER_WITHIN_S):
                problem = await asyncio.shield(task)
        except TimeoutError as error:
            raise Refused("busy", f"{info.name} is on its way from object storage") from error
        if problem is not None:
            raise _refused(info, problem) from problem

    async def _fetch(self, info: SliceInfo) -> HyphaError | None:
        try:
            async with (
                self._places,
                self._cache.pinned(info.sha256, info.size_bytes, lambda path: self._download(info, path)),
            ):
                return None
        except HyphaError as error:
            log.warning("slice.not_fetched dataset=%s slice=%s reason=%s", self.name, info.name, error)
            return error
        except OSError as error:
            log.warning("slice.not_fetched dataset=%s slice=%s reason=%s", self.name, info.name, error)
            return ObjectStoreError(f"{info.name} cannot be kept: {error.strerror}")
        finally:
            del self._coming[info.sha256]

    async def _download(self, info: SliceInfo, path: Path) -> None:
        assert self._bucket is not None
        await download_object(self._bucket, info.name, path, sha256=info.sha256, size_bytes=info.size_bytes)

    def _dataset_of(self, content: bytes) -> Dataset:
        manifest = manifest_in(content, f"{self.url}/{MANIFEST}")
        largest = max(manifest.slices, key=lambda info: info.size_bytes)
        if largest.size_bytes > self._cache.limit_bytes:
            raise DatasetError(
                f"{self.url}: {largest.name} has {largest.size_bytes:,} bytes, this node's cache at most "
                f"{self._cache.limit_bytes:,}",
                hint="give [cache] size more",
            )
        return Dataset(self.name, self._cache.folder, manifest, content, hashlib.sha256(content).hexdigest())

    async def _check(self, bucket: Bucket, dataset: Dataset) -> None:
        """Whether every slice is there, with the size that the manifest gives."""
        sizes = {entry.name: entry.size_bytes for entry in await slices_below(bucket)}
        for info in dataset.manifest.slices:
            if sizes.get(info.name) != info.size_bytes:
                found = f"has {sizes[info.name]:,} bytes" if info.name in sizes else "is missing"
                raise DatasetError(f"{self.url}/{info.name} {found}, the manifest says {info.size_bytes:,} bytes")

    # ---- a manifest of what has none -------------------------------------------------------------------

    async def _make(self, bucket: Bucket, found: list[Entry], report: Report) -> bytes:
        """The manifest of these slices, all read through; what was read before a restart is not read again."""
        notes = await asyncio.to_thread(self._read_notes)
        total, done = sum(entry.size_bytes for entry in found), 0
        infos: list[SliceInfo] = []
        schema: dict[str, str] = {}
        for entry in found:
            known = notes.get(entry.name)
            if known is None or known.tag != entry.tag:
                known = notes[entry.name] = await read_through(bucket, entry)
                await asyncio.to_thread(self._keep_notes, notes)
            schema = schema or known.schema
            check_alike(f"{self.url}/{entry.name}", known.rows, known.schema, found[0].name, schema)
            infos.append(SliceInfo(name=entry.name, size_bytes=entry.size_bytes, rows=known.rows, sha256=known.sha256))
            done += entry.size_bytes
            report(entry.name, done, total)
        return encode_manifest(Manifest(name=self.name, slices=infos, schema=schema))

    def _read_notes(self) -> dict[str, ReadThrough]:
        try:
            return msgspec.json.decode(self._notes.read_bytes(), type=dict[str, ReadThrough])
        except (OSError, *UNDECODABLE):
            return {}

    def _keep_notes(self, notes: dict[str, ReadThrough]) -> None:
        with contextlib.suppress(OSError):
            write_file(self._notes, msgspec.json.encode(notes))


def _refused(info: SliceInfo, error: HyphaError) -> Refused:
    """What a peer is told: whether to ask again, and nothing about where this node has it from."""
    if isinstance(error, DatasetError):
        return Refused("stale", f"{info.name} has changed in object storage")
    if isinstance(error, ObjectStoreError) and error.is_final:
        return Refused("unknown", f"{info.name} cannot be had from object storage")
    return Refused("busy", f"{info.name} cannot be had from object storage now")
