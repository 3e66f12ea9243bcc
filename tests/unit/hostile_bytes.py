"""Safetensors headers and HTTP requests that nobody well-meaning sends, from a seed."""

from __future__ import annotations

import asyncio
import json
import random
import ssl
from collections.abc import Iterator
from typing import Any

NUMBERS = ["0", "-1", "1", "18446744073709551616", "1e9", "1e400", "-0", "NaN", "null", "true", "[]", '"1"', "9" * 400]
SCRAPS = [
    b"0",
    b"9",
    b'"',
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b":",
    b"\\",
    b"\xff",
    b"\x00",
    b"-",
    b"1e9",
    b"\\ud800",
    b"  ",
]
DEEP = 40_000
RANGES = [
    "bytes=",
    "bytes=-",
    "bytes=0-",
    "bytes=-0",
    "bytes=0-0,1-1",
    "bytes=9-2",
    "bytes=a-b",
    "Bytes=5-",
    "lines=0-1",
]
TAGS = ["*", "x", '""', 'W/"a"', '"sha256:' + "0" * 64 + '"', '"' * 50]
ANSWERED = {200, 206, 400, 403, 404, 405, 412, 413, 414, 416, 417, 426, 431}
END = b"\r\n\r\n"


def header_mutants(rng: random.Random) -> Iterator[tuple[bytes, int]]:
    """Without end: the first bytes of a file, and the size that the file claims to have."""
    while True:
        entries: dict[str, Any] = {}
        at = 0
        for number in range(rng.randint(0, 4)):
            shape = [rng.randint(0, 5) for _ in range(rng.randint(0, 3))]
            size = 4
            for side in shape:
                size *= side
            entries[f"t{number}"] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + size]}
            at += size
        text = json.dumps(entries, separators=(",", ":")).encode()
        kind = rng.randrange(8)
        if kind < 4:
            text = mutated(rng, text)
        elif kind == 4:
            digits = [place for place, byte in enumerate(text) if 48 <= byte <= 57]
            if digits:
                place = rng.choice(digits)
                text = text[:place] + rng.choice(NUMBERS).encode() + text[place + 1 :]
        elif kind == 5:
            text = text[:-1] + b',"t0":{},"t0":[]}'
        elif kind == 6 and rng.randrange(50) == 0:
            text = rng.choice([b"[", b'{"a":']) * rng.randint(1, DEEP)
        elif kind == 7:
            text = text.replace(b"F32", rng.choice([b"F4", b"U8", b"BF16", b"", b"F32 ", b"\xc3\x28"]), 1)
        length = len(text) if rng.randrange(4) else rng.choice([0, 1, len(text) + 1, 1 << 31, (1 << 64) - 1])
        prefix = length.to_bytes(8, "little") + text
        yield prefix[: rng.randint(0, len(prefix))] if rng.randrange(10) == 0 else prefix, len(prefix) + at


def mutated(rng: random.Random, content: bytes) -> bytes:
    """One to three bytes changed, put in, or taken away."""
    made = bytearray(content)
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(made)) if made else 0
        kind = rng.randrange(4)
        if kind == 0 and made:
            made[at] = rng.randrange(256)
        elif kind == 1:
            made[at:at] = rng.choice(SCRAPS)
        elif kind == 2:
            del made[at : at + rng.randint(1, 4)]
        elif rng.randrange(4) == 0:
            del made[at:]
    return bytes(made)


def request_mutants(rng: random.Random, path: str, size: int) -> Iterator[tuple[bytes, bool]]:
    """Without end: a request, and whether it is sound enough for the connection to be used again."""
    while True:
        kind = rng.randrange(10)
        bound = [rng.choice(["", str(rng.randint(0, 2 * size)), rng.choice(NUMBERS)]) for _ in range(2)]
        byte_range = rng.choice([*RANGES, *["bytes=" + "-".join(bound)] * 9])
        lines = [f"GET {path} HTTP/1.1", "Host: x", f"Range: {byte_range}"]
        if rng.randrange(4) == 0:
            name = rng.choice(["If-Match", "If-Range"])
            lines.append(f"{name}: {rng.choice(TAGS)}")
        if kind == 0:
            lines[0] = (
                rng.choice([f"HEAD {path}", f"PUT {path}", f"GET {path}/..%2f", "GET *", f"BREW {path}"]) + " HTTP/1.1"
            )
        request = "\r\n".join(lines).encode() + END
        if kind == 1:
            yield mutated(rng, request), False
        elif kind == 2:
            filler = b"X-Y: " + b"z" * rng.randint(1, 40_000) + b"\r\n"
            yield request[:-2] + filler * rng.randint(1, 3) + b"\r\n", False
        else:
            yield request, kind != 0


class Client:
    """A hand-written HTTP client that checks what it gets."""

    def __init__(self, host: str, port: int, context: ssl.SSLContext, content: bytes) -> None:
        self._where = (host, port)
        self._context = context
        self._content = content
        self._link: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self.statuses: dict[int, int] = {}

    async def ask(self, request: bytes, *, keep: bool, within_s: float = 10.0) -> int:
        """Send a request; the status of the answer, 0 where there is none because the request has no end."""
        async with asyncio.timeout(within_s):
            reader, writer = self._link or await self._connect()
            try:
                writer.write(request)
                await writer.drain()
                status = await self._answer(reader, request) if END in request else 0
            except (ConnectionError, asyncio.IncompleteReadError):
                status, keep = 0, False
            if keep and status in (200, 206, 404, 412, 416):
                self._link = reader, writer
            else:
                await self.close()
        self.statuses[status] = self.statuses.get(status, 0) + 1
        return status

    async def close(self) -> None:
        """Close the connection at once."""
        if self._link is not None:
            self._link[1].transport.abort()
            self._link = None

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        self._link = await asyncio.open_connection(*self._where, ssl=self._context, server_hostname="")
        return self._link

    async def _answer(self, reader: asyncio.StreamReader, request: bytes) -> int:
        head = await reader.readuntil(END)
        status = int(head.split(b" ", 2)[1])
        assert status in ANSWERED, (request[:300], head)
        fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:] if b": " in line)
        body = (
            b"" if request.startswith(b"HEAD") else await reader.readexactly(int(fields.get(b"content-length", b"0")))
        )
        if status == 206:
            span = fields[b"content-range"].removeprefix(b"bytes ").partition(b"/")[0].partition(b"-")
            assert body == self._content[int(span[0]) : int(span[2]) + 1], request[:300]
        if status == 200 and request.startswith(b"GET") and b"octet-stream" in fields.get(b"content-type", b""):
            assert body == self._content, request[:300]
        return status
