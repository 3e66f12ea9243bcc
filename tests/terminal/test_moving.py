"""Moving about: history, panes, zoom, panels, counts, the palette, copying, other clusters, and only looking."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from textual.events import Key
from textual.widgets import Input

from hypha_tui.client.endpoint import Endpoint
from hypha_tui.screens.keystrokes import Keystrokes
from hypha_tui.settings.config import Context, ContextConfig, FileConfig, Settings
from hypha_tui.settings.contexts import Contexts
from hypha_tui.widgets.live_table import LiveTable
from node.errors import ConfigError, PeerUnreachable
from node.views import Frame, Snapshot
from tests.terminal.feed import FakeClient, fake_client, lease
from tests.terminal.harness import UTF8, Terminal, terminal

pytestmark = pytest.mark.asyncio


@pytest.fixture
def by_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys that wait are forgotten by the test's clock alone, however slow the machine is."""
    monkeypatch.setattr(Keystrokes, "forget", lambda self: None)


def leases(shown: Terminal) -> LiveTable:
    return shown.app.screen.query_one("#leases-table", LiveTable)


async def done(shown: Terminal, group: str) -> None:
    """Wait for the workers of a group."""
    for worker in [one for one in shown.app.workers if one.group == group]:
        await worker.wait()
    await shown.settle()


async def test_history_goes_back_and_on_with_filter_and_row_and_escape_closes_one_layer_at_a_time() -> None:
    """T22, T46, T47."""
    async with terminal(8) as shown:
        await shown.press("3", "j", "j")
        row = leases(shown).cursor_id
        await shown.press("5", "slash", *"broken", "enter")
        await shown.press("left_square_bracket")
        assert "[3 Leases]" in shown.text
        assert leases(shown).cursor_id == row
        await shown.press("right_square_bracket")
        assert "[5 Jobs]" in shown.text
        assert "/broken" in shown.text
        await shown.press("minus")
        assert "[3 Leases]" in shown.text
        await shown.press("minus", "question_mark")
        assert "Keys on Jobs" in shown.text
        await shown.press("escape")
        assert "/broken" in shown.text
        await shown.press("escape")
        assert "/broken" not in shown.text
        assert "[5 Jobs]" in shown.text
        await shown.press("escape")
        assert "[3 Leases]" in shown.text
        await shown.press("7", "right_square_bracket")
        assert "there is no other place to go to" in shown.text


async def test_a_number_moves_so_many_rows_and_shows_while_it_waits(by_the_clock: None) -> None:
    async with terminal(60) as shown:
        await shown.press("3", "g", "g")
        first = leases(shown).order.index(leases(shown).cursor_id or "")
        assert first == 0
        shown.app.post_message(Key("1", "1"))
        shown.app.post_message(Key("0", "0"))
        await shown.settle()
        assert "[3 Leases]" in shown.text
        assert "10_" in shown.text
        await shown.press("j")
        assert leases(shown).order.index(leases(shown).cursor_id or "") == 10
        assert "10_" not in shown.text
        await shown.press("9", "escape", "g")
        assert "g_" in shown.text
        await shown.press("g", "3", "0", "j")
        assert leases(shown).order.index(leases(shown).cursor_id or "") == 30
        await shown.press("left_square_bracket")
        assert "[1 Overview]" in shown.text


async def test_any_number_counts_where_it_began_and_the_screens_of_its_digits_are_taken_back(
    by_the_clock: None,
) -> None:
    async with terminal(60) as shown:
        await shown.press("3", "g", "g")
        await shown.later(1.0)
        await shown.press("2", "5")
        assert "[5 Jobs]" in shown.text
        assert "25_" in shown.text
        await shown.press("j")
        assert "[3 Leases]" in shown.text
        assert leases(shown).order.index(leases(shown).cursor_id or "") == 25
        await shown.press("4", "6", "G")
        assert leases(shown).order.index(leases(shown).cursor_id or "") == 45
        await shown.press("0", "5", "k")
        assert leases(shown).order.index(leases(shown).cursor_id or "") == 40
        await shown.press("1", "2", "g", "g", "left_square_bracket")
        assert "[1 Overview]" in shown.text, "what was taken back is no place of the history"
        await shown.press("2", "5")
        await shown.later(1.0)
        await shown.press("j")
        assert "[5 Jobs]" in shown.text


async def test_panes_are_zoomed_jumped_to_and_taken_off_and_tabs_are_clicked(tmp_path: Path) -> None:
    """T40, T42: what is taken off stays off over a restart."""
    environment = {**UTF8, "XDG_STATE_HOME": str(tmp_path)}
    async with terminal(environment=environment) as shown:
        await shown.press("apostrophe")
        assert " a " in shown.text
        await shown.press("s")
        assert shown.app.focused is not None
        assert shown.app.focused.id == "over-events"
        await shown.press("z")
        assert "Events" in shown.text
        assert "─ Leases" not in shown.text
        await shown.press("escape")
        assert "─ Leases" in shown.text
        shown.app.main.commands.run("panel leases")
        await shown.press("ctrl+e")
        assert "─ Leases" not in shown.text
        assert "gateway" not in shown.lines[0]
        at = next(line for line in shown.lines if "[1 Overview]" in line).index("5 Jobs")
        await shown.pilot.click("#tabs", offset=(at + 2, 0))
        await shown.settle()
        assert "[5 Jobs]" in shown.text
        await done(shown, "layout")
    async with terminal(environment=environment) as shown:
        assert "─ Leases" not in shown.text
        assert "gateway" not in shown.lines[0]


