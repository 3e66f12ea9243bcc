"""What keys do: moving, filtering, layers, cancelling, submitting, and a link that breaks."""

from __future__ import annotations

import tarfile
from io import BytesIO
from pathlib import Path

import pytest
from msgspec.structs import replace
from textual.widgets import Button, Input, TextArea

from hypha_tui.keys.keymap import COMMANDS, KEYS, clashes
from hypha_tui.widgets.live_table import LiveTable
from node.errors import PeerUnreachable, PeerUntrusted, Refused
from node.views import LeaseView
from tests.terminal.feed import WHOLE_JOB, fake_client, job, lease
from tests.terminal.harness import Terminal, terminal

pytestmark = pytest.mark.asyncio


async def test_no_key_means_two_things_in_one_place() -> None:
    assert clashes() == []


async def test_the_keys_avoid_those_of_multiplexers_and_terminals() -> None:
    """T24, T44: no ctrl+a/b/s/o/j/h/m/i; nothing that ends something is on a plain letter."""
    used = {single for key in KEYS for single in key.keys.split(",")}
    assert not used & {f"ctrl+{letter}" for letter in "absojhmiz"}
    assert not any("cancel" in key.action for key in KEYS)


async def test_help_is_made_from_the_key_table_and_closes_with_its_own_key() -> None:
    """T41, T47: it fits, scrolls, and `?` toggles it."""
    async with terminal(size=(80, 24)) as shown:
        await shown.press("5", "question_mark")
        assert "Keys on Jobs" in shown.text
        assert "new job" in shown.text
        await shown.press("G")
        assert "escape-time" in shown.text
        await shown.press("question_mark")
        assert "Keys on Jobs" not in shown.text


def cursor_row(shown: Terminal) -> str:
    return next(line for line in shown.lines if line.startswith("▌"))


async def test_the_cursor_stays_on_its_object_when_the_order_changes() -> None:
    """T21: the cursor is an id."""
    async with terminal(3) as shown:
        await shown.press("3", "j")
        assert "w-fra-01" in cursor_row(shown)
        await shown.press("S")
        assert "w-fra-01" in cursor_row(shown)
        shown.clock.now += 5
        shown.client.send(items=[lease(7, remaining_s=9.0)], dropped=[("lease", lease(0, remaining_s=0).id)])
        await shown.settle()
        assert "w-fra-01" in cursor_row(shown)


async def test_a_vanished_row_hands_the_cursor_to_its_neighbour_and_says_so() -> None:
    """T21."""
    async with terminal(3) as shown:
        await shown.press("3", "j")
        shown.client.send(dropped=[("lease", lease(1, remaining_s=0).id)])
        await shown.settle()
        assert "w-nyc-02" in cursor_row(shown)
        assert "is gone; the cursor is on its neighbour" in shown.text


async def test_new_rows_do_not_reorder_the_table_while_keys_are_pressed() -> None:
    """T19: the order is held for two seconds after a key."""
    async with terminal(3) as shown:
        await shown.press("3")
        await shown.press("j")
        table = shown.app.screen.query_one("#leases-table", LiveTable)
        before = list(table.order)
        newcomer = replace(lease(8, remaining_s=9.0), worker="a-first-by-name")
        shown.client.send(items=[newcomer])
        await shown.settle()
        assert table.order == [*before, newcomer.id]
        await shown.later(3.0)
        assert table.order == [newcomer.id, *before]


async def test_freeze_holds_the_values_and_thaw_shows_the_present() -> None:
    """T19."""
    async with terminal(1) as shown:
        await shown.press("3", "f")
        assert "FROZEN" in shown.text
        shown.client.send(items=[lease(0, remaining_s=8.8)])
        await shown.settle()
        assert "8.8s" not in shown.text
        await shown.press("f")
        assert "8.8s" in shown.text


