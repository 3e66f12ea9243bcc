"""Glyphs: one cell each, never an emoji, and the set is chosen by what the terminal can show."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from dataclasses import fields

import pytest
from rich.cells import cell_len

from hypha_tui.store.glyphs import ASCII, BLOCK, LEVELS, UNICODE, Glyphs, glyphs_for, with_signs


def characters(glyphs: Glyphs) -> Iterator[str]:
    for field in fields(glyphs):
        value = getattr(glyphs, field.name)
        if field.name != "name":
            yield from value.values() if field.name == "state" else value


@pytest.mark.parametrize("glyphs", LEVELS.values(), ids=LEVELS)
def test_every_glyph_is_one_narrow_character(glyphs: Glyphs) -> None:
    """T38: no emoji, no variation selector, nothing that is two cells wide."""
    for character in characters(glyphs):
        assert len(character) == 1 and cell_len(character) == 1, character
        assert unicodedata.east_asian_width(character) not in "WF", character
        assert not 0x1F000 <= ord(character) < 0x20000 and not 0x2600 <= ord(character) < 0x2700, character
        assert unicodedata.category(character) not in ("Mn", "Cf", "Cc"), character


def test_states_have_signs_of_their_own_in_every_set() -> None:
    """T31, T34: colour is never the only signal."""
    for glyphs in LEVELS.values():
        assert set(glyphs.state) == set(UNICODE.state)
        assert len(set(glyphs.state.values())) == len(glyphs.state)


def test_the_ascii_set_is_ascii_and_the_block_set_has_no_braille() -> None:
    assert all(character.isascii() for character in characters(ASCII))
    assert not any(0x2800 <= ord(character) < 0x2900 for character in characters(BLOCK))


def test_a_themes_signs_are_drawn_where_any_can_be_and_no_terminal_gets_what_it_may_not_have() -> None:
    mine = with_signs(UNICODE, {"ok": "o", "bar_full": "=", "sparks": ".oO"})
    assert (mine.state["ok"], mine.state["lost"], mine.bar(0.5, 4)) == ("o", UNICODE.state["lost"], "==──")
    assert mine.spark([1.0, 2.0, 3.0], 3) == ".oO"
    assert with_signs(ASCII, {"ok": "●"}) is ASCII
    assert with_signs(BLOCK, {"ok": "●"}) is BLOCK


@pytest.mark.parametrize(
    ("environment", "glyphs"),
    [
        ({"LANG": "de_DE.UTF-8"}, UNICODE),
        ({"LANG": "C.utf8"}, UNICODE),
        ({"LC_ALL": "C", "LANG": "de_DE.UTF-8"}, ASCII),
        ({"LC_ALL": "", "LC_CTYPE": "en_US.UTF-8", "LANG": "C"}, UNICODE),
        ({"LANG": "C.UTF-8", "TERM": "linux"}, ASCII),
        ({}, ASCII),
    ],
)
def test_the_locale_and_the_terminal_choose_the_set(environment: dict[str, str], glyphs: Glyphs) -> None:
    """T37."""
    assert glyphs_for(environment) is glyphs
    assert glyphs_for(environment, ascii_only=True, level="unicode") is ASCII
    assert glyphs_for(environment, level="block") is BLOCK
