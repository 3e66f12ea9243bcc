"""The keys in force: the table, changed by a preset and by the user's `[keys]`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, Literal

from hypha_tui.keys.keymap import KEYS, SCREENS, Key, clashes, keys_of
from hypha_tui.keys.names import NONE, parse
from node.errors import ConfigError
from node.schema import nearest

PresetName = Literal["default", "vim", "plain"]


@dataclass(frozen=True, slots=True)
class Preset:
    """Other keys for some ids, as a person writes them."""

    label: str
    keys: Mapping[str, str]


PRESETS: Final[dict[PresetName, Preset]] = {
    "default": Preset("numbered screens, vim motions beside the arrows", {}),
    "vim": Preset(
        "every number is a count, screens are on `g 1` to `g 8`",
        {
            **{f"screen.{name}": f"g {number}" for number, name in enumerate(SCREENS, 1)},
            "quit": "ctrl+q,Z Z,Z Q",
            "table.page_down": "pgdn,ctrl+f",
        },
    ),
    "plain": Preset(
        "no letters for moving",
        {
            "help": "f1,?",
            "filter": "ctrl+f,/",
            "command": "f2,:",
            "act": "f4,x",
            "table.down": "down",
            "table.up": "up",
            "table.top": "home",
            "table.bottom": "end",
            "table.half_down": "ctrl+pgdn",
            "table.half_up": "ctrl+pgup",
            "log.down": "down",
            "log.up": "up",
            "log.top": "home",
            "log.bottom": "end",
            "log.half_down": "ctrl+pgdn",
            "log.half_up": "ctrl+pgup",
        },
    ),
}


class Keymap:
    """Keys by id, scope and name, as they are in force."""

    def __init__(self, keys: Sequence[Key] = KEYS) -> None:
        self.keys = tuple(keys)
        self._live: dict[tuple[str, ...], frozenset[str]] = {}
        self._counted: dict[tuple[str, ...], frozenset[str]] = {}

    @cached_property
    def by_id(self) -> dict[str, Key]:
        """Every key by its id."""
        return {key.id: key for key in self.keys}

    def of(self, *scopes: str) -> list[Key]:
        """The keys of these scopes that are on some key, in the table's order."""
        return [key for key in keys_of(*scopes, among=self.keys) if key.keys != NONE]

    def footer(self, *scopes: str) -> list[Key]:
        """The keys that the footer shows for these scopes, most important first."""
        return sorted((key for key in self.of(*scopes) if key.footer), key=lambda key: key.footer)

    def live(self, scopes: tuple[str, ...]) -> frozenset[str]:
        """Every key, and every row of keys, that does something in these scopes."""
        if scopes not in self._live:
            self._live[scopes] = frozenset(one for key in self.of(*scopes) for one in key.keys.split(","))
        return self._live[scopes]

    def counted(self, scopes: tuple[str, ...]) -> frozenset[str]:
        """Those of `live` that take a number."""
        if scopes not in self._counted:
            taking = [key for key in self.of(*scopes) if key.counted]
            self._counted[scopes] = frozenset(one for key in taking for one in key.keys.split(","))
        return self._counted[scopes]

    def clashes(self) -> list[str]:
        """Keys that mean two things in one place."""
        return clashes(self.keys)

    def changed(self) -> dict[str, str]:
        """Keys by id where they differ from the table."""
        return {key.id: key.keys for key, before in zip(self.keys, KEYS, strict=True) if key.keys != before.keys}


def keymap_for(preset: PresetName, own: Mapping[str, str]) -> Keymap:
    """The keys of a preset with a user's own over them; ConfigError names an id or a key that is none."""
    known = [key.id for key in KEYS]
    chosen = {id_: parse(keys) for id_, keys in PRESETS[preset].keys.items()}
    for id_, keys in own.items():
        if id_ not in known:
            close = nearest(id_, known)
            hint = f"did you mean {close}?" if close else "docs/keys.md has the ids"
            raise ConfigError(f"keys.{id_}: no key has this id", hint=hint)
        try:
            chosen[id_] = parse(keys)
        except ConfigError as error:
            raise ConfigError(f"keys.{id_}: {error.message}", hint=error.hint) from None
    return Keymap([replace(key, keys=chosen[key.id], shown="") if key.id in chosen else key for key in KEYS])


def clash_notice(problems: Sequence[str]) -> str:
    """All clashes in one line; empty when there are none."""
    if not problems:
        return ""
    more = f", and {len(problems) - 1} more" if len(problems) > 1 else ""
    return f"keys: {problems[0]}{more}; change one in [keys]"
