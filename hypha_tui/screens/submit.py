"""The new-job form: a file, folder or earlier job, the settings that change between runs, and the text to be sent."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import ClassVar, Final

from msgspec.structs import replace
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container
from textual.screen import ModalScreen
from textual.timer import Timer
from textual.widgets import Button, Input, Static, TextArea

from hypha_tui.client.api import Client
from hypha_tui.client.contents import contents_of
from hypha_tui.client.drafts import Draft, DraftFile
from hypha_tui.client.jobfields import FIELDS, field_of_problem, fields_of, read_value, suggest_name, with_field
from hypha_tui.client.jobfile import JOB_FILE, JobDraft, check, pack, read_draft
from hypha_tui.client.tomledit import dump
from hypha_tui.keys.keymap import keys_of
from hypha_tui.screens.comparing import Other, called, report, spec_of_other
from hypha_tui.screens.editor import edited
from hypha_tui.screens.newest_size import NewestSize
from hypha_tui.screens.report import JobChoice, ReportScreen, labelled
from hypha_tui.store import text
from hypha_tui.store.cluster import ClusterStore
from hypha_tui.store.dryrun import dry_run, name_note, what
from hypha_tui.store.matching import datasets_line, matching
from hypha_tui.widgets.drawing import Drawing, Line
from hypha_tui.widgets.lines import Lines
from hypha_tui.widgets.work import start
from node.errors import HyphaError
from node.jobspec import JobSpec
from node.views import DatasetView, JobView, PeerView, SubmitResult

PATH_HINT: Final = "a job's TOML file, or a folder with job.toml; enter reads it"
VERDICT_LINES: Final = 4
LEAST_WIDTH: Final = 60
LOOK_EVERY_S: Final = 2.0
KEEP_AFTER_S: Final = 1.0


class SubmitScreen(ModalScreen[SubmitResult | None], NewestSize[SubmitResult | None]):
    """Nothing is sent before Submit; what the node refuses is shown here, and the form stays. The draft is kept."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(key.keys, key.action, key.label, id=key.id, priority=key.id != "form.close") for key in keys_of("form")
    ]

    def __init__(
        self,
        drawing: Drawing,
        client: Client,
        store: Callable[[], ClusterStore],
        drafts: DraftFile,
        environment: Mapping[str, str],
        *,
        path: str = "",
        job_id: str = "",
    ) -> None:
        """`path`: read at once, in place of the draft. `job_id`: the earlier job that is offered first."""
        super().__init__()
        self._drawing = drawing
        self._client = client
        self._store = store
        self._drafts = drafts
        self._environment = environment
        self._job_id = job_id
        kept = drafts.load()
        self._draft = kept if not path or path == kept.path else Draft(path=path)
        self._verdict = Lines(drawing, id="form-verdict")
        self._area = TextArea(self._draft.text, id="form-text", show_line_numbers=False, tab_behavior="focus")
        self._is_filling = False
        self._is_sending = False
        self._wrong = ""
        self._keeping: Timer | None = None

    def compose(self) -> ComposeResult:
        """Fields, text, verdict, buttons."""
        with Container(classes="box") as box:
            box.border_title = "New job"
            box.border_subtitle = "  ".join(f"{key.text.replace('ctrl+', '^')} {key.hint}" for key in keys_of("form"))
            with Container(id="form-fields"):
                with Container(classes="field"):
                    yield Static("file/folder", classes="field-label", markup=False)
                    yield Input(placeholder=PATH_HINT, id="field-path")
                for left, right in zip(FIELDS[::2], FIELDS[1::2], strict=True):
                    with Container(classes="field"):
                        for field in (left, right):
                            label = f" {field.label}"
                            yield Static(label, id=f"label-{field.name}", classes="field-label", markup=False)
                            yield Input(placeholder=field.hint, id=f"field-{field.name}")
            self._area.border_title = JOB_FILE
            self._area.cursor_blink = False
            yield self._area
            yield self._verdict
            with Container(id="form-buttons"):
                yield Button("Cancel", id="no")
                yield Button("Dry run", id="dry")
                yield Button("Submit", id="yes")

    def on_mount(self) -> None:
        """Start in the first field, with the draft as it was left."""
        self.query_one("#form-buttons").styles.layout = "horizontal"
        for field in self.query(Input):
            field.cursor_blink = False
        self._input("path").value = self._draft.path
        self._fill_fields()
        self._input("path").focus()
        self.set_interval(LOOK_EVERY_S, self._judge)
        if self._draft.path and not self._draft.text:
            self._read(self._draft.path)
        else:
            self.call_after_refresh(self._look_first)  # when it is known how wide the lines are

    def on_unmount(self) -> None:
        """The draft outlives the terminal."""
        self._keep()

    # ---- editing ----------------------------------------------------------------------------------------

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Enter in the path reads it; elsewhere it goes to the next field."""
        if event.input.id == "field-path":
            self._read(event.value)
        else:
            self.focus_next()

    def on_input_changed(self, event: Input.Changed) -> None:
        """A changed setting changes the text."""
        name = (event.input.id or "").removeprefix("field-")
        if name == "path" or not event.input.has_focus:
            return
        try:
            changed = with_field(self._area.text, name, read_value(name, event.value))
        except HyphaError as error:
            self._tell(str(error))
            return
        if changed != self._area.text:
            self._is_filling = True
            self._set_text(changed)
        self._judge()

    def on_text_area_changed(self, _event: TextArea.Changed) -> None:
        """A changed text changes the fields, and is kept soon."""
        if self._keeping is not None:
            self._keeping.stop()
        self._keeping = self.set_timer(KEEP_AFTER_S, self._keep)
        if self._is_filling:
            self._is_filling = False
            return
        self._fill_fields()
        self._judge()

    def _read(self, path: str) -> None:
        try:
            read = read_draft(Path(path).expanduser())
        except HyphaError as error:
            self._tell(str(error))
            return
        folder = "" if read.folder is None else str(read.folder.resolve())
        self._draft = replace(self._draft, path=path, folder=folder)
        self._take(read.text)

    def _take(self, written: str) -> None:
        """Another text, with ctrl+z the one before."""
        self._set_text(written)
        self._area.move_cursor((0, 0))
        self._fill_fields(also_focused=True)
        self._judge()
        self._input("name").focus()

    def _set_text(self, written: str) -> None:
        self._area.replace(written, (0, 0), self._area.document.end)

    def _fill_fields(self, *, also_focused: bool = False) -> None:
        try:
            values = fields_of(self._area.text)
        except HyphaError:
            return
        for field in FIELDS:
            value = getattr(values, field.name)
            box = self._input(field.name)
            if also_focused or not box.has_focus:
                with self.prevent(Input.Changed):
                    box.value = "" if value is None else str(value)

    # ---- judging ------------------------------------------------------------------------------------------

    @property
    def problem(self) -> str:
        """What keeps the job from being sent; empty when nothing does."""
        if not self._area.text.strip():
            other = f", or ctrl+f for one from {called(self._job_id, self._store())}" if self._job_id else ""
            return f"name a job's file or folder and press enter, or write the job here{other}"
        for field in FIELDS:
            try:
                read_value(field.name, self._input(field.name).value)
            except HyphaError as error:
                return str(error)
        try:
            check(self._area.text)
        except HyphaError as error:
            return str(error)
        return ""

    def _look_first(self) -> None:
        self._judge()
        if self._drafts.problem:
            self._tell(self._drafts.problem)

    def _judge(self) -> None:
        """Say what is wrong, or what the cluster has for the job now."""
        if self._is_sending:
            return
        problem = self.problem
        if problem:
            self._tell(problem)
            return
        self._mark("")
        spec, store = check(self._area.text), self._store()
        where = "with its folder" if self._draft.folder else "without other files"
        note = name_note(spec.name, [job.name for job in store.views(JobView)])
        found = matching(spec, store.views(PeerView))
        words, tone = datasets_line(spec, store.views(DatasetView))
        offers = f"offers now: {store.with_names(found.sentence)}" if store.views(PeerView) else "offers now: unknown"
        ready: Line = [("ready", "ok"), (f"  {what(spec)}, {where}", "text")]
        if note:
            ready.append((f"; {text.clean(note)}", "late"))
        offered: list[Line] = [[(line, found.tone)] for line in text.wrap(offers, self._width, VERDICT_LINES - 2)]
        self._verdict.show([ready, *offered, [(text.clean(words), tone)]])

    def _tell(self, problem: str) -> None:
        self._mark(field_of_problem(problem))
        lines = text.wrap(problem, self._width, VERDICT_LINES)
        self._verdict.show([[(line, "late")] for line in lines])

    @property
    def _width(self) -> int:
        return self._verdict.size.width or LEAST_WIDTH

    def _mark(self, name: str) -> None:
        """Put a sign before the field that is wrong."""
        if name == self._wrong:
            return
        for field in FIELDS:
            if field.name in (name, self._wrong):
                self.query_one(f"#label-{field.name}", Static).update(
                    f"{'!' if field.name == name else ' '}{field.label}"
                )
        self._wrong = name

    # ---- what keys do ---------------------------------------------------------------------------------------

    def on_button_pressed(self, event: Button.Pressed) -> None:
        """Submit, try or close."""
        if event.button.id == "yes":
            self.action_submit()
        elif event.button.id == "dry":
            self.action_dry_run()
        else:
            self.action_close()

    def action_close(self) -> None:
        """Close; the draft is kept."""
        self._keep()
        self.dismiss(None)

    def action_edit(self) -> None:
        """The text in the user's own editor."""
        self._start(self._edit)

    def action_dry_run(self) -> None:
        """All that can be said without sending anything."""
        if self._is_whole():
            self._start(partial(self._try, check(self._area.text)))

    def action_compare(self) -> None:
        """What is otherwise than in an earlier job, or a file."""
        if self._is_whole():
            self._choose("Compare with", self._compare, files=True)

    def action_from_job(self) -> None:
        """Begin with what an earlier job was."""
        self._choose("New job from", self._begin_with, files=False)

    def action_submit(self) -> None:
        """Send it, if there is nothing against it. While it is being sent, once is enough."""
        if not self._is_sending and self._is_whole():
            self._is_sending = True
            self._start(self._send)

    def _is_whole(self) -> bool:
        problem = self.problem
        if problem:
            self._tell(problem)
        return not problem

    def _start(self, work: Callable[[], Awaitable[None]]) -> None:
        start(self, partial(self._telling, work), "form", exclusive=False, fatal=True)

    async def _telling(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except HyphaError as error:
            self._tell(str(error))

    def _choose(self, title: str, then: Callable[[Other], Awaitable[None]], *, files: bool) -> None:
        jobs = self._store().jobs_by_activity()
        if not jobs and not files:
            self._tell("the cluster knows no earlier job")
            return

        def chosen(other: Other | None) -> None:
            if other:
                self._start(partial(then, other))

        self.app.push_screen(JobChoice(title, jobs, self._job_id, files=files), chosen)

    async def _edit(self) -> None:
        self._take(await edited(self.app, self._area.text, JOB_FILE, self._environment))

    async def _try(self, spec: JobSpec) -> None:
        contents = await asyncio.to_thread(contents_of, self._job_draft(), spec)
        store = self._store()
        found = dry_run(spec, contents, store.views(PeerView), store.views(DatasetView), store.views(JobView))
        title = "Dry run: nothing was sent"
        self.app.push_screen(ReportScreen(self._drawing, title, labelled(found.rows(), self._verdict.size.width)))

    async def _compare(self, other: Other) -> None:
        old = await spec_of_other(other, self._client)
        title = f"This job, and {called(other, self._store())} before the arrow"
        self.app.push_screen(report(self._drawing, old, check(self._area.text), title=title))

    async def _begin_with(self, other: Other) -> None:
        document = await self._client.spec(str(other))
        name = str(document.get("name", ""))
        document["name"] = suggest_name(name, [job.name for job in self._store().views(JobView)])
        self._take(dump(document))

    async def _send(self) -> None:
        self._verdict.show([[("submitting...", "busy")], []])
        try:
            body = await asyncio.to_thread(pack, self._job_draft())
            if body.sha256 == self._draft.sent_sha256:  # sent before, and the answer was lost: it is that job
                body = dataclasses.replace(body, job_id=self._draft.sent_id)
            self._draft = replace(self._draft, sent_id=body.job_id, sent_sha256=body.sha256)
            self._keep()
            result = await self._client.submit(body)
        finally:
            self._is_sending = False
        self._draft = Draft()
        self._drafts.remove()
        with self.prevent(TextArea.Changed):
            self._area.load_text("")
        self.dismiss(result)

    # ---- the draft --------------------------------------------------------------------------------------------

    def _job_draft(self) -> JobDraft:
        return JobDraft(self._area.text, Path(self._draft.folder) if self._draft.folder else None)

    def _keep(self) -> None:
        self._draft = replace(self._draft, text=self._area.text)
        self._drafts.save(self._draft)

    def _input(self, name: str) -> Input:
        return self.query_one(f"#field-{name}", Input)
