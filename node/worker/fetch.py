"""`/resources/fetch`: brings what a reference names into the work directory, whole and verified, and describes it."""

from __future__ import annotations

import asyncio
import datetime
import hashlib
import tarfile
from collections.abc import Awaitable
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, assert_never
from urllib.parse import unquote, urlsplit

from node.errors import HyphaError, ObjectStoreError, PeerError, PeerUnreachable, Refused
from node.manifest import MAX_MANIFEST_BYTES, manifest_in
from node.network import bulk
from node.network.cache import copy_file
from node.storeurl import is_store_url
from node.wire import Manifest, SliceInfo, TrainTask
from node.worker.beneath import new_name, put
from node.worker.context import TaskContext
from node.worker.references import (
    BridgeError,
    HubFiles,
    JobFiles,
    NextSliceOf,
    Reference,
    Uri,
    Validation,
    Weights,
    folder,
    inside,
)
from node.worker.room import when_there_is_room
from node.worker.slices import SliceFeed, manifest_path, slice_path
from node.worker.transfers import Transfers

if TYPE_CHECKING:
    from node.network.overlay import Overlay

FOLDER_LIMIT_BYTES = 96 << 20
PROVIDERS_WAIT_S = 30.0

Entry = dict[str, Any]


class Fetcher:
    """Fetches for one task. `tasks` owns what runs ahead of the executor; `feed` are the slices that it may ask for."""

    def __init__(
        self,
        context: TaskContext,
        overlay: Overlay,
        transfers: Transfers,
        tasks: asyncio.TaskGroup,
        *,
        feed: SliceFeed | None = None,
    ) -> None:
        self._context = context
        self._overlay = overlay
        self._transfers = transfers
        self._tasks = tasks
        self._feed = feed
        self._validation: list[Entry] | None = None
        self._lock = asyncio.Lock()
        self._folder: Path | None = None

    async def fetch(self, reference: Reference, out_dir: str) -> list[Entry]:
        """One entry for each file, in the order asked for. Raises `BridgeError`."""
        return await self.translated(
            when_there_is_room(self._context, self._transfers, self._fetch, reference, out_dir)
        )

    async def translated(self, work: Awaitable[list[Entry]]) -> list[Entry]:
        """The outcome of `work`, with whatever goes wrong as the `BridgeError` that an executor is to see."""
        try:
            return await work
        except Refused as error:
            status = {"unknown": 404, "denied": 403, "full": 507}.get(error.code, 502)
            raise BridgeError(status, error.code, str(error)) from error
        except ObjectStoreError as error:
            status, code = (404, "unknown") if error.is_final else (502, "source_failed")
            raise BridgeError(status, code, str(error)) from error
        except TimeoutError as error:
            raise BridgeError(504, "timeout", "the source did not answer in time") from error
        except HyphaError as error:
            raise BridgeError(502, "source_failed", str(error)) from error

    def close(self) -> None:
        """Fetch nothing ahead any more."""
        if self._feed is not None:
            self._feed.close()

    async def job_files(self, names: list[str], out_dir: str) -> list[Entry]:
        """Files of the job's folder; all of them where no names are given."""
        sha256 = self._context.dispatch.folder_sha256
        if not sha256:
            raise BridgeError(404, "unknown", "the job has no folder of its own")
        async with self._lock:
            if self._folder is None:
                archive = await asyncio.to_thread(new_name, self._context.work_dir)
                await self._download_folder(archive, sha256)
                self._folder = archive
            target = folder(self._context.work_dir, out_dir)
            found = await asyncio.to_thread(_extract, self._folder, names, self._context.work_dir, target)
        return [self._entry(path, size, digest, "job") for path, size, digest in found]

    async def hub_files(self, files: HubFiles, out_dir: str) -> list[Entry]:
        """Files of a Hugging Face repository."""
        token = files.token or self._context.token
        entries = []
        for name in files.filenames:
            target = inside(self._context.work_dir, f"{out_dir}/{name}")
            staged = await asyncio.to_thread(new_name, self._context.work_dir)
            with self._transfers.show(
                "artifact", f"{files.repository}/{name}", self._context.job_id, "huggingface", self._context.peer_id, 0
            ) as transfer:
                got = await self._context.web.hub_file(files, name, token, staged, transfer)
            await asyncio.to_thread(put, staged, self._context.work_dir, target)
            entries.append(self._entry(target, got.size_bytes, got.sha256, "huggingface"))
        return entries

    async def _fetch(self, reference: Reference, out_dir: str) -> list[Entry]:
        match reference:
            case HubFiles():
                return await self.hub_files(reference, out_dir)
            case Uri():
                return [await self._uri(reference, out_dir)]
            case NextSliceOf():
                return [await self._next_slice(reference.dataset)]
            case JobFiles():
                return await self.job_files(reference.filenames, out_dir)
            case Weights():
                raise BridgeError(404, "unknown", "there are no weights of a group here")
            case Validation():
                async with self._lock:
                    if self._validation is None:
                        self._validation = await self._validation_slices(out_dir)
                return self._validation
            case _:
                assert_never(reference)

    async def _uri(self, reference: Uri, out_dir: str) -> Entry:
        name = unquote(urlsplit(reference.value).path.rsplit("/", 1)[-1]) or "download"
        if "/" in name or name in (".", ".."):
            name = "download"
        target = folder(self._context.work_dir, out_dir) / name
        host = urlsplit(reference.value).hostname or ""
        with self._transfers.show("artifact", name, self._context.job_id, host, self._context.peer_id, 0) as transfer:
            staged = await asyncio.to_thread(new_name, self._context.work_dir)
            got = await self._context.web.uri(reference.value, staged, transfer)
        await asyncio.to_thread(put, staged, self._context.work_dir, target)
        return self._entry(target, got.size_bytes, got.sha256, "uri")

    async def _next_slice(self, dataset: str) -> Entry:
        if self._feed is None or dataset != self._feed.dataset:
            raise BridgeError(404, "unknown", f"dataset {dataset!r} is not of this task")
        found = await self._feed.next()
        grant = found.grant
        entry = self._entry(found.path, found.size_bytes, found.sha256, "scheduler")
        rows = grant.end - grant.start
        entry["metadata"].update({"index": grant.index, "pass": grant.pass_, "first_row": grant.start, "rows": rows})
        return entry

    async def _validation_slices(self, out_dir: str) -> list[Entry]:
        task = self._context.dispatch.task
        if not isinstance(task, TrainTask) or not task.validation_dataset:
            raise BridgeError(404, "unknown", "this task has no validation dataset")
        target = folder(self._context.work_dir, f"{out_dir}/validation")
        peers: list[str] = []
        if is_store_url(task.validation_dataset):
            manifest = await self._context.stores.manifest(task.validation_dataset)
        else:
            peers, digest = await self._providers(task.validation_dataset)
            manifest = await self._manifest(task.validation_dataset, peers, digest)
        return [
            await self._validation_slice(task.validation_dataset, peers, number, info, target)
            for number, info in enumerate(manifest.slices)
        ]

    async def _validation_slice(
        self, dataset: str, peers: list[str], number: int, info: SliceInfo, target: Path
    ) -> Entry:
        path = target / f"{number:06d}.safetensors"
        name = f"{dataset}/{info.name}"

        async def fetch(where: Path) -> None:
            if is_store_url(dataset):
                await self._context.stores.download(
                    dataset, info.name, where, info.sha256, info.size_bytes, self._context, self._transfers
                )
                return
            with self._transfers.show(
                "slice", name, self._context.job_id, peers[0], self._context.peer_id, info.size_bytes
            ) as transfer:
                await bulk.download(
                    self._overlay,
                    peers,
                    slice_path(dataset, number),
                    where,
                    sha256=info.sha256,
                    size_bytes=info.size_bytes,
                    on_progress=transfer.progress,
                    durable=False,
                )

        part = await asyncio.to_thread(new_name, self._context.work_dir)
        async with self._context.cache.pinned(info.sha256, info.size_bytes, fetch) as whole:
            await asyncio.to_thread(copy_file, whole, part)
        await asyncio.to_thread(put, part, self._context.work_dir, path)
        return self._entry(path, info.size_bytes, info.sha256, "validation")

    async def _providers(self, dataset: str) -> tuple[list[str], str]:
        async with asyncio.timeout(PROVIDERS_WAIT_S):
            while True:
                records = await self._overlay.providers(dataset)
                if records:
                    digest = records[0].digest
                    return [record.peer_id for record in records if record.digest == digest], digest
                await asyncio.sleep(1.0)

    async def _manifest(self, dataset: str, peers: list[str], digest: str) -> Manifest:
        target = await asyncio.to_thread(new_name, self._context.work_dir)
        path = manifest_path(dataset)
        problem: PeerError = PeerUnreachable(f"nobody provides {dataset}")
        for peer in peers:
            try:
                _, sha256 = await bulk.download_unknown(
                    self._overlay, peer, path, target, limit_bytes=MAX_MANIFEST_BYTES, durable=False
                )
                if sha256 != digest:
                    raise Refused("stale", f"{peer} announced another manifest of {dataset} than it serves")
                return manifest_in(await asyncio.to_thread(target.read_bytes), f"the manifest of {dataset}")
            except PeerError as error:
                problem = error
        raise problem

    async def _download_folder(self, archive: Path, sha256: str) -> None:
        path = f"/bulk/jobs/{self._context.job_id}/folder"
        with self._transfers.show(
            "folder", "job folder", self._context.job_id, self._context.scheduler, self._context.peer_id, 0
        ) as transfer:
            size, found = await bulk.download_unknown(
                self._overlay, self._context.scheduler, path, archive, limit_bytes=FOLDER_LIMIT_BYTES, durable=False
            )
            if found != sha256:
                archive.unlink(missing_ok=True)
                raise Refused("stale", "the job's folder is not the one this task was dispatched with")
            transfer.resize(size)
            transfer.progress(size)

    def _entry(self, path: Path, size: int, sha256: str, source: str) -> Entry:
        return entry_of(self._context, path, size, sha256, source)


