"""Files for other nodes: served in ranges, taken in from uploads, shown only when whole and verified.

A file's entity tag is its SHA-256, so any provider of that digest can go on where another broke off.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from pathlib import Path

import aiohttp
from aiohttp import web
from aiohttp.abc import AbstractStreamWriter

from node.errors import DiskFull, Refused
from node.network.filesource import FileSource
from node.network.partfile import PartFile
from node.network.ranges import Span, etag_of, is_match, span_of
from node.network.rpc import CONTENT_TYPE, encode_refusal
from node.network.tls import PUSH_BYTES, TlsTransport
from node.telemetry import metrics

TURN_BYTES = 1 << 20
"""So much of a body is sent before others have their turn."""
BUFFER_BYTES = 1 << 20
BUFFERS = 2
"""One is filled while the other is written and hashed."""
STALL_S = 30.0
STALL_BYTES = 32 << 10
"""An upload that brings less than this in `STALL_S` counts as stalled."""
CLOSES = web.RequestKey("closes", bool)
"""Mark of a request after which its connection must not be used any more."""


class BrokenOff(web.Response):
    """The end of an answer that has begun: there is none, which the caller sees; aiohttp closes the connection.

    It would report a `ConnectionError` of a handler as an error of the program, with its traceback.
    """

    async def prepare(self, _: web.BaseRequest) -> AbstractStreamWriter | None:
        raise ConnectionError


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
        source = await FileSource.open(path)
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
        transport = _transport(request)
        await response.prepare(request)
        try:
            request.writer.send_headers()
            await _send(transport, source, span, stall_s, on_bytes)
        except BaseException:
            # nothing else may follow half a body
            transport.abort()
            raise
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
    if request.content_length != size_bytes:
        length = "missing" if request.content_length is None else f"{request.content_length:,}"
        raise Refused("invalid", f"announced as {size_bytes:,} bytes, but Content-Length is {length}")
    try:
        part = await PartFile.create(target, size_bytes)
        try:
            await _take(request, part, STALL_S)
            if (found := await part.digest()) != sha256:
                raise Refused("invalid", f"the body has SHA-256 {found}, announced was {sha256}")
            await part.commit(durable=durable)
        finally:
            await part.discard()
    except DiskFull as error:
        raise Refused("full", error.message) from error
    except (TimeoutError, aiohttp.ClientError, ConnectionError, web.RequestPayloadError) as error:
        raise Refused("invalid", f"the body broke off: {error or 'no more bytes came'}") from error


async def _send(
    transport: TlsTransport, source: FileSource, span: Span, stall_s: float, on_bytes: Callable[[int], None] | None
) -> None:
    """Send a part of a file from the memory that the transports share, so that a slow reader costs none."""
    loop = asyncio.get_running_loop()
    at, turn = span.start, TURN_BYTES
    held = memoryview(b"")
    try:
        async with asyncio.timeout(stall_s) as deadline:
            while at < span.end:
                if turn >= TURN_BYTES:
                    # there is room again once the peer has taken a good part of what the socket holds
                    await transport.writable()
                    deadline.reschedule(loop.time() + stall_s)
                    turn = 0
                size = min(PUSH_BYTES, span.end - at)
                piece = held or transport.scratch[:size]
                if not held and source.peek(piece, at) < size:
                    deadline.reschedule(None)  # a slow disk is not the peer's fault
                    piece = memoryview(await source.read(size, at))
                    deadline.reschedule(loop.time() + stall_s)
                    held = piece
                sent = transport.send(piece)
                held = held[sent:]
                at, turn = at + sent, turn + sent if sent == len(piece) else TURN_BYTES
                metrics().bytes_sent(sent)
                if on_bytes is not None:
                    on_bytes(sent)
    except TimeoutError as error:
        raise ConnectionResetError(f"the peer took nothing for {stall_s:g} s") from error


async def _take(request: web.Request, part: PartFile, stall_s: float) -> None:
    """Append a request's body to `part`: what aiohttp has read of it, and the rest from the connection itself."""
    transport, content = _transport(request), request.content
    transport.borrow_reading()
    pieces: list[bytes | memoryview] = []
    while piece := content.read_nowait():
        pieces.append(piece)
    await part.append(pieces)
    if content.is_eof():
        transport.return_reading()
    else:
        # aiohttp will not see the end of this body, nor anything that follows it
        request[CLOSES] = True
        try:
            await _take_rest(transport, part, stall_s)
        finally:
            content.feed_eof()
    metrics().bytes_received(part.written)


async def _take_rest(transport: TlsTransport, part: PartFile, stall_s: float) -> None:
    loop = asyncio.get_running_loop()
    size = min(BUFFER_BYTES, part.size_bytes - part.written)
    buffers = itertools.cycle([memoryview(bytearray(size)) for _ in range(BUFFERS)])
    moved = 0
    async with asyncio.timeout(stall_s) as deadline:
        while left := part.size_bytes - part.written:
            buffer, count = next(buffers)[:left], 0
            while count < len(buffer):
                got = transport.receive(buffer[count:])
                if not got:
                    await transport.readable()
                count, moved = count + got, moved + got
                if moved >= STALL_BYTES:
                    deadline.reschedule(loop.time() + stall_s)
                    moved = 0
            deadline.reschedule(None)
            await part.append([buffer])
            deadline.reschedule(loop.time() + stall_s)


def _transport(request: web.Request) -> TlsTransport:
    transport = request.transport
    if transport is None:
        raise ConnectionResetError("the peer has gone")
    if not isinstance(transport, TlsTransport):
        raise TypeError("files travel over connections of node.network.accepting alone")
    return transport


def _refusal(status: int, code: str, detail: str, headers: dict[str, str]) -> web.Response:
    _, body = encode_refusal(Refused(code, detail))
    return web.Response(status=status, body=body, content_type=CONTENT_TYPE, headers=headers)
