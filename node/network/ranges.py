"""What a request for a part of a file means: `Range`, `If-Match` and `If-Range` (RFC 9110), one range at most."""

from __future__ import annotations

import re
from dataclasses import dataclass

_ONE_RANGE = re.compile(r"^\s*(\d{0,18})\s*-\s*(\d{0,18})\s*$")


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes `start` up to, not including, `end`; `is_part` when the answer is a 206."""

    start: int
    end: int
    is_part: bool

    @property
    def size(self) -> int:
        """How many bytes it is."""
        return self.end - self.start


def etag_of(sha256: str) -> str:
    """The entity tag of content with this SHA-256: it names the bytes, wherever they lie."""
    return f'"sha256:{sha256}"'


def sha256_of_etag(etag: str) -> str | None:
    """The digest in a tag that `etag_of` made, or None."""
    match = re.fullmatch(r'"sha256:([0-9a-f]{64})"', etag.strip())
    return match.group(1) if match else None


def is_match(if_match: str | None, etag: str) -> bool:
    """Whether `If-Match` lets the request through; weak tags never match."""
    if if_match is None or if_match.strip() == "*":
        return True
    return etag in (tag.strip() for tag in if_match.split(","))


def span_of(range_header: str | None, if_range: str | None, etag: str, size: int) -> Span | None:
    """What to send of a file of `size` bytes, or None where the range cannot be satisfied (416).

    A header in another unit or with broken syntax is ignored, as the RFC asks, and any where the file is empty. Several
    ranges are refused: no client of ours asks for them, and they are a known way to make a server work hard.
    """
    whole = Span(0, size, is_part=False)
    if range_header is None or not size or (if_range is not None and if_range.strip() != etag):
        return whole
    unit, _, ranges = range_header.partition("=")
    if unit.strip().lower() != "bytes":
        return whole
    if "," in ranges:
        return None
    match = _ONE_RANGE.match(ranges)
    if match is None or match.group(0).strip() == "-":
        return whole
    first, last = match.groups()
    if not first:
        length = min(int(last), size)
        return Span(size - length, size, is_part=True) if length else None
    start = int(first)
    end = min(int(last) + 1, size) if last else size
    if last and int(last) < start:
        return whole
    return Span(start, end, is_part=True) if start < size else None


def parse_content_range(header: str | None) -> tuple[int, int, int] | None:
    """`(start, end, total)` of an answer's `Content-Range` with `end` exclusive, or None where it is not one."""
    match = re.fullmatch(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18})", (header or "").strip())
    if match is None:
        return None
    start, last, total = (int(group) for group in match.groups())
    return (start, last + 1, total) if start <= last < total else None