async def test_a_filter_narrows_says_how_far_and_is_cleared_by_escape() -> None:
    async with terminal(40) as shown:
        await shown.press("2", "slash", *"ams", "enter")
        assert "5 of 43 peers" in shown.text
        assert "/ams" in shown.text
        assert "w-fra-01" not in shown.text
        await shown.press("escape")
        assert "43 peers" in shown.text
        assert "w-fra-01" in shown.text


async def test_escape_in_the_filter_line_brings_back_the_filter_before() -> None:
    async with terminal(40) as shown:
        await shown.press("2", "slash", *"zzz")
        assert "no peer matches 'zzz'" in shown.text
        await shown.press("escape")
        assert "w-fra-01" in shown.text


async def test_commands_run_when_certain_and_are_completed_by_tab() -> None:
    """T45: an exact name or a unique beginning runs; of several, none."""
    async with terminal() as shown:
        await shown.press("colon", *"lea", "enter")
        assert "[3 Leases]" in shown.text
        await shown.press("colon", *"j", "enter")
        assert "which of jobs, job" in shown.text
        await shown.press("colon", *"cur", "tab")
        assert ":" in shown.text
        await shown.press("enter")
        assert "[6 Curves]" in shown.text
        await shown.press("colon", *"nonsense", "enter")
        assert "no command 'nonsense'" in shown.text
        await shown.press("colon", *"peers ams", "enter")
        assert "1 of 7 peers" in shown.text


async def test_every_command_is_in_the_help() -> None:
    from hypha_tui.screens.dialogs import help_lines

    text = "\n".join("".join(part for part, _ in line) for line in help_lines([]))
    assert all(f":{command.usage}" in text for command in COMMANDS)


async def test_q_goes_back_and_quits_only_when_pressed_twice_at_the_root() -> None:
    async with terminal() as shown:
        await shown.press("3", "q")
        assert "[1 Overview]" in shown.text
        await shown.press("q")
        assert "press q again to quit" in shown.text
        assert shown.app.is_running
        await shown.press("q")
        assert shown.app.return_code == 0


async def test_enter_inspects_and_tab_shows_the_json() -> None:
    async with terminal() as shown:
        await shown.press("3", "enter")
        assert "next is due" in shown.text
        await shown.press("tab", "tab", "tab")
        assert "[JSON]" in shown.text
        assert '"duration_s": 10.0' in shown.text
        await shown.press("escape")
        assert "[3 Leases]" in shown.text


async def test_the_log_of_a_job_is_read_and_cannot_move_the_cursor() -> None:
    async with terminal() as shown:
        await shown.press("5", "L")
        assert "loss 2.113" in shown.text
        assert "\x1b" not in shown.text


async def test_events_stop_following_when_scrolled_and_follow_again_with_capital_g() -> None:
    """T9."""
    from node.views import Event

    async with terminal(size=(80, 24)) as shown:
        await shown.press("7", "k")
        before = shown.lines[2:20]
        shown.client.send(events=[Event(node="n", seq=900 + n, name="x", text=f"new {n}") for n in range(50)])
        await shown.settle()
        assert shown.lines[2:20] == before
        assert "held (G follows)" in shown.text
        await shown.press("G")
        assert "new 49" in shown.text


async def test_cancelling_asks_first_names_its_target_and_the_harmless_button_has_the_focus() -> None:
    """T25."""
    async with terminal() as shown:
        await shown.press("5", "x")
        assert "job diloco-7" in shown.text
        await shown.press("enter")
        assert "Cancel job diloco-7?" in shown.text
        assert isinstance(shown.app.focused, Button)
        assert shown.app.focused.id == "no"
        await shown.press("enter")
        assert shown.client.cancelled == []
        await shown.press("x", "enter", "right", "enter")
        assert shown.client.cancelled == ["diloco-7"]
        assert "job diloco-7 is being cancelled" in shown.text


