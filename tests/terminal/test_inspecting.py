"""Looking at one thing closely: the inspector and its jumps, logs, events, the map of slices."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from hypha_tui.screens.inspection import InspectorPane
from hypha_tui.screens.value import ValueScreen
from hypha_tui.widgets.event_log import EventLog
from node.views import Event, LogChunk, SliceMap
from tests.terminal.feed import FakeClient, cluster_items, events, lease, peer_id, points
from tests.terminal.harness import terminal

pytestmark = pytest.mark.asyncio


@dataclass
class Writing(FakeClient):
    """A client whose tasks write what the test wants, and whose jobs have as many slices."""

    written: list[str] = field(default_factory=lambda: ["epoch 1"])
    states: str = ""

    async def logs(self, job_id: str, task_id: str = "", lines: int = 200) -> list[LogChunk]:
        """What the test wants."""
        return [LogChunk(task_id=task_id or "t", peer_id=peer_id(4), lines=self.written[-lines:])]

    async def slice_map(self, job_id: str) -> SliceMap:
        """So many slices."""
        if not self.states:
            return await super().slice_map(job_id)
        return SliceMap(job_id=job_id, dataset="stdlib-bytes", pass_=1, states=self.states)


def client() -> Writing:
    return Writing(items=cluster_items(4), past_events=events(40), history=points())


async def test_the_life_of_a_lease_is_told_live_beside_the_table_and_one_jumps_from_there_and_back() -> None:
    async with terminal(client=client(), size=(120, 40)) as shown:
        await shown.press("3", "i")
        assert "[Timeline]" in shown.text
        assert "renewal" in shown.text
        assert "offered to job diloco-7 at 1.2" in shown.text
        pane = next(iter(shown.app.main.view.query(InspectorPane).results()))
        before = pane.text
        await shown.later(0.5)
        assert pane.text != before, "it is live"
        await shown.press("enter")
        assert f"lease {lease(0, remaining_s=1.0).id} of w-ams-00   [Summary]" in shown.text
        await shown.press("d")
        assert '"kind": "lease"' in shown.text
        await shown.press("o")
        assert "related to lease" in shown.text
        assert "1  job" in shown.text
        await shown.press("1")
        assert "job diloco-7   [Summary]" in shown.text
        await shown.press("left_square_bracket")
        assert "lease" in shown.text
        assert "of w-ams-00   [Summary]" in shown.text
        await shown.press("right_square_bracket")
        assert "job diloco-7   [Summary]" in shown.text
        await shown.press("j", "enter")
        assert "12 of 50" in shown.text
        assert isinstance(shown.app.screen, ValueScreen), "a line of it, whole"
        await shown.press("escape", "escape")
        assert "[3 Leases]" in shown.text


async def test_a_log_is_followed_until_one_scrolls_and_narrowed_by_words() -> None:
    """T9, T11, T53: the tail first, nothing moves under the reader, new lines are there when wanted."""
    own = client()
    own.written = [f"step {number}" for number in range(300)]
    async with terminal(client=own, size=(80, 24)) as shown:
        await shown.press("5", "L")
        assert "step 299" in shown.text
        own.written += ["step 300", "ValueError: bad"]
        await shown.later(2.5)
        assert "ValueError: bad" in shown.text
        await shown.press("k")
        before = [line for line in shown.lines if "step" in line]
        own.written += [f"step {number}" for number in range(301, 340)]
        await shown.later(2.5)
        assert [line for line in shown.lines if "step" in line] == before
        await shown.press("G")
        assert "step 339" in shown.text
        await shown.press("slash", *"alueerr", "enter")
        assert "ValueError: bad" in shown.text
        assert "step 339" not in shown.text
        await shown.press("escape")
        assert "[5 Jobs]" in shown.text


async def test_events_keep_their_place_sideways_wrap_find_and_tell_themselves_in_full() -> None:
    """T10, T53, T55."""
    words = "a long story " * 12 + "with an end"
    own = client()
    own.past_events.append(Event(node=peer_id(3), seq=900, name="task.failed", text=words, level="error"))
    async with terminal(client=own, size=(80, 24)) as shown:
        await shown.press("7", "dollar_sign")
        assert "with an end" in shown.text
        for number in range(3):
            shown.client.send(events=[Event(node=peer_id(3), seq=901 + number, name="x", text="short")])
            await shown.settle()
        assert "with an end" in shown.text, "the place sideways is kept"
        await shown.press("0", "s", "s")
        log = shown.app.main.view.query_one(EventLog)
        assert "errors only" in log.state_line
        assert "renewal.late" not in shown.text
        await shown.press("w")
        assert "with an end" in shown.text
        await shown.press("w", "s", "slash", *"late", "enter")
        assert "slice.used" not in shown.text
        await shown.press("n")
        assert "slice.used" in shown.text, "in full view"
        first = log.copy_line
        await shown.press("N")
        assert "renewal.late" in first
        assert log.copy_line != first
        await shown.press("escape", "T")
        assert "22:" not in "".join(shown.lines[2:20])
        await shown.press("slash", *"story", "enter", "k", "enter")
        assert "event 41   [Summary]" in shown.text
        assert "with an end" in shown.text
        await shown.press("o")
        assert "told by" in shown.text


@pytest.mark.parametrize("slices", [24, 100_000])
async def test_the_map_shows_every_slice_and_reads_out_the_one_under_the_cursor(slices: int) -> None:
    own = client()
    own.states = "" if slices == 24 else "u" * (slices // 2) + "." * (slices - slices // 2)
    async with terminal(client=own, size=(80, 24)) as shown:
        await shown.press("4", "tab", "tab")
        if slices == 24:
            assert "Slices of stdlib-bytes in pass 1 of diloco-7" in shown.text
            assert "used 9  " in shown.text
            await shown.press(*["l"] * 9)
            assert "slice 9  assigned  2,048 of 2,048 rows at w-fra-01" in shown.text
            await shown.press("enter")
            assert "peer w-fra-01   [Summary]" in shown.text
        else:
            assert f"used {slices // 2:,}" in shown.text
            assert " a cell" in shown.text
            await shown.press("G")
            assert f"to {slices - 1:,}  available" in shown.text
