"""Changing one value in a TOML text and leaving the rest as its author wrote it, comments too."""

from __future__ import annotations

import copy
import re
import tomllib
from collections.abc import Iterator, Sequence
from datetime import date, datetime, time
from typing import Any, Final

_BARE_KEY: Final = re.compile(r"[A-Za-z0-9_-]+")
_HEADER: Final = re.compile(r"\s*\[{1,2}\s*([^\]\[]+?)\s*\]{1,2}\s*(#.*)?$")
_VALUE: Final = r"""("(?:[^"\\]|\\.)*"|'[^']*'|\[.*\](?=\s*(?:#|$))|[^\s#,\[\]{}"']+)"""


def with_value(text: str, path: Sequence[str], value: object) -> str:
    """The text with `value` at `path`; None takes it out. Keys are found as they are spelled, with `-` or `_`.

    Where the line cannot be changed by itself, all is written anew, and comments are lost.
    """
    document = tomllib.loads(text)
    steps = _spelled(document, path)
    wanted = copy.deepcopy(document)
    _put(wanted, steps, value)
    if wanted == document:
        return text
    for candidate in (_replaced(text, steps, value), _inserted(text, steps, value)):
        if candidate is not None and _says(candidate, wanted):
            return candidate
    return dump(wanted)


def dump(document: dict[str, Any]) -> str:
    """A TOML text with the given content."""
    return "\n".join(_lines(document, "")).strip("\n") + "\n"


def value_text(value: object) -> str:
    """A value as TOML writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, list | tuple):
        return f"[{', '.join(value_text(item) for item in value)}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_key(key)} = {value_text(item)}" for key, item in value.items()) + "}"
    escaped = "".join(
        f"\\u{ord(character):04x}" if ord(character) < 32 or ord(character) == 127 else character
        for character in str(value).replace("\\", "\\\\").replace('"', '\\"')
    )
    return f'"{escaped}"'


def _spelled(document: dict[str, Any], path: Sequence[str]) -> list[str]:
    steps: list[str] = []
    here: object = document
    for step in path:
        known = here if isinstance(here, dict) else {}
        name = next((key for key in known if key.replace("-", "_") == step), step)
        steps.append(name)
        here = known.get(name)
    return steps


def _put(document: dict[str, Any], steps: list[str], value: object) -> None:
    *tables, key = steps
    here = document
    for table in tables:
        inner = here.setdefault(table, {})
        if not isinstance(inner, dict):
            inner = here[table] = {}
        here = inner
    if value is None:
        here.pop(key, None)
    else:
        here[key] = value


def _says(text: str, wanted: dict[str, Any]) -> bool:
    try:
        return tomllib.loads(text) == wanted
    except tomllib.TOMLDecodeError:
        return False


def _sections(lines: list[str]) -> Iterator[tuple[tuple[str, ...], int, int]]:
    """Each table with the lines that are in it; the first is the top of the document."""
    name: tuple[str, ...] = ()
    began = 0
    for number, line in enumerate(lines):
        header = _HEADER.match(line)
        if header:
            yield name, began, number
            name = tuple(part.strip().strip("\"'") for part in header[1].split("."))
            began = number + 1
    yield name, began, len(lines)


def _replaced(text: str, steps: list[str], value: object) -> str | None:
    """The text with the value replaced on the line where it stands: as a key, or in an inline table."""
    lines = text.split("\n")
    for name, began, ended in _sections(lines):
        if tuple(steps[: len(name)]) != name:
            continue
        keys = steps[len(name) :]
        for number in range(began, ended):
            for outer in range(len(keys)):
                inner = keys[outer + 1 :]
                names = [
                    re.escape(".".join(keys[: outer + 1])),
                    *(rf"\{{[^#]*?(?<![\w-]){re.escape(one)}" for one in inner),
                ]
                pattern = r"\s*=\s*".join(names)
                match = re.match(rf"^(\s*{pattern}\s*=\s*){_VALUE}", lines[number])
                if match is None:
                    continue
                if value is None:
                    return None if inner else "\n".join([*lines[:number], *lines[number + 1 :]])
                line = match[1] + value_text(value) + lines[number][match.end() :]
                return "\n".join([*lines[:number], line, *lines[number + 1 :]])
    return None


def _inserted(text: str, steps: list[str], value: object) -> str | None:
    """The text with a line more: in its table, or with a table of its own at the end."""
    if value is None:
        return None
    lines = text.rstrip("\n").split("\n")
    line = f"{_key(steps[-1])} = {value_text(value)}"
    for name, began, ended in _sections(lines):
        if name == tuple(steps[:-1]):
            while ended > began and not lines[ended - 1].strip():
                ended -= 1
            return "\n".join([*lines[:ended], line, *lines[ended:], ""])
    header = ".".join(_key(step) for step in steps[:-1])
    return "\n".join([*lines, "", f"[{header}]", line, ""])


def _lines(table: dict[str, Any], prefix: str) -> Iterator[str]:
    tables = {key: value for key, value in table.items() if isinstance(value, dict)}
    lists = {key: value for key, value in table.items() if _is_list_of_tables(value)}
    for key, value in table.items():
        if key not in tables and key not in lists:
            yield f"{_key(key)} = {value_text(value)}"
    for key, value in tables.items():
        name = f"{prefix}{_key(key)}"
        if not value or any(not isinstance(inner, dict) for inner in value.values()):
            yield f"\n[{name}]"
        yield from _lines(value, f"{name}.")
    for key, values in lists.items():
        for value in values:
            yield f"\n[[{prefix}{_key(key)}]]"
            yield from _lines(value, f"{prefix}{_key(key)}.")


def _is_list_of_tables(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, dict) for item in value)


def _key(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) else value_text(key)
