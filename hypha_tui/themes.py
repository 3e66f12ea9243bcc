"""Colour themes: TOML files in `themes/` and in the user's folder, and the styles that line widgets draw with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from rich.style import Style
from textual.color import Color, ColorParseError
from textual.theme import BUILTIN_THEMES, Theme

from hypha_tui.store.glyphs import SIGNS, UNICODE, sign_problem
from node.errors import ConfigError
from node.schema import Origin, nearest, parse_toml, read_text

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


@dataclass(frozen=True, slots=True)
class ThemeFile:
    """What a file says: a theme, and the signs that it replaces."""

    theme: Theme
    signs: Mapping[str, str]


class Themes:
    """The themes that can be used: the shipped ones, and those of the user's folder, which win over a shipped name.

    `problems`: one line for each file that cannot be used. `file` of a name tells where a theme comes from.
    """

    def __init__(self, user: Path | None = None, shipped: Path | None = None) -> None:
        self._folders = [shipped or folder(), *([user] if user is not None else [])]
        self._stamps: dict[Path, tuple[int, int]] = {}
        self.found: dict[str, Theme] = {}
        self.signs: dict[str, Mapping[str, str]] = {}
        self.files: dict[str, Path] = {}
        self.problems: list[str] = []
        self.read()

    @property
    def names(self) -> list[str]:
        """Their names, the default first."""
        return sorted(self.found, key=lambda name: (name != DEFAULT, name))

    def read(self) -> None:
        """Read every file anew. A theme whose file is broken now stays as it was."""
        self.problems = []
        found: dict[str, Theme] = {}
        signs: dict[str, Mapping[str, str]] = {}
        files: dict[str, Path] = {}
        for file in [file for where in self._folders for file in sorted(where.glob("*.toml"))]:
            self._stamps[file] = stamp(file)
            try:
                read = load(file)
            except ConfigError as error:
                self.problems.append(str(error))
                known = [name for name, place in self.files.items() if place == file]
                found |= {name: self.found[name] for name in known}
                signs |= {name: self.signs[name] for name in known}
                files |= dict.fromkeys(known, file)
            else:
                name = read.theme.name
                found[name], signs[name], files[name] = read.theme, read.signs, file
        self.found, self.signs, self.files = found, signs, files

    def has_changed(self, name: str) -> bool:
        """Whether the file of this theme is another than when it was read. Shipped ones are not looked at."""
        file = self.files.get(name)
        return file is not None and file.parent != self._folders[0] and stamp(file) != self._stamps[file]


def stamp(file: Path) -> tuple[int, int]:
    """What differs when a file was written anew; zeros when there is none."""
    try:
        status = file.stat()
    except OSError:
        return (0, 0)
    return (status.st_mtime_ns, status.st_size)


def has_few_colours(environment: Mapping[str, str]) -> bool:
    """Whether the terminal has sixteen colours or fewer: then its own are used, not the nearest to ours."""
    if environment.get("COLORTERM", "").lower() in ("truecolor", "24bit"):
        return False
    return not environment.get("TERM", "").endswith(("256color", "direct", "kitty", "ghostty", "alacritty", "wezterm"))


def load(file: Path) -> ThemeFile:
    """One file; ConfigError names the file, the line and the key that is wrong."""
    what = f"theme {file.name}"
    text = read_text(file, "theme")
    document = parse_toml(text, what)
    origin = Origin(what, text)
    for section in document:
        _check_known(origin, (section,), ("meta", *SECTIONS, "glyphs"))
    name, dark, ansi = _meta(document, origin, file.stem)
    colours = {section: _section(document, section, origin, ansi) for section in SECTIONS}
    palette = colours.pop("palette")
    variables = {f"{section}-{key}": value for section, keys in colours.items() for key, value in keys.items()}
    if ansi:  # Textual's own style sheets need more variables of a theme without colours of its own
        variables = BUILTIN_THEMES["ansi-dark"].variables | variables
    theme = Theme(name=name, dark=dark, ansi=ansi, variables=variables, **cast("dict[str, Any]", palette))
    return ThemeFile(theme, _signs(document, origin))


def _meta(document: Mapping[str, Any], origin: Origin, stem: str) -> tuple[str, bool, bool]:
    table = _table(document, "meta", origin)
    kinds: dict[str, type] = {"name": str, "dark": bool, "ansi": bool, "author": str}
    for key, value in table.items():
        _check_known(origin, ("meta", key), tuple(kinds))
        if not isinstance(value, kinds[key]):
            raise origin.error(("meta", key), f"{value!r} is not {'text' if kinds[key] is str else 'true or false'}")
    return str(table.get("name", stem)), bool(table.get("dark", True)), bool(table.get("ansi", False))


def _section(document: Mapping[str, Any], section: str, origin: Origin, ansi: bool) -> dict[str, str]:
    table = _table(document, section, origin)
    for key in table:
        _check_known(origin, (section, key), SECTIONS[section])
    for key in SECTIONS[section]:
        value = table.get(key)
        if value is None:
            raise origin.error((section, key), "is missing", f"give it a colour in [{section}]")
        if not _is_colour(value, ansi):
            wanted = "write a colour of the terminal, such as ansi_red" if ansi else "write #rrggbb"
            raise origin.error((section, key), f"{value!r} is not a colour for this theme", wanted)
    return {key: str(table[key]) for key in SECTIONS[section]}


def _signs(document: Mapping[str, Any], origin: Origin) -> dict[str, str]:
    table = _table(document, "glyphs", origin)
    for key, value in table.items():
        _check_known(origin, ("glyphs", key), SIGNS)
        wrong = sign_problem(key, value)
        if wrong:
            raise origin.error(("glyphs", key), f"{value!r} is no sign for this", wrong)
    state = {key: table.get(key, sign) for key, sign in UNICODE.state.items()}
    twice = [sign for sign, times in Counter(state.values()).items() if times > 1]
    if twice:
        key = next(key for key in table if state.get(key) == twice[0])
        raise origin.error(("glyphs", key), f"{twice[0]!r} would stand for two states", "give each a sign of its own")
    return dict(table)


def _is_colour(value: object, ansi: bool) -> bool:
    try:
        colour = Color.parse(str(value))
    except ColorParseError:
        return False
    return isinstance(value, str) and (colour.ansi is not None) == ansi


def _table(document: Mapping[str, Any], section: str, origin: Origin) -> Mapping[str, Any]:
    table = document.get(section, {})
    if not isinstance(table, dict):
        raise origin.error((section,), f"expected a table, not {table!r}")
    return table


def _check_known(origin: Origin, path: tuple[str, ...], known: tuple[str, ...]) -> None:
    if path[-1] in known:
        return
    close = nearest(path[-1], known)
    raise origin.error(path, "unknown key", f"did you mean {close}?" if close else f"known keys: {', '.join(known)}")


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
