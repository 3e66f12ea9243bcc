"""Themes are data: every file loads, can be read by everybody, and a bad one is one line that names the key."""

from __future__ import annotations

import re
from itertools import combinations
from pathlib import Path

import pytest
from textual.theme import Theme

from hypha_tui import themes
from hypha_tui.themes import Palette, Themes, has_few_colours
from node.errors import ConfigError
from tests.unit.colour_vision import ciede2000, contrast, distance

NAMES = {"dark", "light", "contrast", "deutan", "tritan", "mono", "ansi"}
SHIPPED = Themes()
COLOURED = {name: theme for name, theme in SHIPPED.found.items() if not theme.ansi}
STATES = ("ok", "busy", "late", "offer", "lost")
# CIEDE2000, as seen. Grey states are told by sign and word, and of the terminal's own colours nothing is known.
LEAST_DISTANCE = {"normal": 15.0, "protan": 9.0, "deutan": 9.0, "tritan": 9.0}
MADE_FOR = {"hypha-deutan": ("protan", "deutan"), "hypha-tritan": ("tritan",)}
LEAST_WHERE_MADE_FOR = 14.0


def dark() -> str:
    return (themes.folder() / "hypha-dark.toml").read_text()


def backgrounds(theme: Theme) -> list[str]:
    """Everything that text stands on, the row under the cursor too."""
    found = [theme.background, theme.surface, theme.panel, theme.variables["text-cursor"]]
    return [colour for colour in found if colour is not None]


def test_all_shipped_themes_load_without_a_problem() -> None:
    assert SHIPPED.problems == []
    assert set(SHIPPED.found) == {f"hypha-{name}" for name in NAMES}
    assert SHIPPED.names[0] == themes.DEFAULT


def test_the_distance_between_colours_is_computed_as_published() -> None:
    """Two pairs of the test data of Sharma, Wu and Dalal."""
    assert ciede2000((50.0, 2.6772, -79.7751), (50.0, 0.0, -82.7485)) == pytest.approx(2.0425, abs=1e-4)
    assert ciede2000((50.0, 2.5, 0.0), (73.0, 25.0, -18.0)) == pytest.approx(27.1492, abs=1e-4)


@pytest.mark.parametrize("name", COLOURED)
def test_every_text_can_be_read_wherever_it_stands(name: str) -> None:
    """T32: 4.5 to 1, and 7 to 1 in the contrast theme; 3 to 1 for curves, which are drawn, not read."""
    theme = COLOURED[name]
    needed = 7.0 if name == "hypha-contrast" else 4.5
    texts = {tone: theme.variables.get(variable) or theme.accent for tone, variable in themes.TONES.items()}
    texts |= {"foreground": theme.foreground, "primary": theme.primary}
    del texts["line"]
    weak: list[str] = []
    for tone, colour in texts.items():
        is_curve = re.fullmatch(r"c\d", tone) is not None
        for background in backgrounds(theme)[: 3 if is_curve else None]:
            if contrast(str(colour), background) < (3.0 if is_curve else needed):
                weak.append(f"{tone} {colour} on {background}: {contrast(str(colour), background):.2f}")
    assert not weak


@pytest.mark.parametrize("name", sorted(set(COLOURED) - {"hypha-mono"}))
def test_states_differ_for_people_who_see_fewer_colours(name: str) -> None:
    """T32: under simulated protanopia, deuteranopia and tritanopia, every pair."""
    variables = COLOURED[name].variables
    alike: list[str] = []
    for vision, least in LEAST_DISTANCE.items():
        needed = LEAST_WHERE_MADE_FOR if vision in MADE_FOR.get(name, ()) else least
        for one, other in combinations(STATES, 2):
            apart = distance(variables[f"state-{one}"], variables[f"state-{other}"], vision)
            if apart < needed:
                alike.append(f"{one} and {other}, {vision}: {apart:.1f} of {needed}")
    assert not alike


def test_states_of_the_terminals_own_colours_need_no_bold_and_only_eight() -> None:
    """T36: on the Linux console, bold is a colour and bright ones may be missing."""
    theme = SHIPPED.found["hypha-ansi"]
    used = [theme.variables[f"state-{name}"] for name in STATES]
    assert len(set(used)) == len(used)
    assert not any("bright" in colour or colour in ("ansi_black", "ansi_white") for colour in used)


def test_the_row_under_the_cursor_differs_from_others_in_every_theme() -> None:
    """T31: by its background, and reversed where there is none; the table adds a sign."""
    for theme in SHIPPED.found.values():
        variables = theme.variables | {"foreground": str(theme.foreground)}
        for colour in (True, False):
            style = Palette(variables, colour=colour).style("text", cursor=True)
            assert style.reverse or style.bgcolor is not None, theme.name


