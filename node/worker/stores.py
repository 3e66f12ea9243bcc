"""Slices that a job's tasks read from object storage themselves, where the worker's owner allows that."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from node.errors import Refused
from node.manifest import MANIFEST, MAX_MANIFEST_BYTES, manifest_in
from node.network.objects import download_object
from node.objectstore import Bucket, open_bucket
from node.storeurl import checked_dataset_url, is_within, name_in
from node.wire import Manifest
from node.worker.transfers import Transfers

if TYPE_CHECKING:
    from node.worker.context import TaskContext


class Stores:
    """Object storage as the tasks of one worker see it, with the credentials of this node's environment."""

    def __init__(self, allowed: Sequence[str] = ()) -> None:
        self._allowed = tuple(allowed)
        self._buckets: dict[str, Bucket] = {}

    async def manifest(self, url: str) -> Manifest:
        """A dataset's manifest. Raises `HyphaError`."""
        content, _ = await self._bucket(url).read(MANIFEST, MAX_MANIFEST_BYTES)
        return manifest_in(content, f"{url}/{MANIFEST}")

    async def download(
        self,
        url: str,
        name: str,
        target: Path,
        sha256: str,
        size_bytes: int,
        context: TaskContext,
        transfers: Transfers,
    ) -> None:
        """A slice of a dataset, whole and verified. Raises `HyphaError`."""
        bucket = self._bucket(url)
        if "/" in name or name.startswith("."):
            raise Refused("invalid", f"{name[:100]!r} is not the name of a slice")
        shown = f"{name_in(url)}/{name}"
        with transfers.show("slice", shown, context.job_id, url, context.peer_id, size_bytes) as transfer:
            await download_object(
                bucket, name, target, sha256=sha256, size_bytes=size_bytes, on_progress=transfer.progress
            )

    def _bucket(self, url: str) -> Bucket:
        if checked_dataset_url(url) != url:
            raise Refused("invalid", "the address of a dataset ends with its name")
        if not any(is_within(url, allowed) for allowed in self._allowed):
            hint = "its owner can add it to [fetch] stores"
            raise Refused("denied", f"this worker fetches nothing from {url}", hint=hint)
        if url not in self._buckets:
            self._buckets[url] = open_bucket(url)
        return self._buckets[url]
