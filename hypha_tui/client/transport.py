"""HTTP/1.1 to one node: connections, kept for the next question, and answers in pieces.

Written for what a terminal asks of its node. A general client costs a fifth of the time until the first picture.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Final

from hypha_tui.client import head
from hypha_tui.client.head import Head

CONNECT_S: Final = 10.0
HEAD_BYTES: Final = 256 << 10
"""What a head may have, and what is read ahead of a body."""
PIECE_BYTES: Final = 256 << 10
BODY_BYTES: Final = 256 << 20
"""What an answer may have that is read as a whole."""
TRAILERS: Final = 64
KEPT: Final = 4

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Answer:
    """What came of a request: its head, and its body as long as the block of `Transport.ask` lasts."""

    def __init__(self, reader: asyncio.StreamReader, head_: Head, silence_s: float | None) -> None:
        self.head = head_
        self.is_whole = False
        self._reader = reader
        self._silence_s = silence_s
        self._left = head_.length or 0
        self._is_in_chunks = False

    async def read(self) -> bytes:
        """The rest of the body; ValueError where it has no end."""
        found = bytearray()
        while piece := await self.piece():
            found += piece
            if len(found) > BODY_BYTES:
                raise ValueError(f"an answer of more than {BODY_BYTES:,} bytes")
        return bytes(found)

    async def piece(self) -> bytes:
        """The next piece of the body as it comes, none after the last. EOFError where it ends too early, TimeoutError
        where nothing comes for too long."""
        if self.is_whole:
            return b""
        async with asyncio.timeout(self._silence_s):
            if self.head.is_chunked and not self._left:
                await self._begin_chunk()
            piece = await self._some()
        self.is_whole = not piece
        return piece

    async def _some(self) -> bytes:
        if not self.head.is_chunked and self.head.length is None:
            return await self._reader.read(PIECE_BYTES)
        if not self._left:
            return b""
        piece = await self._reader.read(min(self._left, PIECE_BYTES))
        if not piece:
            raise EOFError("it ended in mid-answer")
        self._left -= len(piece)
        return piece

    async def _begin_chunk(self) -> None:
        if self._is_in_chunks and await self._reader.readexactly(2) != b"\r\n":
            raise ValueError("a chunk is longer than it says")
        self._is_in_chunks = True
        self._left = head.chunk_size(await _until(self._reader, b"\r\n"))
        if not self._left:
            for _ in range(TRAILERS):
                if await _until(self._reader, b"\r\n") == b"\r\n":
                    return
            raise ValueError(f"more than {TRAILERS} headers after a body")


class Transport:
    """Asks one node. `dial` makes a connection on which nothing was sent yet, to whom it may be sent."""

    def __init__(self, host: str, dial: Callable[[], Awaitable[Streams]]) -> None:
        self._host = host
        self._dial = dial
        self._kept: list[Streams] = []

    @asynccontextmanager
    async def ask(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: bytes | None = None,
        *,
        silence_s: float | None = None,
    ) -> AsyncIterator[Answer]:
        """An answer. `silence_s`: how long it may be quiet before and between its pieces; None: the caller has a
        deadline for all of it. Raises what asyncio and TLS raise, EOFError, and ValueError for what is not HTTP."""
        request = head.request(method, target, self._host, headers, None if body is None else len(body))
        streams, found = await self._begin(request, body, silence_s, is_repeatable=method == "GET")
        answer = Answer(streams[0], found, silence_s)
        try:
            yield answer
        finally:
            if answer.is_whole and not found.is_last and len(self._kept) < KEPT:
                self._kept.append(streams)
            else:
                drop(streams)

    async def close(self) -> None:
        """End the connections."""
        while self._kept:
            drop(self._kept.pop())
        await asyncio.sleep(0)  # the loop tells a connection of its end in its next round

    async def _begin(
        self, request: bytes, body: bytes | None, silence_s: float | None, *, is_repeatable: bool
    ) -> tuple[Streams, Head]:
        """Send it. A kept connection may have ended in the meantime, so only what may be sent twice goes over one."""
        while is_repeatable and self._kept:
            streams = self._kept.pop()
            with suppress(OSError, EOFError):
                return streams, await _exchange(streams, request, body, silence_s)
        async with asyncio.timeout(CONNECT_S):
            streams = await self._dial()
        return streams, await _exchange(streams, request, body, silence_s)


def drop(streams: Streams) -> None:
    """End a connection at once."""
    streams[1].transport.abort()


async def _exchange(streams: Streams, request: bytes, body: bytes | None, silence_s: float | None) -> Head:
    """Send a request and read the head of its answer, which may come before all was sent."""
    reader, writer = streams
    try:
        writer.write(request)
        if body is None:
            return await _head(reader, silence_s)
        async with asyncio.TaskGroup() as tasks:
            sending = tasks.create_task(_send(writer, body))
            found = await _head(reader, silence_s)
            found = replace(found, is_last=found.is_last or not sending.done())
            sending.cancel()
        return found
    except BaseException as error:
        drop(streams)
        if isinstance(error, BaseExceptionGroup):
            raise error.exceptions[0] from None
        raise


async def _head(reader: asyncio.StreamReader, silence_s: float | None) -> Head:
    async with asyncio.timeout(silence_s):
        return head.read(await _until(reader, b"\r\n\r\n"))


async def _until(reader: asyncio.StreamReader, end: bytes) -> bytes:
    try:
        return await reader.readuntil(end)
    except asyncio.LimitOverrunError:
        raise ValueError(f"a header of more than {HEAD_BYTES:,} bytes") from None


async def _send(writer: asyncio.StreamWriter, body: bytes) -> None:
    """All of a body. One that nobody reads to its end may have an answer all the same."""
    view = memoryview(body)
    with suppress(ConnectionError):
        for start in range(0, len(view), PIECE_BYTES):
            writer.write(view[start : start + PIECE_BYTES])
            await writer.drain()
