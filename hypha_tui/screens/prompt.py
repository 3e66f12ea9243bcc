"""The line that opens under the body for `:` commands, `/` filters and the name of a file."""

from __future__ import annotations

from typing import ClassVar, Final

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.message import Message
from textual.widgets import Input, Static

from hypha_tui.keys.completion import Offer, common, complete
from hypha_tui.settings.recall import Recall

MARKS: Final = {":": ":", "/": "/", "file": "write to"}


class Prompt(Horizontal):
    """One input for all of them. Tab completes a command, its argument or a file; Enter runs what is written."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "cancel", show=False),
        Binding("tab", "complete", show=False, priority=True),
        Binding("up", "recall(-1)", show=False),
        Binding("down", "recall(1)", show=False),
    ]

    class Entered(Message):
        """Enter: `mode` is `:`, `/` or `file`."""

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

    class Choices(Message):
        """Tab: what the line could become."""

        def __init__(self, words: tuple[str, ...]) -> None:
            super().__init__()
            self.words = words

    def __init__(self, offer: Offer, recall: Recall) -> None:
        super().__init__(id="prompt")
        self.mode = ":"
        self._before = ""
        self._offer = offer
        self._recall = recall
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
        """Show it for a command, a filter or a file."""
        self.mode = mode
        self._before = value
        self._recall.rest()
        self._mark.update(MARKS[mode])
        self._mark.styles.width = len(MARKS[mode]) + 1
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
            self._recall.add(event.value)
        self.close()
        self.post_message(self.Entered(self.mode, event.value))

    def action_cancel(self) -> None:
        """Close; a filter goes back to what it was."""
        self.close()
        self.post_message(self.Edited(self.mode, self._before, closed=True))

    def action_complete(self) -> None:
        """Complete as far as it is certain, and tell what there is to choose from."""
        line = self._input.value
        if self.mode == ":":
            done = complete(line, self._offer)
            self._write(done.line)
            self.post_message(self.Choices(done.choices))
        elif self.mode == "file":
            files = tuple(self._offer("file", line))
            self._write(common(files) if files else line)
            self.post_message(self.Choices(files))

    def action_recall(self, by: int) -> None:
        """Earlier commands."""
        line = self._recall.move(by) if self.mode == ":" else None
        if line is not None:
            self._write(line)

    def _write(self, line: str) -> None:
        self._input.value = line
        self._input.cursor_position = len(line)
