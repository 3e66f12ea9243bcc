"""Layers that the job form opens: a text to read, and a choice of one of the cluster's jobs, or of a file."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList
from textual.widgets.option_list import Option

from hypha_tui.screens.dialogs import Layer, ScrollingLines
from hypha_tui.screens.newest_size import NewestSize
from hypha_tui.store import text
from hypha_tui.widgets.drawing import Drawing, Line
from node.views import JobView

LABEL_WIDTH = 10


class ReportScreen(Layer):
    """Lines to read; they scroll."""

    def __init__(self, drawing: Drawing, title: str, lines: list[Line]) -> None:
        super().__init__()
        self._lines = ScrollingLines(drawing)
        self._title = title
        self._content = lines

    def compose(self) -> ComposeResult:
        """One scrolling box."""
        with Container(classes="box") as box:
            box.border_title = Text(text.clean(self._title))
            box.border_subtitle = "esc back"
            yield self._lines

    def on_mount(self) -> None:
        """Fill and focus it."""
        self._lines.show(self._content)
        self._lines.focus()


def labelled(rows: list[tuple[str, str, str]], width: int) -> list[Line]:
    """Rows of label, words and tone, with the words wrapped beside the label."""
    lines: list[Line] = []
    for label, words, tone in rows:
        parts = text.wrap(words, max(width - LABEL_WIDTH, 20), 6) if label else [text.clean(words)]
        for number, part in enumerate(parts):
            lines.append([(f"{label if not number else '':<{LABEL_WIDTH}}", "dim"), (part, tone)])
    return lines


class JobChoice(ModalScreen[str | Path | None], NewestSize[str | Path | None]):
    """One of the jobs that the cluster knows, by its id; or, where `files` are asked for, a job's file or folder."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "close", "close"),
        Binding("j", "move(1)", show=False),
        Binding("k", "move(-1)", show=False),
    ]

    def __init__(self, title: str, jobs: list[JobView], first: str, *, files: bool) -> None:
        super().__init__()
        self._takes_files = files
        self._title = title
        self._jobs = sorted(jobs, key=lambda job: job.id != first)

    def compose(self) -> ComposeResult:
        """A list."""
        options = [
            Option(
                text.clean(f"{job.name or job.id}  {job.state}  {text.age(job.age_s)} old  {job.dataset}"), id=job.id
            )
            for job in self._jobs
        ]
        with Container(id="act-box", classes="box") as box:
            box.border_title = Text(self._title)
            if options:
                yield OptionList(*options, markup=False)
            if self._takes_files:
                place = Input(placeholder="tab: or a job's TOML file, or a folder with job.toml", id="choice-file")
                place.cursor_blink = False
                yield place

    def action_move(self, by: int) -> None:
        """Move in the list."""
        for options in self.query(OptionList):
            if by > 0:
                options.action_cursor_down()
            else:
                options.action_cursor_up()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """A file."""
        if event.value.strip():
            self.dismiss(Path(event.value.strip()))

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Chosen."""
        self.dismiss(event.option.id)

    def action_close(self) -> None:
        """Nothing."""
        self.dismiss(None)
