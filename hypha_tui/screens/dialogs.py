"""Layers over the main screen: help, confirmation."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, Final

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container
from textual.screen import ModalScreen
from textual.widget import Widget
from textual.widgets import Button

from hypha_tui.keys.keymap import COMMANDS, PLACES, Key, keys_of
from hypha_tui.screens.newest_size import NewestSize
from hypha_tui.store import text
from hypha_tui.widgets.drawing import Drawing, Line
from hypha_tui.widgets.lines import Lines

WIDTH: Final = 60
"""Cells of a line in a confirmation."""
AROUND: Final = 8
"""Lines of the screen that a confirmation needs beside its targets."""


class ScrollingLines(Lines, can_focus=True):
    """Lines with the focus: they scroll with the keys of motion."""

    BINDINGS: ClassVar[list[BindingType]] = [
        *(
            Binding(key.keys, "scroll_end" if key.id == "log.bottom" else key.action, id=key.id, show=False)
            for key in keys_of("lines")
            if key.id in ("log.down", "log.up", "log.top", "log.bottom", "log.half_down", "log.half_up")
        ),
        Binding("pagedown", "page_down", show=False),
        Binding("pageup", "page_up", show=False),
    ]

    def action_half_page(self, by: int) -> None:
        """Half a page."""
        self.scroll_relative(y=by * max(self.size.height // 2, 1), animate=False)


class Layer(ModalScreen[bool | None], NewestSize[bool | None]):
    """A modal screen that Esc and q close."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q", "close", "close")]

    def action_close(self) -> None:
        """Close without doing anything."""
        self.dismiss(None)


class HelpScreen(Layer):
    """The keys of this place and the commands, from the key table."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("question_mark,f1", "close", "close")]
    scopes = ("lines",)

    def __init__(self, drawing: Drawing, place: str, keys: list[Key]) -> None:
        super().__init__()
        self._lines = ScrollingLines(drawing)
        self._place = place
        self._help = help_lines(keys)

    def compose(self) -> ComposeResult:
        """One scrolling box."""
        with Container(classes="box") as box:
            box.border_title = f"Keys on {self._place}"
            yield self._lines

    def on_mount(self) -> None:
        """Fill and focus it."""
        self._lines.show(self._help)
        self._lines.focus()


def help_lines(keys: list[Key]) -> list[Line]:
    """Keys by group, those of the narrowest place first, then commands."""
    lines: list[Line] = []
    keys = sorted(keys, key=lambda key: -len(PLACES[key.scope].within))
    for group in ("Here", "Move", "Everywhere", "Screens"):
        chosen = [key for key in keys if key.group == group]
        if not chosen:
            continue
        lines.append([(group, "title")])
        lines += [[(f"  {' '.join(key.names):<16}", "key"), (f" {key.label}", "text")] for key in chosen]
        lines.append([])
    lines.append([("Commands", "title")])
    lines += [[(f"  :{command.usage:<30}", "key"), (f" {command.label}", "text")] for command in COMMANDS]
    lines += [[], [("In tmux, set `escape-time 10`: esc is slow without it.", "dim")]]
    return lines


class ConfirmScreen(Layer):
    """Asks before something is ended. It names its target; Cancel has the focus."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("n", "close", "no"),
        Binding("left,h,right,l", "switch", "other button", show=False),
        Binding("down,j", "scroll(1)", show=False),
        Binding("up,k", "scroll(-1)", show=False),
        Binding("pagedown", "scroll(10)", show=False),
        Binding("pageup", "scroll(-10)", show=False),
    ]

    first: ClassVar[str] = "#no"
    """What has the focus at first."""

    def __init__(self, drawing: Drawing, question: str, details: list[str], yes: str) -> None:
        super().__init__()
        self._lines = Lines(drawing)
        self._question = question
        self._content: list[Line] = [[(part, "text")] for line in details for part in text.wrap(line, WIDTH, 3)]
        self._yes = yes

    def compose(self) -> ComposeResult:
        """Question, target, two buttons."""
        with Container(id="confirm-box", classes="box") as box:
            box.border_title = Text(text.clean(self._question))
            room = max(self.app.size.height - AROUND, 3)
            self._lines.styles.height = min(len(self._content), room)
            box.border_subtitle = f"{len(self._content)} lines: j k scroll" if len(self._content) > room else None
            yield self._lines
            yield from self.before_buttons()
            with Container(id="confirm-buttons"):
                yield Button("Keep it", id="no")
                yield Button(self._yes, id="yes")

    def before_buttons(self) -> Iterable[Widget]:
        """What else is asked for."""
        return ()

    def on_mount(self) -> None:
        """What harms nothing has the focus."""
        self._lines.show(self._content)
        self.query_one("#confirm-buttons").styles.layout = "horizontal"
        self.query_one(self.first).focus()

    def action_scroll(self, by: int) -> None:
        """More of the targets, where there are many."""
        self._lines.scroll_relative(y=by, animate=False)

    def action_switch(self) -> None:
        """The other button."""
        self.focus_next("Button")

    def on_button_pressed(self, event: Button.Pressed) -> None:
        """The answer."""
        self.dismiss(event.button.id == "yes")
