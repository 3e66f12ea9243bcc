"""The inspector in a layer of its own: one object told in full."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, cast

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Input

from hypha_tui.keys.keymap import keys_of
from hypha_tui.screens.dialogs import HelpScreen, Layer
from hypha_tui.screens.inspection import LOG, SUMMARY, InspectorPane
from hypha_tui.screens.related_list import RelatedList
from hypha_tui.screens.value import ValueScreen
from hypha_tui.store.related import Related, related
from hypha_tui.widgets import bars
from hypha_tui.widgets.drawing import Drawing
from hypha_tui.widgets.line_log import LineLog
from hypha_tui.widgets.lines import Lines
from hypha_tui.widgets.pick_lines import PickLines

if TYPE_CHECKING:
    from hypha_tui.screens.app import HyphaApp


class InspectorScreen(Layer):
    """A pane with the whole screen for it, and jumps to what is related."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(key.keys, key.action, key.label, id=key.id, show=False, priority="tab" in key.keys)
        for key in keys_of("inspector")
    ]

    def __init__(self, drawing: Drawing, kind: str, object_id: str, *, tab: str = SUMMARY) -> None:
        super().__init__()
        self.kind = kind
        self.object_id = object_id
        self._drawing = drawing
        self._first_tab = tab
        self._pane = InspectorPane(drawing, classes="box")
        self._keys = Lines(drawing, id="inspector-keys")
        self._find = Input(placeholder="words that a line must have", classes="-away")

    @property
    def scopes(self) -> tuple[str, ...]:
        """The scopes of keys that are live here."""
        return ("inspector", "lines", *(("log",) if self._pane.tab == LOG else ()))

    def compose(self) -> ComposeResult:
        """One box, a line to type in below it, and the keys."""
        yield self._pane
        yield self._find
        yield self._keys

    def on_mount(self) -> None:
        """Fill it."""
        self._pane.inspect(self.kind, self.object_id)
        self._pane.show_tab(self._first_tab)
        self._pane.body.focus()
        self.call_after_refresh(self.sync)

    def sync(self) -> None:
        """Bring it up to date."""
        self._pane.sync()
        app = cast("HyphaApp", self.app)
        keys = app.keymap.footer(*self.scopes)
        self._keys.show([bars.keys(keys, self.size.width, readonly=app.only_reads)])

    def action_close(self) -> None:
        """Away with the line to type in and its filter first, then with the whole."""
        if not self._find.has_class("-away"):
            self._end_find("")
        else:
            self.dismiss(None)

    def action_next_tab(self, by: int) -> None:
        """Another tab."""
        self._pane.next_tab(by)
        self._pane.body.focus()
        self.sync()

    def action_show_tab(self, tab: str) -> None:
        """A tab by name."""
        self._pane.show_tab(tab)
        self._pane.body.focus()
        self.sync()

    def action_related(self) -> None:
        """What it has to do with, to jump there."""
        app = cast("HyphaApp", self.app)
        show_related(app, self.kind, self.object_id, self._jump)

    def action_act(self) -> None:
        """What can be done to it."""
        cast("HyphaApp", self.app).main.acting.menu([(self.kind, self.object_id)])

    def action_copy_id(self) -> None:
        """Copy its id."""
        cast("HyphaApp", self.app).main.copying.text(self.object_id)

    def action_copy_json(self) -> None:
        """Copy it as JSON."""
        cast("HyphaApp", self.app).main.copying.text(self._pane.json)

    def action_history(self, by: int) -> None:
        """The place before this one, or the next."""
        cast("HyphaApp", self.app).main.action_history(by)

    def action_last_place(self) -> None:
        """The last place, and back."""
        cast("HyphaApp", self.app).main.action_last_place()

    def action_help(self) -> None:
        """Keys for this place."""
        app = cast("HyphaApp", self.app)
        self.app.push_screen(HelpScreen(app.drawing, "the inspector", app.keymap.of(*self.scopes)))

    def action_find_words(self) -> None:
        """Type words that lines must have."""
        self._find.remove_class("-away")
        self._find.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        """As it is typed."""
        if not self._find.has_class("-away"):
            self._pane.find(event.value)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Back to the lines, with the filter."""
        self._end_find(event.value)

    def on_pick_lines_opened(self, event: PickLines.Opened) -> None:
        """A line in full."""
        self.app.push_screen(ValueScreen(self._drawing, f"{self.kind} {self.object_id}", event.words.strip()))

    def on_line_log_opened(self, event: LineLog.Opened) -> None:
        """A line of the log in full."""
        self.app.push_screen(ValueScreen(self._drawing, f"{self.kind} {self.object_id}", event.log.copy_line))

    def on_line_log_changed(self) -> None:
        """Whether it follows is told in the frame."""
        self.sync()

    def _end_find(self, words: str) -> None:
        self._find.add_class("-away")
        self._pane.find(words)
        self._pane.body.focus()

    def _jump(self, chosen: Related) -> None:
        main = cast("HyphaApp", self.app).main
        main.open_inspector(chosen.kind, chosen.id)


def show_related(app: HyphaApp, kind: str, object_id: str, jump: Callable[[Related], None]) -> None:
    """The list of what an object has to do with; the one that is chosen is handed on."""
    found = related(app.store, kind, object_id)
    if not found:
        app.main.say(f"nothing here is related to {kind} {object_id}")
        return

    def chosen(one: Related | None) -> None:
        if one is not None:
            jump(one)

    app.push_screen(RelatedList(f"{kind} {object_id}", found), chosen)
