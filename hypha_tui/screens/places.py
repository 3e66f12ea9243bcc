"""The history of a main screen: noting a place as it is left, and going to one as it was."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypha_tui.screens.history import History, Visit

if TYPE_CHECKING:
    from hypha_tui.screens.app import HyphaApp
    from hypha_tui.screens.main import MainScreen


class Places:
    """Where a main screen has been."""

    def __init__(self, app: HyphaApp, main: MainScreen) -> None:
        self._app = app
        self._main = main
        self._history = History(Visit(main.current))
        self._since_mark = 0

    @property
    def is_at_root(self) -> bool:
        """Whether there is nothing to go back to."""
        return self._history.is_at_root

    def to_screen(self, name: str) -> bool:
        """A screen becomes the next place; False where it is the present one."""
        is_other = name != self._main.current
        if is_other:
            self._since_mark += 1
            self._visit(Visit(name))
        return is_other

    def to_object(self, kind: str, object_id: str) -> None:
        """An object that is inspected becomes the next place."""
        self._visit(Visit(self._main.current, self._main.view.filter_text, (kind, object_id), inspected=True))

    def step(self, by: int) -> None:
        """Back or forward."""
        self._history.note(self._here())
        self._go(self._history.step(by))

    def last(self) -> None:
        """The place before this one."""
        self._history.note(self._here())
        self._go(self._history.last())

    def mark(self) -> None:
        """Digits begin here that change the screen, and may turn out to be a number."""
        self._since_mark = 0

    def undo_to_mark(self) -> None:
        """They were a number: take back the screens that they showed."""
        steps, self._since_mark = self._since_mark, 0
        if steps:
            self._go([self._history.undo() for _ in range(steps)][-1])

    def _visit(self, place: Visit) -> None:
        self._history.note(self._here())
        self._history.visit(place)

    def _here(self) -> Visit:
        main = self._main
        top = self._app.inspector
        if top is not None:
            return Visit(main.current, main.view.filter_text, (top.kind, top.object_id), inspected=True)
        return Visit(main.current, main.view.filter_text, main.view.selected)

    def _go(self, place: Visit | None) -> None:
        main = self._main
        if place is None:
            main.say("there is no other place to go to")
            return
        if self._app.inspector is not None:
            main.app.pop_screen()
        if place.screen != main.current:
            main.show_screen(place.screen)
        if place.target is not None and place.inspected:
            main.inspect(*place.target)
        main.once_ready(lambda: self._restore(place))

    def _restore(self, place: Visit) -> None:
        main = self._main
        if place.filter_text != main.view.filter_text:
            main.view.set_filter(place.filter_text)
        if place.target is not None and not place.inspected:
            main.view.select(place.target)
        main.show_status()
