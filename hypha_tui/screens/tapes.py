"""Recording and replaying, as the keys and commands of the main screen ask for it."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from hypha_tui.client.recording import RecordingClient
from hypha_tui.client.replay import SPEEDS, ReplayClient
from hypha_tui.store import text
from hypha_tui.store.moments import moment
from node.errors import ConfigError, HyphaError

if TYPE_CHECKING:
    from hypha_tui.screens.app import HyphaApp


class Tapes:
    """Puts a recording between the terminal and its node, or in the node's place."""

    def __init__(self, app: HyphaApp) -> None:
        self._app = app
        self._live_label = app.label

    def begin(self) -> None:
        """The loop runs: a recording that stops by itself is told of."""
        client, loop = self._app.client, asyncio.get_running_loop()

        def tell(words: str) -> None:
            loop.call_soon_threadsafe(self._app.main.say, words)

        if isinstance(client, RecordingClient):
            client.recorder.tell_to(tell)

    @property
    def replay(self) -> ReplayClient | None:
        """The recording that is shown."""
        return self._app.client if isinstance(self._app.client, ReplayClient) else None

    @property
    def mark(self) -> list[tuple[str, str]]:
        """For the header: that it records, and how much there is."""
        client = self._app.client
        if not isinstance(client, RecordingClient):
            return []
        recorder = client.recorder
        return [(" rec stopped", "late")] if recorder.problem else [(f" rec {text.size(recorder.size_bytes)}", "lost")]

    # ---- recording -------------------------------------------------------------------------------------

    def record(self, words: str) -> str:
        """`:record FILE` or `:record off`; what to say about it."""
        client = self._app.client
        if words in ("", "off"):
            if not isinstance(client, RecordingClient):
                return "nothing is recorded; :record FILE begins"
            self._app.start(partial(self._end, client), "record")
            return f"recorded to {client.recorder.path}"
        if isinstance(client, RecordingClient):
            return f"already recording to {client.recorder.path}; :record off ends it"
        if isinstance(client, ReplayClient):
            return "this is a recording already"
        try:
            self._app.client = RecordingClient(client, Path(words).expanduser())
        except HyphaError as error:
            return str(error)
        self.begin()
        self._app.restart_stream()
        return f"recording to {words}"

    async def _end(self, client: RecordingClient) -> None:
        self._app.client = client.inner
        self._app.restart_stream()
        await client.stop()

    # ---- replaying -------------------------------------------------------------------------------------

    def show(self, words: str) -> str:
        """`:replay FILE` or `:replay off`; what to say about it."""
        app, before = self._app, self._app.client
        if words in ("", "off"):
            if not isinstance(before, ReplayClient):
                return "no recording is shown; :replay FILE shows one"
            if before.behind is None:
                return "there is no node to go back to: q leaves"
            live, before.behind = before.behind, None
            app.begin_anew(live, self._live_label)
            app.start(before.close, "close", exclusive=False)
            return "back at the cluster"
        try:
            behind = before.behind if isinstance(before, ReplayClient) else before
            replay = ReplayClient(Path(words).expanduser(), clock=app.clock, behind=behind)
        except HyphaError as error:
            return str(error)
        if not isinstance(before, ReplayClient):
            self._live_label = app.label
        else:
            before.behind = None
            app.start(before.close, "close", exclusive=False)
        app.begin_anew(replay, f"recording {replay.path.name}")
        return f"{replay.path.name}: {text.long_age(replay.last - replay.first)}; P pauses, , and . step, :seek, :speed"

    def seek(self, words: str) -> str:
        """`:seek TIME`; what to say about it."""
        replay = self.replay
        if replay is None:
            return "no recording is shown"
        try:
            replay.seek(moment(words, replay.now(), replay.first, replay.last))
        except ConfigError as error:
            return str(error)
        self._rewound()
        return f"at {text.long_age(replay.now())}"

    def set_speed(self, words: str) -> str:
        """`:speed N`; what to say about it."""
        replay = self.replay
        if replay is None:
            return "no recording is shown"
        try:
            speed = float(words.rstrip("x"))
        except ValueError:
            speed = 0.0
        if not SPEEDS[0] <= speed <= SPEEDS[1]:
            return f"speed {words}: a number from {SPEEDS[0]:.0f} to {SPEEDS[1]:.0f}"
        replay.set_speed(speed)
        return f"{speed:g} times as fast as it was"

    def step(self, by: int) -> None:
        """A frame on or back, paused."""
        if self.replay is not None and self.replay.step(by):
            self._rewound()

    def play(self) -> None:
        """Play or pause."""
        if self.replay is not None and self.replay.play(not self.replay.is_playing):
            self._rewound()

    def _rewound(self) -> None:
        self._app.store.rewind()
        self._app.forget_histories()
