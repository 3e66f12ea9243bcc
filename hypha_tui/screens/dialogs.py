"""Layers over the main screen: help, confirmation, act menu."""

from __future__ import annotations

from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container
from textual.screen import ModalScreen
from textual.widgets import Button, OptionList
from textual.widgets.option_list import Option

from hypha_tui.keymap import COMMANDS, keys_of
from hypha_tui.store import text
from hypha_tui.widgets.drawing import Drawing, Line
from hypha_tui.widgets.lines import Lines


class ScrollingLines(Lines, can_focus=True):
    """Lines with the focus: they scroll with the keys of motion."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j,down", "scroll_down", show=False),
        Binding("k,up", "scroll_up", show=False),
        Binding("g,home", "scroll_home", show=False),
        Binding("G,end", "scroll_end", show=False),
        Binding("ctrl+d,pagedown", "page_down", show=False),
        Binding("ctrl+u,pageup", "page_up", show=False),
    ]


class Layer(ModalScreen[bool | None]):
    """A modal screen that Esc and q close."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q", "close", "close")]

    def action_close(self) -> None:
        """Close without doing anything."""
        self.dismiss(None)


class HelpScreen(Layer):
    """The keys of this place and the commands, from the key table."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("question_mark", "close", "close")]

    def __init__(self, drawing: Drawing, place: str, scopes: tuple[str, ...]) -> None:
        super().__init__()
        self._lines = ScrollingLines(drawing)
        self._place = place
        self._help = help_lines(scopes)

    def compose(self) -> ComposeResult:
        """One scrolling box."""
        with Container(classes="box") as box:
            box.border_title = f"Keys on {self._place}"
            yield self._lines

    def on_mount(self) -> None:
        """Fill and focus it."""
        self._lines.show(self._help)
        self._lines.focus()


def help_lines(scopes: tuple[str, ...]) -> list[Line]:
    """Keys by group, then commands."""
    lines: list[Line] = []
    found = keys_of(*scopes, "main")
    for group in ("Here", "Move", "Everywhere", "Screens"):
        chosen = [key for key in found if key.group == group]
        if not chosen:
            continue
        lines.append([(group, "title")])
        for key in chosen:
            names = " ".join(_key_name(single) for single in key.keys.split(","))
            lines.append([(f"  {names:<16}", "key"), (key.label, "text")])
        lines.append([])
    lines.append([("Commands", "title")])
    lines += [[(f"  :{command.usage:<24}", "key"), (command.label, "text")] for command in COMMANDS]
    lines += [[], [("In tmux, set `escape-time 10`: esc is slow without it.", "dim")]]
    return lines


def _key_name(key: str) -> str:
    return {"colon": ":", "slash": "/", "question_mark": "?"}.get(key, key)


class ConfirmScreen(Layer):
    """Asks before something is ended. It names its target; Cancel has the focus."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("n", "close", "no"),
        Binding("left,h,right,l", "switch", "other button", show=False),
    ]

    def __init__(self, drawing: Drawing, question: str, details: list[str], yes: str) -> None:
        super().__init__()
        self._lines = Lines(drawing)
        self._question = question
        self._content: list[Line] = [[(text.clean(line), "text")] for line in details]
        self._yes = yes

    def compose(self) -> ComposeResult:
        """Question, target, two buttons."""
        with Container(id="confirm-box", classes="box") as box:
            box.border_title = Text(text.clean(self._question))
            self._lines.styles.height = len(self._content)
            yield self._lines
            with Container(id="confirm-buttons"):
                yield Button("Keep it", id="no")
                yield Button(self._yes, id="yes")

    def on_mount(self) -> None:
        """Cancel has the focus."""
        self._lines.show(self._content)
        self.query_one("#confirm-buttons").styles.layout = "horizontal"
        self.query_one("#no").focus()

    def action_switch(self) -> None:
        """The other button."""
        self.focus_next("Button")

    def on_button_pressed(self, event: Button.Pressed) -> None:
        """The answer."""
        self.dismiss(event.button.id == "yes")


class ActMenu(ModalScreen[str | None]):
    """What can be done to one object; it names the object."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,x", "close", "close"),
        Binding("j", "move(1)", show=False),
        Binding("k", "move(-1)", show=False),
    ]

    def __init__(self, target: str, actions: list[tuple[str, str]]) -> None:
        super().__init__()
        self._target = target
        self._actions = actions

    def compose(self) -> ComposeResult:
        """A list."""
        with Container(id="act-box", classes="box") as box:
            box.border_title = Text(text.clean(self._target))
            yield OptionList(*[Option(label, id=id_) for id_, label in self._actions], markup=False)

    def action_move(self, by: int) -> None:
        """Move in the list."""
        options = self.query_one(OptionList)
        if by > 0:
            options.action_cursor_down()
        else:
            options.action_cursor_up()

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Chosen."""
        self.dismiss(event.option.id)

    def action_close(self) -> None:
        """Nothing."""
        self.dismiss(None)
