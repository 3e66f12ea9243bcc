"""The recording of the demo, shown: what the screens tell, steps and jumps in it, and that nothing can be changed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from textual.pilot import Pilot

from hypha_tui.client.recording import RecordingClient
from hypha_tui.client.tape import ANSWERS, FRAMES, KEY, POINTS, AnswerAt, FrameAt, PointsAt, Tape
from hypha_tui.screens.app import HyphaApp
from tests.terminal.harness import terminal
from tests.terminal.screenshots import AFTER_BOTH, ENVIRONMENT, IN_TRAINING, TAPE, replayed, settled

pytestmark = pytest.mark.asyncio


def shown(app: HyphaApp) -> str:
    return "\n".join(strip.text for strip in app.screen._compositor.render_strips())


async def until(app: HyphaApp, pilot: Pilot[None], holds: Callable[[], bool]) -> None:
    """Draw until something is on the screen."""
    for _ in range(300):
        await pilot.pause()
        app.draw_frame()
        if holds():
            return
        await asyncio.sleep(0.01)
    raise AssertionError(shown(app))


async def test_each_screen_shows_the_recorded_cluster() -> None:
    expected = {
        "1": ["stdlib-bytes", "running", "Validation loss", "worker-1", "paused", "2026-01-01"],
        "2": ["gateway", "scheduler", "data", "worker-2"],
        "3": ["held", "worker-1", "stdlib-bytes"],
        "4": ["stdlib", "slice"],
        "5": ["running", "aggregate", "worker-2"],
        "6": ["training loss", "round", "worker-1", "validation loss"],
        "7": ["lease.accepted", "scheduler"],
    }
    async with replayed(IN_TRAINING, (120, 40)) as (app, pilot):
        for key, words in expected.items():
            await pilot.press(key)
            await pilot.pause()
            missing = [one for one in words if one not in shown(app)]
            assert not missing, shown(app)


async def test_a_recording_is_stepped_through_and_sought_and_changes_nothing() -> None:
    async with replayed(IN_TRAINING, (120, 40)) as (app, pilot):
        replay = app.tapes.replay
        assert replay is not None
        before = len(app.store.events)
        await until(app, pilot, lambda: replay._next is not None)
        await pilot.press("full_stop")
        assert replay.now() > IN_TRAINING
        assert app.tapes.seek("end").startswith("at ")
        await until(app, pilot, lambda: len(app.store.jobs_by_activity()) == 2)
        await until(app, pilot, lambda: len(app.store.series) > 10)
        assert all(job.state == "done" for job in app.store.jobs_by_activity())
        app.tapes.seek(f"{IN_TRAINING:.0f}s")
        await until(app, pilot, lambda: len(app.store.jobs_by_activity()) == 1)
        assert len(app.store.events) <= before + 1, "later events are gone again"
        await pilot.press("5", "x")
        await pilot.pause()
        assert app.screen is app.main
        assert "this is a recording" in shown(app)
        assert " RO" in shown(app)
        assert "no such moment" in app.tapes.seek("noon")
        assert "from 1 to 60" in app.tapes.set_speed("900")
        assert app.tapes.set_speed("60x").startswith("60 times")
        await pilot.press("P")
        assert replay.is_playing
        await until(app, pilot, lambda: replay.now() > IN_TRAINING + 20)
        await pilot.press("P")
        await until(app, pilot, lambda: "paused" in shown(app))


async def test_recording_begins_and_ends_from_the_command_line_and_a_recording_leads_back(tmp_path: Path) -> None:
    async with terminal(2) as on:
        app, file = on.app, tmp_path / "x.hyp"
        assert app.tapes.record(str(file)) == f"recording to {file}"
        await on.settle()
        assert " rec " in on.lines[0]
        assert "already recording" in app.tapes.record("other.hyp")
        assert isinstance(app.client, RecordingClient)
        app.tapes.record("off")
        await until(app, on.pilot, lambda: app.client is on.client)
        await until(app, on.pilot, lambda: not any(one.group == "record" for one in app.workers))
        Tape(file).close()
        assert "is there already" in app.tapes.record(str(file))
        assert "x.hyp" in app.tapes.show(str(file))
        await until(app, on.pilot, lambda: "w-ams-00" in shown(app) or "w-fra-01" in shown(app))
        assert app.tapes.replay is not None
        assert app.tapes.show("off") == "back at the cluster"
        await until(app, on.pilot, lambda: app.client is on.client and not app.store.is_stale)
        assert "cannot be read" in app.tapes.show(str(tmp_path / "none.hyp"))


async def test_runs_over_each_other_are_chosen_from_the_list() -> None:
    async with replayed(AFTER_BOTH, (200, 60)) as (app, pilot):
        await pilot.press("6", "m", "R", "down", "space", "enter")
        await pilot.pause()
        assert "2 runs" in shown(app)
        await pilot.press("b", "a", "X", "plus", "h", "h")
        await pilot.pause()
        text = shown(app)
        assert "(base)" in text
        assert "averaged" in text
        assert "time " in text
        assert "zoomed" in text
        assert text.count("╭─") >= 4, "one large and three small curves"


async def test_the_recording_in_the_repository_tells_nothing_of_the_machine_it_was_made_on() -> None:
    assert TAPE.stat().st_size < 300_000
    tape = Tape(TAPE)
    types = {FRAMES: FrameAt, KEY: FrameAt, POINTS: PointsAt, ANSWERS: AnswerAt}
    words = repr([tape.records(block, types[block.kind]) for block in tape.blocks])  # type: ignore[type-var]
    tape.close()
    for bad in ("/tmp/", "/root", "/home/", "/work", "PRIVATE KEY", "password"):
        assert bad not in words, bad
    assert ENVIRONMENT["LANG"] == "C.UTF-8"


async def test_a_picture_of_the_same_moment_has_the_same_bytes() -> None:
    pictures = []
    for _ in range(2):
        async with replayed(IN_TRAINING, (80, 24)) as (app, pilot):
            await pilot.press("6")
            await settled(app, pilot)
            pictures.append(app.export_screenshot(title="hypha-tui"))
    assert pictures[0] == pictures[1]
