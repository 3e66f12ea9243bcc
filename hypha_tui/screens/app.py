"""The terminal: owns the store, the stream that feeds it and the clock that draws it."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from textual.app import App
from textual.binding import Binding
from textual.driver import Driver
from textual.events import AppBlur, AppFocus, Event, Key
from textual.scrollbar import ScrollBar, ScrollBarRender

from hypha_tui.client.api import ApiClient, Client
from hypha_tui.client.endpoint import Endpoint
from hypha_tui.client.follow import follow
from hypha_tui.client.link import Backoff, LinkState
from hypha_tui.client.recording import beneath
from hypha_tui.keys.keymap import KEYS
from hypha_tui.keys.presets import clash_notice, keymap_for
from hypha_tui.process.ending import crash_line, on_signals
from hypha_tui.screens.frame_clock import FrameClock
from hypha_tui.screens.keystrokes import Keystrokes
from hypha_tui.screens.main import MainScreen
from hypha_tui.screens.tapes import Tapes
from hypha_tui.screens.theme_choice import ThemeChoice
from hypha_tui.settings import arrangement, layout, recall
from hypha_tui.settings.config import Context, Settings, hz_of
from hypha_tui.settings.config import load as load_settings
from hypha_tui.settings.contexts import Contexts
from hypha_tui.settings.folders import state_folder
from hypha_tui.settings.recall import Recall
from hypha_tui.store.cluster import ClusterStore
from hypha_tui.store.columns import Look
from hypha_tui.store.glyphs import glyphs_for, with_signs
from hypha_tui.themes import Palette, fallbacks
from hypha_tui.widgets.drawing import Drawing
from hypha_tui.widgets.scrollbar import PlainScrollBar
from hypha_tui.widgets.work import start
from node.errors import ConfigError, HyphaError
from node.views import Frame, JobView

if TYPE_CHECKING:
    from hypha_tui.screens.inspector import InspectorScreen


class HyphaApp(App[None]):
    """`hypha-tui`. Everything it depends on comes in as an argument; what is not given is the real thing."""

    CSS_PATH = Path(__file__).with_name("hypha.tcss")
    TITLE = "hypha"
    BINDINGS = [
        *(
            Binding(key.keys, key.action, key.label, id=key.id, show=False, priority=True)
            for key in KEYS
            if key.id in ("quit", "palette")
        ),
        Binding("ctrl+z", "suspend_process", "stop until fg", id="suspend", show=False, priority=True),
    ]
    ENABLE_COMMAND_PALETTE = False

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
        settings: Settings | None = None,
        context: Context | None = None,
        contexts: Contexts | None = None,
        open_client: Callable[[Endpoint, bool], Client] | None = None,
    ) -> None:
        environment = os.environ if environment is None else environment
        settings = settings or load_settings({})
        self._has_colour = "NO_COLOR" not in environment
        # Textual chooses its colour filter in the constructor: without colour, the terminal's own are the safe ones.
        super().__init__(ansi_color=None if self._has_colour else True)
        self.client = client
        self.environment = environment
        self.crash = ""
        self.keymap = keymap_for(settings.config.preset, settings.keys)
        self.context = context or Context()
        self.contexts = contexts or Contexts(settings, {})
        self.keystrokes = Keystrokes(self)
        folder = state_folder(environment)
        self._layout_file = None if folder is None else folder / layout.FILE
        self.kept_layout = layout.load(self._layout_file)
        self.recall = Recall(None if folder is None else folder / recall.FILE)
        self._open_client = open_client or (lambda endpoint, readonly: ApiClient(endpoint, readonly=readonly))
        self.set_keymap(self.keymap.changed())
        self.label = label or (str(client.endpoint) if isinstance(client, ApiClient) else "node")
        self.store = ClusterStore()
        self.clock = clock
        self._wall = wall
        self.frames = FrameClock(self, settings.config.hz)
        self._view_file = None if folder is None else folder / arrangement.FILE
        self.arrangements, self._view_problem = arrangement.load(self._view_file)
        self.animation_level = "none"
        self._glyphs = glyphs_for(environment, ascii_only=ascii_only, level=settings.config.glyphs)
        self.drawing = Drawing(Palette({}, colour=self._has_colour), self._glyphs)
        self._style_glyphs()
        self._backoff = backoff
        self._history_of: set[str] = set()
        self._stays_readonly = self.context.readonly and not self.context.name
        self.tapes = Tapes(self)
        self._main = MainScreen(self)
        wanted = theme or settings.config.theme
        self.theme_choice = ThemeChoice(self, wanted, environment, has_colour=self._has_colour)

    # ---- life -------------------------------------------------------------------------------------------------

    def get_driver_class(self) -> type[Driver]:
        """In a terminal, a driver that sleeps while nothing is typed."""
        found = super().get_driver_class()
        if found.__name__ != "LinuxDriver":
            return found
        from hypha_tui.process.quiet_driver import QuietDriver

        return QuietDriver

    def get_theme_variable_defaults(self) -> dict[str, str]:
        """Our variables for Textual's own themes."""
        theme = self.current_theme
        colours = {name: str(value) for name, value in vars(theme).items() if isinstance(value, str)}
        return fallbacks(colours)

    def get_default_screen(self) -> MainScreen:
        """The main screen."""
        self._repaint_theme()
        self._main.fit(self.size)
        self._main._push_result_callback(self, None)  # `switch_screen` takes one away, which a first screen has not
        return self._main

    def refresh_css(self, animate: bool = True) -> None:
        """Draw in the colours of the theme. Before there is a screen, what is read here must not be read twice."""
        if self._screen_stack:
            super().refresh_css(animate)
        else:
            self.stylesheet.set_variables(self.get_css_variables())
            self.stylesheet.update(self, animate=animate)

    def on_mount(self) -> None:
        """Start the stream and the clocks."""
        self.theme_changed_signal.subscribe(self, lambda _theme: self._repaint_theme())
        self.app_resume_signal.subscribe(self, lambda _app: self._draw_anew())
        self.frames.start()
        self.call_after_refresh(self._settle_memory)
        told = (*self.theme_choice.problems, clash_notice(self.keymap.clashes()), self._view_problem)
        problem = next(filter(None, told), "")
        if problem:
            self.call_later(self._main.say, problem)
        self.tapes.begin()
        self.restart_stream()
        if not self.is_headless:
            on_signals(lambda code: self.exit(return_code=code))

    def _draw_anew(self) -> None:
        """Back from `ctrl+z`: nothing is left on the terminal of what was drawn."""
        self.screen.refresh()

    def _fatal_error(self) -> None:
        """Something inside broke: a line for the user and a file for us, not pages of code on the screen."""
        if self._exception is not None and not self.crash:
            self.crash = crash_line(self._exception, self.environment)
        self._close_messages_no_wait()

    async def on_unmount(self) -> None:
        """Keep how the tables are arranged; close the connections."""
        self._keep_arrangements()
        if self._view_file is not None:
            arrangement.save(self._view_file, self.arrangements)
        await self.client.close()

    def _settle_memory(self) -> None:
        """What is here after the start stays: the collector need not look at it again."""
        gc.freeze()
        gc.enable()

    @property
    def main(self) -> MainScreen:
        """The main screen."""
        return self._main

    async def on_event(self, event: Event) -> None:
        """Keys that are part of a row or a number are held back; everything else goes its way."""
        if isinstance(event, Key) and not event.is_forwarded:
            await self._main.arrived.wait()  # what is typed after the key of a screen is for that screen
            if await self.keystrokes.take(event.key):
                return
        await super().on_event(event)

    def start(self, work: Callable[[], Awaitable[None]], group: str, *, exclusive: bool = True) -> None:
        """Run work that this app owns."""
        start(self, work, group, exclusive=exclusive)

    def restart_stream(self) -> None:
        """Connect, or connect anew."""
        self.start(self._follow, "stream")

    async def _follow(self) -> None:
        await follow(self.client, self.on_frame, self.on_link, backoff=self._backoff)

    def on_frame(self, frame: Frame) -> bool:
        """A frame from the node goes into the store; False asks for a snapshot."""
        self.store.apply(frame, self.now())
        self._wake()
        return not self.store.needs_resync

    def on_link(self, link: LinkState) -> None:
        """The link changed. A new connection may know values that were missed."""
        if link.state == "live" and self.store.link.state != "live":
            self._history_of.clear()
            self.start(self._load_cluster, "cluster")
        self.store.set_link(link)
        self._wake()

    async def _load_cluster(self) -> None:
        try:
            self.store.cluster = await self.client.cluster()
        except HyphaError as error:
            self._main.say(str(error))

    # ---- contexts and settings --------------------------------------------------------------------------------------

    def switch_context(self, name: str) -> None:
        """Look at another cluster of the configuration. The present link may be dead: nothing waits for it."""
        try:
            context, endpoint = self.contexts.endpoint(name)
        except HyphaError as error:
            self._main.say(str(error))
            return
        context = replace(context, readonly=context.readonly or self._stays_readonly)
        before = self.client
        self.context = context
        self.begin_anew(self._open_client(endpoint, context.readonly), str(endpoint))
        self.start(before.close, "close", exclusive=False)

    def begin_anew(self, client: Client, label: str) -> None:
        """Show what another client tells, and nothing of the one before."""
        self.workers.cancel_node(self)
        self.client = client
        self.label = label
        self.store = ClusterStore()
        self._history_of.clear()
        while self.screen is not self._main:
            self.pop_screen()
        self._keep_arrangements()
        self._main = MainScreen(self)
        self.switch_screen(self._main)
        self.restart_stream()

    @property
    def has_files(self) -> bool:
        """Whether files may be read and written: not for a browser that may only look."""
        return not (self.is_web and self.context.readonly)

    def set_readonly(self) -> str:
        """From here on nothing is changed, in this context and every other; what to say about it."""
        self._stays_readonly = True
        self.context = replace(self.context, readonly=True)
        client = beneath(self.client)
        if isinstance(client, ApiClient):
            client.readonly = True
        return "read-only: nothing is changed from here on"

    def set_setting(self, name: str, value: str) -> str:
        """`:set`; what to say about it. ConfigError where the value is none."""
        match name, value:
            case "hz", _:
                self.set_hz(hz_of(value))
                return f"{value} frames a second" if hz_of(value) else "frames only when r is pressed"
            case "mouse", "on" | "off":
                self._set_mouse(value == "on")
                return f"mouse {value}"
            case "glyphs", "unicode" | "block" | "ascii":
                self.set_glyphs(value)
                return f"glyphs {value}"
            case "wide", "on" | "off":
                self._main.view.set_wide(value == "on")
                return f"wide columns {value}"
        raise ConfigError(f"set {name} {value}: no such setting", hint="hz 0..10, wide, glyphs or mouse")

    def _set_mouse(self, on: bool) -> None:
        driver = self._driver
        switch = getattr(driver, "_enable_mouse_support" if on else "_disable_mouse_support", None)
        if driver is not None and switch is not None:
            driver._mouse = True  # its own methods do nothing in an app that was started without
            switch()

    def keep_layout(self, kept: layout.Layout) -> None:
        """Keep what is taken off the screen, over restarts."""
        self.kept_layout = kept
        if self._layout_file is not None:
            self.run_worker(partial(kept.save, self._layout_file), group="layout", thread=True, exit_on_error=False)

    def keep_recall(self) -> None:
        """Keep the lines of the command line, over restarts."""
        self.run_worker(self.recall.save, group="recall", thread=True, exit_on_error=False)

    def write_to_terminal(self, sequence: str) -> None:
        """A sequence that is not part of the picture."""
        if self._driver is not None:
            self._driver.write(sequence)

    def copy_to_clipboard(self, text: str) -> None:
        """What was selected with the mouse, by the way that works here."""
        self._main.copying.text(text)

    def action_help_quit(self) -> None:
        """ctrl+c with nothing selected."""
        self._main.say("ctrl+q quits; ctrl+c copies selected text")

    def action_command_palette(self) -> None:
        """Every key and command by name."""
        if self.screen is self._main:
            from hypha_tui.screens.palette import PaletteScreen

            self.push_screen(PaletteScreen(self.drawing, self.keymap.of(*self._main.scopes)), self._main.run_choice)

    # ---- drawing ------------------------------------------------------------------------------------------------

    def look(self) -> Look:
        """The store, now."""
        return Look(self.store, self.now(), self.drawing.glyphs)

    def now(self) -> float:
        """The moment that is shown: ours, or that of a recording."""
        replay = self.tapes.replay
        return replay.now() if replay is not None else self.clock()

    @property
    def only_reads(self) -> bool:
        """Whether nothing can be changed: read-only, or a recording."""
        return self.context.readonly or self.tapes.replay is not None

    def wall(self) -> float:
        """The time of day at that moment, as Unix time."""
        replay = self.tapes.replay
        return replay.wall() if replay is not None else self._wall()

    @property
    def hz(self) -> float:
        """Frames a second, now."""
        return self.frames.hz

    def draw_frame(self) -> None:
        """Draw what changed since the last frame; the clock stops when nothing did."""
        if not self.store.is_dirty:
            self.frames.rest()
            return
        self.frames.drawing()
        changes = self.store.take_changes()
        self._main.sync(changes)
        self._sync_layer()
        self._load_history()

    def _tick(self) -> None:
        """Once a second: remaining times, ages and the clock move on even when nothing comes."""
        if not self.hz:
            return
        changes = self.store.take_changes()
        changes.second = True
        self._main.paints_at_once = not self.frames.is_running
        self._main.sync(changes)
        self._sync_layer()
        self._load_history()
        self.theme_choice.follow()

    def _sync_layer(self) -> None:
        if self.inspector is not None:
            self.inspector.sync()

    @property
    def inspector(self) -> InspectorScreen | None:
        """The inspector, where it is the layer on top."""
        opened = self._main.objects.opened
        return opened if opened is not None and opened is self.screen else None

    def _wake(self) -> None:
        self.frames.wake()

    def on_app_blur(self, _event: AppBlur) -> None:
        """Nobody looks: one frame a second will do."""
        self.frames.set_blurred(True)

    def on_app_focus(self, _event: AppFocus) -> None:
        """Back to the full rate."""
        self.frames.set_blurred(False)

    def set_hz(self, hz: float) -> None:
        """So many frames a second; 0: only when `r` is pressed."""
        self.frames.set_hz(hz)

    def _keep_arrangements(self) -> None:
        """Note how the tables are arranged, for the next main screen and the next start."""
        self.arrangements |= {table.id: table.remembered.note() for table in self._main.tables if table.id is not None}

    def set_glyphs(self, name: str) -> None:
        """Another set of signs."""
        self._glyphs = glyphs_for(self.environment, level=name)
        self._repaint_theme()
        self._style_glyphs()

    # ---- history of metrics ---------------------------------------------------------------------------------------

    def forget_histories(self) -> None:
        """Ask for the past of all curves again."""
        self._history_of.clear()

    def _load_history(self) -> None:
        """Ask once for the past of each job's curves: the stream only tells what is new."""
        for job in self.store.views(JobView):
            if job.id not in self._history_of and len(self._history_of) < 100:
                self._history_of.add(job.id)
                self.start(partial(self._load_metrics, job.id), f"history:{job.id}")

    async def _load_metrics(self, job_id: str) -> None:
        try:
            points = await self.client.metrics(job_id)
        except HyphaError as error:
            self._main.say(str(error))
            return
        self.store.add_points(points)
        self._wake()

    # ---- themes ---------------------------------------------------------------------------------------------------

    def _style_glyphs(self) -> None:
        """What Textual itself draws, in the set of signs in force."""
        level = self.drawing.glyphs.name
        self.set_class(level == "ascii", "-ascii")
        self.set_class(level == "block", "-block")
        ScrollBar.renderer = PlainScrollBar if level == "ascii" else ScrollBarRender

    def _repaint_theme(self) -> None:
        self.drawing.palette = Palette(self.theme_variables, colour=self._has_colour)
        before, self.drawing.glyphs = self.drawing.glyphs, with_signs(self._glyphs, self.theme_choice.signs)
        if self.drawing.glyphs != before:
            self._main.sync(None)
            self._sync_layer()
        for screen in self.screen_stack:
            for widget in screen.query("Lines, LiveTable, LineLog, SliceField"):
                widget.refresh()
