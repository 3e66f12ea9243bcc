"""Themes are data: every file loads, is readable, and a bad one is one line that names the key."""

from __future__ import annotations

from pathlib import Path

import pytest
from textual.color import Color

from hypha_tui import themes
from node.errors import ConfigError

NAMES = {"dark", "light", "contrast", "deutan", "tritan", "mono", "ansi"}


def contrast(first: str, second: str) -> float:
    """WCAG 2 contrast of two colours."""

    def luminance(text: str) -> float:
        parts = [part / 255 for part in Color.parse(text).rgb]
        linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(first), luminance(second)))
    return (high + 0.05) / (low + 0.05)


def test_all_themes_load_without_a_problem() -> None:
    found, problems = themes.load_all()
    assert problems == []
    assert set(found) == {f"hypha-{name}" for name in NAMES}


def test_every_text_can_be_read_on_its_background() -> None:
    """T32: 4.5 to 1, and 7 to 1 in the contrast theme."""
    for name, theme in themes.load_all()[0].items():
        if theme.ansi:
            continue
        needed = 7.0 if name == "hypha-contrast" else 4.5
        assert theme.background is not None
        tones = {
            tone: variable for tone, variable in themes.TONES.items() if variable in theme.variables and tone != "line"
        }
        weak = {
            tone: round(contrast(theme.variables[variable], theme.background), 1)
            for tone, variable in tones.items()
            if not variable.startswith("curve") and contrast(theme.variables[variable], theme.background) < needed
        }
        assert not weak, name


def test_a_bad_file_is_one_line_and_the_others_still_load(tmp_path: Path) -> None:
    for file in themes.folder().glob("*.toml"):
        (tmp_path / file.name).write_text(file.read_text())
    (tmp_path / "bad.toml").write_text((tmp_path / "hypha-dark.toml").read_text().replace('late = "#', 'late = "no#'))
    (tmp_path / "worse.toml").write_text("[meta")
    found, problems = themes.load_all(tmp_path)
    assert len(found) == len(NAMES)
    assert any("bad.toml: state.late" in line for line in problems)
    assert any("worse.toml" in line for line in problems)


def test_an_unknown_key_is_named(tmp_path: Path) -> None:
    text = (themes.folder() / "hypha-dark.toml").read_text().replace("[role]", '[role]\nrelay = "#ffffff"')
    (tmp_path / "x.toml").write_text(text)
    with pytest.raises(ConfigError, match=r"unknown key role\.relay"):
        themes.load(tmp_path / "x.toml")
