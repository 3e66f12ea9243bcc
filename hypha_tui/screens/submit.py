"""The new-job form: a file or folder, the settings that change between runs, and the text that will be sent."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import ClassVar, Final

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container
from textual.screen import ModalScreen
from textual.widgets import Button, Input, Static, TextArea

from hypha_tui.client.jobfile import Body, JobDraft, JobFields, check, fields_of, pack, read_draft, with_fields
from hypha_tui.store import text
from hypha_tui.widgets.drawing import Drawing, Line
from hypha_tui.widgets.lines import Lines
from node.errors import HyphaError
from node.views import SubmitResult

FIELDS: Final = (
    ("path", "file/folder", "a job's TOML file, or a folder with job.toml; enter reads it"),
    ("name", "name", "what the job is called"),
    ("dataset", "dataset", "a dataset that a data node announces"),
    ("workers", "workers", "how many are wanted"),
    ("rounds", "rounds", "how often weights are averaged"),
)
VERDICT_LINES: Final = 2


class SubmitScreen(ModalScreen[SubmitResult | None]):
    """Nothing is sent before Submit is pressed; what the node refuses is shown here, and the form stays."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "close", "close"),
        Binding("ctrl+r", "submit", "submit"),
    ]

    def __init__(
        self,
        drawing: Drawing,
        draft: JobDraft,
        submit: Callable[[Body], Awaitable[SubmitResult]],
        datasets: Callable[[], set[str]],
        *,
        path: str = "",
    ) -> None:
        super().__init__()
        self.draft = draft
        self.path = path
        self._submit = submit
        self._datasets = datasets
        self._verdict = Lines(drawing, id="form-verdict")
        self._area = TextArea(draft.text, id="form-text", show_line_numbers=False, tab_behavior="focus")
        self._is_filling = False

    def compose(self) -> ComposeResult:
        """Fields, text, verdict, buttons."""
        with Container(classes="box") as box:
            box.border_title = "New job"
            box.border_subtitle = "tab next field   ctrl+r submit   esc close"
            with Container(id="form-fields"):
                for name, label, hint in FIELDS:
                    with Container(classes="field"):
                        yield Static(label, classes="field-label", markup=False)
                        yield Input(placeholder=hint, id=f"field-{name}")
            self._area.border_title = "job.toml"
            self._area.cursor_blink = False
            yield self._area
            yield self._verdict
            with Container(id="form-buttons"):
                yield Button("Cancel", id="no")
                yield Button("Submit", id="yes")

    def on_mount(self) -> None:
        """Start in the first field, with the draft as it was left."""
        self.query_one("#form-buttons").styles.layout = "horizontal"
        for field in self.query(Input):
            field.cursor_blink = False
        self._input("path").value = self.path
        self._fill_fields()
        self._input("path").focus()
        if self.path and not self.draft.text:
            self._read(self.path)

    # ---- editing ----------------------------------------------------------------------------------------

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Enter in the path reads it; elsewhere it goes to the next field."""
        if event.input.id == "field-path":
            self._read(event.value)
        else:
            self.focus_next()

    def on_input_changed(self, event: Input.Changed) -> None:
        """A changed setting changes the text."""
        if self._is_filling or event.input.id == "field-path" or not event.input.has_focus:
            return
        fields, problem = self._fields()
        if problem:
            self._show_problem(problem)
            return
        try:
            changed = with_fields(self._area.text, fields)
        except HyphaError as error:
            self._show_problem(str(error))
            return
        if changed != self._area.text:
            self._is_filling = True
            self._area.load_text(changed)
        self._judge()

    def on_text_area_changed(self, _event: TextArea.Changed) -> None:
        """A changed text changes the fields."""
        if self._is_filling:
            self._is_filling = False
            return
        if self._area.has_focus:
            self._fill_fields()
        self._judge()

    def _read(self, path: str) -> None:
        try:
            self.draft = read_draft(Path(path).expanduser())
        except HyphaError as error:
            self._show_problem(str(error))
            return
        self.path = path
        self._area.load_text(self.draft.text)
        self._fill_fields()
        self._judge()
        self._input("name").focus()

    def _fill_fields(self) -> None:
        try:
            fields = fields_of(self._area.text)
        except HyphaError:
            return
        values = {"name": fields.name, "dataset": fields.dataset, "workers": fields.workers, "rounds": fields.rounds}
        for name, value in values.items():
            with self.prevent(Input.Changed):
                self._input(name).value = "" if value is None else str(value)

    def _fields(self) -> tuple[JobFields, str]:
        numbers: dict[str, int | None] = {}
        for name in ("workers", "rounds"):
            value = self._input(name).value.strip()
            if value and not (value.isascii() and value.isdigit() and 0 < int(value) < 1_000_000):
                return JobFields(), f"{name}: {value!r} is not a whole number above 0"
            numbers[name] = int(value) if value else None
        name, dataset = self._input("name").value.strip(), self._input("dataset").value.strip()
        return JobFields(name, dataset, numbers["workers"], numbers["rounds"]), ""

    # ---- judging and sending ------------------------------------------------------------------------------

    @property
    def problem(self) -> str:
        """What keeps the job from being sent; empty when nothing does."""
        if not self._area.text.strip():
            return "name a job's file or folder and press enter, or write the job here"
        _, problem = self._fields()
        if problem:
            return problem
        try:
            check(self._area.text)
        except HyphaError as error:
            return str(error)
        return ""

    def _judge(self) -> None:
        problem = self.problem
        if problem:
            self._show_problem(problem)
            return
        fields, spec = fields_of(self._area.text), check(self._area.text)
        known = self._datasets()
        where = f"with the folder {self.draft.folder}" if self.draft.folder is not None else "without other files"
        what = f"{spec.rounds.update_rounds} rounds" if spec.output is None else f"{spec.output.kind} of each row"
        line: Line = [("ready", "ok"), (f"  {spec.num_workers} workers, {what}, {where}", "text")]
        note: Line = []
        if fields.dataset not in known:
            note = [(f"nobody announces {text.clean(fields.dataset)!r} now; the job would wait for it", "late")]
        self._verdict.show([line, note])

    def _show_problem(self, problem: str) -> None:
        lines = text.wrap(problem, self._verdict.size.width or 60, VERDICT_LINES)
        self._verdict.show([[(line, "late")] for line in lines])

    def on_button_pressed(self, event: Button.Pressed) -> None:
        """Submit or close."""
        if event.button.id == "yes":
            self.action_submit()
        else:
            self.action_close()

    def action_submit(self) -> None:
        """Send it, if there is nothing against it."""
        problem = self.problem
        if problem:
            self._show_problem(problem)
            return
        self.run_worker(self._send(), group="submit", exclusive=True, exit_on_error=False)

    def action_close(self) -> None:
        """Close; the draft is kept."""
        self.draft = JobDraft(self._area.text, self.draft.folder)
        self.dismiss(None)

    async def _send(self) -> None:
        self._verdict.show([[("submitting...", "busy")], []])
        try:
            result = await self._submit(pack(JobDraft(self._area.text, self.draft.folder)))
        except HyphaError as error:
            self._show_problem(str(error))
        else:
            self.dismiss(result)

    def _input(self, name: str) -> Input:
        return self.query_one(f"#field-{name}", Input)
