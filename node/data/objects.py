"""A dataset as objects below an address: which slices there are, and whether they are what the manifest says."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path

import msgspec

from node.data.contents import Labels, place_of_labels
from node.data.datasets import Dataset, schema_of
from node.errors import DatasetError, ObjectMissing, TensorFileError
from node.manifest import MANIFEST, MAX_MANIFEST_BYTES, manifest_in
from node.network.objects import object_header
from node.objectstore import Bucket, Entry, open_bucket
from node.storeurl import checked_dataset_url, name_in
from node.tensorfile import MAX_HEADER_BYTES, parse_header
from node.wire import SliceInfo


class ReadThrough(msgspec.Struct, frozen=True):
    """What was found by reading a slice with this tag through."""

    tag: str
    rows: int
    sha256: str
    schema: dict[str, str]


async def slices_below(bucket: Bucket) -> list[Entry]:
    """The objects that are slices, in name order."""
    return [
        entry
        for entry in await bucket.entries()
        if entry.name.endswith(".safetensors") and not entry.name.startswith(".") and "/" not in entry.name
    ]


async def read_through(bucket: Bucket, entry: Entry) -> ReadThrough:
    """Read a slice for its digest and its header. Raises `DatasetError`."""
    digest = hashlib.sha256()
    head = bytearray()
    need = 8
    async for piece in bucket.stream(entry.name, 0, entry.size_bytes):
        if len(head) < need:
            head += piece[: 8 + MAX_HEADER_BYTES - len(head)]
            need = 8 + min(int.from_bytes(head[:8], "little"), MAX_HEADER_BYTES)
        await asyncio.to_thread(digest.update, piece)
    try:
        header = parse_header(bytes(head[:need]), entry.size_bytes)
    except TensorFileError as error:
        raise DatasetError(f"{bucket.url}/{entry.name} is not a sound safetensors file: {error.message}") from error
    return ReadThrough(entry.tag, header.rows or 0, digest.hexdigest(), schema_of(header))


def read_stored(url: str) -> tuple[Dataset, Bucket]:
    """The dataset at an address as its manifest describes it. Blocks; raises `HyphaError`."""
    bucket = open_bucket(checked_dataset_url(url))
    return asyncio.run(_read_manifest(bucket)), bucket


def verify_stored(url: str) -> tuple[Dataset, list[str]]:
    """A dataset, and what of its slices is not as the manifest says. Reads them all; blocks; raises `HyphaError`."""

    async def verify() -> tuple[Dataset, list[str]]:
        bucket = open_bucket(checked_dataset_url(url))
        dataset = await _read_manifest(bucket)
        there = {entry.name: entry for entry in await slices_below(bucket)}
        problems: list[str] = []
        for info in dataset.manifest.slices:
            try:
                problems += await _problems(bucket, dataset, info, there.pop(info.name, None))
            except DatasetError as error:
                problems.append(f"{info.name}: {error.message}")
        problems += [f"{name}: not in the manifest, so it is not served" for name in there]
        return dataset, problems

    return asyncio.run(verify())


def labels_below(bucket: Bucket) -> Labels:
    """Reads the column of classes alone, of one slice after the other."""

    async def read(info: SliceInfo) -> bytes:
        header, tag = await object_header(bucket, info)
        start, end = place_of_labels(header)
        content, _ = await bucket.part(info.name, start, end, tag=tag)
        return bytes(content)

    return lambda info: asyncio.run(read(info))


async def _read_manifest(bucket: Bucket) -> Dataset:
    try:
        content, _ = await bucket.read(MANIFEST, MAX_MANIFEST_BYTES)
    except ObjectMissing as error:
        raise DatasetError(error.message, hint="upload the whole folder that `dataset build` has made") from error
    manifest = manifest_in(content, f"{bucket.url}/{MANIFEST}")
    return Dataset(name_in(bucket.url), Path(), manifest, content, hashlib.sha256(content).hexdigest())


async def _problems(bucket: Bucket, dataset: Dataset, info: SliceInfo, entry: Entry | None) -> list[str]:
    if entry is None:
        return [f"{info.name}: it does not exist"]
    if entry.size_bytes != info.size_bytes:
        return [f"{info.name}: it has {entry.size_bytes:,} bytes, the manifest says {info.size_bytes:,}"]
    found = await read_through(bucket, entry)
    problems: list[str] = []
    if found.rows != info.rows:
        problems.append(f"{info.name}: it has {found.rows} rows, the manifest says {info.rows}")
    if dataset.manifest.schema and found.schema != dataset.manifest.schema:
        problems.append(f"{info.name}: it has other tensors than the manifest says: {found.schema}")
    if found.sha256 != info.sha256:
        problems.append(f"{info.name}: its SHA-256 is {found.sha256}, the manifest says {info.sha256}")
    return problems