async def test_the_palette_finds_keys_and_commands_by_any_part_of_their_name() -> None:
    async with terminal() as shown:
        await shown.press("ctrl+p", *"ext th")
        assert "Keys and commands" in shown.text
        await shown.press("enter")
        assert "theme hypha-" in shown.text
        await shown.press("ctrl+p", *"inspect a", "enter")
        await shown.press(*"dilo", "tab", "enter")
        assert "round" in shown.text
        await shown.press("left_square_bracket")


async def test_ids_and_objects_are_copied_through_the_terminal_and_a_view_is_written_to_a_file(tmp_path: Path) -> None:
    """T30. A file that exists is only replaced when that is confirmed."""
    async with terminal(3) as shown:
        written: list[str] = []
        shown.app.write_to_terminal = written.append  # type: ignore[method-assign]
        await shown.press("3", "y")
        await done(shown, "copy")
        await shown.settle()
        assert "copied 1 id through the terminal" in shown.text
        await shown.press("Y")
        await done(shown, "copy")
        ids, objects = (base64.b64decode(one.split(";")[2][:-1]).decode() for one in written)
        assert ids == leases(shown).cursor_id
        assert json.loads(objects)["id"] == ids
        file = tmp_path / "leases.csv"
        await shown.press("e")
        assert "write to" in shown.text
        shown.app.screen.query_one("#prompt-input", Input).value = str(file)
        await shown.press("enter")
        assert file.read_text().count("\n") == 4
        file.write_text("precious")
        shown.app.main.commands.run(f"save {file}")
        await shown.settle()
        await shown.press("enter")
        assert file.read_text() == "precious"
        shown.app.main.view.set_filter("fra")
        shown.app.main.commands.run(f"save {file.with_suffix('.json')}")
        await shown.settle()
        assert len(json.loads(file.with_suffix(".json").read_text())) == 1


async def test_text_is_selected_by_dragging_and_copied_with_ctrl_c() -> None:
    """T29."""
    async with terminal() as shown:
        written: list[str] = []
        shown.app.write_to_terminal = written.append  # type: ignore[method-assign]
        await shown.press("8")
        line = next(number for number, one in enumerate(shown.lines) if "terminal" in one and "theme" in one)
        start = shown.lines[line].index("theme")
        await shown.pilot.mouse_down(offset=(start, line))
        await shown.pilot.hover(offset=(start + 10, line))
        await shown.pilot.mouse_up(offset=(start + 10, line))
        await shown.press("ctrl+c")
        await done(shown, "copy")
        assert base64.b64decode(written[0].split(";")[2][:-1]).decode().startswith("theme hyp")


class DeadLink(FakeClient):
    """Nothing ever answers, and no error comes."""

    async def frames(self) -> AsyncIterator[Frame]:
        """Never anything."""
        self.connections += 1
        await asyncio.Event().wait()
        yield Snapshot(seq=0)


class TwoClusters(Contexts):
    """`lab` works, `prod` is marked production and only read, `gone` has no node."""

    def __init__(self) -> None:
        super().__init__(
            Settings(FileConfig(), {}, {}, {name: ContextConfig() for name in ("lab", "prod", "gone")}), {}
        )
        self.clients: dict[str, FakeClient] = {}

    def endpoint(self, name: str) -> tuple[Context, Endpoint]:
        if name == "gone":
            raise PeerUnreachable("no node runs there")
        if name not in self.names:
            raise ConfigError(f"no context {name!r}")
        is_prod = name == "prod"
        return Context(name, production=is_prod, readonly=is_prod), Endpoint(socket=Path(f"/{name}.sock"))

    def client(self, endpoint: Endpoint, readonly: bool) -> FakeClient:
        found = self.clients[str(endpoint)] = fake_client(1)
        found.items.append(lease(9, remaining_s=5.0))
        return found


async def test_another_cluster_is_opened_while_the_link_is_dead_and_its_care_is_on_screen() -> None:
    """T26, T27, T50."""
    contexts = TwoClusters()
    async with terminal(client=DeadLink(), contexts=contexts, open_client=contexts.client) as shown:
        assert "connecting" in shown.text
        shown.app.main.commands.run("ctx gone")
        await shown.settle()
        assert "no node runs there" in shown.text
        await shown.press("colon", *"ctx pr", "tab", "enter")
        await shown.settle()
        assert "prod PRODUCTION RO" in shown.lines[0]
        assert "live" in shown.text
        assert "connecting" not in shown.text
        assert shown.app.context.production
        await shown.press("3")
        assert leases(shown).total == 2
        assert shown.client.connections == 1
        shown.app.main.commands.run("readonly on")
        shown.app.main.commands.run("ctx lab")
        await shown.settle()
        assert "PRODUCTION" not in shown.text
        assert shown.app.context.readonly


async def test_a_users_keys_are_in_force_in_the_footer_and_a_clash_is_told_at_the_start() -> None:
    settings = Settings(FileConfig(preset="vim"), {}, {"table.sort": "B", "header": "r"}, {})
    async with terminal(30, settings=settings) as shown:
        assert "keys: r is both header and refresh; change one in [keys]" in shown.text
        await shown.press("g", "3")
        assert "[3 Leases]" in shown.text
        assert "B sort" in shown.lines[-1]
        await shown.press("g", "g", "2", "5", "j")
        assert leases(shown).order.index(leases(shown).cursor_id or "") == 25
