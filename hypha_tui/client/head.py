"""The heads of HTTP/1.1 messages (RFC 9112): of requests as bytes, of answers as values. No I/O."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

_STATUS: Final = re.compile(rb"HTTP/1\.([01]) ([2-5]\d\d)(?: ([\t -~\xa0-\xff]*))?")
_FIELD: Final = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\t -~\x80-\xff]*)")
_CHUNK: Final = re.compile(rb"([0-9A-Fa-f]{1,12})[ \t]*(?:;[^\r\n]*)?\r\n")
_DIGITS: Final = re.compile(r"\d{1,18}")


@dataclass(frozen=True, slots=True)
class Head:
    """Of an answer. `length`: of its body in bytes; None with `is_chunked`, or where the end of the connection ends it.
    `is_last`: the connection is of no use after it."""

    status: int
    reason: str
    length: int | None
    is_chunked: bool
    is_last: bool


def request(method: str, target: str, host: str, headers: Mapping[str, str], body_bytes: int | None) -> bytes:
    """The head of a request. `target` is in the form that travels: quoted."""
    fields = {"Host": host, **headers}
    if body_bytes is not None or method != "GET":
        fields["Content-Length"] = str(body_bytes or 0)
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
    if any("\r" in line or "\n" in line for line in lines):
        raise ValueError("a line break in a header")
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def read(data: bytes) -> Head:
    """The head of an answer, with the empty line at its end; ValueError where it is none, or says two lengths."""
    first, *lines = data.removesuffix(b"\r\n\r\n").split(b"\r\n")
    status = _STATUS.fullmatch(first)
    if status is None:
        raise ValueError(f"its answer begins with {first[:40]!r}")
    fields: dict[str, str] = {}
    for line in lines:
        field = _FIELD.fullmatch(line)
        if field is None:
            raise ValueError(f"a header reads {line[:40]!r}")
        name, value = field[1].decode().lower(), field[2].decode("latin-1").strip()
        if name in ("content-length", "transfer-encoding") and name in fields:
            raise ValueError(f"two headers {name}")
        fields[name] = value
    coding, length = fields.get("transfer-encoding", "").lower(), fields.get("content-length")
    if coding not in ("", "chunked") or (coding and length is not None):
        raise ValueError(f"a body of transfer-encoding {coding!r}")
    if length is not None and not _DIGITS.fullmatch(length):
        raise ValueError(f"a body of {length[:40]!r} bytes")
    code = int(status[2])
    has_end = bool(coding) or length is not None or code == 204
    is_last = status[1] == b"0" or "close" in fields.get("connection", "").lower() or not has_end
    size = 0 if code == 204 else None if length is None else int(length)
    return Head(code, (status[3] or b"").decode("latin-1"), size, bool(coding), is_last)


def chunk_size(line: bytes) -> int:
    """How many bytes a chunk has, by the line before it; 0 ends the body."""
    found = _CHUNK.fullmatch(line)
    if found is None:
        raise ValueError(f"a chunk begins with {line[:40]!r}")
    return int(found[1], 16)
