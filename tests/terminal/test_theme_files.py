"""Themes while the terminal runs: files that are edited, terminals with few colours, and none."""

from __future__ import annotations

from pathlib import Path

import pytest

from hypha_tui import themes
from tests.terminal.harness import UTF8, Terminal, terminal

pytestmark = pytest.mark.asyncio


def background(shown: Terminal) -> str:
    """The colour behind the first row of the table."""
    style = next(iter(shown.app.screen._compositor.render_strips()[8])).style
    assert style is not None and style.bgcolor is not None
    return style.bgcolor.name


async def test_an_edited_theme_is_drawn_within_a_second_and_a_broken_edit_is_told(tmp_path: Path) -> None:
    file = tmp_path / "hypha-tui" / "themes" / "mine.toml"
    file.parent.mkdir(parents=True)
    dark = (themes.folder() / "hypha-dark.toml").read_text().replace('name = "hypha-dark"', 'name = "mine"')
    file.write_text(dark)
    async with terminal(theme="mine", environment={**UTF8, "XDG_CONFIG_HOME": str(tmp_path)}) as shown:
        await shown.press("3")
        assert background(shown) == "#12161c"
        file.write_text(dark.replace("#12161c", "#202020") + "\n")
        await shown.later(1.0)
        assert background(shown) == "#202020"
        file.write_text(dark.replace("#12161c", "#x"))
        await shown.later(1.0)
        assert background(shown) == "#202020"
        assert "theme mine.toml: line 9: palette.background: '#x' is not a colour" in shown.text
        assert "\N{BLACK CIRCLE} live" in shown.text
        file.write_text(f'{dark}\n[glyphs]\nok = "O"\n')
        await shown.later(1.0)
        assert "O live" in shown.text
        shown.app.set_setting("glyphs", "ascii")
        await shown.settle()
        assert "+ live" in shown.text, "a set that the terminal can show is not changed"
        shown.app.set_setting("glyphs", "unicode")
        (file.parent / "another.toml").write_text(dark.replace('name = "mine"', 'name = "another"'))
        file.write_text(dark)
        shown.app.theme_choice.set("another")
        assert shown.app.theme == "another"


async def test_the_terminals_own_colours_are_the_default_where_there_are_few_and_none_without_colour() -> None:
    async with terminal(environment={"LANG": "C.UTF-8", "TERM": "xterm"}) as shown:
        assert shown.app.theme == "hypha-ansi"
    async with terminal(environment={**UTF8, "NO_COLOR": "1"}) as shown:
        await shown.press("t")
        assert shown.app.theme == "hypha-ansi"
        assert "NO_COLOR is set: colours stay off" in shown.text
