"""The lines above and below the body: header, tabs, banner and recording; status and keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hypha_tui.store import text
from hypha_tui.store.columns import Look
from hypha_tui.widgets import bars
from hypha_tui.widgets.lines import Lines
from hypha_tui.widgets.tape_line import tape_line

if TYPE_CHECKING:
    from hypha_tui.screens.app import HyphaApp
    from hypha_tui.screens.main import MainScreen

MESSAGE_S: Final = 6.0


class Surround:
    """What surrounds the views of a main screen. A line is painted only when its text differs."""

    def __init__(self, app: HyphaApp, main: MainScreen) -> None:
        self._app = app
        self._main = main
        self._message = ("", -1e9)
        self.tabs = Lines(app.drawing, id="tabs")
        self._header, self._banner, self._tape, self._status, self._keys = (
            Lines(app.drawing, id=name) for name in ("header", "banner", "tape", "status", "keys")
        )

    @property
    def above(self) -> list[Lines]:
        """From the top."""
        return [self._header, self.tabs, self._banner, self._tape]

    @property
    def below(self) -> list[Lines]:
        """To the foot."""
        return [self._status, self._keys]

    def sync(self, look: Look) -> None:
        """All of them."""
        app, main, width = self._app, self._main, self._main.size.width
        if not width:
            return
        self._header.show(bars.header(look, app.label, app.wall(), width, hz=app.hz, marks=self._marks()))
        self.tabs.show([bars.tabs(main.current, width, "RO" if app.only_reads else "RW")])
        self._banner.show([bars.banner(look)])
        replay = app.tapes.replay
        main.set_class(replay is not None, "-tape")
        if replay is not None:
            self._tape.show([tape_line(replay, look.glyphs, width)])
        self.sync_status(look)
        self._keys.show([bars.keys(app.keymap.footer(*main.scopes), width, readonly=app.only_reads)])

    def sync_status(self, look: Look) -> None:
        """The status line alone."""
        app, view, width = self._app, self._main.view, self._main.size.width
        message = self._message[0] if app.clock() - self._message[1] < MESSAGE_S else ""
        age = look.store.data_age_s(look.now)
        stale = f"data {text.age(age)} old" if look.store.is_stale and age is not None else ""
        waits = f"{app.keystrokes.text}_" if app.keystrokes.text else ""
        selected = view.selected
        whole_id = text.clean(selected[1]) if selected is not None else ""
        line = bars.status(
            view.state_line, waits or message, view.filter_text, width, stale_for=stale, whole_id=whole_id
        )
        self._status.show([line])

    def say(self, message: str) -> None:
        """Tell something in the status line for a while."""
        self._message = (text.clean(message), self._app.clock())

    def _marks(self) -> list[tuple[str, str]]:
        """What the header says about the context."""
        context = self._app.context
        marks = [(f" {context.name}", "title")] if context.name else []
        marks += [(" PRODUCTION", "lost")] if context.production else []
        marks += self._app.tapes.mark
        return marks + ([(" RO", "late")] if context.readonly else [])
