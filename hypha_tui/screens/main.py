"""The main screen: header, tabs, the present view, status and keys; and what the keys of the main scope do."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, cast

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.events import Resize
from textual.screen import Screen
from textual.widgets import ContentSwitcher, Static

from hypha_tui.client.jobfile import JobDraft
from hypha_tui.keymap import KEYS, SCREENS, TITLES, find_command
from hypha_tui.screens.curves import CurvesView
from hypha_tui.screens.dialogs import ActMenu, ConfirmScreen, HelpScreen
from hypha_tui.screens.events import EventsView
from hypha_tui.screens.inspector import InspectorScreen
from hypha_tui.screens.node import NodeView
from hypha_tui.screens.overview import OverviewView
from hypha_tui.screens.prompt import Prompt
from hypha_tui.screens.slices import SlicesView
from hypha_tui.screens.submit import SubmitScreen
from hypha_tui.screens.view import TableView, View
from hypha_tui.store import text
from hypha_tui.store.advance import advance
from hypha_tui.store.cluster import FINISHED, Changes
from hypha_tui.store.columns import Look
from hypha_tui.store.summary import title
from hypha_tui.widgets import bars
from hypha_tui.widgets.event_log import EventLog
from hypha_tui.widgets.lines import Lines
from hypha_tui.widgets.live_table import LiveTable
from node.views import DatasetView, JobView, SubmitResult

if TYPE_CHECKING:
    from hypha_tui.screens.app import HyphaApp

FIRST = ("pane.next", "pane.previous", "command", "filter")
"""Keys that act before the focused widget sees them, so that what is typed after `:` goes to the command line."""
SMALLEST = (60, 16)
MESSAGE_S = 6.0


class JobsView(TableView):
    """Jobs, each with its tasks, which have the room that the table does not need."""

    scopes = ("table", "jobs")
    _table_height = 0

    def sync(self, changes: Changes | None) -> None:
        """As tall a table as it has rows, up to two fifths of the screen."""
        super().sync(changes)
        rows = max(min(len(self.table.order) + 1, self.size.height * 2 // 5), 3)
        height = 0 if self.screen.has_class("-wide") else rows
        if height != self._table_height:
            self._table_height = height
            self.table.styles.height = height or "1fr"


class MainScreen(Screen[None]):
    """Everything but the layers over it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(key.keys, key.action, key.label, id=key.id, show=False, priority=key.id in FIRST)
        for key in KEYS
        if key.scope in ("main", "jobs", "curves") and key.id not in ("palette", "quit")
    ]
    HORIZONTAL_BREAKPOINTS = [(0, "-tiny"), (80, "-narrow"), (110, "-medium"), (160, "-wide")]
    VERTICAL_BREAKPOINTS = [(0, "-short"), (32, "-tall")]

    def __init__(self, app: HyphaApp) -> None:
        super().__init__(id="main")
        self._app = app
        drawing, look, wall = app.drawing, app.look, app.wall
        self._header = Lines(drawing, id="header")
        self._tabs = Lines(drawing, id="tabs")
        self._banner = Lines(drawing, id="banner")
        self._status = Lines(drawing, id="status")
        self._keys = Lines(drawing, id="keys")
        self.prompt = Prompt()
        self.views: dict[str, View] = {
            "overview": OverviewView(drawing, look, wall),
            "peers": TableView("peers", "peer", drawing, look, sort="name", empty="no peers yet"),
            "leases": TableView(
                "leases", "lease", drawing, look, sort="worker", empty="no leases: no job asks for workers"
            ),
            "slices": SlicesView(drawing, look),
            "jobs": JobsView("jobs", "job", drawing, look, sort="state", empty="no jobs: press a for a new one"),
            "curves": CurvesView(drawing, look),
            "events": EventsView(drawing, look, wall),
            "node": NodeView(drawing, look, app.label, lambda: app.theme),
        }
        self.current = "overview"
        self._history: list[str] = []
        self._message = ("", -1e9)
        self._asked_to_leave_at = -1e9
        self._draft = JobDraft("")
        self._draft_path = ""

    @property
    def view(self) -> View:
        """The view that is shown."""
        return self.views[self.current]

    def compose(self) -> ComposeResult:
        """From top to foot."""
        yield self._header
        yield self._tabs
        yield self._banner
        with ContentSwitcher(id="body", initial="overview"):
            yield from self.views.values()
        yield Static(id="too-small", markup=False)
        yield self.prompt
        yield self._status
        yield self._keys

    def on_mount(self) -> None:
        """Ready for keys."""
        self.view.focus_first()
        self.call_after_refresh(self.sync, None)

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
        if not self.has_class("-too-small"):
            self.view.sync(changes)
        self.sync_bars(look)

    def sync_bars(self, look: Look) -> None:
        """Header, tabs, banner, status, keys: a line is painted only when its text differs."""
        width = self.size.width
        if not width:
            return
        app = self._app
        self._header.show(bars.header(look, app.label, app.wall(), width, hz=app.hz))
        self._tabs.show([bars.tabs(self.current, width, "")])
        self._banner.show([bars.banner(look)])
        message = self._message[0] if look.now - self._message[1] < MESSAGE_S else ""
        age = look.store.data_age_s(look.now)
        stale = f"data {text.age(age)} old" if look.store.is_stale and age is not None else ""
        line = bars.status(self.view.state_line, message, self.view.filter_text, width, stale_for=stale)
        self._status.show([line])
        self._keys.show([bars.keys(self.view.scopes, width, app.drawing)])

    def say(self, message: str) -> None:
        """Tell something in the status line for a while."""
        self._message = (text.clean(message), self._app.look().now)
        self.sync_bars(self._app.look())

    # ---- moving about ---------------------------------------------------------------------------------------

    def action_show(self, name: str, *, remember: bool = True) -> None:
        """Another screen."""
        if name == self.current:
            return
        if remember:
            self._history.append(self.current)
        self.current = name
        with self.app.batch_update():
            self.query_one(ContentSwitcher).current = name
            self.view.focus_first()
        self.call_after_refresh(self.sync, None)

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
            self.sync_bars(self._app.look())

    def action_back(self) -> None:
        """Clear the filter, else go back one screen."""
        if self.view.filter_text:
            self.view.set_filter("")
            self.sync_bars(self._app.look())
        elif self._history:
            self.action_show(self._history.pop(), remember=False)

    def action_leave(self) -> None:
        """Back; at the root, twice within three seconds quits."""
        if self._history:
            self.action_show(self._history.pop(), remember=False)
            return
        now = self._app.look().now
        if now - self._asked_to_leave_at < 3.0:
            self.app.exit()
            return
        self._asked_to_leave_at = now
        self.say("press q again to quit")

    def action_toggle_header(self) -> None:
        """Header off or on."""
        self.toggle_class("-no-header")

    def action_next_theme(self) -> None:
        """The next theme."""
        self.say(f"theme {self._app.next_theme()}")

    def action_refresh_now(self) -> None:
        """Ask for everything anew; also the way to try again after a refusal."""
        self._app.restart_stream()
        self.say("asking for everything anew")

    def action_help(self) -> None:
        """Keys for this place."""
        self.app.push_screen(HelpScreen(self._app.drawing, TITLES[self.current], self.view.scopes))

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """In an open prompt `:` and `/` are letters."""
        return not (action in ("command_line", "filter") and self.prompt.is_open)

    # ---- command line and filter ----------------------------------------------------------------------------

    def action_command_line(self) -> None:
        """Open the command line."""
        self.prompt.open(":")

    def action_filter(self) -> None:
        """Open the filter."""
        self.prompt.open("/", self.view.filter_text)

    def on_prompt_edited(self, event: Prompt.Edited) -> None:
        """A filter as it is written; a closed prompt gives the focus back."""
        if event.mode == "/":
            self.view.set_filter(event.value)
        elif not event.closed:
            _, matching = find_command(event.value.split(" ", 1)[0])
            self.say("  ".join(command.usage for command in matching[:5]))
        if event.closed:
            self.view.focus_first()
        self.sync_bars(self._app.look())

    def on_prompt_entered(self, event: Prompt.Entered) -> None:
        """Run it."""
        self.view.focus_first()
        if event.mode == "/":
            self.view.set_filter(event.value)
            self.sync_bars(self._app.look())
        elif event.value.strip():
            self.run_command(event.value.strip())

    def run_command(self, line: str) -> None:
        """A line of the command line. What is not certain is not run."""
        word, _, rest = line.partition(" ")
        command, matching = find_command(word)
        if command is None:
            names = ", ".join(one.name for one in matching)
            self.say(f"{word}: which of {names}?" if matching else f"no command {word!r}; ? lists them")
            return
        rest = rest.strip()
        match command.name:
            case name if name in SCREENS:
                self.action_show(name)
                if rest:
                    self.view.set_filter(rest)
            case "job":
                self._on_job(rest, self.open_inspector)
            case "cancel":
                self._on_job(rest, lambda _kind, id_: self.ask_to_cancel(id_))
            case "resume":
                self._on_job(rest, lambda _kind, id_: self.resume(id_))
            case "submit":
                self.open_form(rest)
            case "theme":
                self.say(self._app.set_theme(rest))
            case "help":
                self.action_help()
            case _:
                self.app.exit()

    def _on_job(self, word: str, then: Callable[[str, str], None]) -> None:
        jobs = [job for job in self._app.store.views(JobView) if word and word in (job.id, job.name)]
        if len(jobs) == 1:
            then("job", jobs[0].id)
        else:
            self.say(f"{len(jobs)} jobs are called {word!r}; give the id" if jobs else f"no job {word!r}")

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
        self.sync_bars(self._app.look())

    def on_event_log_changed(self, _event: EventLog.Changed) -> None:
        """Whether it follows is in the status line."""
        self.sync_bars(self._app.look())

    def open_inspector(self, kind: str, object_id: str, tab: str = "Summary") -> None:
        """One object in full."""
        app = self._app
        self.app.push_screen(InspectorScreen(app.drawing, app.look, kind, object_id, app.client.logs, tab=tab))

    def action_job_curves(self) -> None:
        """The curves of the job under the cursor."""
        if self.current == "jobs" and self.view.selected is not None:
            curves = cast("CurvesView", self.views["curves"])
            curves.show_job(self.view.selected[1])
            self.action_show("curves")

    def action_next_metric(self) -> None:
        """Curves: the next metric."""
        if isinstance(self.view, CurvesView):
            self.view.next_metric()
            self.sync_bars(self._app.look())

    def action_next_job(self) -> None:
        """Curves: the next job."""
        if isinstance(self.view, CurvesView):
            self.view.next_job()
            self.sync_bars(self._app.look())

    def action_log_axis(self) -> None:
        """Curves: logarithmic axis. Elsewhere: the log of the job under the cursor."""
        selected = self.view.selected
        if isinstance(self.view, CurvesView):
            self.view.toggle_log()
        elif selected is not None and selected[0] == "job":
            self.open_inspector("job", selected[1], "Log")

    def action_act(self) -> None:
        """What can be done to the object under the cursor, as it is at this moment."""
        selected = self.view.selected
        job = self._app.store.get(JobView, selected[1]) if selected is not None and selected[0] == "job" else None
        if job is None:
            self.say("nothing can be done here; x works on jobs")
            return
        if job.state == "done":
            self.say(f"job {job.name or job.id} is {job.state}; nothing is left to cancel")
            return

        def chosen(action: str | None) -> None:
            if action == "cancel":
                self.ask_to_cancel(job.id)
            elif action == "resume":
                self.resume(job.id)

        name = title(job, self._app.look())
        actions = [("resume", "resume the job")] if job.state in FINISHED else [("cancel", "cancel the job...")]
        self.app.push_screen(ActMenu(name, actions), chosen)

    def resume(self, job_id: str) -> None:
        """Go on with a job. It destroys nothing, so nothing is asked."""
        job = self._app.store.get(JobView, job_id)
        if job is None or job.state not in FINISHED or job.state == "done":
            self.say(f"job {job_id} has not failed and was not cancelled")
            return
        self._app.resume_job(job_id)

    def ask_to_cancel(self, job_id: str) -> None:
        """The one way to cancel a job: confirm, with the target named."""
        job = self._app.store.get(JobView, job_id)
        if job is None or job.state in FINISHED:
            self.say(f"job {job_id} is not running")
            return
        unit, done, whole = advance(job)
        details = [
            f"job      {job.name or job.id}  ({job.id})",
            f"state    {job.state}, {unit} {done} of {whole}",
            f"workers  {job.workers} of {job.workers_wanted} will be released",
            "It can be resumed later, from its last committed round.",
        ]

        def answered(yes: bool | None) -> None:
            if yes:
                self._app.cancel_job(job_id)

        question = f"Cancel job {job.name or job.id}?"
        self.app.push_screen(ConfirmScreen(self._app.drawing, question, details, "Cancel job"), answered)

    def action_new_job(self) -> None:
        """The form for a new job."""
        if self.current == "jobs":
            self.open_form("")

    def open_form(self, path: str) -> None:
        """The form, with the draft that was left in it."""
        if path:
            self._draft, self._draft_path = JobDraft(""), path

        def datasets() -> set[str]:
            return {view.name for view in self._app.store.views(DatasetView)}

        form = SubmitScreen(self._app.drawing, self._draft, self._app.client.submit, datasets, path=self._draft_path)

        def closed(result: SubmitResult | None) -> None:
            if result is None:
                self._draft, self._draft_path = form.draft, form.path
                return
            self._draft, self._draft_path = JobDraft(""), ""
            scheduler = self._app.store.name_of(result.scheduler)
            self.say(f"job {result.job_id} is accepted by {scheduler}")

        self.app.push_screen(form, closed)
