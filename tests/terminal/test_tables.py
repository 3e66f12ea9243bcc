"""Live tables under keys: marks, columns, sorting, freezing, following, filters, and what is kept over a restart."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from hypha_tui.widgets.live_table import LiveTable
from node.views import LeaseView
from tests.terminal.feed import lease
from tests.terminal.harness import UTF8, Terminal, terminal

pytestmark = pytest.mark.asyncio


def leases(shown: Terminal) -> LiveTable:
    return shown.app.screen.query_one("#leases-table", LiveTable)


async def test_rows_are_marked_by_id_and_marks_survive_sort_and_filter() -> None:
    async with terminal(12) as shown:
        await shown.press("3", "space", "j", "space")
        table = leases(shown)
        marked = table.marked
        assert marked == [table.order[0], table.order[2]]
        assert "2 marked" in shown.text
        await shown.press("S", "slash", *"fra", "enter")
        assert set(table.marked) == set(marked)
        assert shown.app.main.view.marked == [("lease", id_) for id_ in table.marked]
        await shown.press("u", "g", "g", "v", "j", "v", "escape")
        assert len(table.marked) == 2
        await shown.press("asterisk")
        assert len(table.marked) == 12


async def test_a_filter_that_cannot_be_understood_is_told_and_the_one_before_stays() -> None:
    async with terminal(12) as shown:
        await shown.press("3", "slash", *"ams", "enter")
        assert "2 of 12 leases" in shown.text
        leases(shown).set_filter("ams colour:red")
        await shown.settle()
        assert "there is no column 'colour'" in shown.text
        assert leases(shown).filter_text == "ams"
        assert len(leases(shown).order) == 2


async def test_columns_are_chosen_sorted_and_looked_at_sideways_and_kept_over_a_restart(tmp_path: Path) -> None:
    """T22."""
    environment = {**UTF8, "XDG_STATE_HOME": str(tmp_path)}
    async with terminal(12, size=(80, 24), environment=environment) as shown:
        await shown.press("3", "s")
        assert "Sort by" in shown.text
        await shown.press("j", "enter")
        table = leases(shown)
        assert table.rows.sort_column.key == "job"
        await shown.press("greater_than_sign")
        assert table.rows.sort_column.key == "remaining"
        assert "EXECUTOR" not in shown.text
        await shown.press("w", "dollar_sign")
        assert "TASK" in shown.text
        assert "▌" in shown.text
        await shown.press("0", "W", "j", "j", "j", "space", "escape")
        assert "JOB" in shown.text
        await shown.press("slash", *"w-", "enter", "2", "3")
        kept = table.remembered.note()
        assert kept.sort == "remaining"
        assert kept.is_wide
        assert len(kept.hidden) == 1
    async with terminal(12, size=(80, 24), environment=environment) as shown:
        await shown.press("3")
        assert leases(shown).remembered.note() == kept


async def test_the_row_under_the_cursor_its_place_and_marks_are_kept_over_a_restart(
    tmp_path: Path,
) -> None:
    """T22."""
    environment = {**UTF8, "XDG_STATE_HOME": str(tmp_path)}
    async with terminal(60, size=(80, 24), environment=environment) as shown:
        await shown.press("3", *["j"] * 30, "space", "space", *["k"] * 5)
        table = leases(shown)
        kept, marked = table.remembered.note(), table.marked
        assert len(marked) == 2 and 0 < kept.row < table.size.height - 2
        gone = marked[0]
    async with terminal(60, size=(80, 24), environment=environment) as shown:
        assert "marked" not in shown.text
        await shown.press("3")
        table = leases(shown)
        assert (table.remembered.note(), table.marked) == (kept, marked)
        assert "2 marked" in shown.text
        shown.client.send(dropped=[("lease", gone)])
        await shown.settle()
        kept = table.remembered.note()
    async with terminal(60, size=(80, 24), environment=environment) as shown:
        pass
    async with terminal(60, size=(80, 24), environment=environment) as shown:
        await shown.press("3")
        assert leases(shown).marked == marked[1:], "what was not looked at is kept as it was"
        assert leases(shown).cursor_id == kept.selected


async def test_frozen_rows_are_moved_through_as_they_were_and_a_followed_row_keeps_its_place_on_the_screen() -> None:
    """T19, T21."""
    async with terminal(60, size=(80, 24)) as shown:
        await shown.press("3", "f")
        table = leases(shown)
        before = list(table.order)
        shown.client.send(dropped=[("lease", before[3])], items=[replace(lease(70, remaining_s=9.0), worker="a-first")])
        await shown.settle()
        await shown.press("j", "j", "j")
        assert table.cursor_id == before[3]
        await shown.later(5.0)
        assert "FROZEN 5s" in shown.text
        await shown.press("f", "F", *["j"] * 30)
        place = table.rows.row_of[table.cursor_id or ""] - table.scroll_offset.y
        followed = table.cursor_id
        shown.clock.now += 5
        news = [replace(lease(80 + n, remaining_s=9.0), worker=f"a-{n}") for n in range(3)]
        shown.client.send(items=news)
        await shown.settle()
        assert table.cursor_id == followed
        assert table.rows.row_of[followed or ""] - table.scroll_offset.y == place


async def test_focus_and_a_busy_frame_render_no_more_than_the_viewport() -> None:
    """T2, T3: 500 leases that end in one frame are one order and one repaint."""
    async with terminal(1_000, size=(120, 40)) as shown:
        await shown.press("3")
        table = leases(shown)
        height = table.size.height
        before = table.rows_painted
        table.blur()
        await shown.pilot.pause()
        table.focus()
        await shown.pilot.pause()
        assert table.rows_painted - before <= 2 * height
        await shown.press("G")
        before = table.rows_painted
        await shown.press(*["k"] * height)
        assert table.scroll_offset.y == table.max_scroll_y - 2
        assert table.rows_painted - before <= height + 2, "a row that only moves on the screen is not painted"
        shown.clock.now += 10
        before, sorts = table.rows_painted, table.rows.sorts
        shown.client.send(dropped=[("lease", id_) for id_ in table.order[100:600]])
        await shown.settle()
        assert len(shown.app.store.views(LeaseView)) == 500
        assert table.rows.sorts == sorts + 1
        assert table.rows_painted - before <= 2 * height
