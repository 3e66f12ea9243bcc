"""The palette: every key of this place and every command, found by any part of its name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container
from textual.fuzzy import Matcher
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList
from textual.widgets.option_list import Option

from hypha_tui.keys.keymap import COMMANDS, Key
from hypha_tui.screens.newest_size import NewestSize
from hypha_tui.widgets.drawing import Drawing


@dataclass(frozen=True, slots=True)
class Choice:
    """What was chosen: the id of a key, or the name of a command."""

    key_id: str = ""
    command: str = ""


class PaletteScreen(ModalScreen[Choice | None], NewestSize[Choice | None]):
    """Type to narrow, up and down to choose, enter to do it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,ctrl+p", "close", show=False, priority=True),
        Binding("up", "move(-1)", show=False, priority=True),
        Binding("down", "move(1)", show=False, priority=True),
    ]

    def __init__(self, drawing: Drawing, keys: list[Key]) -> None:
        super().__init__()
        self._drawing = drawing
        self._entries = [(f"{key.label}", " ".join(key.names), Choice(key_id=key.id)) for key in keys]
        self._entries += [(command.label, f":{command.usage}", Choice(command=command.name)) for command in COMMANDS]
        self._shown: list[Choice] = []
        self._input = Input(placeholder="part of a name")
        self._input.cursor_blink = False
        self._options = OptionList(markup=False)
        self._options.can_focus = False

    def compose(self) -> ComposeResult:
        """An input and a list."""
        with Container(id="palette-box", classes="box") as box:
            box.border_title = "Keys and commands"
            yield self._input
            yield self._options

    def on_mount(self) -> None:
        """Everything, at first."""
        self._input.focus()
        self._narrow("")

    def on_input_changed(self, event: Input.Changed) -> None:
        """What fits best comes first."""
        event.stop()
        self._narrow(event.value.strip())

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Do it."""
        event.stop()
        at = self._options.highlighted
        self.dismiss(self._shown[at] if at is not None and at < len(self._shown) else None)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """A click does it as well."""
        self.dismiss(self._shown[event.option_index])

    def action_move(self, by: int) -> None:
        """Another entry."""
        if by > 0:
            self._options.action_cursor_down()
        else:
            self._options.action_cursor_up()

    def action_close(self) -> None:
        """Nothing."""
        self.dismiss(None)

    def _narrow(self, query: str) -> None:
        found = self._entries
        if query:
            matcher = Matcher(query)
            texts = [f"{label} {keys} {choice.key_id}" for label, keys, choice in self._entries]
            scored = [(matcher.match(text), at) for at, text in enumerate(texts)]
            found = [self._entries[at] for score, at in sorted(scored, key=lambda one: (-one[0], one[1])) if score > 0]
        self._shown = [choice for _, _, choice in found]
        self._options.clear_options()
        self._options.add_options([Option(Text(f"{keys:<32} {label}", no_wrap=True)) for label, keys, _ in found])
        self._options.highlighted = 0 if found else None
