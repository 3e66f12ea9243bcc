"""Lists to choose from for a table: the column to sort by, and the columns to show."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container
from textual.screen import ModalScreen
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from hypha_tui.screens.newest_size import NewestSize
from hypha_tui.widgets.live_table import LiveTable


class ColumnList(ModalScreen[None], NewestSize[None]):
    """The columns of a table in a list; Enter or a click chooses."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "close", "close"),
        Binding("j", "move(1)", show=False),
        Binding("k", "move(-1)", show=False),
    ]
    title_of_list = ""

    def __init__(self, table: LiveTable, up: str, down: str) -> None:
        super().__init__()
        self.table = table
        self._up = up
        self._down = down

    def compose(self) -> ComposeResult:
        """A list."""
        with Container(id="act-box", classes="box") as box:
            box.border_title = self.title_of_list
            yield OptionList(*[Option(self.label(number), id=str(number)) for number in self._numbers()], markup=False)

    def on_mount(self) -> None:
        """The cursor is on the present column."""
        columns, rows = self.table.columns, self.table.rows
        self.query_one(OptionList).highlighted = columns.index(rows.sort_column) if rows.sort_column in columns else 0

    def _numbers(self) -> range:
        return range(len(self.table.columns))

    def label(self, number: int) -> str:
        """A column, by its title and its name in filters."""
        column = self.table.columns[number]
        return f"{column.title:<10} {column.key}"

    def action_move(self, by: int) -> None:
        """Move in the list."""
        options = self.query_one(OptionList)
        if by > 0:
            options.action_cursor_down()
        else:
            options.action_cursor_up()

    def action_close(self) -> None:
        """Back to the table."""
        self.dismiss(None)


class SortPicker(ColumnList):
    """Choosing the column to sort by; the present one again: the other way round."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("s", "close", show=False)]
    title_of_list = "Sort by"

    def label(self, number: int) -> str:
        """The present column has an arrow."""
        column, rows = self.table.columns[number], self.table.rows
        arrow = (self._down if rows.is_reversed else self._up) if column is rows.sort_column else " "
        return f"{arrow} {super().label(number)}"

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Sort by it."""
        self.table.sort_by(self.table.columns[event.option_index].key)
        self.dismiss(None)


class ColumnChooser(ColumnList):
    """Taking columns off and putting them back; the list stays open."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("W", "close", show=False),
        Binding("space", "switch", show=False, priority=True),
    ]
    title_of_list = "Columns (space)"

    def label(self, number: int) -> str:
        """A column that is shown has a cross."""
        sign = " " if self.table.columns[number].key in self.table.hidden else "x"
        return f"[{sign}] {super().label(number)}"

    def action_switch(self) -> None:
        """Take the column off or put it back."""
        options = self.query_one(OptionList)
        number = options.highlighted
        if number is not None:
            self.table.hide(self.table.columns[number].key)
            options.replace_option_prompt_at_index(number, self.label(number))

    def on_option_list_option_selected(self, _event: OptionList.OptionSelected) -> None:
        """The same by Enter or the mouse."""
        self.action_switch()
