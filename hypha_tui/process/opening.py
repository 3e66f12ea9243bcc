"""Opening the terminal: what it shows, and what must be so before Textual is imported."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from hypha_tui.client.endpoint import Endpoint
from hypha_tui.keys.presets import keymap_for
from hypha_tui.options import Display, Reach
from hypha_tui.settings.config import load
from hypha_tui.settings.contexts import Contexts
from node.errors import ConfigError, HyphaError

if TYPE_CHECKING:
    from hypha_tui.client.api import Client


def open_terminal(reach: Reach, display: Display) -> int:
    """The terminal until it is left; its exit code."""
    settings = load(os.environ, display.given(reach))
    keymap_for(settings.config.preset, settings.keys)
    contexts = Contexts(settings, os.environ)
    context, endpoint = contexts.first(reach.connection()) if display.replay is None else (None, None)
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise HyphaError("the terminal needs a terminal", hint="for scripts: hypha-tui jobs --json, and the like")
    _prepare()
    from hypha_tui.process.ending import HUNG_UP, let_go
    from hypha_tui.screens.app import HyphaApp

    client, label = _client(endpoint, display.record, display.replay)
    app = HyphaApp(client, label=label, settings=settings, context=context, contexts=contexts)
    app.run(mouse=settings.config.mouse)
    if app.crash:
        raise HyphaError(app.crash)
    code = app.return_code or 0
    if code == HUNG_UP:
        let_go()
    return code


def _client(endpoint: Endpoint | None, record: Path | None, replay: Path | None) -> tuple[Client, str]:
    """What the terminal shows, and what it is called."""
    if endpoint is None:
        from hypha_tui.client.replay import ReplayClient

        assert replay is not None
        if record is not None:
            raise ConfigError("--record and --replay exclude each other", hint="a recording is a file already")
        return ReplayClient(replay), f"recording {replay.name}"
    from hypha_tui.client.api import ApiClient

    client = ApiClient(endpoint, readonly=endpoint.readonly)
    if record is None:
        return client, str(endpoint)
    from hypha_tui.client.recording import RecordingClient

    return RecordingClient(client, record), str(endpoint)


def _prepare() -> None:
    """Textual reads these when it is imported. Until the first frame nothing is garbage: the app turns the collector
    on again."""
    import gc

    gc.disable()
    os.environ.setdefault("TEXTUAL_ANIMATIONS", "none")
    os.environ.setdefault("TEXTUAL_SMOOTH_SCROLL", "0")
    os.environ.setdefault("TEXTUAL_FPS", "15" if os.environ.get("SSH_TTY") else "30")
    os.environ.setdefault("ESCDELAY", "50")
    for name in ("COLUMNS", "LINES"):  # exported by a shell, they would hide every resize
        os.environ.pop(name, None)
    if os.environ.get("NO_COLOR") == "":
        del os.environ["NO_COLOR"]
