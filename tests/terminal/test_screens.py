"""What the screens show, at three sizes and with few and many peers."""

from __future__ import annotations

import asyncio
import re

import pytest
from msgspec.structs import replace
from textual.events import Resize
from textual.geometry import Size

from hypha_tui.keys.keymap import SCREENS
from tests.terminal.feed import FakeClient, cluster_items, fake_client, job, lease, peer_id, transfers
from tests.terminal.harness import SIZES, terminal

pytestmark = pytest.mark.asyncio

EXPECTED = {
    "overview": [
        "Jobs",
        "diloco-7",
        "Leases",
        "held",
        "Validation loss",
        "Transfers",
        "active",
        "Events",
        "lease.renewed",
    ],
    "peers": ["NAME", "gw-eu", "sched-1", "data-1", "w-ams-00", "up"],
    "leases": ["REMAINING", "w-ams-00", "diloco-7", "held"],
    "slices": ["Datasets", "stdlib-bytes", "Transfers", "slice", "used 9", "MB/s"],
    "jobs": ["diloco-7", "running", "12/50", "4/5", "broken", "TASK", "aggregate"],
    "curves": ["training loss, diloco-7", "w-fra-01", "round", "12"],
    "events": ["lease.renewed", "task.failed", "renewal late by 2.1 s"],
    "node": ["test node", "live", "gw-eu", "5f1d9c20"],
}


@pytest.mark.parametrize("size", SIZES)
async def test_every_screen_shows_its_objects_at_every_size(size: tuple[int, int]) -> None:
    """T42, T43: numbers in the tab bar, and the layout holds."""
    async with terminal(size=size) as shown:
        for number, name in enumerate(SCREENS, 1):
            await shown.press(str(number))
            missing = [words for words in EXPECTED[name] if words not in shown.text]
            assert not missing, shown.text
            assert f"[{number} " in shown.text
            assert all(len(line) <= size[0] for line in shown.lines)


@pytest.mark.parametrize(("workers", "size"), [*zip([0, 1, 1_000], SIZES, strict=True), (1_000, (80, 24))])
async def test_any_number_of_peers_lays_out(workers: int, size: tuple[int, int]) -> None:
    """T43: 0, 1 and 1,000 peers."""
    async with terminal(workers, size=size) as shown:
        await shown.press("2")
        if workers == 0:
            assert "no peers yet" in shown.text
        else:
            assert f"{workers + 3:,} peers" in shown.text
        await shown.press("3")
        assert ("no leases" in shown.text) == (workers == 0)
        await shown.press("1")
        assert "Jobs" in shown.text


async def test_a_small_terminal_keeps_nineteen_rows_for_the_table() -> None:
    """T39: the frame around the body takes five lines of 24."""
    async with terminal(100, size=(80, 24)) as shown:
        await shown.press("2")
        assert sum("/" not in line and "w-" in line for line in shown.lines) >= 15
        await shown.press("G")
        rows = [line for line in shown.lines if re.search(r"\bw-\w\w\w-\d\d", line)]
        assert len(rows) >= 19


async def test_below_the_smallest_size_it_says_what_it_needs() -> None:
    async with terminal(size=(50, 12)) as shown:
        assert "needs 60x16, has 50x12" in shown.text


async def test_remaining_time_counts_down_without_a_frame() -> None:
    """Durations count on from the moment they were received."""
    async with terminal(1) as shown:
        await shown.press("3")
        assert "1.0s" in shown.text
        await shown.later(0.4)
        assert "0.6s" in shown.text
        assert "late" in shown.text


async def test_a_delta_is_on_screen_with_the_next_frame() -> None:
    async with terminal(2) as shown:
        await shown.press("5")
        shown.client.send(items=[job(round_=13, workers=2)])
        await shown.settle()
        assert "13/50" in shown.text


async def test_a_dropped_object_leaves_the_table() -> None:
    async with terminal(2) as shown:
        await shown.press("3")
        assert "w-fra-01" in shown.text
        shown.client.send(dropped=[("lease", lease(1, remaining_s=0).id)])
        await shown.settle()
        assert "w-fra-01" not in shown.text


async def test_a_crashed_executor_shows_its_exit_code_and_last_lines() -> None:
    """Remote text is text: markup in it stays visible."""
    async with terminal() as shown:
        await shown.press("5", "j")
        assert "exit code 1" in shown.text
        assert "ValueError: no [bold]such[/] layer" in shown.text


async def test_a_waiting_job_says_why() -> None:
    reason = "0 of 2; 3 workers refused: gpu 0 < 10"
    waiting = replace(job(), state="waiting", reason=reason, tasks=[])
    async with terminal(client=FakeClient(items=[waiting])) as shown:
        await shown.press("5")
        assert reason in shown.text


async def test_names_of_any_kind_keep_the_columns_aligned() -> None:
    """T38: wide characters are counted in cells, control characters are not drawn."""
    items = cluster_items(2)
    items[3] = replace(items[3], name="東京\x1b[2J-01")
    async with terminal(client=FakeClient(items=items)) as shown:
        await shown.press("2")
        assert "東京" in shown.text
        assert "\x1b" not in shown.text
        rows = [line for line in shown.lines if "worker" in line and "up" in line]
        from rich.cells import cell_len

        starts = {cell_len(line[: line.index("worker")]) for line in rows}
        assert len(starts) == 1


async def test_transfers_show_progress_and_speed() -> None:
    async with terminal(client=FakeClient(items=[*cluster_items(1), *transfers(1)])) as shown:
        await shown.press("4")
        assert re.search(r"12%\s+11\.2 MB/s", shown.text), shown.text


