"""A job's dataset: found through the overlay, its manifest verified, its providers kept up to date."""

from __future__ import annotations

import asyncio
import hashlib
from collections import defaultdict
from itertools import accumulate
from typing import TYPE_CHECKING
from urllib.parse import quote

from node.errors import DatasetError, HyphaError, ObjectMissing, ObjectStoreError, PeerProtocol
from node.manifest import MANIFEST, MAX_MANIFEST_BYTES, manifest_in
from node.objectstore import open_bucket
from node.storeurl import is_store_url
from node.wire import Manifest, SliceGrant, Span

if TYPE_CHECKING:
    from node.network.overlay import Overlay

MANIFEST_DEADLINE_S = 60.0
NO_PROVIDER_WAIT_S = 1.0


class Dataset:
    """A dataset by its digest. Any provider of that digest will do."""

    def __init__(self, manifest: Manifest, digest: str, providers: list[str]) -> None:
        self.manifest = manifest
        self.digest = digest
        self.providers = providers
        self._is_stored = False
        self._first_rows = [0, *accumulate(info.rows for info in manifest.slices)]

    @classmethod
    async def find(cls, overlay: Overlay, name: str, wanted: str = "") -> Dataset:
        """Look a dataset up, the one with the digest `wanted` if that is given.

        Raises `DatasetError` where nobody serves it, or nobody a manifest that fits.
        """
        if is_store_url(name):
            return await cls._in_store(name, wanted)
        by_digest: dict[str, list[str]] = defaultdict(list)
        for record in await overlay.providers(name):
            if record.slices > 0:
                by_digest[record.digest].append(record.peer_id)
        if not by_digest:
            raise DatasetError(f'no node serves dataset "{name}"')
        if wanted and wanted not in by_digest:
            raise DatasetError(f'no node serves dataset "{name}" as it was when the job began')
        problem = ""
        if wanted:
            by_digest = {wanted: by_digest[wanted]}
        for digest, peers in sorted(by_digest.items(), key=lambda item: (-len(item[1]), item[0])):
            for peer_id in sorted(peers):
                try:
                    manifest = await _fetch_manifest(overlay, peer_id, name, digest)
                except HyphaError as error:
                    problem = error.message
                    continue
                return cls(manifest, digest, sorted(peers))
        raise DatasetError(f'dataset "{name}" cannot be read: {problem}')

    @classmethod
    async def _in_store(cls, url: str, wanted: str) -> Dataset:
        """A dataset that workers fetch from object storage themselves: nobody serves it."""
        try:
            content, _ = await open_bucket(url).read(MANIFEST, MAX_MANIFEST_BYTES)
        except ObjectMissing as error:
            raise DatasetError(error.message, hint="upload the whole folder that `dataset build` has made") from error
        except ObjectStoreError as error:
            raise DatasetError(str(error)) from error
        digest = hashlib.sha256(content).hexdigest()
        if wanted and digest != wanted:
            raise DatasetError(f"{url} is not as it was when the job began")
        dataset = cls(manifest_in(content, f"{url}/{MANIFEST}"), digest, [])
        dataset._is_stored = True
        return dataset

    async def refresh(self, overlay: Overlay) -> None:
        """Find out who serves it now."""
        if self._is_stored:
            return
        records = await overlay.providers(self.manifest.name)
        self.providers = sorted(
            {record.peer_id for record in records if record.digest == self.digest and record.slices}
        )

    def grant(self, span: Span) -> SliceGrant:
        """What a task needs to know to fetch these rows."""
        info = self.manifest.slices[span.index]
        return SliceGrant(
            index=span.index,
            pass_=span.pass_,
            start=span.start,
            end=span.end,
            name=info.name,
            sha256=info.sha256,
            size_bytes=info.size_bytes,
            rows=info.rows,
            first_row=self._first_rows[span.index],
            providers=list(self.providers),
        )


async def _fetch_manifest(overlay: Overlay, peer_id: str, name: str, digest: str) -> Manifest:
    body = bytearray()
    try:
        async with asyncio.timeout(MANIFEST_DEADLINE_S):
            async with overlay.open(peer_id, "GET", f"/bulk/datasets/{quote(name, safe='')}/manifest") as answer:
                async for piece in answer.content.iter_chunked(1 << 16):
                    body += piece
                    if len(body) > MAX_MANIFEST_BYTES:
                        raise PeerProtocol(f"the manifest of {name} is over {MAX_MANIFEST_BYTES:,} bytes")
    except TimeoutError as error:
        raise PeerProtocol(f"the manifest of {name} did not come in {MANIFEST_DEADLINE_S:g} s") from error
    if hashlib.sha256(body).hexdigest() != digest:
        raise PeerProtocol(f"the manifest of {name} is not the one that was announced")
    return manifest_in(body, f"the manifest of {name}")
