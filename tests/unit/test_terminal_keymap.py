"""The key table, and the page that is made from it."""

from __future__ import annotations

from pathlib import Path

from hypha_tui.keymap import KEYS, PLACES, page

DOCS = Path(__file__).parents[2] / "docs" / "keys.md"


def test_the_page_of_keys_is_the_one_that_the_table_makes() -> None:
    """Where this fails: `python -m hypha_tui.keymap > docs/keys.md`."""
    assert DOCS.read_text() == page()


def test_every_key_is_on_the_page() -> None:
    assert {key.scope for key in KEYS} == set(PLACES)
