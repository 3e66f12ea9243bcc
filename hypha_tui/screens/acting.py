"""The one path for every act: from the menu or a command, by a confirmation where something ends, to the answers.

The targets are those from when the key was pressed, whatever moves on the screen meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from hypha_tui.screens.view import Target
from hypha_tui.store.acts import Act, act_named, acts_for, called, details, outcome, why_not
from node.errors import HyphaError
from node.views import AnyView

if TYPE_CHECKING:
    from hypha_tui.screens.app import HyphaApp
    from hypha_tui.screens.main import MainScreen

AT_ONCE: Final = 8


class Acting:
    """Acts on objects of one main screen."""

    def __init__(self, app: HyphaApp, main: MainScreen) -> None:
        self._app = app
        self._main = main

    def menu(self, targets: Sequence[Target]) -> None:
        """What can be done to these objects, to choose from."""
        from hypha_tui.screens.act_dialogs import ActMenu

        views = self._views(targets)
        if self._is_readonly():
            return
        if not views:
            self._main.say("nothing can be done here; x works on jobs, leases and workers")
            return
        choices: list[tuple[Act, str]] = []
        for act in dict.fromkeys(act for view in views for act in acts_for(view.kind, view)):
            fitting = sum(not why_not(act, view) for view in views)
            count = "" if len(views) == 1 else f": {fitting} of {len(views)}"
            choices.append((act, f"{act.label}{count}{'...' if self._asks(act) else ''}"))
        if not choices:
            states = ", ".join(dict.fromkeys(getattr(view, "state", "") for view in views))
            self._main.say(f"{_named(views)}: {states}; nothing is left to do")
            return

        def chosen(name: str | None) -> None:
            if name is not None:
                self._begin(act_named(name), views)

        self._app.push_screen(ActMenu(_named(views), choices), chosen)

    def act(self, name: str, targets: Sequence[Target]) -> None:
        """Do this to these objects; what would end something is confirmed first."""
        act, views = act_named(name), self._views(targets)
        if self._is_readonly():
            return
        if len(views) == 1 and (reason := why_not(act, views[0])):
            self._main.say(f"{views[0].kind} {called(views[0])} {reason}: it cannot be {act.past}")
        elif views:
            self._begin(act, views)

    def _views(self, targets: Sequence[Target]) -> list[AnyView]:
        items = [self._app.store.items(kind).get(id_) for kind, id_ in targets if kind in ("job", "lease", "peer")]
        return [item.view for item in items if item is not None]

    def _is_readonly(self) -> bool:
        if self._app.tapes.replay is not None:
            self._main.say("this is a recording: nothing can be changed in it")
        elif self._app.context.readonly:
            self._main.say("read-only: nothing is changed from here")
        return self._app.only_reads

    def _asks(self, act: Act) -> bool:
        return act.destroys or (act.danger and self._app.context.production)

    def _begin(self, act: Act, views: Sequence[AnyView]) -> None:
        fitting = [view for view in views if not why_not(act, view)]
        if not self._asks(act):
            self._run(act, fitting)
            return

        def answered(yes: bool | None) -> None:
            if yes:
                self._run(act, fitting)

        verb, what = act.label.split()[0], f"{act.kind} {called(fitting[0])}"
        if len(fitting) > 1:
            what = f"{len(fitting)} {act.kind}s"
        yes = f"{verb.capitalize()} {act.kind if len(fitting) == 1 else what}"
        lines = details(act, fitting, self._app.store)
        question = f"{verb.capitalize()} {what}?"
        from hypha_tui.screens.act_dialogs import TypedConfirm
        from hypha_tui.screens.dialogs import ConfirmScreen

        drawing = self._app.drawing
        if self._app.context.production:
            word = called(fitting[0]) if len(fitting) == 1 else what
            self._app.push_screen(TypedConfirm(drawing, question, lines, yes, word), answered)
        else:
            self._app.push_screen(ConfirmScreen(drawing, question, lines, yes), answered)

    def _run(self, act: Act, views: Sequence[AnyView]) -> None:
        if not views:
            return
        group = f"act:{act.name}:{views[0].id}"
        self._app.start(partial(self._carry_out, act, views), group)

    async def _carry_out(self, act: Act, views: Sequence[AnyView]) -> None:
        """Ask the node for each, a few at a time; the status line tells what came of it."""
        names = called(views[0]) if len(views) == 1 else f"{len(views)} {act.kind}s"
        self._main.say(f"{act.label.split()[0]} {names}...")
        call: Callable[[str], Awaitable[None]] = getattr(self._app.client, act.name)
        slots = asyncio.Semaphore(AT_ONCE)

        async def one(view: AnyView) -> tuple[AnyView, str]:
            async with slots:
                try:
                    await call(view.id)
                except HyphaError as error:
                    return view, str(error)
            return view, ""

        async with asyncio.TaskGroup() as tasks:
            asked = [tasks.create_task(one(view)) for view in views]
        self._main.say(outcome(act, [task.result() for task in asked]))


def _named(views: Sequence[AnyView]) -> str:
    """The objects in a title."""
    return f"{views[0].kind} {called(views[0])}" if len(views) == 1 else f"{len(views)} {views[0].kind}s"
