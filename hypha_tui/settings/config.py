"""The terminal's settings: flags beat `HYPHA_TUI_*`, that beats `config.toml`, that the defaults. We never write it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final, Literal, get_args

from msgspec.structs import replace

from hypha_tui.client.endpoint import Connection
from hypha_tui.keys.presets import PresetName
from hypha_tui.settings.folders import config_folder
from node.errors import ConfigError
from node.schema import Origin, Strict, convert, parse_toml, read_text

FILE: Final = "config.toml"
HZ: Final = 4.0
LEAST_HZ, MOST_HZ = 0.2, 10.0
_HZ_HINT: Final = "0 draws only when r is pressed"
Glyphs = Literal["auto", "unicode", "block", "ascii"]
From = Literal["flag", "environment", "file", "default"]
_ON: Final = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


class ContextConfig(Strict, frozen=True):
    """A cluster: how to reach a node of it, and how careful to be."""

    node: str = ""
    cert: Path | None = None
    key: Path | None = None
    trust: Path | None = None
    crls: Path | None = None
    state_dir: Path | None = None
    production: bool = False
    readonly: bool = False

    def connection(self) -> Connection:
        """What it says about the connection."""
        return Connection(self.node, self.cert, self.key, self.trust, self.crls, self.state_dir)


class FileConfig(Strict, frozen=True):
    """Every key of `config.toml`. `hz` 0: frames only when `r` is pressed. `context`: the one that is opened first."""

    context: str = ""
    theme: str = ""
    hz: float = HZ
    glyphs: Glyphs = "auto"
    mouse: bool = True
    preset: PresetName = "default"
    readonly: bool = False
    keys: dict[str, Any] = {}
    contexts: dict[str, Any] = {}


@dataclass(frozen=True, slots=True)
class Given:
    """What flags say; None was not given."""

    context: str | None = None
    theme: str | None = None
    hz: float | None = None
    glyphs: str | None = None
    mouse: bool | None = None
    preset: str | None = None
    readonly: bool | None = None


@dataclass(frozen=True, slots=True)
class Context:
    """The cluster that is looked at, and what its configuration asks for."""

    name: str = ""
    production: bool = False
    readonly: bool = False


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings in force, and where each came from."""

    config: FileConfig
    origins: Mapping[str, From]
    keys: Mapping[str, str]
    contexts: Mapping[str, ContextConfig]
    file: Path | None = None

    def context_named(self, name: str) -> tuple[Context, ContextConfig]:
        """A context; ConfigError when the file has none of that name. The empty name is the one without any."""
        if not name:
            return Context(readonly=self.config.readonly), ContextConfig()
        found = self.contexts.get(name)
        if found is None:
            known = sorted(self.contexts)
            hint = f"there are {', '.join(known)}" if known else f"add [contexts.{name}] to {self.file or FILE}"
            raise ConfigError(f"no context {name!r}", hint=hint)
        return Context(name, found.production, found.readonly or self.config.readonly), found


def load(environment: Mapping[str, str], given: Given | None = None) -> Settings:
    """Read the configuration; ConfigError is one line with the file and the key. A missing file has defaults."""
    given = given or Given()
    folder = config_folder(environment)
    file = folder / FILE if folder is not None else None
    if file is not None and not file.is_file():
        file = None
    table: dict[str, Any] = {}
    text = ""
    if file is not None:
        text = read_text(file, "configuration file")
        table = parse_toml(text, str(file))
    origin = Origin(str(file), text)
    config = _checked(table, origin)
    origins: dict[str, From] = {name: "file" if name in table else "default" for name in FileConfig.__struct_fields__}
    chosen: dict[str, Any] = {}
    for field in fields(Given):
        value: Any = getattr(given, field.name)
        source: From = "flag"
        if value is None:
            value, source = _from_environment(field.name, environment), "environment"
        if value is not None:
            chosen[field.name], origins[field.name] = value, source
    if chosen:
        names = {name: _source_name(name, origins[name]) for name in chosen}
        config = _checked({**table, **chosen}, Origin(str(file), text, names=names))
    contexts = {name: _context(name, one, origin, file) for name, one in config.contexts.items()}
    return Settings(config, origins, _flat(config.keys, origin), contexts, file)


