"""The twin commands: data on stdout, one line on stderr, exit codes as an API."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hypha_tui.cli import run
from hypha_tui.client.endpoint import Endpoint
from hypha_tui.exits import exit_code
from hypha_tui.twin import jobs as commands
from hypha_tui.twin import lists
from hypha_tui.twin import steering as steering_commands
from hypha_tui.twin.listing import Listing
from node.errors import Refused
from node.version import __version__
from node.views import Problem
from tests.terminal.feed import WHOLE_JOB
from tests.unit.test_terminal_client import served


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["peerz"], 2, "there is no command 'peerz'"),
        (["--node", "unix:/x", "jobs"], 2, "options go after the command 'jobs'"),
        (["metrics"], 2, "JOB"),
        (["jobs", "broken"], 2, "jobs has no use for 'broken'; `hypha-tui jobs --help`"),
        (["jobs", "--watch", "soon"], 2, "jobs has no use for 'soon'"),
        (["overview", "--csv"], 2, "overview is not a list, which --csv is for; use --json"),
        (["logs", "j", "--filter", "x"], 2, "logs is not a list, which --filter is for"),
        (["job", "nope"], 2, "resume, export"),
        (["job", "resume"], 2, "JOB"),
        (["job", "export", "j"], 2, "--to"),
        (["job", "export", "j", "--to", "x", "--node", "unix:/nonexistent/socket"], 3, "cannot reach"),
        (["jobs", "--node", "nonsense"], 2, "neither a multiaddr nor"),
        (["jobs", "--node", "/ip4/127.0.0.1/tcp/1"], 2, "operator's certificate"),
        (["jobs"], 3, "no node to connect to"),
        (["jobs", "--node", "unix:/nonexistent/socket"], 3, "cannot reach"),
        (["submit", "/nonexistent.toml", "--node", "unix:/x"], 2, "does not exist"),
    ],
)
def test_every_error_is_one_line_with_a_hint_and_its_exit_code(
    arguments: list[str],
    code: int,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert run(arguments) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("hypha-tui: ")
    assert err.count("\n") == 1
    assert words in err
    assert "; " in err


def test_what_a_node_says_is_one_line_that_moves_no_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    def refused() -> int:
        raise Refused("x", "no\x1b[2J\x9b1mroom\nhere")

    assert exit_code(refused) == 1
    assert capsys.readouterr().err == "hypha-tui: no\ufffd[2J\ufffd1mroom here\n"


def test_version_is_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"{__version__}\n"


def test_without_a_terminal_it_points_to_the_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--node", f"unix:{tmp_path}/s"]) == 1
    assert "jobs --json" in capsys.readouterr().err


@pytest.mark.asyncio
async def test_json_is_one_document_and_a_table_has_the_columns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with served(tmp_path):
        endpoint = Endpoint(socket=tmp_path / "s")
        assert await lists.objects(endpoint, "jobs", Listing(as_json=True)) == 0
        (found,) = json.loads(capsys.readouterr().out)
        assert (found["kind"], found["id"], found["round"]) == ("job", "diloco-7", 12)


@pytest.mark.asyncio
async def test_submit_prints_the_id_and_nothing_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "job.toml").write_text(WHOLE_JOB)
    async with served(tmp_path):
        code = await commands.submit(Endpoint(socket=tmp_path / "s"), tmp_path / "job.toml", wait=False, as_json=False)
    assert (code, capsys.readouterr().out) == (0, "tiny-1\n")


@pytest.mark.asyncio
async def test_a_job_is_found_by_the_beginning_of_its_id_and_an_unknown_one_is_refused(tmp_path: Path) -> None:
    async with served(tmp_path) as (node, _):
        endpoint = Endpoint(socket=tmp_path / "s")
        assert await steering_commands.steer_job(endpoint, "cancel", "diloco", as_json=True) == 0
        assert node.requests[-1][1] == "/api/v1/jobs/diloco-7/cancel"
        with pytest.raises(Refused, match="no job 'other'"):
            await steering_commands.steer_job(endpoint, "cancel", "other", as_json=True)
        node.problem = Problem(status=409, code="conflict", title="x", detail="the job is over")
        with pytest.raises(Refused, match="the job is over"):
            await steering_commands.steer_job(endpoint, "cancel", "diloco", as_json=True)