async def test_the_target_of_cancel_is_the_one_from_when_the_key_was_pressed() -> None:
    """T23: rows that move or vanish below the question change nothing."""
    async with terminal() as shown:
        await shown.press("5", "x", "enter")
        shown.client.send(items=[job("aaa-first")])
        await shown.settle()
        await shown.press("right", "enter")
        assert shown.client.cancelled == ["diloco-7"]


async def test_cancel_by_command_works_for_a_row_that_a_filter_hides() -> None:
    """T23."""
    async with terminal() as shown:
        await shown.press("5", "slash", *"broken", "enter")
        await shown.press("colon", *"cancel diloco-7", "enter")
        await shown.press("right", "enter")
        assert shown.client.cancelled == ["diloco-7"]


async def test_a_job_that_is_done_is_neither_cancelled_nor_resumed() -> None:
    async with terminal() as shown:
        shown.client.send(items=[replace(job("aaa-first"), state="done")])
        await shown.settle()
        await shown.press("5", "slash", *"aaa-first", "enter", "x")
        assert "nothing is left to do" in shown.text
        await shown.press("colon", *"resume aaa-first", "enter")
        assert "job aaa-first is done: it cannot be resumed" in shown.text
        assert shown.client.resumed == []


async def test_a_failed_job_is_resumed_from_the_menu_or_by_command() -> None:
    async with terminal() as shown:
        await shown.press("5", "j", "x")
        assert "resume the job" in shown.text
        assert "cancel the job" not in shown.text
        await shown.press("enter")
        assert shown.client.resumed == ["broken-1"]
        assert "job broken goes on" in shown.text
        await shown.press("colon", *"resume broken-1", "enter")
        assert shown.client.resumed == ["broken-1", "broken-1"]


async def test_a_job_is_submitted_by_keyboard_from_a_folder(tmp_path: Path) -> None:
    """The form reads the folder, changes rounds, and sends a tar whose job.toml says so."""
    (tmp_path / "job.toml").write_text(WHOLE_JOB)
    (tmp_path / "model.py").write_text("x = 1\n")
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "junk.pyc").write_bytes(b"junk")
    async with terminal() as shown:
        await shown.press("5", "a")
        shown.app.screen.query_one("#field-path", Input).value = str(tmp_path)
        await shown.press("enter")
        assert "tiny" in shown.text
        assert "ready" in shown.text
        await shown.press("tab", "tab", "tab", "backspace", "5")
        await shown.press("ctrl+r")
        assert "is accepted by sched-1" in shown.text
    (body,) = shown.client.submitted
    assert body.content_type == "application/x-tar"
    with tarfile.open(fileobj=BytesIO(body.data)) as archive:
        assert sorted(archive.getnames()) == ["job.toml", "model.py"]
        member = archive.extractfile("job.toml")
        assert member is not None
        assert b"update_rounds = 5" in member.read()