def entry_of(context: TaskContext, path: Path, size: int, sha256: str, source: str) -> Entry:
    """How a file of the work directory is told to an executor."""
    return {
        "path": str(path.relative_to(context.work_dir.resolve())),
        "size": size,
        "checksum": f"sha256:{sha256}",
        "metadata": {"source": source, "timestamp": datetime.datetime.now(datetime.UTC).isoformat()},
    }


def _extract(archive: Path, names: list[str], work_dir: Path, target: Path) -> list[tuple[Path, int, str]]:
    """Take files out of the job's folder; a name may be a folder of it. Nothing but plain files is taken: no links, no
    devices, and no sparse files, which would be larger than the archive."""
    found: dict[str, tuple[Path, int, str]] = {}
    wanted = {name.rstrip("/") for name in names}
    matched: set[str] = set()
    with tarfile.open(archive, "r:") as tar:
        for member in tar:
            name = member.name.removeprefix("./")
            matching = wanted & {name, *map(str, PurePosixPath(name).parents)}
            is_plain = member.type in (tarfile.REGTYPE, tarfile.AREGTYPE)
            if not is_plain or (wanted and not matching) or ".." in Path(name).parts:
                continue
            source = tar.extractfile(member)
            if source is None or name.startswith("/"):
                continue
            path = inside(target, name)
            part = new_name(work_dir)
            digest = hashlib.sha256()
            with part.open("xb") as file:
                while piece := source.read(1 << 20):
                    file.write(piece)
                    digest.update(piece)
            put(part, work_dir, path)
            found[name] = (path, member.size, digest.hexdigest())
            matched |= matching
    missing = sorted(wanted - matched)
    if missing:
        raise BridgeError(404, "unknown", f"the job's folder has no {', '.join(missing)}")
    return list(found.values())
