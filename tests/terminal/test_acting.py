"""Acting from the terminal: menus, confirmations, several targets, production."""

from __future__ import annotations

from dataclasses import replace

import pytest
from textual.widgets import Button

from hypha_tui.settings.config import Context
from node.errors import Refused
from tests.terminal.harness import terminal

pytestmark = pytest.mark.asyncio


async def test_marked_leases_are_released_after_one_question_that_names_them_all() -> None:
    async with terminal() as shown:
        await shown.press("3", "space", "j", "space", "x")
        assert "2 leases" in shown.text and "release the lease: 2 of 2..." in shown.text
        await shown.press("r")
        targets = [id_ for _, id_ in shown.app.main.view.marked]
        assert all(id_ in shown.text for id_ in targets)
        assert isinstance(shown.app.focused, Button) and shown.app.focused.id == "no"
        shown.client.refused[targets[1]] = Refused("unknown", "no lease")
        await shown.press("right", "enter")
        assert shown.client.acts == [("release", targets[0])]
        assert "1 of 2 released; " in shown.text and "no lease" in shown.text


async def test_a_worker_is_cordoned_at_once_and_drained_after_a_question_also_by_command() -> None:
    async with terminal() as shown:
        await shown.press("2", "slash", *"w-ams-00", "enter", "x", "o")
        assert [name for name, _ in shown.client.acts] == ["cordon"]
        await shown.press("x", "d")
        assert "Drain peer" in shown.text and "what can move does at the next commits" in shown.text
        assert "train of diloco-7: stays, others are busy" in shown.text
        await shown.press("right", "enter")
        assert [name for name, _ in shown.client.acts] == ["cordon", "drain"]
        await shown.press("colon", *"pause diloco-7", "enter")
        assert shown.client.acts[-1] == ("pause", "diloco-7")
        assert "job diloco-7 pauses after its next commit" in shown.text


async def test_many_targets_are_scrolled_through_between_the_question_and_its_answers() -> None:
    async with terminal(60, size=(80, 24)) as shown:
        await shown.press("3", "asterisk", "x", "r")
        assert "Release 60 leases?" in shown.text and "Keep it" in shown.text
        assert "What runs under it ends" in shown.text
        targets = [id_ for _, id_ in shown.app.main.view.marked]
        seen = {id_ for id_ in targets if id_ in shown.text}
        for _ in range(6):
            await shown.press("pagedown")
            seen |= {id_ for id_ in targets if id_ in shown.text}
        assert seen == set(targets)
        assert isinstance(shown.app.focused, Button) and shown.app.focused.id == "no"


async def test_what_is_inspected_is_acted_on_from_there_and_its_outcome_is_told() -> None:
    async with terminal(size=(80, 24)) as shown:
        await shown.press("3", "enter")
        assert "x act" in shown.lines[-1]
        inspected = shown.app.inspector
        await shown.press("x", "r", "right", "enter")
        assert inspected is not None
        assert shown.client.acts == [("release", inspected.object_id)]
        assert f"lease {inspected.object_id} is released" in shown.text
        assert shown.app.screen is inspected
        await shown.press("escape", "7", "enter", "x")
        assert "nothing can be done here" in shown.text


async def test_in_production_the_name_is_typed_and_read_only_does_nothing() -> None:
    async with terminal() as shown:
        shown.app.context = Context("live", production=True)
        await shown.press("5", "x", "p")
        assert "Type diloco-7 to go on." in shown.text
        await shown.press(*"wrong", "tab", "tab", "enter")
        assert shown.client.acts == [] and "Pause job diloco-7?" in shown.text
        await shown.press("enter", "enter")
        assert shown.client.acts == []
        await shown.press("x", "p", *"diloco-7", "enter", "enter")
        assert shown.client.acts == [("pause", "diloco-7")]
        shown.app.context = replace(shown.app.context, readonly=True)
        await shown.press("x")
        assert "read-only" in shown.text
        await shown.press("colon", *"cancel diloco-7", "enter")
        assert shown.client.cancelled == []
