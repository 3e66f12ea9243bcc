"""The list from which runs are chosen to be drawn over each other."""

from __future__ import annotations

from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container
from textual.screen import ModalScreen
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from hypha_tui.screens.newest_size import NewestSize
from hypha_tui.store import text

Runs = tuple[tuple[str, ...], str]
"""The runs to show, and the baseline or nothing."""


class RunsScreen(ModalScreen[Runs | None], NewestSize[Runs | None]):
    """Space takes a run in or out, `b` makes it the baseline, Enter shows them, Esc changes nothing."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "close", show=False),
        Binding("space", "take", show=False, priority=True),
        Binding("enter", "done", show=False, priority=True),
        Binding("b", "baseline", show=False),
        Binding("j", "move(1)", show=False),
        Binding("k", "move(-1)", show=False),
    ]

    def __init__(self, runs: list[tuple[str, str]], shown: tuple[str, ...], baseline: str) -> None:
        super().__init__()
        self._runs = runs
        self._shown = set(shown)
        self._baseline = baseline
        self._list = OptionList(id="runs-list")

    def compose(self) -> ComposeResult:
        """One list."""
        with Container(id="act-box", classes="box") as box:
            box.border_title = "Runs: space shows, b baseline, enter done"
            yield self._list

    def on_mount(self) -> None:
        """Fill and focus it."""
        self._list.add_options([Option(self._line(run, name), id=str(at)) for at, (run, name) in enumerate(self._runs)])
        self._list.highlighted = 0 if self._runs else None
        self._list.focus()

    def action_take(self) -> None:
        """The run under the cursor in or out."""
        run = self._here()
        if run:
            self._shown ^= {run}
            self._repaint()

    def action_baseline(self) -> None:
        """The run under the cursor is the baseline, or no longer."""
        run = self._here()
        if run:
            self._baseline = "" if self._baseline == run else run
            self._repaint()

    def action_move(self, by: int) -> None:
        """Another run."""
        if by > 0:
            self._list.action_cursor_down()
        else:
            self._list.action_cursor_up()

    def action_done(self) -> None:
        """Show them."""
        self.dismiss((tuple(run for run, _ in self._runs if run in self._shown), self._baseline))

    def action_close(self) -> None:
        """Change nothing."""
        self.dismiss(None)

    def _here(self) -> str:
        at = self._list.highlighted
        return self._runs[at][0] if at is not None else ""

    def _line(self, run: str, name: str) -> Text:
        base = "  baseline" if run == self._baseline else ""
        return Text(f"[{'x' if run in self._shown else ' '}] {text.clean(name)}{base}")

    def _repaint(self) -> None:
        for at, (run, name) in enumerate(self._runs):
            self._list.replace_option_prompt(str(at), self._line(run, name))
