"""The main screen: header, tabs, the present view, status and keys; and what the keys of the main scope do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, Final, cast

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container
from textual.events import Click, Resize
from textual.geometry import Size
from textual.widgets import Static

from hypha_tui.keys.keymap import KEYS, TITLES, find_command
from hypha_tui.screens.acting import Acting
from hypha_tui.screens.command_line import CommandLine
from hypha_tui.screens.copying import Copying
from hypha_tui.screens.jump import Jump
from hypha_tui.screens.newest_size import NewestSize
from hypha_tui.screens.objects import Objects
from hypha_tui.screens.panels import take_off, unzoom, zoom
from hypha_tui.screens.places import Places
from hypha_tui.screens.prompt import Prompt
from hypha_tui.screens.surround import Surround
from hypha_tui.screens.view import View
from hypha_tui.screens.views import Views
from hypha_tui.store import text
from hypha_tui.store.cluster import Changes
from hypha_tui.store.mentions import EVENT
from hypha_tui.widgets import bars
from hypha_tui.widgets.live_table import LiveTable

if TYPE_CHECKING:
    from hypha_tui.screens.app import HyphaApp
    from hypha_tui.screens.curves import CurvesView
    from hypha_tui.screens.palette import Choice
    from hypha_tui.screens.slices import SlicesView
    from hypha_tui.widgets.event_log import EventLog
    from hypha_tui.widgets.pick_lines import PickLines
    from hypha_tui.widgets.slice_field import SliceField

FIRST: Final = ("pane.next", "pane.previous", "command", "filter")
"""Keys that act before the focused widget sees them, so that what is typed after `:` goes to the command line."""
SMALLEST = (60, 16)


class MainScreen(NewestSize[None]):
    """Everything but the layers over it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(key.keys, key.action, key.label, id=key.id, show=False, priority=key.id in FIRST)
        for key in KEYS
        if key.scope in ("main", "replay") and key.id not in ("palette", "quit")
    ]
    HORIZONTAL_BREAKPOINTS = [(0, "-tiny"), (80, "-narrow"), (110, "-medium"), (160, "-wide")]
    VERTICAL_BREAKPOINTS = [(0, "-short"), (32, "-tall"), (52, "-high")]

    def __init__(self, app: HyphaApp) -> None:
        super().__init__()
        self._app = app
        self.surround = Surround(app, self)
        self.commands = CommandLine(app, self)
        self.copying = Copying(app, self)
        self.acting = Acting(app, self)
        self.objects = Objects(app, self)
        self.prompt = Prompt(self.commands.offer, app.recall)
        self.jump: Jump | None = None
        self.views = Views(app)
        self.current = "overview"
        self.places = Places(app, self)
        self.tables: list[LiveTable] = []
        self.arrived = asyncio.Event()
        self.paints_at_once = False
        self._once_ready: list[Callable[[], None]] = []
        self._asked_to_leave_at = -1e9
        self._filter_before = ""

    @property
    def view(self) -> View:
        """The view that is shown."""
        return self.views[self.current]

    @property
    def scopes(self) -> tuple[str, ...]:
        """The scopes of keys that are live here."""
        replay = ("replay",) if getattr(self._app.client, "is_replay", False) else ()
        return ("main", *replay, *self.view.scopes)

    def compose(self) -> ComposeResult:
        """From top to foot."""
        yield from self.surround.above
        with Container(id="body"):
            yield self.view
        yield Static(id="too-small", markup=False)
        yield self.prompt
        yield from self.surround.below

    def on_mount(self) -> None:
        """With or without the header."""
        self.set_class(not self._app.kept_layout.header, "-no-header")

    def fit(self, size: Size) -> None:
        """Take the classes of this size before the first layout, which would otherwise be made twice."""
        for cells, points in ((size.width, self.HORIZONTAL_BREAKPOINTS), (size.height, self.VERTICAL_BREAKPOINTS)):
            self.add_class(*self._get_breakpoint_classes(cells, points), update=False)

    def on_resize(self, event: Resize) -> None:
        """Below the smallest size, say which size is needed."""
        width, height = event.size
        small = width < SMALLEST[0] or height < SMALLEST[1]
        self.set_class(small, "-too-small")
        if small:
            self.query_one("#too-small", Static).update(f"needs {SMALLEST[0]}x{SMALLEST[1]}, has {width}x{height}")
        self.call_after_refresh(self.sync, None)

    # ---- drawing ------------------------------------------------------------------------------------------

    def sync(self, changes: Changes | None) -> None:
        """Bring what is shown up to date."""
        look = self._app.look()
        if changes is None or changes.link:
            link = look.store.link.state
            self.set_class(link != "live", "-broken")
            self.set_class(link in ("stale", "refused"), "-stale")
        if not self.has_class("-too-small") and self.is_ready:
            self.view.sync(changes)
        self.surround.sync(look)

    def on_idle(self) -> None:
        """Paint what a tick changed at once: Textual's own timer for it would wake an idle terminal a second time."""
        if self.paints_at_once and self._dirty_widgets:
            self.paints_at_once = False
            self._on_timer_update()

    def show_status(self) -> None:
        """The lines around the body, now."""
        self.surround.sync(self._app.look())

    def say(self, message: str) -> None:
        """Tell something in the status line for a while."""
        self.surround.say(message)
        self.show_status()

    # ---- moving about ---------------------------------------------------------------------------------------

    def action_show(self, name: str) -> None:
        """Another screen."""
        if self.places.to_screen(name):
            self.show_screen(name)

    def show_screen(self, name: str) -> None:
        """Another screen, as a place that is no new one."""
        before, self.current = self.view, name
        with self.app.batch_update():
            before.display = False
            if self.is_ready:
                self.view.display = True
                self.view.focus_first()
                self.arrived.set()
            else:
                self.arrived.clear()
                self.query_one("#body").mount(self.view)
        self.call_after_refresh(self.sync, None)

    @property
    def is_ready(self) -> bool:
        """Whether the present view has all its parts; one that is shown for the first time has them a little later."""
        return self.view.is_mounted

    def once_ready(self, then: Callable[[], None]) -> None:
        """Do something with the present view as soon as it shows something."""
        if self.arrived.is_set():
            then()
        else:
            self._once_ready.append(then)

    def on_view_ready(self, event: View.Ready) -> None:
        """A view is there for the first time: arrange it as it was, without the panels that were taken off."""
        view = event.view
        take_off(view, self._app.kept_layout.hidden.get(view.id or "", ()))
        for table in view.query(LiveTable):
            self.tables.append(table)
            if table.id in self._app.arrangements:
                table.remembered.restore(self._app.arrangements[table.id])
        if view is not self.view:
            view.display = False
            return
        view.focus_first()
        self.call_after_refresh(self._arrive)

    def _arrive(self) -> None:
        """Fill the new view; what waited for its rows goes on."""
        self.sync(None)
        self.arrived.set()
        while self._once_ready:
            self._once_ready.pop(0)()

    def action_history(self, by: int) -> None:
        """Back or forward."""
        self.places.step(by)

    def action_last_place(self) -> None:
        """The place before this one, and with the same key back."""
        self.places.last()

    def action_next_pane(self) -> None:
        """The next pane of this view."""
        self._move_pane(1)

    def action_previous_pane(self) -> None:
        """The previous pane of this view."""
        self._move_pane(-1)

    def _move_pane(self, by: int) -> None:
        panes = self.view.panes()
        if self.prompt.is_open:
            self.prompt.action_complete()
        elif len(panes) > 1:
            at = next((number for number, pane in enumerate(panes) if pane.has_focus), 0)
            panes[(at + by) % len(panes)].focus()
            self.show_status()

    def action_jump(self) -> None:
        """A letter on every pane."""
        self.jump = Jump(self, self.view.panes())
        self.say("press the letter of a pane")

    def end_jump(self, key: str) -> None:
        """The letter that was pressed, or another key: then nothing moves."""
        jump, self.jump = self.jump, None
        self.say("" if jump is not None and jump.end(key) else "no pane has this letter")

    def action_zoom(self) -> None:
        """The pane with the focus alone, or all of them again."""
        if not unzoom(self.view) and self.focused is not None and self.view in self.focused.ancestors_with_self:
            zoom(self.view, self.focused)
        self.call_after_refresh(self.sync, None)

    def action_back(self) -> None:
        """Show all panes, else clear the filter, else go back one place."""
        if unzoom(self.view):
            self.call_after_refresh(self.sync, None)
        elif self.view.filter_text:
            self.view.set_filter("")
            self.show_status()
        elif not self.places.is_at_root:
            self.action_history(-1)

    def action_leave(self) -> None:
        """Back; at the root, twice within three seconds quits."""
        if not self.places.is_at_root:
            self.action_history(-1)
            return
        now = self._app.clock()
        if now - self._asked_to_leave_at < 3.0:
            self.app.exit()
            return
        self._asked_to_leave_at = now
        self.say("press q again to quit")

    def action_toggle_header(self) -> None:
        """Header off or on."""
        self._app.keep_layout(replace(self._app.kept_layout, header=self.has_class("-no-header")))
        self.toggle_class("-no-header")

    def action_next_theme(self) -> None:
        """The next theme."""
        self.say(self._app.theme_choice.next())

    def action_refresh_now(self) -> None:
        """Ask for everything anew; also the way to try again after a refusal."""
        self._app.restart_stream()
        self.say("asking for everything anew")
        self.sync(None)

    def action_help(self) -> None:
        """Keys for this place."""
        from hypha_tui.screens.dialogs import HelpScreen

        self.app.push_screen(HelpScreen(self._app.drawing, TITLES[self.current], self._app.keymap.of(*self.scopes)))

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """In an open prompt `:` and `/` are letters."""
        if action.startswith("replay_"):
            return self._app.tapes.replay is not None
        return not (action in ("command_line", "filter") and self.prompt.is_open)

    # ---- command line and filter ----------------------------------------------------------------------------

    def action_command_line(self) -> None:
        """Open the command line."""
        self.prompt.open(":")

    def action_filter(self) -> None:
        """Open the filter."""
        self._filter_before = self.view.filter_text
        self.prompt.open("/", self._filter_before)

    def on_prompt_edited(self, event: Prompt.Edited) -> None:
        """A filter as it is written; a closed prompt gives the focus back."""
        if event.mode == "/":
            self.view.set_filter(event.value, self._filter_before)
        elif event.mode == ":" and not event.closed:
            _, matching = find_command(event.value.split(" ", 1)[0])
            self.say("  ".join(command.usage for command in matching[:5]))
        if event.closed:
            self.view.focus_first()
        self.show_status()

    def on_prompt_choices(self, event: Prompt.Choices) -> None:
        """What Tab found."""
        more = f"  and {len(event.words) - 12} more" if len(event.words) > 12 else ""
        self.say("  ".join(word.strip() for word in event.words[:12]) + more)

    def on_prompt_entered(self, event: Prompt.Entered) -> None:
        """Run it."""
        self.view.focus_first()
        if event.mode == "/":
            self.view.set_filter(event.value, self._filter_before)
            self.show_status()
        elif event.mode == "file" and event.value.strip():
            self.copying.export(event.value.strip())
        elif event.mode == ":" and event.value.strip():
            self._app.keep_recall()
            self.commands.run(event.value.strip())

    # ---- copying, mouse ---------------------------------------------------------------------------------------

    def action_copy_ids(self) -> None:
        """Copy the ids."""
        self.copying.ids()

    def action_copy_json(self) -> None:
        """Copy the objects."""
        self.copying.as_json()

    def action_export(self) -> None:
        """Ask for the file to write the view to."""
        self.prompt.open("file", f"{self.current}.csv")

    async def run_choice(self, choice: Choice | None) -> None:
        """What was chosen in the palette: the action of a key, or a command that may want an argument."""
        if choice is None:
            return
        if choice.command:
            self.prompt.open(":", f"{choice.command} ")
            return
        active = next((one for one in self.active_bindings.values() if one.binding.id == choice.key_id), None)
        if active is None:
            self.say("this key does nothing here")
        else:
            await self.app.run_action(active.binding.action, active.node)

    def on_click(self, event: Click) -> None:
        """A click on a tab shows its screen."""
        if event.widget is self.surround.tabs:
            name = bars.tab_at(bars.tabs(self.current, self.size.width, ""), event.x)
            if name:
                self.action_show(name)

    # ---- objects --------------------------------------------------------------------------------------------

    def on_live_table_opened(self, event: LiveTable.Opened) -> None:
        """Inspect."""
        self.open_inspector(event.kind, event.object_id)

    def on_live_table_lost(self, event: LiveTable.Lost) -> None:
        """Tell that the cursor had to move. Transfers come and go by themselves: of them nothing is said."""
        if event.kind == "transfer":
            return
        self.say(f"{event.kind} {text.short_id(event.object_id)} is gone; the cursor is on its neighbour")

    def on_live_table_arranged(self, _event: LiveTable.Arranged) -> None:
        """Its order is in the status line."""
        self.show_status()

    def on_line_log_changed(self) -> None:
        """Whether it follows is in the status line."""
        self.show_status()

    def on_line_log_opened(self, event: EventLog.Opened) -> None:
        """An event in full."""
        self.open_inspector(EVENT, str(event.number))

    def on_pick_lines_opened(self, event: PickLines.Opened) -> None:
        """A line of the inspector beside the table in full."""
        self.objects.value(event.words.strip())

    def on_slice_field_opened(self, event: SliceField.Opened) -> None:
        """The worker that has a slice."""
        self.open_inspector("peer", event.peer_id)

    def open_inspector(self, kind: str, object_id: str, tab: str = "Summary") -> None:
        """One object in full; a place of the history."""
        self.objects.open(kind, object_id, tab)

    def inspect(self, kind: str, object_id: str, tab: str = "Summary") -> None:
        """The same, as a place that is no new one."""
        self.objects.inspect(kind, object_id, tab)

    def action_job_curves(self) -> None:
        """The curves of the job under the cursor, or of the one that the lease or transfer there is for."""
        kind, id_ = self.view.selected or ("", "")
        item = self._app.store.items(kind).get(id_) if kind else None
        job_id = id_ if kind == "job" else getattr(item.view, "job_id", "") if item is not None else ""
        if not job_id:
            self.say("there is no job here; c works on jobs, leases and transfers")
            return
        curves = cast("CurvesView", self.views["curves"])
        self.action_show("curves")
        self.once_ready(lambda: curves.show_job(job_id))

    def action_replay_step(self, by: int) -> None:
        """A recording: a frame on or back."""
        self._app.tapes.step(by)
        self.show_status()

    def action_replay_play(self) -> None:
        """A recording: play or pause."""
        self._app.tapes.play()
        self.show_status()

    def on_curves_view_changed(self, _event: CurvesView.Changed) -> None:
        """What the curves show is in the status line."""
        self.show_status()

    def action_object_log(self) -> None:
        """The log of the job under the cursor, or of the task that runs under a lease."""
        self.objects.log()

    def action_inspect_tab(self, tab: str) -> None:
        """The object under the cursor, under a tab."""
        if self.view.selected is not None:
            self.open_inspector(*self.view.selected, tab)

    def action_next_tab(self) -> None:
        """Another tab of the inspector beside the table."""
        self.objects.next_tab()

    def action_related(self) -> None:
        """What the object under the cursor has to do with, to jump there."""
        self.objects.related()

    def action_next_slices(self) -> None:
        """Slices: the map of the next job."""
        if self.current == "slices":
            cast("SlicesView", self.view).next_job()

    def action_act(self) -> None:
        """What can be done to the marked objects, or the one under the cursor, as they are at this moment."""
        self.acting.menu(self.view.marked)

    def action_new_job(self) -> None:
        """The form for a new job."""
        if self.current == "jobs":
            self.open_form("")

    def open_form(self, path: str) -> None:
        """The form, with the draft that was left in it; `path`: with that file or folder."""
        self.objects.open_form(path)
