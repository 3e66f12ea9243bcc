"""Numbers, durations and foreign strings as short, steady text. No unit is longer than it must be."""

from __future__ import annotations

import re
import textwrap
from itertools import pairwise

from rich.cells import cell_len, set_cell_size

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]")
_STEPS = ((86_400.0, "d"), (3_600.0, "h"), (60.0, "m"), (1.0, "s"))


def clean(text: str) -> str:
    """`text` without characters that move the cursor, change direction or take no cell: safe to draw."""
    return text if text.isascii() and text.isprintable() else _CONTROL.sub(" ", text)


def width(text: str) -> int:
    """Cells that a clean text takes."""
    return len(text) if text.isascii() else cell_len(text)


def from_cell(text: str, cell: int) -> str:
    """What is left of a text without its first cells; half of a wide character becomes a blank."""
    at = 0
    while at < len(text) and cell > 0:
        cell -= cell_len(text[at])
        at += 1
    return " " * -cell + text[at:]


def age(seconds: float | None) -> str:
    """A duration in its largest unit: `41s`, `3m`, `2h`, `5d`."""
    if seconds is None:
        return "-"
    for size, unit in _STEPS:
        if seconds >= size:
            return f"{int(seconds // size)}{unit}"
    return "0s"


def long_age(seconds: float | None) -> str:
    """A duration in its two largest units: `3d04h`, `1h02m`, `2m07s`."""
    if seconds is None:
        return "-"
    for (size, unit), (below, small) in pairwise(_STEPS):
        if seconds >= size:
            return f"{int(seconds // size)}{unit}{int(seconds % size // below):02d}{small}"
    return age(seconds)


def size(count: float) -> str:
    """Bytes with a decimal unit: `980 B`, `4.1 MB`."""
    value = float(count)
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if value < 999.5 or unit == "TB":
            return f"{value:.0f} {unit}" if unit == "B" or value >= 99.95 else f"{value:.1f} {unit}"
        value /= 1_000
    return ""


def rate(bytes_per_s: float) -> str:
    """Bytes a second: `88.0 MB/s`."""
    return f"{size(bytes_per_s)}/s"


def number(value: float | None, digits: int = 3) -> str:
    """A measured value in `digits` significant digits, large ones with k, M or G: `2.113`, `81.2k`."""
    if value is None:
        return "-"
    if value != value or value in (float("inf"), float("-inf")):
        return str(value)
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= limit:
            return f"{value / limit:.1f}{unit}"
    if value and abs(value) < 0.001:
        return f"{value:.1e}"
    return f"{value:.{digits}f}" if abs(value) < 100 else f"{value:.0f}"


def count(value: int) -> str:
    """A whole number with thousands marked: `9,216`."""
    return f"{value:,}"


def cut(text: str, width: int, *, mark: str = "~") -> str:
    """`text` in at most `width` cells, cut in the middle: what names have in common is at their start."""
    if cell_len(text) <= width:
        return text
    if width <= len(mark):
        return set_cell_size(text, max(width, 0))
    head = (width - len(mark) + 1) // 2
    tail = width - len(mark) - head
    start = set_cell_size(text, head)
    end = ""
    for character in reversed(text):
        if cell_len(character + end) > tail:
            break
        end = character + end
    return set_cell_size(start + mark + end, width) if cell_len(start + mark + end) != width else start + mark + end


def fit(text: str, width: int, *, right: bool = False, mark: str = "~") -> str:
    """`text` in exactly `width` cells."""
    short = clean(text)
    if short.isascii() and len(short) <= width:
        return short.rjust(width) if right else short.ljust(width)
    short = cut(short, width, mark=mark)
    pad = " " * max(0, width - cell_len(short))
    return pad + short if right else short + pad


def wrap(words: str, width: int, lines: int = 4) -> list[str]:
    """A sentence, clean, in at most so many lines of at most `width` characters."""
    return textwrap.wrap(clean(words), max(width, 10), max_lines=lines, placeholder=" ..")


def short_id(id_: str) -> str:
    """The part of an id that tells it from others: the end of a peer id, the start of another."""
    return id_[-8:] if id_.startswith("12D3Koo") else id_[:12]