async def test_curves_change_the_metric_and_a_new_point_is_drawn() -> None:
    """T56: a legend, `m` picks the metric, a new point is visible in the next frame."""
    from node.views import Point

    async with terminal() as shown:
        await shown.press("6", "m")
        assert "validation loss, diloco-7" in shown.text
        before = shown.text
        shown.client.send(points=[Point(job_id="diloco-7", name="eval_loss", round=13, value=0.5, t_s=400.0)])
        await shown.settle()
        assert shown.text != before
        assert "0.500" in shown.text


async def test_ascii_mode_draws_only_ascii() -> None:
    """T37: LC_ALL=C and --ascii leave no byte of 0x80 or more, on any screen or layer."""
    for arguments in ({"environment": {"LC_ALL": "C", "LANG": "C.UTF-8"}}, {"ascii_only": True}):
        async with terminal(**arguments) as shown:  # type: ignore[arg-type]
            for keys in ("1", "2", "3", "4", "5", "6", "7", "8", "question_mark", "escape", "5", "a", "escape", "x"):
                await shown.press(keys)
                bad = {character for character in shown.text if ord(character) > 0x7F}
                assert not bad, (keys, bad)


@pytest.mark.parametrize("theme", ["hypha-dark", "hypha-light", "hypha-ansi", "textual-light", "no-such"])
async def test_every_theme_draws(theme: str) -> None:
    async with terminal(theme=theme) as shown:
        await shown.press("3")
        assert "w-ams-00" in shown.text
        if theme == "no-such":
            assert "no theme 'no-such'" in shown.text


async def test_without_colour_nothing_is_coloured(monkeypatch: pytest.MonkeyPatch) -> None:
    """T34: no colour is set at all, so text cannot equal its background."""
    monkeypatch.setenv("NO_COLOR", "1")
    async with terminal(environment={"LANG": "C.UTF-8", "NO_COLOR": "1"}) as shown:
        for key in ("1", "3", "5"):
            await shown.press(key)
            svg = shown.app.export_screenshot()
            assert "w-ams-00" in svg or "diloco" in svg
            for strip in shown.app.screen._compositor.render_strips():
                for filter_ in shown.app._filters:
                    if filter_.enabled:
                        strip = strip.apply_filter(filter_, shown.app.screen.background_colors[1])
                for segment in strip:
                    style = segment.style
                    assert style is None or style.color is None or style.color.is_default, segment


async def test_an_unknown_peer_is_shown_by_the_end_of_its_id() -> None:
    async with terminal(client=FakeClient(items=[lease(1, remaining_s=5.0)])) as shown:
        await shown.press("3")
        assert peer_id(4)[-8:] in shown.text


async def test_where_there_is_room_the_curves_of_the_run_under_the_cursor_stand_below_its_table() -> None:
    client = fake_client(4)
    client.items.append(replace(lease(7, remaining_s=9.0), worker=peer_id(4), job_id="broken-1", id="ffffff"))
    async with terminal(client=client, size=(200, 60)) as shown:
        await shown.press("3")
        assert "training loss, diloco-7" in shown.text
        assert "validation loss, diloco-7" in shown.text and "samples a second, diloco-7" in shown.text
        shown.app.main.view.select(("lease", "ffffff"))
        await shown.until(lambda: "training loss, broken" in shown.text)
        assert "training loss, broken" in shown.text and "no values yet" in shown.text
        shown.app.main.commands.run("panel curves")
        await shown.settle()
        assert "training loss" not in shown.text
        await shown.press("c")
        assert "[6 Curves]" in shown.text and "training loss, broken" in shown.text
        await shown.press("2", "c")
        assert "there is no job here" in shown.text
    async with terminal(size=(120, 40)) as shown:
        await shown.press("3")
        assert "training loss" not in shown.text


async def test_the_id_under_the_cursor_is_in_the_status_line_in_full() -> None:
    """T39: in the table it is cut in the middle."""
    async with terminal(size=(100, 24)) as shown:
        await shown.press("2")
        for _ in range(2):
            selected = shown.app.main.view.selected
            assert selected is not None
            assert selected[1] in shown.lines[-2]
            await shown.press("j")


async def test_a_lease_tells_how_fast_its_task_is_and_what_is_wrong_with_it() -> None:
    client = fake_client(4)
    own = replace(lease(1, remaining_s=9.0), id="eeeeee", worker=peer_id(4), job_id="diloco-7")
    broken = replace(lease(2, remaining_s=9.0), id="ffffff", job_id="broken-1", task_id="broken-1-train-1")
    client.items += [own, broken]
    async with terminal(client=client, size=(200, 60)) as shown:
        await shown.press("3", "z")
        row = {line.split()[2]: line for line in shown.lines if " eeeeee " in line or " ffffff " in line}
        assert " 139 " in row["eeeeee"] and "0.45" in row["eeeeee"]
        await shown.press("w", "dollar_sign")
        assert "LAST ERROR" in shown.text and "the executor ended by itself" in shown.text


@pytest.mark.parametrize("layer", ["", "?"])
async def test_two_sizes_that_wait_at_once_come_to_rest_at_the_newer(layer: str) -> None:
    """A busy machine takes the first of a storm of resizes when the second is there: both, in turn, for ever."""
    async with terminal(size=(120, 40)) as shown:
        await shown.press(*layer)
        for size in (Size(80, 24), Size(120, 40)) * 3:
            shown.app.screen.post_message(Resize(size, size))
            shown.app.screen.call_later(lambda: None)  # of resizes with nothing in between the last one alone counts
        async with asyncio.timeout(5):
            await shown.settle()
        assert shown.app.screen.size == Size(120, 40)
        assert len(shown.lines) == 40
