"""The line that opens under the body for `:` commands and `/` filters."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.message import Message
from textual.widgets import Input, Static

from hypha_tui.keymap import find_command


class Prompt(Horizontal):
    """One input, used for both. Tab completes a command; Enter runs what is written."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "cancel", show=False),
        Binding("tab", "complete", show=False, priority=True),
        Binding("up", "recall(-1)", show=False),
        Binding("down", "recall(1)", show=False),
    ]

    class Entered(Message):
        """Enter: `mode` is `:` or `/`."""

        def __init__(self, mode: str, value: str) -> None:
            super().__init__()
            self.mode = mode
            self.value = value

    class Edited(Message):
        """The filter, while it is written; or Esc, with the filter as it was before."""

        def __init__(self, mode: str, value: str, *, closed: bool = False) -> None:
            super().__init__()
            self.mode = mode
            self.value = value
            self.closed = closed

    def __init__(self) -> None:
        super().__init__(id="prompt")
        self.mode = ":"
        self._before = ""
        self._history: list[str] = []
        self._at = 0
        self._mark = Static(":", id="prompt-mark", markup=False)
        self._input = Input(id="prompt-input")
        self._input.cursor_blink = False

    def compose(self) -> ComposeResult:
        """Mark and input."""
        yield self._mark
        yield self._input

    @property
    def is_open(self) -> bool:
        """Whether it is shown."""
        return self.has_class("-open")

    def open(self, mode: str, value: str = "") -> None:
        """Show it for a command or a filter."""
        self.mode = mode
        self._before = value
        self._at = len(self._history)
        self._mark.update(mode)
        with self.prevent(Input.Changed):
            self._input.value = value
        self._input.cursor_position = len(value)
        self.add_class("-open")
        self.styles.display = "block"  # at once: what is typed next must find it
        self.screen.set_focus(self._input)

    def close(self) -> None:
        """Hide it."""
        self.remove_class("-open")
        self.styles.display = "none"

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filters work as they are written."""
        event.stop()
        self.post_message(self.Edited(self.mode, event.value))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Run it."""
        event.stop()
        if self.mode == ":" and event.value.strip():
            self._history.append(event.value)
        self.close()
        self.post_message(self.Entered(self.mode, event.value))

    def action_cancel(self) -> None:
        """Close; a filter goes back to what it was."""
        self.close()
        self.post_message(self.Edited(self.mode, self._before, closed=True))

    def action_complete(self) -> None:
        """Complete the command's name as far as it is certain."""
        if self.mode != ":":
            return
        word, space, _ = self._input.value.partition(" ")
        command, matching = find_command(word)
        if space or not matching:
            return
        names = [one.name for one in matching]
        common = command.name + " " if command is not None else _common(names)
        self._input.value = common
        self._input.cursor_position = len(common)

    def action_recall(self, by: int) -> None:
        """Earlier commands."""
        if self.mode != ":" or not self._history:
            return
        self._at = min(max(self._at + by, 0), len(self._history))
        self._input.value = self._history[self._at] if self._at < len(self._history) else ""
        self._input.cursor_position = len(self._input.value)


def _common(names: list[str]) -> str:
    """The longest beginning that all have."""
    shortest, longest = min(names), max(names)
    for number, character in enumerate(shortest):
        if longest[number] != character:
            return shortest[:number]
    return shortest
