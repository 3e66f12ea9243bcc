"""A file from object storage: fetched with resume, shown only when whole and verified."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

from node.errors import DatasetError, ObjectStoreError, TensorFileError
from node.network.backoff import Backoff
from node.network.bulk import BACKOFF_FIRST_S, BACKOFF_MOST_S, Report
from node.network.partfile import PartFile
from node.objectstore import Bucket
from node.telemetry import metrics
from node.tensorfile import MAX_HEADER_BYTES, Header, parse_header
from node.wire import SliceInfo

ATTEMPTS = 6
HEAD_BYTES = 64 << 10


async def download_object(
    bucket: Bucket,
    name: str,
    target: Path,
    *,
    sha256: str,
    size_bytes: int,
    on_progress: Report | None = None,
    attempts: int = ATTEMPTS,
) -> None:
    """Fetch an object whose digest is known, going on at the same byte after every break.

    Gives up after `attempts` failures in a row without a new byte. Raises `DatasetError` where the object has another
    content, `ObjectStoreError`, and `DiskFull`. The file is as durable as one that can be fetched again needs to be.
    """
    part = await PartFile.create(target, size_bytes)
    backoff = Backoff(random.Random(), first_s=BACKOFF_FIRST_S, most_s=BACKOFF_MOST_S)
    try:
        while True:
            before = part.written
            try:
                await _continue(bucket, name, part, on_progress)
                break
            except ObjectStoreError as error:
                if part.written > before:
                    backoff.succeeded()
                wait_s = backoff.failed()
                if error.is_final or backoff.failures >= attempts:
                    raise
            await asyncio.sleep(wait_s)
        found = await part.digest()
        if found != sha256:
            raise DatasetError(f"{bucket.url}/{name} has the SHA-256 {found}, the manifest says {sha256}")
        await part.commit(durable=False)
    finally:
        await part.discard()


async def object_header(bucket: Bucket, info: SliceInfo) -> tuple[Header, str]:
    """The header of a slice, compared with its line of the manifest, and the tag that the slice had then.

    Raises `DatasetError`, `ObjectStoreError`.
    """
    where = f"{bucket.url}/{info.name}"
    head, about = await bucket.part(info.name, 0, min(HEAD_BYTES, info.size_bytes))
    if about.size_bytes != info.size_bytes:
        raise DatasetError(f"{where} has {about.size_bytes:,} bytes, the manifest says {info.size_bytes:,}")
    need = 8 + min(int.from_bytes(head[:8], "little"), MAX_HEADER_BYTES)
    if need > len(head):
        head, about = await bucket.part(info.name, 0, min(need, info.size_bytes), tag=about.tag)
    try:
        header = parse_header(bytes(head[:need]), info.size_bytes)
    except TensorFileError as error:
        raise DatasetError(f"{where} is not a sound safetensors file: {error.message}") from error
    if header.rows != info.rows:
        raise DatasetError(f"{where} has {header.rows} rows, the manifest says {info.rows}")
    return header, about.tag


async def _continue(bucket: Bucket, name: str, part: PartFile, on_progress: Report | None) -> None:
    if part.size_bytes and part.written == part.size_bytes:
        return
    async for piece in bucket.stream(name, part.written, part.size_bytes):
        metrics().bytes_received(len(piece))
        await part.append([piece])
        if on_progress is not None:
            on_progress(part.written)
    if part.written != part.size_bytes:
        raise ObjectStoreError(f"{bucket.url}/{name} broke off after {part.written:,} of {part.size_bytes:,} bytes")
