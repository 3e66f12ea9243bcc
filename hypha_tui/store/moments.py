"""Moments of a recording as a person writes them. No I/O."""

from __future__ import annotations

import re
from typing import Final

from node.errors import ConfigError

_UNITS: Final = {"s": 1.0, "m": 60.0, "h": 3_600.0}
_CLOCK: Final = re.compile(r"(?:(\d{1,3}):)?(\d{1,3}):(\d{2}(?:\.\d+)?)")
_AMOUNT: Final = re.compile(r"(\d+(?:\.\d+)?)([smh%]?)")


def moment(words: str, now: float, first: float, last: float) -> float:
    """Seconds from the start: `12:30`, `1:02:00`, `90s`, `5m`, `50%`, `start`, `end`; with + or -, from now.

    What lies outside the recording is its nearer end. ConfigError where it is none of these.
    """
    words = words.strip()
    if words in ("start", "end"):
        return first if words == "start" else last
    sign = {"+": 1, "-": -1}.get(words[:1], 0)
    rest = words[1:] if sign else words
    if found := _CLOCK.fullmatch(rest):
        hours, minutes, seconds = found.groups()
        value = float(hours or 0) * 3_600 + float(minutes) * 60 + float(seconds)
    elif found := _AMOUNT.fullmatch(rest):
        amount, unit = found.groups()
        value = float(amount) / 100 * (last - first) if unit == "%" else float(amount) * _UNITS.get(unit, 1.0)
    else:
        raise ConfigError(
            f"seek {words}: no such moment", hint="write 12:30, 1:02:00, 90s, 50%, +30s, -1m, start or end"
        )
    start = first if rest.endswith("%") else 0.0
    return min(max(now + sign * value if sign else start + value, first), last)