def test_terminals_with_few_colours_are_known_by_their_names() -> None:
    assert has_few_colours({"TERM": "linux"}) and has_few_colours({"TERM": "xterm"}) and has_few_colours({})
    assert not has_few_colours({"TERM": "xterm-256color"}) and not has_few_colours({"TERM": "xterm-kitty"})
    assert not has_few_colours({"TERM": "xterm", "COLORTERM": "truecolor"})


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (('late = "#', 'late = "no#'), r"theme x\.toml: line \d+: state\.late: 'no#\w+' is not a colour"),
        (("[role]", '[role]\nrelay = "#ffffff"'), r"role\.relay: unknown key"),
        (("[role]", "[roles]"), r"roles: unknown key; did you mean role"),
        (("dark = true", 'dark = "yes"'), r"meta\.dark: 'yes' is not true or false"),
        (("ansi = false", "ansi = true"), r"is not a colour for this theme; write a colour of the terminal"),
        (('\nlate = "', '\n# late = "'), r"state\.late: is missing"),
        (("[meta]", "[meta"), r"theme x\.toml: not valid TOML"),
        (("[state]", "[[state]]"), r"state: expected a table"),
        (("[role]", '[glyphs]\nokay = "*"\n[role]'), r"glyphs\.okay: unknown key"),
        (("[role]", '[glyphs]\nok = "**"\n[role]'), r"glyphs\.ok: '\*\*' is no sign for this; write one character"),
        (("[role]", '[glyphs]\nlost = "\N{SKULL}"\n[role]'), r"glyphs\.lost: .* no emoji: columns would shift"),
        (("[role]", '[glyphs]\nmark = "\N{CJK UNIFIED IDEOGRAPH-4E00}"\n[role]'), r"glyphs\.mark: .* no wide"),
        (("[role]", '[glyphs]\nsparks = "-"\n[role]'), r"glyphs\.sparks: .* write 2 to 16 characters"),
        (("[role]", '[glyphs]\nbusy = "!"\n[role]'), r"glyphs\.busy: '!' would stand for two states"),
    ],
)
def test_a_bad_file_is_one_line_with_the_place(tmp_path: Path, change: tuple[str, str], told: str) -> None:
    (tmp_path / "x.toml").write_text(dark().replace(*change))
    with pytest.raises(ConfigError, match=told) as caught:
        themes.load(tmp_path / "x.toml")
    assert "\n" not in str(caught.value)


def test_the_users_folder_adds_themes_and_wins_and_a_bad_file_spoils_nothing(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(dark().replace('name = "hypha-dark"', 'name = "mine"'))
    (tmp_path / "dark.toml").write_text(dark().replace("#12161c", "#000000"))
    (tmp_path / "bad.toml").write_text("[meta")
    found = Themes(tmp_path)
    assert set(found.found) == {f"hypha-{name}" for name in NAMES} | {"mine"}
    assert found.found["hypha-dark"].background == "#000000"
    assert len(found.problems) == 1 and "bad.toml" in found.problems[0]


def test_an_edited_file_is_noticed_and_a_broken_edit_keeps_what_was_there(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(dark().replace('name = "hypha-dark"', 'name = "mine"'))
    found = Themes(tmp_path)
    assert not found.has_changed("mine") and not found.has_changed("hypha-dark")
    file.write_text(file.read_text().replace("#12161c", "#00000"))
    assert found.has_changed("mine")
    found.read()
    assert found.found["mine"].background == "#12161c" and found.problems
    file.write_text(file.read_text().replace("#00000", "#000000"))
    found.read()
    assert found.found["mine"].background == "#000000" and not found.problems
    file.unlink()
    found.read()
    assert "mine" not in found.found


RAW_COLOUR = re.compile(
    r"#(?:[0-9a-fA-F]{3,4}){1,2}\b|\brgba?\("
    r"|\bansi_(?:bright_)?(?:default|black|red|green|blue|yellow|magenta|cyan|white)\b"
)
BASE = {"background", "surface", "panel", "foreground", "primary", "secondary", "accent", "success", "warning", "error"}


def test_colours_are_named_only_in_theme_files() -> None:
    """T33: style sheets and code use roles. Pages of the browser are shown before there is a theme."""
    source = Path(themes.__file__).parent
    exempt = {source / "themes.py", source / "serve" / "page.py"}
    files = [file for kind in ("*.py", "*.tcss") for file in source.rglob(kind) if file not in exempt]
    found = [f"{file.name}: {match}" for file in files for match in RAW_COLOUR.findall(file.read_text())]
    assert not found
    sheet = (source / "screens" / "hypha.tcss").read_text()
    known = BASE | {f"{section}-{key}" for section, keys in themes.SECTIONS.items() for key in keys}
    assert set(re.findall(r"\$([a-z0-9-]+)", sheet)) <= known
