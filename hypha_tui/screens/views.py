"""The screens behind the tabs, each made when it is first asked for: the first frame waits for one of them only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypha_tui.screens.view import View

if TYPE_CHECKING:
    from hypha_tui.screens.app import HyphaApp


class Views:
    """By the name of the screen."""

    def __init__(self, app: HyphaApp) -> None:
        self._app = app
        self._made: dict[str, View] = {}

    def __getitem__(self, name: str) -> View:
        if name not in self._made:
            self._made[name] = _make(name, self._app)
        return self._made[name]


def _make(name: str, app: HyphaApp) -> View:
    """One of them. Each is imported here: all of them would be a tenth of the start."""
    drawing, look = app.drawing, app.look
    match name:
        case "overview":
            from hypha_tui.screens.overview import OverviewView

            return OverviewView(drawing, look, app.wall)
        case "peers" | "leases":
            from hypha_tui.screens.table_view import TableView

            if name == "peers":
                return TableView(name, "peer", drawing, look, sort="name", empty="no peers yet")
            return TableView(name, "lease", drawing, look, sort="worker", empty="no leases: no job asks for workers")
        case "slices":
            from hypha_tui.screens.slices import SlicesView

            return SlicesView(drawing, look)
        case "jobs":
            from hypha_tui.screens.jobs import JobsView

            return JobsView(name, "job", drawing, look, sort="state", empty="no jobs: press a for a new one")
        case "curves":
            from hypha_tui.screens.curves import CurvesView

            return CurvesView(drawing, look)
        case "events":
            from hypha_tui.screens.events import EventsView

            return EventsView(drawing, look, app.wall)
        case _:
            from hypha_tui.screens.node import NodeView

            return NodeView(drawing, look)