async def test_a_bad_field_is_told_and_nothing_is_sent(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text(WHOLE_JOB)
    async with terminal() as shown:
        shown.app._main.commands.run(f"submit {tmp_path}")
        await shown.settle()
        await shown.press("tab", "tab", "x")
        assert "workers: 'x' is not a whole number above 0" in shown.text
        await shown.press("ctrl+r")
        assert shown.client.submitted == []
        await shown.press("escape")


async def test_a_wrong_key_is_told_with_its_line_while_one_types_and_nothing_is_sent(tmp_path: Path) -> None:
    """A wrong file is shown to be mended, not turned away."""
    (tmp_path / "job.toml").write_text(WHOLE_JOB.replace("update_rounds", "update_round"))
    async with terminal() as shown:
        shown.app._main.commands.run(f"submit {tmp_path}")
        await shown.settle()
        assert "rounds.update_round: unknown key; did you mean update_rounds?" in shown.text
        await shown.press("ctrl+r")
        assert shown.client.submitted == []
        area = shown.app.screen.query_one(TextArea)
        area.focus()
        area.replace("update_rounds", (7, 0), (7, len("update_round")))
        await shown.settle()
        assert "ready  2 workers, 3 rounds" in shown.text


async def test_what_the_node_refuses_stays_in_the_form_and_the_draft_is_kept(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text(WHOLE_JOB)
    async with terminal() as shown:
        shown.client.refusal = Refused("invalid", "unknown key rounds.updaterounds", hint="update_rounds?")
        shown.app._main.commands.run(f"submit {tmp_path}")
        await shown.settle()
        await shown.press("ctrl+r")
        assert "unknown key rounds.updaterounds; update_rounds?" in shown.text
        await shown.press("escape", "5", "a")
        assert "update_rounds = 3" in shown.app.screen.query_one(TextArea).text


async def test_a_broken_link_shows_a_banner_with_the_age_and_is_mended() -> None:
    """T50: what is shown is marked old; the tables stay; the link comes back by itself."""
    async with terminal() as shown:
        await shown.press("3")
        shown.client.refusal = PeerUnreachable("cannot reach test node: refused", hint="is the node running?")
        shown.client.fail(PeerUnreachable("the link broke"))
        await shown.later(7.0)
        assert "cannot reach test node" in shown.text
        assert "this is 7s old" in shown.text
        assert "stale" in shown.text
        assert "w-ams-00" in shown.text
        await shown.until(lambda: shown.client.connections > 3)
        shown.client.refusal = None
        await shown.until(lambda: "live" in shown.text)
        assert "what you see" not in shown.text


async def test_a_refused_certificate_is_not_tried_again_and_says_how_to_mend_it() -> None:
    """T51."""
    client = fake_client(1)
    client.refusal = PeerUntrusted("the node refuses our certificate", hint="use an operator's certificate")
    async with terminal(client=client) as shown:
        assert "refused: the node refuses our certificate; use an operator's certificate" in shown.text
        tried = shown.client.connections
        await shown.settle()
        assert shown.client.connections == tried
        shown.client.refusal = None
        await shown.press("r")
        assert "live" in shown.text


async def test_a_gap_in_the_frames_asks_for_a_snapshot() -> None:
    async with terminal(1) as shown:
        shown.client.lose_frames(2)
        shown.client.send(items=[job(round_=40)])
        await shown.settle()
        assert shown.client.connections == 2
        assert not shown.app.store.is_stale


async def test_a_change_off_screen_paints_nothing_and_one_on_screen_paints_one_line() -> None:
    """T1, T4: the cost of a change is a line, whatever the number of rows."""
    async with terminal(1_000, size=(120, 40)) as shown:
        await shown.press("3")
        table = shown.app.screen.query_one("#leases-table", LiveTable)
        shown.clock.now += 10
        await shown.settle()
        before = table.rows_painted
        on_screen = shown.app.store.get(LeaseView, table.order[5])
        off_screen = shown.app.store.get(LeaseView, table.order[-1])
        assert on_screen is not None
        assert off_screen is not None
        shown.client.send(items=[replace(off_screen, renewals=99)])
        await shown.pilot.pause()
        shown.app._main.view.sync(shown.app.store.take_changes())
        await shown.pilot.pause()
        assert table.rows_painted == before
        shown.client.send(items=[replace(on_screen, renewals=99, remaining_s=on_screen.remaining_s)])
        await shown.pilot.pause()
        shown.app._main.view.sync(shown.app.store.take_changes())
        await shown.pilot.pause()
        assert table.rows_painted - before == 1


async def test_the_frame_clock_rests_when_nothing_changes() -> None:
    """T12: an idle terminal has no frames, only the tick of a second."""
    async with terminal() as shown:
        shown.app.draw_frame()
        assert not shown.app.frames.is_running
        shown.client.send(items=[job(round_=13)])
        await shown.pilot.pause()
        assert shown.app.frames.is_running or shown.app.store.is_dirty is False
