"""The terminal: owns the store, the stream that feeds it and the clock that draws it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from textual.app import App
from textual.events import AppBlur, AppFocus
from textual.timer import Timer

from hypha_tui.client.api import ApiClient, Client
from hypha_tui.client.follow import follow
from hypha_tui.client.link import Backoff, LinkState
from hypha_tui.keymap import KEYS
from hypha_tui.screens.inspector import InspectorScreen
from hypha_tui.screens.main import MainScreen
from hypha_tui.store.cluster import ClusterStore
from hypha_tui.store.columns import Look
from hypha_tui.store.glyphs import glyphs_for
from hypha_tui.themes import DEFAULT, WITHOUT_COLOUR, Palette, fallbacks, load_all
from hypha_tui.widgets.drawing import Drawing
from node.errors import HyphaError
from node.views import Frame, JobView

FRAMES_PER_S: Final = 4.0
TICK_S: Final = 1.0


class HyphaApp(App[None]):
    """`hypha-tui`. Everything it depends on comes in as an argument; what is not given is the real thing."""

    CSS_PATH = Path(__file__).with_name("hypha.tcss")
    TITLE = "hypha"
    BINDINGS = [(key.keys, key.action, key.label) for key in KEYS if key.id == "quit"]

    def __init__(
        self,
        client: Client,
        *,
        label: str = "",
        theme: str = "",
        ascii_only: bool = False,
        environment: Mapping[str, str] | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        backoff: Backoff | None = None,
    ) -> None:
        environment = os.environ if environment is None else environment
        self._has_colour = "NO_COLOR" not in environment
        # Textual chooses its colour filter in the constructor: without colour, the terminal's own are the safe ones.
        super().__init__(ansi_color=None if self._has_colour else True)
        self.client = client
        self.label = label or (str(client.endpoint) if isinstance(client, ApiClient) else "node")
        self.store = ClusterStore()
        self.clock = clock
        self.wall = wall
        self.hz = FRAMES_PER_S
        self.animation_level = "none"
        self.drawing = Drawing(Palette({}, colour=self._has_colour), glyphs_for(environment, ascii_only=ascii_only))
        self.set_class(self.drawing.glyphs.name == "ascii", "-ascii")
        self._backoff = backoff
        self._history_of: set[str] = set()
        self._frames: Timer | None = None
        self._main = MainScreen(self)
        found, self._theme_problems = load_all()
        self._own_themes = sorted(found, key=lambda name: (name != DEFAULT, name))
        for one in found.values():
            self.register_theme(one)
        wanted = theme if theme in self.available_themes else DEFAULT
        self.theme = wanted if self._has_colour else WITHOUT_COLOUR
        if theme and theme not in self.available_themes:
            self._theme_problems.append(f"no theme {theme!r}")

    # ---- life -------------------------------------------------------------------------------------------------

    def get_theme_variable_defaults(self) -> dict[str, str]:
        """Our variables for Textual's own themes."""
        theme = self.current_theme
        colours = {name: str(value) for name, value in vars(theme).items() if isinstance(value, str)}
        return fallbacks(colours)

    def on_mount(self) -> None:
        """Show the main screen, start the stream and the clocks."""
        self._repaint_theme()
        self.theme_changed_signal.subscribe(self, lambda _theme: self._repaint_theme())
        self.push_screen(self._main)
        self._frames = self.set_interval(1 / self.hz, self.draw_frame, pause=True)
        self.set_interval(TICK_S, self._tick)
        if self._theme_problems:
            self.call_later(self._main.say, self._theme_problems[0])
        self.restart_stream()

    async def on_unmount(self) -> None:
        """Close the connections."""
        if isinstance(self.client, ApiClient):
            await self.client.close()

    def restart_stream(self) -> None:
        """Connect, or connect anew."""
        self.run_worker(self._follow(), group="stream", exclusive=True, exit_on_error=False)

    async def _follow(self) -> None:
        await follow(self.client, self.on_frame, self.on_link, backoff=self._backoff)

    def on_frame(self, frame: Frame) -> bool:
        """A frame from the node goes into the store; False asks for a snapshot."""
        self.store.apply(frame, self.clock())
        self._wake()
        return not self.store.needs_resync

    def on_link(self, link: LinkState) -> None:
        """The link changed. A new connection may know values that were missed."""
        if link.state == "live" and self.store.link.state != "live":
            self._history_of.clear()
            self.run_worker(self._load_cluster(), group="cluster", exclusive=True, exit_on_error=False)
        self.store.set_link(link)
        self._wake()

    async def _load_cluster(self) -> None:
        try:
            self.store.cluster = await self.client.cluster()
        except HyphaError as error:
            self._main.say(str(error))

    # ---- drawing ------------------------------------------------------------------------------------------------

    def look(self) -> Look:
        """The store, now."""
        return Look(self.store, self.clock(), self.drawing.glyphs)

    def draw_frame(self) -> None:
        """Draw what changed since the last frame; the clock stops when nothing did."""
        if not self.store.is_dirty:
            if self._frames is not None:
                self._frames.pause()
            return
        changes = self.store.take_changes()
        self._main.sync(changes)
        if isinstance(self.screen, InspectorScreen):
            self.screen.sync()
        self._load_history()

    def _tick(self) -> None:
        """Once a second: remaining times, ages and the clock move on even when nothing comes."""
        self._main.sync(self.store.take_changes())
        if isinstance(self.screen, InspectorScreen):
            self.screen.sync()

    def _wake(self) -> None:
        if self._frames is not None:
            self._frames.resume()

    def on_app_blur(self, _event: AppBlur) -> None:
        """Nobody looks: one frame a second will do."""
        self._set_hz(1.0)

    def on_app_focus(self, _event: AppFocus) -> None:
        """Back to the full rate."""
        self._set_hz(FRAMES_PER_S)

    def _set_hz(self, hz: float) -> None:
        if self._frames is None or hz == self.hz:
            return
        self.hz = hz
        self._frames.stop()
        self._frames = self.set_interval(1 / hz, self.draw_frame)

    # ---- history of metrics ---------------------------------------------------------------------------------------

    def _load_history(self) -> None:
        """Ask once for the past of each job's curves: the stream only tells what is new."""
        for job in self.store.views(JobView):
            if job.id not in self._history_of and len(self._history_of) < 100:
                self._history_of.add(job.id)
                self.run_worker(self._load_metrics(job.id), group=f"history:{job.id}", exit_on_error=False)

    async def _load_metrics(self, job_id: str) -> None:
        try:
            points = await self.client.metrics(job_id)
        except HyphaError as error:
            self._main.say(str(error))
            return
        self.store.add_points(points)
        self._wake()

    # ---- acting ---------------------------------------------------------------------------------------------------

    def cancel_job(self, job_id: str) -> None:
        """End a job; the answer is told in the status line."""
        self.run_worker(self._cancel(job_id), group=f"cancel:{job_id}", exclusive=True, exit_on_error=False)

    async def _cancel(self, job_id: str) -> None:
        self._main.say(f"cancelling {job_id}...")
        try:
            await self.client.cancel(job_id)
        except HyphaError as error:
            self._main.say(f"{job_id} is not cancelled: {error}")
        else:
            self._main.say(f"job {job_id} is being cancelled")

    def resume_job(self, job_id: str) -> None:
        """Go on with a job; the answer is told in the status line."""
        self.run_worker(self._resume(job_id), group=f"resume:{job_id}", exclusive=True, exit_on_error=False)

    async def _resume(self, job_id: str) -> None:
        self._main.say(f"resuming {job_id}...")
        try:
            await self.client.resume(job_id)
        except HyphaError as error:
            self._main.say(f"{job_id} is not resumed: {error}")
        else:
            self._main.say(f"job {job_id} goes on")

    # ---- themes ---------------------------------------------------------------------------------------------------

    def next_theme(self) -> str:
        """Change to the next of our themes; its name."""
        at = self._own_themes.index(self.theme) if self.theme in self._own_themes else -1
        self.theme = self._own_themes[(at + 1) % len(self._own_themes)]
        return self.theme

    def set_theme(self, name: str) -> str:
        """Change to a theme by name; what to say about it."""
        if name not in self.available_themes:
            return f"no theme {name!r}; there are {', '.join(self._own_themes)}"
        self.theme = name
        return f"theme {name}"

    def _repaint_theme(self) -> None:
        self.drawing.palette = Palette(self.theme_variables, colour=self._has_colour)
        for screen in self.screen_stack:
            for widget in screen.query("Lines, LiveTable, EventLog"):
                widget.refresh()
