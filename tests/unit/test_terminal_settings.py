"""The terminal's configuration, contexts, what it keeps over restarts, and copying."""

from __future__ import annotations

import asyncio
import base64
import stat
from pathlib import Path

import pytest

from hypha_tui import cli
from hypha_tui.client.endpoint import Connection
from hypha_tui.process.clipboard import LARGEST_OSC52, Clipboard, osc52, way_for
from hypha_tui.screens.history import History, Visit
from hypha_tui.settings import layout
from hypha_tui.settings.config import Given, load, rows
from hypha_tui.settings.contexts import Contexts
from hypha_tui.settings.folders import state_folder, write_private
from hypha_tui.settings.layout import Layout
from hypha_tui.settings.recall import LONGEST, Recall
from node.errors import ConfigError

CONFIG = """# mine
theme = "hypha-light"
context = "lab"
[keys]
table.sort = "o"
[contexts.lab]
node = "/ip4/10.0.0.1/tcp/1"
cert = "ada-cert.pem"
[contexts.prod]
node = "/ip4/10.0.0.2/tcp/1"
cert = "/secrets/ada-cert.pem"
production = true
readonly = true
"""


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    """An environment whose configuration is CONFIG."""
    folder = tmp_path / "hypha-tui"
    folder.mkdir()
    (folder / "config.toml").write_text(CONFIG)
    return {"XDG_CONFIG_HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path / "state"), "TERM": "xterm"}


def mended(home: dict[str, str], text: str) -> dict[str, str]:
    (Path(home["XDG_CONFIG_HOME"]) / "hypha-tui" / "config.toml").write_text(text)
    return home


# ---- configuration ------------------------------------------------------------------------------------------


def test_flags_beat_the_environment_that_beats_the_file_and_each_value_tells_its_origin(home: dict[str, str]) -> None:
    """T58."""
    found = load({**home, "HYPHA_TUI_HZ": "2", "HYPHA_TUI_THEME": "nord"}, Given(theme="hypha-mono"))
    assert (found.config.theme, found.config.hz) == ("hypha-mono", 2.0)
    origins = {key: origin for key, _, origin in rows(found)}
    assert origins["theme"] == "flag"
    assert origins["hz"] == "environment"
    assert origins["context"] == "file"
    assert origins["mouse"] == "default"
    assert origins["keys.table.sort"] == "file"
    assert "contexts.prod.production" in origins


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("them = 1", r"config.toml: line 1: them: unknown key; did you mean theme\?"),
        ("\nhz = 70", r"config.toml: line 2: hz: 70 is not between 0.2 and 10"),
        ("[contexts.a]\nnodes = 'x'", r"line 2: contexts.a.nodes: unknown key; did you mean node\?"),
        (
            "[contexts.a]\nnode = 'x'\nstate_dir = 'y'",
            "line 3: contexts.a.state_dir: a context has a node or a state_dir",
        ),
        ("mouse = 'x'", "line 1: mouse: expected bool, not 'x'"),
        ("preset = 'emacs'", "line 1: preset: 'emacs' is not one of default, vim, plain"),
        ("[keys]\nq = 1", "line 2: keys.q: expected keys as text, not 1"),
        ("theme = ", "config.toml: not valid TOML"),
    ],
)
def test_a_bad_key_is_one_line_with_the_file_and_the_key(home: dict[str, str], text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem) as caught:
        load(mended(home, text))
    assert "\n" not in str(caught.value)


def test_a_bad_flag_or_variable_is_named_by_its_own_name() -> None:
    with pytest.raises(ConfigError, match="--preset: preset: 'emacs'"):
        load({}, Given(preset="emacs"))
    with pytest.raises(ConfigError, match="HYPHA_TUI_MOUSE is 'perhaps'"):
        load({"HYPHA_TUI_MOUSE": "perhaps"})


