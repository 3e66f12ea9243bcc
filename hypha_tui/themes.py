"""Colour themes: TOML files in `themes/`, read and checked here, and the styles that line widgets draw with."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, cast

from rich.style import Style
from textual.color import Color, ColorParseError
from textual.theme import BUILTIN_THEMES, Theme

from node.errors import ConfigError

DEFAULT: Final = "hypha-dark"
WITHOUT_COLOUR: Final = "hypha-ansi"
_PALETTE: Final = ("background", "surface", "panel", "foreground", "primary", "secondary", "accent")
_SIGNALS: Final = ("success", "warning", "error")
SECTIONS: Final[dict[str, tuple[str, ...]]] = {
    "palette": _PALETTE + _SIGNALS,
    "text": ("dim", "line", "cursor", "title"),
    "state": ("ok", "busy", "late", "offer", "lost", "done"),
    "role": ("gateway", "scheduler", "worker", "data"),
    "curve": tuple(f"c{number}" for number in range(1, 9)),
}
TONES: Final[dict[str, str]] = {
    "dim": "text-dim",
    "line": "text-line",
    "title": "text-title",
    **{name: f"state-{name}" for name in SECTIONS["state"]},
    **{name: f"role-{name}" for name in SECTIONS["role"]},
    **{name: f"curve-{name}" for name in SECTIONS["curve"]},
    "key": "accent",
}
_BOLD: Final = frozenset({"title", "lost", "late"})


def folder() -> Path:
    """Where the theme files are: in the installed package, or beside it in a source tree."""
    installed = Path(__file__).parent / "themes_data"
    return installed if installed.is_dir() else Path(__file__).parent.parent / "themes"


def load_all(where: Path | None = None) -> tuple[dict[str, Theme], list[str]]:
    """Every theme that can be used, by name, and one line for each file that cannot."""
    themes: dict[str, Theme] = {}
    problems: list[str] = []
    for file in sorted((where or folder()).glob("*.toml")):
        try:
            theme = load(file)
        except ConfigError as error:
            problems.append(str(error))
        else:
            themes[theme.name] = theme
    return themes, problems


def load(file: Path) -> Theme:
    """One theme; ConfigError names the file and the key that is wrong."""
    try:
        document = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"theme {file.name}: {error}", hint="mend the file or remove it") from error
    meta = document.get("meta", {})
    colours = {section: _section(file, document, section) for section in SECTIONS}
    palette = colours.pop("palette")
    variables = {f"{section}-{key}": value for section, keys in colours.items() for key, value in keys.items()}
    ansi = bool(meta.get("ansi", False))
    if ansi:  # Textual's own style sheets need more variables of a theme without colours of its own
        variables = BUILTIN_THEMES["ansi-dark"].variables | variables
    return Theme(
        name=str(meta.get("name", file.stem)),
        dark=bool(meta.get("dark", True)),
        ansi=ansi,
        variables=variables,
        **cast("dict[str, Any]", palette),
    )


def _section(file: Path, document: Mapping[str, Any], section: str) -> dict[str, str]:
    table = document.get(section, {})
    colours: dict[str, str] = {}
    for key in SECTIONS[section]:
        value = table.get(key)
        try:
            Color.parse(str(value))
        except ColorParseError:
            raise ConfigError(
                f"theme {file.name}: {section}.{key} is {value!r}, not a colour",
                hint="write #rrggbb or an ansi_ colour",
            ) from None
        colours[key] = str(value)
    unknown = sorted(set(table) - set(SECTIONS[section]))
    if unknown:
        raise ConfigError(f"theme {file.name}: unknown key {section}.{unknown[0]}", hint="remove it")
    return colours


def fallbacks(variables: Mapping[str, str]) -> dict[str, str]:
    """Our variables for a theme that is not one of ours, from colours that every theme has."""
    get = variables.get
    foreground = get("foreground", "#e0e0e0")
    signals = {"ok": "success", "busy": "primary", "late": "warning", "offer": "accent", "lost": "error"}
    found = {f"state-{name}": get(colour, foreground) for name, colour in signals.items()}
    found |= {"state-done": foreground, "text-dim": foreground, "text-title": get("primary", foreground)}
    found |= {"text-line": get("panel", foreground), "text-cursor": get("panel", foreground)}
    roles = {"gateway": "accent", "scheduler": "primary", "worker": "success", "data": "warning"}
    found |= {f"role-{name}": get(colour, foreground) for name, colour in roles.items()}
    cycle = ("primary", "warning", "success", "accent", "error", "secondary")
    return found | {f"curve-c{n}": get(cycle[(n - 1) % 6], foreground) for n in range(1, 9)}


class Palette:
    """Styles by tone for one theme. Tones are the second half of a `Cell`."""

    def __init__(self, variables: Mapping[str, str], *, colour: bool = True) -> None:
        self._variables = variables
        self._styles: dict[tuple[str, bool], Style] = {}
        self._colour = colour

    def style(self, tone: str, *, cursor: bool = False) -> Style:
        """The style of a tone; under the cursor it is reversed, which every terminal can show."""
        key = (tone, cursor)
        style = self._styles.get(key)
        if style is None:
            style = self._styles[key] = self._make(tone, cursor)
        return style

    def _make(self, tone: str, cursor: bool) -> Style:
        colour = self._rich(TONES[tone]) if tone in TONES else None
        bold = tone in _BOLD
        if not cursor:
            return Style(color=colour, bold=bold or None, dim=True if tone == "dim" and self._is_plain(tone) else None)
        background = self._rich("text-cursor")
        if background is None or not self._colour:
            return Style(reverse=True, bold=bold or None)
        return Style(color=colour, bgcolor=background, bold=True)

    def _is_plain(self, tone: str) -> bool:
        return self._rich(TONES[tone]) is None

    def _rich(self, variable: str) -> Any:
        """The colour for Rich; None stands for the terminal's own."""
        text = self._variables.get(variable, "")
        if not self._colour or not text or text == "ansi_default":
            return None
        return Color.parse(text).rich_color
