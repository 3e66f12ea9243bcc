"""What the start, an idle terminal and a filter that is being written promise."""

from __future__ import annotations

import os
import pty
import threading
import tty
from contextlib import suppress

import pytest

from hypha_tui.process.quiet_driver import AT_ONCE, Output
from hypha_tui.screens.view import View
from hypha_tui.widgets.live_table import LiveTable
from tests.terminal.harness import Terminal, terminal
from tests.terminal.test_imports import modules_after


def leases(shown: Terminal) -> LiveTable:
    return shown.app.main.query_one("#leases-table", LiveTable)


def screens(shown: Terminal) -> list[str | None]:
    return [view.id for view in shown.app.main.query(View)]


@pytest.mark.asyncio
async def test_only_the_screen_that_is_shown_is_there_and_keys_after_its_number_are_for_it() -> None:
    async with terminal() as shown:
        assert screens(shown) == ["overview"]
        await shown.pilot.press("3", "j", "j")
        await shown.settle()
        table = leases(shown)
        assert table.order.index(table.cursor_id or "") == 2
        await shown.press("1")
        assert screens(shown) == ["overview", "leases"]
        assert not leases(shown).is_on_screen


@pytest.mark.asyncio
async def test_a_filter_that_is_no_filter_yet_leaves_the_one_from_before_the_prompt() -> None:
    async with terminal() as shown:
        await shown.press("3", "slash", *"ams", "enter")
        before = list(leases(shown).order)
        await shown.press("slash", "space", *"zzz")
        assert leases(shown).order == []
        await shown.press("space", *"rtt", "greater_than_sign", "q")
        assert leases(shown).order == before
        assert leases(shown).filter_text == "ams"
        assert "rtt" in leases(shown).state_line
        await shown.press("enter")
        assert leases(shown).order == before


def test_the_terminal_starts_without_a_command_line_and_without_what_it_may_never_show() -> None:
    found = modules_after("import hypha_tui.__main__, hypha_tui.process.opening")
    assert not found & {"cyclopts", "aiohttp", "textual", "rich"}


def test_a_frame_is_written_at_once_while_the_terminal_has_room_and_nothing_comes_before_it() -> None:
    master, slave = pty.openpty()
    tty.setraw(slave)
    with os.fdopen(slave, "w") as file:
        output = Output(file)
        assert output.takes("x")
        assert not output.takes("x" * (AT_ONCE + 1))
        output.handed_on = 1
        assert not output.takes("x")
        output.write("words")
        assert os.read(master, 100) == b"words"
        assert output.takes("x")
        os.set_blocking(slave, False)
        for _ in range(1_000):  # the kernel hands on what is written a little later, which makes room once more
            with suppress(BlockingIOError):
                while os.write(slave, b"x" * AT_ONCE):
                    pass
            if not output.takes("x"):
                break
        assert not output.takes("x")
    os.close(master)


def test_all_of_a_frame_reaches_a_terminal_that_somebody_has_made_nonblocking() -> None:
    master, slave = pty.openpty()
    tty.setraw(slave)
    os.set_blocking(slave, False)
    frame = "".join(f"line {number} é\r\n" for number in range(20_000))
    got = bytearray()

    def read() -> None:
        while len(got) < len(frame.encode()):
            got.extend(os.read(master, 4_096))

    reading = threading.Thread(target=read)
    with os.fdopen(slave, "w", encoding="utf-8") as file:
        reading.start()
        Output(file).write(frame)
        reading.join(30)
    os.close(master)
    assert got.decode() == frame


@pytest.mark.asyncio
async def test_a_table_has_its_rows_though_nobody_told_it_its_first_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Textual tells a widget of its first size only if nobody has asked where it is before."""
    monkeypatch.setattr(LiveTable, "on_resize", lambda table, event: None)
    async with terminal() as shown:
        await shown.press("3")
        assert "w-ams-00" in "\n".join(shown.lines[4:12])
        assert "REMAINING" in shown.text