def rows(settings: Settings) -> list[tuple[str, str, str]]:
    """Each value by its dotted key, and where it came from: for `config show`."""
    found: list[tuple[str, str, str]] = []
    for name in FileConfig.__struct_fields__:
        if name in ("keys", "contexts"):
            continue
        found.append((name, _written(getattr(settings.config, name)), settings.origins[name]))
    found += [(f"keys.{id_}", _written(keys), "file") for id_, keys in settings.keys.items()]
    for context, one in settings.contexts.items():
        for name in ContextConfig.__struct_fields__:
            value = getattr(one, name)
            if value not in ("", None, False):
                found.append((f"contexts.{context}.{name}", _written(value), "file"))
    return found


def hz_of(text: str) -> float:
    """A frame rate as it is written; ConfigError where it is none."""
    try:
        hz = float(text)
    except ValueError:
        raise ConfigError(f"hz {text!r} is not a number", hint=_HZ_HINT) from None
    if hz != 0 and not LEAST_HZ <= hz <= MOST_HZ:
        raise ConfigError(f"hz {hz:g} is not between {LEAST_HZ:g} and {MOST_HZ:g}", hint=_HZ_HINT)
    return hz


def _from_environment(name: str, environment: Mapping[str, str]) -> Any:
    variable = f"HYPHA_TUI_{name.upper()}"
    text = environment.get(variable, "")
    if not text:
        return None
    if name in ("mouse", "readonly"):
        if text.lower() not in _ON:
            raise ConfigError(f"{variable} is {text!r}, neither yes nor no")
        return _ON[text.lower()]
    if name == "hz":
        try:
            return float(text)
        except ValueError:
            raise ConfigError(f"{variable} is {text!r}, not a number") from None
    return text


def _source_name(name: str, source: From) -> str:
    return f"HYPHA_TUI_{name.upper()}" if source == "environment" else f"--{name}"


def _checked(table: Mapping[str, Any], origin: Origin) -> FileConfig:
    for name, choices in (("glyphs", get_args(Glyphs)), ("preset", get_args(PresetName))):
        if table.get(name, choices[0]) not in choices:
            raise origin.error((name,), f"{table[name]!r} is not one of {', '.join(choices)}")
    config = convert(FileConfig, table, origin)
    if config.hz != 0 and not LEAST_HZ <= config.hz <= MOST_HZ:
        problem = f"{config.hz:g} is not between {LEAST_HZ:g} and {MOST_HZ:g}"
        raise origin.error(("hz",), problem, _HZ_HINT)
    return config


def _flat(table: Mapping[str, Any], origin: Origin, path: tuple[str, ...] = ()) -> dict[str, str]:
    """`[keys]` with dotted or quoted ids as one level."""
    found: dict[str, str] = {}
    for name, value in table.items():
        here = (*path, name)
        if isinstance(value, dict):
            found |= _flat(value, origin, here)
        elif isinstance(value, str):
            found[".".join(here)] = value
        else:
            raise origin.error(("keys", *here), f"expected keys as text, not {value!r}")
    return found


def _context(name: str, table: Any, origin: Origin, file: Path | None) -> ContextConfig:
    """One of `[contexts]`; relative paths start at the folder of the file."""
    if not isinstance(table, dict):
        raise origin.error(("contexts", name), f"expected a table, not {table!r}")
    context = convert(ContextConfig, table, origin.inside("contexts", name))
    if context.node and context.state_dir is not None:
        raise origin.error(("contexts", name, "state_dir"), "a context has a node or a state_dir, not both")
    base = file.parent if file is not None else Path()
    paths = {one: getattr(context, one) for one in ContextConfig.__struct_fields__}
    return replace(context, **{one: base / path.expanduser() for one, path in paths.items() if isinstance(path, Path)})


def _written(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:g}" if isinstance(value, float) else f'"{value}"'
