"""Files for other nodes: served in ranges, taken in from uploads, shown only when whole and verified.

A file's entity tag is its SHA-256, so any provider of that digest can go on where another broke off.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import aiohttp
from aiohttp import web

from node.errors import DiskFull, PeerProtocol, Refused
from node.network.partfile import PartFile
from node.network.ranges import etag_of, is_match, span_of
from node.network.readahead import ReadAhead
from node.network.rpc import CONTENT_TYPE, encode_refusal
from node.telemetry import metrics

BATCH_BYTES = 2 << 20
READ_AHEAD_BYTES = 4 << 20
STALL_S = 30.0
STALL_BYTES = 32 << 10
"""A transfer that moves less than this in `STALL_S` counts as stalled."""


async def send_file(
    request: web.Request,
    path: Path,
    *,
    sha256: str,
    stall_s: float = STALL_S,
    on_bytes: Callable[[int], None] | None = None,
) -> web.StreamResponse:
    """Answer with `path`, or the one range of it that is asked for. The last part of `path` may not be a link.

    The caller vouches that the content has this SHA-256. A peer that stops reading is cut off after `stall_s`.
    """
    try:
        source = await ReadAhead.open(path)
    except OSError as error:
        raise Refused("unknown", f"{path.name} cannot be read here: {error.strerror}") from error
    try:
        etag = etag_of(sha256)
        if not is_match(request.headers.get("If-Match"), etag):
            return _refusal(412, "stale", f"{path.name} is {etag} here", {"ETag": etag})
        span = span_of(request.headers.get("Range"), request.headers.get("If-Range"), etag, source.size)
        if span is None:
            extent = {"Content-Range": f"bytes */{source.size}"}
            return _refusal(416, "invalid", "one range inside the file, please", extent)
        response = web.StreamResponse(status=206 if span.is_part else 200)
        response.content_type = "application/octet-stream"
        response.content_length = span.size
        response.headers.update({"ETag": etag, "Accept-Ranges": "bytes"})
        if span.is_part:
            response.headers["Content-Range"] = f"bytes {span.start}-{span.end - 1}/{source.size}"
        await response.prepare(request)
        source.seek(span.start, span.end)
        while piece := await source.next():
            await _write(request, response, piece, stall_s)
            metrics().bytes_sent(len(piece))
            if on_bytes is not None:
                on_bytes(len(piece))
        return response
    finally:
        source.close()


async def receive_file(
    request: web.Request, target: Path, *, sha256: str, size_bytes: int, limit_bytes: int, durable: bool = True
) -> None:
    """Take a request's body as the file `target`: counted, verified, shown only when whole.

    `durable`: it is on the disk before it is shown. What will be sent again after a power cut can do without the wait.
    Raises `Refused`: `full` for no room or beyond `limit_bytes`, `invalid` for another size or digest than announced.
    """
    if size_bytes > limit_bytes:
        raise Refused("full", f"{size_bytes:,} bytes are more than the {limit_bytes:,} that are accepted here")
    if request.content_length not in (None, size_bytes):
        raise Refused("invalid", f"announced as {size_bytes:,} bytes, but Content-Length is {request.content_length:,}")
    try:
        part = await PartFile.create(target, size_bytes)
        try:
            await _take(request.content, part, size_bytes, STALL_S)
            if part.written != size_bytes:
                raise Refused("invalid", f"the body ended after {part.written:,} of {size_bytes:,} bytes")
            if (found := await part.digest()) != sha256:
                raise Refused("invalid", f"the body has SHA-256 {found}, announced was {sha256}")
            await part.commit(durable=durable)
        finally:
            await part.discard()
    except DiskFull as error:
        raise Refused("full", error.message) from error
    except (TimeoutError, aiohttp.ClientError, ConnectionError, web.RequestPayloadError, PeerProtocol) as error:
        raise Refused("invalid", f"the body broke off: {error or 'no more bytes came'}") from error


async def _take(content: aiohttp.StreamReader, part: PartFile, size_bytes: int, stall_s: float) -> None:
    """Append a body to `part`, in batches, until it ends; raises `PeerProtocol` at the first byte too many."""
    content.set_read_chunk_size(READ_AHEAD_BYTES)
    loop = asyncio.get_running_loop()
    batch: list[bytes] = []
    size = moved = 0

    async def flush() -> None:
        nonlocal batch, size
        if batch:
            taken, batch, size = batch, [], 0
            metrics().bytes_received(sum(map(len, taken)))
            await part.append(taken)

    try:
        async with asyncio.timeout(stall_s) as deadline:
            while not content.at_eof():
                piece, _ = await content.readchunk()
                if part.written + size + len(piece) > size_bytes:
                    raise PeerProtocol(f"more than the {size_bytes:,} bytes that were announced")
                batch.append(piece)
                size += len(piece)
                moved += len(piece)
                if size >= BATCH_BYTES:
                    deadline.reschedule(None)  # a slow disk is not the peer's fault
                    await flush()
                    moved = STALL_BYTES
                if moved >= STALL_BYTES:
                    deadline.reschedule(loop.time() + stall_s)
                    moved = 0
    except (aiohttp.ClientError, ConnectionError, TimeoutError):
        await flush()
        raise
    await flush()


async def _write(request: web.Request, response: web.StreamResponse, piece: bytes, stall_s: float) -> None:
    """Send a piece; the peer is cut off once it takes less than `STALL_BYTES` in `stall_s`."""
    transport = request.transport
    if transport is None:
        raise ConnectionResetError("the peer has gone")
    left = transport.get_write_buffer_size() + len(piece)
    try:
        async with asyncio.timeout(stall_s):
            await response.write(piece)
        return
    except TimeoutError:
        pass
    while (now_left := transport.get_write_buffer_size()) <= left - STALL_BYTES:
        left = now_left
        try:
            async with asyncio.timeout(stall_s):
                await request.writer.drain()
            return
        except TimeoutError:
            continue
    transport.abort()
    raise ConnectionResetError(f"the peer took nothing for {stall_s:g} s")


def _refusal(status: int, code: str, detail: str, headers: dict[str, str]) -> web.Response:
    _, body = encode_refusal(Refused(code, detail))
    return web.Response(status=status, body=body, content_type=CONTENT_TYPE, headers=headers)
