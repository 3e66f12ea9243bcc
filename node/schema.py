"""Strict reading of TOML into typed structs: an error names the key, its line and the nearest known key."""

from __future__ import annotations

import re
import tomllib
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin

import msgspec

from node.errors import ConfigError

T = TypeVar("T")
Step = str | int
_HEADER = re.compile(r"\s*(\[\[?)\s*([^\]\[]+?)\s*\]\]?\s*(#.*)?$")
_PATH_STEP = re.compile(r"\.([A-Za-z0-9_-]+)|\[(\d+|\.\.\.)\]")


class Strict(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of everything that is read from a configuration or job file."""


def parse_toml(text: str, source: str) -> dict[str, Any]:
    """The tables of a TOML text; ConfigError with the place of a syntax error."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{source}: not valid TOML: {str(error)[:1].lower()}{str(error)[1:]}") from error


def read_text(path: Path, what: str) -> str:
    """The text of a file the user named; ConfigError when it cannot be read."""
    try:
        return path.read_text("utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{what} {path} does not exist") from None
    except OSError as error:
        raise ConfigError(f"{what} {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{what} {path} is not UTF-8 text: byte {error.start}") from error


class Origin:
    """Where values come from, to name the place in an error: a file's text, or the environment, or flags."""

    def __init__(
        self, source: str, text: str = "", prefix: Sequence[Step] = (), names: Mapping[str, str] | None = None
    ):
        self.source = source
        self._text = text
        self._prefix = tuple(prefix)
        self._names = names or {}

    def inside(self, *steps: Step) -> Origin:
        """The same source, for the table at `steps`."""
        return Origin(self.source, self._text, (*self._prefix, *steps), self._names)

    def place(self, path: Sequence[Step]) -> str:
        """`file.toml: line 3` of a key, or the flag or variable that set it."""
        full = (*self._prefix, *path)
        for length in range(len(full), 0, -1):
            name = self._names.get(dotted(full[:length]))
            if name is not None:
                return name
        line = line_of(self._text, full)
        return f"{self.source}: line {line}" if line else self.source

    def error(self, path: Sequence[Step], problem: str, hint: str = "") -> ConfigError:
        """The error for the key at `path`."""
        return ConfigError(f"{self.place(path)}: {dotted((*self._prefix, *path))}: {problem}", hint=hint)


