"""The terminal's own options, which two readers read: both must take them for the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from hypha_tui.cli import run
from hypha_tui.options import Display, Reach, plain
from hypha_tui.process import opening
from node.errors import ConfigError
from tests.terminal.test_imports import modules_after

READ = (
    [],
    ["--node", "unix:/x"],
    ["--node=https://h:1", "--cert", "/c/a-cert.pem", "--key", "k", "--trust=t", "--crls", "r"],
    ["--state-dir", "/s", "--context", "lab", "--readonly"],
    ["--theme", "hypha-dark", "--hz", "0.5", "--glyphs", "block", "--ascii", "--no-mouse", "--preset", "vim"],
    ["--mouse", "--record", "a.tape"],
    ["--replay", "dir/a tape"],
    ["--node", ""],
)
LEFT = (
    ["jobs"],
    ["--help"],
    ["--version"],
    ["--readonly", "jobs"],
    ["--nod", "x"],
    ["--node"],
    ["--node", "--readonly"],
    ["--node", "a", "--node", "b"],
    ["--hz", "fast"],
    ["--readonly=true"],
)


@pytest.mark.parametrize("words", READ)
def test_both_readers_take_a_command_line_for_the_same(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[Reach, Display]] = []

    def note(reach: Reach, display: Display) -> int:
        seen.append((reach, display))
        return 0

    monkeypatch.setattr(opening, "open_terminal", note)
    assert run(words) == 0
    assert seen == [plain(words)]


@pytest.mark.parametrize("words", LEFT)
def test_every_other_command_line_is_left_to_the_reader_of_all(words: list[str]) -> None:
    assert plain(words) is None


def test_what_excludes_each_other_is_refused() -> None:
    with pytest.raises(ConfigError, match="exclude each other"):
        Display(mouse=True, no_mouse=True).given(Reach())
    assert Display(no_mouse=True).given(Reach()).mouse is False
    assert Display().given(Reach()).mouse is None
    assert Display(record=Path("x")).given(Reach(readonly=True)).readonly is True


def test_a_terminal_that_is_opened_by_options_reads_no_other_and_brings_no_general_http_client() -> None:
    """What its first picture would wait for."""
    found = modules_after(
        "from hypha_tui.options import plain; assert plain(['--node', 'unix:/x', '--readonly'])\n"
        "import hypha_tui.__main__, hypha_tui.process.opening, hypha_tui.client.api, hypha_tui.screens.app"
    )
    assert not found & {"cyclopts", "aiohttp", "attr", "yarl", "cryptography"}
