"""Slices in object storage, for a program of one's own: downloaded into a cache, or as ranges without a copy here.

Credentials come from the environment. A process that has opened one of these must not fork: start others by spawning.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from node.errors import DatasetError, ObjectMissing, TensorFileError
from node.manifest import MANIFEST, MAX_MANIFEST_BYTES, manifest_in
from node.network.objects import download_object, object_header
from node.objectstore import Bucket, open_bucket
from node.storeurl import checked_dataset_url, is_store_url
from node.streaming.cached import CACHE_BYTES, CachedSource, LoopThread
from node.streaming.slicefile import DTYPES, Array, Columns, Rows, columns_of, widened
from node.tensorfile import Header, TensorInfo, parse_header
from node.wire import SliceInfo


class StoreSource(CachedSource):
    """The slices of a dataset at `s3://`, `gs://` or `az://bucket/path/name`, whole and verified, from a cache.

    Several processes may share a cache folder. Raises `HyphaError`.
    """

    def __init__(self, url: str, *, cache: Path, cache_bytes: int = CACHE_BYTES, digest: str = "") -> None:
        self._bucket = _bucket_of(url)
        super().__init__(cache, cache_bytes, "store-source")
        try:
            self.digest, self._infos = self._loop.run(_find(self._bucket, digest))
        except BaseException:
            self.close()
            raise
        self.rows = [info.rows for info in self._infos]

    async def _fetch(self, index: int, path: Path) -> None:
        info = self._infos[index]
        await download_object(self._bucket, info.name, path, sha256=info.sha256, size_bytes=info.size_bytes)


class StoreStream:
    """The rows of a dataset in object storage, read as ranges: nothing lies on the disk, memory holds what is fetched.

    A slice of which every row of every column is wanted is read whole, and its digest is checked before a row is given
    out. Of others only the columns and the rows from the first to the last that are wanted are read. No digest can be
    checked of a part: what counts is TLS, the size, and that a slice is the same object from one range to the next.
    """

    def __init__(self, url: str, *, digest: str = "") -> None:
        self._bucket = _bucket_of(url)
        self._loop = LoopThread("store-stream")
        self._heads: dict[int, tuple[Header, str]] = {}
        try:
            self.digest, self._infos = self._loop.run(_find(self._bucket, digest))
        except BaseException:
            self.close()
            raise
        self.rows: Sequence[int] = [info.rows for info in self._infos]

    def open_rows(self, index: int, columns: Sequence[str], first: int, end: int) -> Rows:
        """These rows of a slice, in memory."""
        return self._loop.run(self._read(index, columns, first, end))

    def is_here(self, index: int) -> bool:
        """Never."""
        return False

    def release(self, index: int) -> None:
        """Nothing is held."""

    def close(self) -> None:
        """Break off what is under way."""
        self._loop.close()

    async def _read(self, index: int, columns: Sequence[str], first: int, end: int) -> Rows:
        info = self._infos[index]
        if not columns and first == 0 and end == info.rows:
            return await self._whole(info)
        if index not in self._heads:
            self._heads[index] = await object_header(self._bucket, info)
        header, tag = self._heads[index]
        infos = columns_of(header, info.name, columns)

        async def column(tensor: TensorInfo) -> Array:
            row = (tensor.end - tensor.start) // tensor.shape[0]
            at = header.data_start + tensor.start
            content = memoryview(b"")
            if row:
                content, _ = await self._bucket.part(info.name, at + first * row, at + end * row, tag=tag)
            if len(content) != (end - first) * row:
                raise DatasetError(f"{self._bucket.url}/{info.name} is cut short")
            # A copy, as PyTorch wants memory that it may write to.
            whole = np.frombuffer(bytearray(content), dtype=np.dtype(DTYPES[tensor.dtype]))
            return whole.reshape((end - first, *tensor.shape[1:]))

        arrays = await asyncio.gather(*(column(tensor) for tensor in infos.values()))
        return _Rows(first, infos, dict(zip(infos, arrays, strict=True)))

    async def _whole(self, info: SliceInfo) -> Rows:
        where = f"{self._bucket.url}/{info.name}"
        content, _ = await self._bucket.part(info.name, 0, info.size_bytes)
        memory = bytearray(content)
        found = (await asyncio.to_thread(hashlib.sha256, memory)).hexdigest()
        if found != info.sha256:
            raise DatasetError(f"{where} is not what the manifest says: its SHA-256 is {found}, not {info.sha256}")
        try:
            header = parse_header(bytes(memory[: 8 + int.from_bytes(memory[:8], "little")]), len(memory))
        except TensorFileError as error:
            raise DatasetError(f"{where} is not a sound safetensors file: {error.message}") from error
        if header.rows != info.rows:
            raise DatasetError(f"{where} has {header.rows} rows, the manifest says {info.rows}")
        infos = columns_of(header, info.name)

        def column(tensor: TensorInfo) -> Array:
            dtype = np.dtype(DTYPES[tensor.dtype])
            count = (tensor.end - tensor.start) // dtype.itemsize
            return np.frombuffer(memory, dtype, count, header.data_start + tensor.start).reshape(tensor.shape)

        return _Rows(0, infos, {name: column(tensor) for name, tensor in infos.items()})


class _Rows:
    """Rows of a slice that are in memory, from `first` on."""

    def __init__(self, first: int, infos: dict[str, TensorInfo], arrays: Columns) -> None:
        self._first = first
        self._arrays = arrays
        self._bfloat16 = frozenset(name for name, info in infos.items() if info.dtype == "BF16")
        self.row_bytes = max(1, sum(array.nbytes // max(1, len(array)) for array in arrays.values()))

    @property
    def is_viewed(self) -> bool:
        return not self._bfloat16

    @property
    def columns(self) -> list[str]:
        return list(self._arrays)

    def read(self, rows: slice | NDArray[np.int64]) -> Columns:
        first = self._first
        at: Any = slice(rows.start - first, rows.stop - first) if isinstance(rows, slice) else rows - first
        return {
            name: widened(array[at]) if name in self._bfloat16 else array[at] for name, array in self._arrays.items()
        }


def _bucket_of(url: str) -> Bucket:
    if not is_store_url(url):
        raise DatasetError(f"{url!r} is not in object storage", hint="write s3://, gs:// or az://bucket/path/name")
    return open_bucket(checked_dataset_url(url))


async def _find(bucket: Bucket, digest: str) -> tuple[str, Sequence[SliceInfo]]:
    """The digest of the manifest at an address, and its slices."""
    try:
        content, _ = await bucket.read(MANIFEST, MAX_MANIFEST_BYTES)
    except ObjectMissing as error:
        raise DatasetError(error.message, hint="upload the whole folder that `dataset build` has made") from error
    found = hashlib.sha256(content).hexdigest()
    if digest and found != digest:
        raise DatasetError(f"{bucket.url} is the version {found[:12]}, not {digest[:12]}")
    return found, manifest_in(content, f"{bucket.url}/{MANIFEST}").slices