def dotted(path: Sequence[Step]) -> str:
    """A path as `executors[0].cmd`."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text


def nearest(name: str, known: Sequence[str]) -> str | None:
    """The known key that `name` is most like, if any is."""
    import difflib  # only a mistake is worth its time

    found = difflib.get_close_matches(name.replace("-", "_"), known, n=1, cutoff=0.6)
    return found[0] if found else None


def convert(kind: type[T], data: Mapping[str, Any], origin: Origin, *, lax: bool = False) -> T:
    """`data` as a `kind`; the first unknown, missing or wrong key becomes a ConfigError. `lax` takes "2.5" for 2.5."""
    for path, known in unknown_keys(kind, data):
        close = nearest(str(path[-1]), known)
        hint = f"did you mean {close}?" if close else f"known keys: {', '.join(sorted(known))}"
        raise origin.error(path, "unknown key", hint)
    try:
        return msgspec.convert(data, kind, strict=not lax, dec_hook=_decode)
    except msgspec.ValidationError as error:
        steps, problem = _explain(str(error), data)
        raise origin.error(steps, problem) from error


def unknown_keys(kind: Any, data: Any, path: tuple[Step, ...] = ()) -> Iterator[tuple[tuple[Step, ...], list[str]]]:
    """Paths of keys that `kind` does not have, each with the keys known at that place."""
    if isinstance(data, Mapping):
        struct = _struct_in(kind)
        if struct is None:
            return
        fields = {field.encode_name: field.type for field in msgspec.structs.fields(struct)}
        for key, value in data.items():
            if key not in fields:
                yield (*path, key), list(fields)
            else:
                yield from unknown_keys(fields[key], value, (*path, key))
    elif isinstance(data, list):
        for part in _alternatives(kind):
            if get_origin(part) is list:
                for index, item in enumerate(data):
                    yield from unknown_keys(get_args(part)[0], item, (*path, index))


def line_of(text: str, path: Sequence[Step]) -> int | None:
    """The line on which a key stands, or else the line of the nearest table around it. `a-b` and `a_b` are one key."""
    best: tuple[int, int] | None = None
    table: tuple[Step, ...] = ()
    arrays: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        header = _HEADER.match(line)
        if header:
            table = _table_path(header, arrays)
        here = _match_line(line, table, path)
        if here and (best is None or here > best[0]):
            best = (here, number)
    return best[1] if best else None


def _match_line(line: str, table: tuple[Step, ...], path: Sequence[Step]) -> int:
    """How many steps of `path` this line accounts for, 0 when it is about something else."""
    depth = len(table)
    if not _same(table, path[:depth]):
        return 0
    if _HEADER.match(line):
        return depth
    names = [step for step in path[depth:] if isinstance(step, str)]
    found = depth
    rest = line.split("#", 1)[0]
    for name in names:
        # a key of an inline table is on the line of its table, or alone on a later line
        match = re.search(rf"(?:^|[\s{{,.]|\"){_spelled(name)}\"?\s*[=.]", rest)
        if match:
            found = depth + names.index(name) + 1
            rest = rest[match.end() - 1 :]
    return found


def _spelled(name: str) -> str:
    return "[-_]".join(re.escape(part) for part in re.split("[-_]", name))


def _same(table: Sequence[Step], path: Sequence[Step]) -> bool:
    return len(table) == len(path) and all(
        str(a).replace("-", "_") == str(b).replace("-", "_") for a, b in zip(table, path, strict=True)
    )


def _table_path(header: re.Match[str], arrays: dict[str, int]) -> tuple[Step, ...]:
    names = [name.strip().strip("\"'") for name in header[2].split(".")]
    if header[1] == "[[":
        whole = ".".join(names)
        arrays[whole] = arrays.get(whole, -1) + 1
    steps: list[Step] = []
    for position, name in enumerate(names):
        steps.append(name)
        key = ".".join(names[: position + 1])
        if key in arrays:
            steps.append(arrays[key])
    return tuple(steps)


def _decode(kind: type[Any], value: Any) -> Any:
    if kind is Path:
        if isinstance(value, (str, Path)) and str(value):
            return Path(value)
        raise ValueError(f"expected a path, not {value!r}")
    raise NotImplementedError(kind)


def _alternatives(kind: Any) -> tuple[Any, ...]:
    if get_origin(kind) in (typing.Union, types.UnionType):
        return get_args(kind)
    return (kind,)


def _struct_in(kind: Any) -> type[msgspec.Struct] | None:
    for part in _alternatives(kind):
        if isinstance(part, type) and issubclass(part, msgspec.Struct):
            return part
    return None


def _explain(message: str, data: Any) -> tuple[list[Step], str]:
    """The path and the problem in the words of an error of msgspec."""
    problem, _, place = message.partition(" - at `$")
    path: list[Step] = []
    for name, index in _PATH_STEP.findall(place.rstrip("`")):
        # "[...]" is some key of a free table
        if index != "...":
            path.append(name or int(index))
    missing = re.fullmatch(r"Object missing required field `(.+)`", problem)
    if missing:
        return [*path, missing[1]], "is missing"
    value = data
    for step in path:
        try:
            value = value[step]
        except (KeyError, IndexError, TypeError):
            return path, problem[:1].lower() + problem[1:]
    problem = problem.replace("`", "")
    if not isinstance(value, (dict, list)):
        problem = re.sub(r", got \w+$", lambda _: f", not {value!r}", problem)
    return path, problem[:1].lower() + problem[1:]
