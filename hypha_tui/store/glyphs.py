"""Every glyph on screen that is not a letter or digit, in three sets. All are one cell wide, none is an emoji.

`unicode` takes braille for curves; `block` does without it and without rare shapes, for fonts that lack them; `ascii`
is for terminals that are not UTF-8 and for the Linux console.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Final

from rich.cells import cell_len


@dataclass(frozen=True, slots=True)
class Glyphs:
    """One set. `state` maps a tone to the sign that says the same as its colour."""

    name: str
    state: Mapping[str, str]
    bar_full: str
    bar_empty: str
    sparks: str
    cursor: str
    mark: str
    cut: str
    up: str
    down: str
    vertical: str
    horizontal: str
    corner: str
    arrow: str
    dot: str

    def bar(self, part: float, width: int) -> str:
        """A bar filled to `part` (0..1). Anything above zero shows at least one cell."""
        part = min(max(part, 0.0), 1.0)
        full = int(part * width + 0.5)
        if part > 0 and full == 0:
            full = 1
        return self.bar_full * full + self.bar_empty * (width - full)

    def spark(self, values: list[float], width: int) -> str:
        """The last `width` values as a line of steps."""
        shown = values[-width:]
        if not shown:
            return " " * width
        low, high = min(shown), max(shown)
        top = len(self.sparks) - 1
        steps = [self.sparks[int((value - low) / (high - low) * top + 0.5) if high > low else 0] for value in shown]
        return "".join(steps).rjust(width)


UNICODE = Glyphs(
    name="unicode",
    state={"ok": "●", "busy": "◐", "late": "!", "offer": "◇", "lost": "✕", "done": "✓", "dim": "·"},
    bar_full="━",
    bar_empty="─",
    sparks="▁▂▃▄▅▆▇█",
    cursor="▌",
    mark="•",
    cut="…",
    up="↑",
    down="↓",
    vertical="│",
    horizontal="─",
    corner="└",
    arrow="→",
    dot="·",
)

BLOCK = replace(
    UNICODE,
    name="block",
    state={"ok": "●", "busy": "○", "late": "!", "offer": "◊", "lost": "×", "done": "√", "dim": "·"},
    bar_full="█",
    bar_empty="░",
)

ASCII = Glyphs(
    name="ascii",
    state={"ok": "+", "busy": "~", "late": "!", "offer": "?", "lost": "x", "done": "#", "dim": "."},
    bar_full="#",
    bar_empty=".",
    sparks="_.-=+*%#",
    cursor=">",
    mark="*",
    cut="~",
    up="^",
    down="v",
    vertical="|",
    horizontal="-",
    corner="+",
    arrow=">",
    dot="-",
)


LEVELS = {"unicode": UNICODE, "block": BLOCK, "ascii": ASCII}
SIGNS: Final = (*UNICODE.state, *(field.name for field in fields(Glyphs) if field.name not in ("name", "state")))
"""Names of the signs that a theme may replace."""
MOST_SPARKS: Final = 16


def sign_problem(name: str, value: object) -> str:
    """What is wrong with a theme's sign: each is one narrow character; empty when nothing is."""
    least, most = (2, MOST_SPARKS) if name == "sparks" else (1, 1)
    if not isinstance(value, str) or not least <= len(value) <= most:
        return f"write {f'{least} to {most} characters, from low to high' if most > 1 else 'one character'}"
    for character in value:
        category, wide = unicodedata.category(character), unicodedata.east_asian_width(character) in "WF"
        if category[0] in "MC" or wide or cell_len(character) != 1 or 0x2600 <= ord(character) < 0x2700:
            return "no wide, combining or control character and no emoji: columns would shift"
    return ""


def with_signs(glyphs: Glyphs, signs: Mapping[str, str]) -> Glyphs:
    """The set with a theme's own signs. The others hold what a terminal is known to show, and stay as they are."""
    if not signs or glyphs.name != UNICODE.name:
        return glyphs
    state = {name: signs.get(name, sign) for name, sign in glyphs.state.items()}
    return replace(glyphs, state=state, **{name: sign for name, sign in signs.items() if name not in state})


def glyphs_for(environment: Mapping[str, str], *, ascii_only: bool = False, level: str = "auto") -> Glyphs:
    """The set of this level; `auto`: what the terminal can show. Python calls every locale UTF-8, so the environment
    itself is asked."""
    if ascii_only:
        return ASCII
    if level in LEVELS:
        return LEVELS[level]
    if environment.get("TERM") in ("linux", "dumb"):
        return ASCII
    for name in ("LC_ALL", "LC_CTYPE", "LANG"):
        value = environment.get(name, "")
        if value:
            return UNICODE if "utf-8" in value.lower() or "utf8" in value.lower() else ASCII
    return ASCII
