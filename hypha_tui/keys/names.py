"""Names of keys: as a person writes them (`/`, `G`, `ctrl+d`, `g g`) and as the terminal's library knows them."""

from __future__ import annotations

import re
import unicodedata
from typing import Final

from node.errors import ConfigError

_LIBRARY: Final = {
    "solidus": "slash",
    "reverse_solidus": "backslash",
    "commercial_at": "at",
    "hyphen_minus": "minus",
    "plus_sign": "plus",
    "low_line": "underscore",
}
_SHOWN: Final = {"escape": "esc", "pageup": "pgup", "pagedown": "pgdn", "return": "enter"}
_WRITTEN: Final = {shown: name for name, shown in _SHOWN.items() if shown != "enter"}
_NAMED: Final = re.compile(r"(?:(?:ctrl|shift|alt|super)\+)*(?:[A-Za-z0-9]|[a-z][a-z0-9_]+)")
NONE: Final = "<none>"
"""No key at all: what a binding has that was taken off its keys."""


def name_of(character: str) -> str:
    """The library's name of one character: `slash` for `/`, `G` for `G`."""
    if character.isalnum():
        return character
    try:
        name = unicodedata.name(character).lower().replace("-", "_").replace(" ", "_")
    except ValueError:
        return character
    return _LIBRARY.get(name, name)


_CHARACTERS: Final = {name_of(chr(code)): chr(code) for code in range(33, 127) if not chr(code).isalnum()}


def shown(key: str) -> str:
    """A key, or keys in a row, as a person reads them: `g g` stays, `slash` is `/`."""
    return " ".join(_shown_single(single) for single in key.split(" "))


def _shown_single(key: str) -> str:
    *modifiers, last = key.split("+") if key != "+" else [key]
    return "+".join([*modifiers, _CHARACTERS.get(last, _SHOWN.get(last, last))])


def parse(text: str) -> str:
    """Keys that a user wrote, apart by commas (`comma` is that key), in the library's names; ConfigError for others."""
    if not text.strip():
        return NONE
    return ",".join(" ".join(_parse_single(single) for single in one.split()) for one in text.split(",") if one.strip())


def _parse_single(key: str) -> str:
    if len(key) == 1:
        return name_of(key)
    *modifiers, last = key.split("+")
    name = "+".join([*modifiers, _WRITTEN.get(last, name_of(last) if len(last) == 1 else last)])
    if not _NAMED.fullmatch(name):
        raise ConfigError(f"{key!r} is no key", hint="write keys as G, ctrl+d, slash or g g, apart by commas")
    return name
