"""What an object has to do with, as a list: a number or enter jumps there."""

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
from hypha_tui.store.related import Related


class RelatedList(ModalScreen[Related | None], NewestSize[Related | None]):
    """Answers with the chosen one."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,o", "close", "close"),
        Binding("j", "move(1)", show=False),
        Binding("k", "move(-1)", show=False),
        *(Binding(str(number), f"choose({number})", show=False) for number in range(1, 10)),
    ]

    def __init__(self, name: str, found: list[Related]) -> None:
        super().__init__()
        self._called = name
        self._found = found

    def compose(self) -> ComposeResult:
        """A list."""
        with Container(id="related-box", classes="box") as box:
            box.border_title = Text(text.clean(f"related to {self._called}"))
            yield OptionList(
                *[
                    Option(f"{number if number < 10 else ' '}  {one.label:<18} {one.kind:<9} {text.clean(one.name)}")
                    for number, one in enumerate(self._found, 1)
                ],
                markup=False,
            )

    def action_move(self, by: int) -> None:
        """Move in the list."""
        options = self.query_one(OptionList)
        if by > 0:
            options.action_cursor_down()
        else:
            options.action_cursor_up()

    def action_choose(self, number: int) -> None:
        """One of the first nine."""
        if number <= len(self._found):
            self.dismiss(self._found[number - 1])

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Chosen."""
        self.dismiss(self._found[event.option_index])

    def action_close(self) -> None:
        """Nowhere."""
        self.dismiss(None)
