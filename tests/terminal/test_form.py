"""The job form by keyboard at 80x24: offers, the user's editor, dry run, difference, draft, one job."""

from __future__ import annotations

import asyncio
import stat
import sys
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import pytest
from textual.widgets import Input, TextArea

from hypha_tui.client.jobfile import Body
from hypha_tui.screens.app import HyphaApp
from node.errors import PeerUnreachable
from node.views import SubmitResult
from tests.terminal.feed import WHOLE_JOB, FakeClient, cluster_items
from tests.terminal.harness import UTF8, Terminal, terminal

pytestmark = pytest.mark.asyncio
SMALL = (80, 24)


@dataclass
class SlowClient(FakeClient):
    """A client that holds a submission until the test lets it go; the first answer is lost."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.gate = asyncio.Event()

    async def submit(self, body: Body) -> SubmitResult:
        self.submitted.append(body)
        await self.gate.wait()
        if len(self.submitted) == 1:
            raise PeerUnreachable("the link broke", hint="try again")
        return SubmitResult(job_id=body.job_id, scheduler="s")


async def shows(terminal: Terminal, words: str) -> None:
    """Wait until these words are on the screen."""
    async with asyncio.timeout(15):
        while words not in terminal.text:
            await terminal.settle()


def text_of(terminal: Terminal) -> str:
    return terminal.app.screen.query_one(TextArea).text


async def test_it_says_what_the_cluster_offers_now_and_marks_the_field_that_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text(WHOLE_JOB)
    async with terminal(44, size=SMALL) as shown:
        shown.app._main.commands.run(f"submit {tmp_path}")
        await shows(shown, "offers now: 41 workers match, 2 needed")
        assert "stdlib-bytes: 24 slices, 49,152 rows, 403 MB, 1 provider" in shown.text
        await shown.press("tab", "tab", "tab", "tab", "9", "9")
        assert "0 workers match, 2 needed: 41 lack GPU memory (99 GB" in shown.text
        assert "asked), 3 cannot be reached" in shown.text
        assert "# a comment" in text_of(shown)
        await shown.press("backspace", "backspace", *["tab"] * 4, "0")
        assert "inner_optimizer.learning_rate: must be" in shown.text
        assert "!inner rate" in shown.text
        await shown.press("backspace", "1")
        assert "!inner rate" not in shown.text
        assert "ready  2 workers, 3 rounds, with its folder" in shown.text


async def test_an_earlier_job_or_a_file_is_compared_with_and_a_dry_run_sends_nothing(tmp_path: Path) -> None:
    async with terminal(4, size=SMALL) as shown:
        await shown.press("5", "a")
        assert "ctrl+f for one from diloco-7" in " ".join(shown.text.split())
        await shown.press("ctrl+f", "enter")
        await shows(shown, "ready")
        assert 'name = "diloco-8"' in text_of(shown)
        await shown.press("tab", "tab", "tab", "backspace", "5", "ctrl+g", "enter")
        await shows(shown, "before the arrow")
        assert "rounds.update_rounds" in shown.text
        assert "3 → 5" in shown.text
        other = tmp_path / "other.toml"
        other.write_text(WHOLE_JOB.replace("num_workers = 2", "num_workers = 7"))
        await shown.press("escape", "ctrl+g", "tab")
        shown.app.screen.query_one("#choice-file", Input).value = str(other)
        await shown.press("enter")
        await shows(shown, "resources.num_workers")
        assert "7 → 2" in shown.text
        await shown.press("escape", "ctrl+g", "tab", *"/none", "enter")
        await shows(shown, "/none does not exist")
        await shown.press("ctrl+t")
        await shows(shown, "nothing was sent")
        assert "model: it has no repository" in " ".join(shown.text.split())
        await shown.press("escape", "escape")
        assert shown.client.submitted == []


async def test_a_file_is_compared_with_a_job_without_the_form(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    file = folder / "job.toml"
    file.write_text(WHOLE_JOB.replace("update_rounds = 3", "update_rounds = 9"))
    async with terminal(4, size=SMALL) as shown:
        await shown.press("5")
        shown.app.main.view.select(("job", "diloco-7"))
        shown.app.main.commands.run(f"diff {file}")
        await shows(shown, "and diloco-7 before the arrow")
        assert "3 → 9" in shown.text
        await shown.press("escape")
        file.write_text("rounds = 1")
        shown.app.main.commands.run(f"diff {folder}")
        await shows(shown, "mine/job.toml: line 1: rounds: expected object")
        assert shown.app.screen is shown.app.main, "what is wrong is one line"
        shown.app.main.commands.run("diff")
        await shows(shown, "a job's TOML file, or a folder")


async def test_pressed_twice_or_sent_again_it_is_one_job(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text(WHOLE_JOB)
    client = SlowClient(items=cluster_items(4))
    async with terminal(client=client, size=SMALL) as shown:
        shown.app._main.commands.run(f"submit {tmp_path}")
        await shows(shown, "ready")
        await shown.press("ctrl+r", "ctrl+r")
        await shows(shown, "submitting")
        client.gate.set()
        await shows(shown, "the link broke; try again")
        assert len(client.submitted) == 1
        await shown.press("ctrl+r")
        await shows(shown, "is accepted by")
        first, second = client.submitted
        assert first.job_id == second.job_id


async def test_the_text_is_edited_in_the_users_editor_whose_failure_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HyphaApp, "suspend", lambda self: nullcontext())
    (tmp_path / "job.toml").write_text(WHOLE_JOB)
    editor = tmp_path / "editor.py"
    editor.write_text(
        "import pathlib, sys\nfile = pathlib.Path(sys.argv[1])\ntext = file.read_text()\n"
        "sys.exit(3) if 'tiny' not in text else file.write_text(text.replace('tiny', 'big'))\n"
    )
    environment = UTF8 | {"EDITOR": f"{sys.executable} {editor}", "PATH": "/usr/bin:/bin"}
    async with terminal(size=SMALL, environment=environment) as shown:
        shown.app._main.commands.run(f"submit {tmp_path}")
        await shows(shown, "ready")
        await shown.press("ctrl+e")
        await shows(shown, 'name = "big"')
        assert shown.app.screen.query_one("#field-name", Input).value == "big"
        await shown.press("ctrl+e")
        await shows(shown, "ended with exit code 3; the text is as it was")
        assert 'name = "big"' in text_of(shown)


async def test_the_draft_is_kept_over_a_restart_for_its_owner_alone_until_it_is_sent(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text(WHOLE_JOB)
    environment = UTF8 | {"XDG_STATE_HOME": str(tmp_path / "state")}
    kept = tmp_path / "state" / "hypha-tui" / "draft.json"
    async with terminal(size=SMALL, environment=environment) as shown:
        shown.app._main.commands.run(f"submit {tmp_path}")
        await shows(shown, "ready")
        await shown.press("x", "escape")
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    async with terminal(size=SMALL, environment=environment) as shown:
        await shown.press("5", "a")
        assert 'name = "x"' in text_of(shown)
        assert "ready  2 workers, 3 rounds, with its folder" in shown.text
        await shown.press("ctrl+r")
        await shows(shown, "is accepted by sched-1")
        assert not kept.exists()
        await shown.press("a")
        assert text_of(shown) == ""
