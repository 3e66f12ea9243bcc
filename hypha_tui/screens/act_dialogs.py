"""Layers of acting: the menu of acts, and a question whose answer is typed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container
from textual.events import Key
from textual.screen import ModalScreen
from textual.widget import Widget
from textual.widgets import Button, Input, OptionList, Static
from textual.widgets.option_list import Option

from hypha_tui.screens.dialogs import ConfirmScreen
from hypha_tui.screens.newest_size import NewestSize
from hypha_tui.store import text
from hypha_tui.store.acts import Act
from hypha_tui.widgets.drawing import Drawing


class ActMenu(ModalScreen[str | None], NewestSize[str | None]):
    """What can be done to one object or several; it names them. Each act has a key."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,x", "close", "close"),
        Binding("j", "move(1)", show=False),
        Binding("k", "move(-1)", show=False),
    ]

    def __init__(self, target: str, choices: Sequence[tuple[Act, str]]) -> None:
        super().__init__()
        self._target = target
        self._choices = choices

    def compose(self) -> ComposeResult:
        """A list."""
        with Container(id="act-box", classes="box") as box:
            box.border_title = Text(text.clean(self._target))
            options = [Option(f"{act.key}  {text.clean(label)}", id=act.name) for act, label in self._choices]
            yield OptionList(*options, markup=False)

    def action_move(self, by: int) -> None:
        """Move in the list."""
        options = self.query_one(OptionList)
        if by > 0:
            options.action_cursor_down()
        else:
            options.action_cursor_up()

    def on_key(self, event: Key) -> None:
        """The key of an act."""
        name = next((act.name for act, _ in self._choices if act.key == event.key), None)
        if name is not None:
            event.stop()
            self.dismiss(name)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Chosen."""
        self.dismiss(event.option.id)

    def action_close(self) -> None:
        """Nothing."""
        self.dismiss(None)


class TypedConfirm(ConfirmScreen):
    """Asks for a word to be typed, so that nothing is ended in production by a habit of the fingers."""

    first = "#typed"

    def __init__(self, drawing: Drawing, question: str, details: list[str], yes: str, word: str) -> None:
        super().__init__(drawing, question, details, yes)
        self._word = text.clean(word)

    def before_buttons(self) -> Iterable[Widget]:
        """The line to type in, between the target and the buttons."""
        yield Static(f"This is a production cluster. Type {self._word} to go on.", markup=False)
        yield Input(id="typed", compact=True)

    def on_button_pressed(self, event: Button.Pressed) -> None:
        """The word must be there."""
        if event.button.id == "yes" and self.query_one(Input).value.strip() != self._word:
            event.prevent_default()
            self.query_one(Input).focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Enter goes to the button, and presses nothing."""
        self.query_one("#yes" if event.value.strip() == self._word else "#no", Button).focus()