def test_settings_are_shown_and_the_file_is_never_written(
    home: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """T58."""
    for name, value in home.items():
        monkeypatch.setenv(name, value)
    assert cli.run(["config", "show"]) == 0
    assert "hypha-light" in capsys.readouterr().out
    assert cli.run(["contexts"]) == 0
    shown = capsys.readouterr().out
    assert "* " in shown
    assert "production, read-only" in shown
    assert cli.run(["contexts", "--json"]) == 0
    assert '"production": true' in capsys.readouterr().out
    assert (Path(home["XDG_CONFIG_HOME"]) / "hypha-tui" / "config.toml").read_text() == CONFIG
    mended(home, "them = 1")
    assert cli.run(["config", "show"]) == 2
    assert "unknown key" in capsys.readouterr().err


# ---- contexts -----------------------------------------------------------------------------------------------


def test_a_context_is_opened_by_flag_environment_or_file_and_flags_fill_in_the_rest(home: dict[str, str]) -> None:
    context, endpoint = Contexts(load(home), home).first(Connection())
    assert (context.name, str(endpoint)) == ("lab", "/ip4/10.0.0.1/tcp/1")
    assert endpoint.cert == Path(home["XDG_CONFIG_HOME"]) / "hypha-tui" / "ada-cert.pem"
    here = {**home, "HYPHA_TUI_NODE": "/ip4/9.9.9.9/tcp/9", "HYPHA_TUI_CERT": "/c/x-cert.pem"}
    context, endpoint = Contexts(load(here), here).first(Connection())
    assert (context.name, str(endpoint)) == ("", "/ip4/9.9.9.9/tcp/9")
    settings = load(here, Given(context="prod"))
    context, endpoint = Contexts(settings, here).first(Connection(cert=Path("/d/bob-cert.pem")))
    assert (context.name, context.production, context.readonly) == ("prod", True, True)
    assert (str(endpoint), endpoint.cert, endpoint.readonly) == ("/ip4/10.0.0.2/tcp/1", Path("/d/bob-cert.pem"), True)


def test_an_unknown_context_names_those_there_are(home: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="no context 'labb'; there are lab, prod"):
        Contexts(load(home), home).endpoint("labb")


# ---- kept over restarts -------------------------------------------------------------------------------------


def test_lines_of_the_command_line_are_kept_bounded_and_private(tmp_path: Path) -> None:
    """T46."""
    file = tmp_path / "state" / "commands"
    recall = Recall(file)
    for number in range(LONGEST + 50):
        recall.add(f"jobs {number}")
    recall.add(f"jobs  {LONGEST + 49}")
    recall.save()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    again = Recall(file)
    assert again.move(-1) == f"jobs {LONGEST + 49}"
    assert again.move(-1) == f"jobs {LONGEST + 48}"
    assert again.move(1) == f"jobs {LONGEST + 49}"
    assert again.move(1) == ""
    assert len(file.read_text().splitlines()) == LONGEST


def test_panels_that_were_taken_off_are_kept_and_a_broken_file_is_as_none(tmp_path: Path) -> None:
    file = tmp_path / "layout.json"
    kept = Layout(header=False).toggled("overview", "leases").toggled("overview", "curve").toggled("overview", "leases")
    kept.save(file)
    assert layout.load(file) == kept
    assert kept.hidden == {"overview": ["curve"]}
    file.write_text('{"header": 1, "hidden": [')
    assert layout.load(file) == Layout()


def test_a_private_file_is_whole_or_not_there(tmp_path: Path) -> None:
    write_private(tmp_path / "a" / "b", "x")
    assert [one.name for one in (tmp_path / "a").iterdir()] == ["b"]
    (tmp_path / "taken").mkdir()
    with pytest.raises(OSError, match="directory"):
        write_private(tmp_path / "taken", "x")
    assert sorted(one.name for one in tmp_path.iterdir()) == ["a", "taken"]
    assert state_folder({}) is None


def test_history_goes_back_and_on_and_a_new_jump_drops_what_was_ahead() -> None:
    """T46."""
    history = History(Visit("overview"))
    for screen in ("jobs", "leases", "peers"):
        history.visit(Visit(screen))
    history.note(Visit("peers", "ams", ("peer", "p1")))
    assert history.step(1) is None
    assert history.step(-1) == Visit("leases")
    assert history.last() == Visit("peers", "ams", ("peer", "p1"))
    assert history.last() == Visit("leases")
    history.visit(Visit("events"))
    assert history.step(1) is None
    assert history.undo() == Visit("leases")
    assert [history.step(-1), history.step(-1), history.step(-1)] == [Visit("jobs"), Visit("overview"), None]
    for number in range(1_000):
        history.visit(Visit(str(number)))
    assert len(history._visits) == 100


# ---- copying ------------------------------------------------------------------------------------------------


def test_the_way_of_copying_fits_the_place_and_the_size() -> None:
    term = {"TERM": "xterm"}
    assert way_for("x", term, program=True, in_browser=False) == "program"
    assert way_for("x", {**term, "SSH_TTY": "/dev/pts/0"}, program=True, in_browser=False) == "terminal"
    assert way_for("x" * LARGEST_OSC52, term, program=False, in_browser=False) == "file"
    assert way_for("x", {"TERM": "linux"}, program=False, in_browser=False) == "file"
    assert way_for("x", term, program=True, in_browser=True) == "file"


def test_copying_tells_which_way_it_went_and_falls_back(home: dict[str, str], tmp_path: Path) -> None:
    written: list[str] = []
    here = {**home, "DISPLAY": ":0", "PATH": str(tmp_path / "bin")}
    assert asyncio.run(Clipboard(here, written.append, in_browser=False).copy("w-é")) == "through the terminal (OSC 52)"
    assert written == [osc52("w-é")]
    assert base64.b64decode(written[0][7:-1]).decode() == "w-é"
    long = "x" * LARGEST_OSC52
    way = asyncio.run(Clipboard(here, written.append, in_browser=False).copy(long))
    file = tmp_path / "state" / "hypha-tui" / "copied.txt"
    assert way == f"to {file}"
    assert file.read_text() == long
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    program = tmp_path / "bin" / "xclip"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\nexec /bin/cat > {tmp_path}/clip\n")
    program.chmod(0o700)
    assert asyncio.run(Clipboard(here, written.append, in_browser=False).copy("hello")) == "with xclip"
    assert (tmp_path / "clip").read_text() == "hello"
    program.write_text("#!/bin/sh\nexit 1\n")
    assert asyncio.run(Clipboard(here, written.append, in_browser=False).copy("again")).startswith("through")
