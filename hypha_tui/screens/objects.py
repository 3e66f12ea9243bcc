"""What the main screen opens of objects: the inspector, their logs, what they have to do with, a new job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypha_tui.client.drafts import DraftFile
from hypha_tui.screens.command_line import NO_FILES
from hypha_tui.settings.folders import state_folder

if TYPE_CHECKING:
    from hypha_tui.screens.app import HyphaApp
    from hypha_tui.screens.inspector import InspectorScreen
    from hypha_tui.screens.main import MainScreen
    from node.views import SubmitResult


class Objects:
    """Layers over the main screen. Each is imported when it is first opened."""

    def __init__(self, app: HyphaApp, main: MainScreen) -> None:
        self.opened: InspectorScreen | None = None
        self._app = app
        self._main = main
        self._drafts = DraftFile(state_folder(app.environment))

    def open(self, kind: str, object_id: str, tab: str) -> None:
        """One object in full; a place of the history."""
        self._main.places.to_object(kind, object_id)
        if self._app.inspector is not None:
            self._app.pop_screen()
        self.inspect(kind, object_id, tab)

    def inspect(self, kind: str, object_id: str, tab: str) -> None:
        """The same, as a place that is no new one."""
        from hypha_tui.screens.inspector import InspectorScreen

        self.opened = InspectorScreen(self._app.drawing, kind, object_id, tab=tab)
        self._app.push_screen(self.opened)

    def log(self) -> None:
        """The log of the job under the cursor, or of the task that runs under a lease."""
        selected = self._main.view.selected
        if selected is not None and selected[0] in ("job", "lease"):
            self._main.open_inspector(*selected, "Log")
        else:
            self._main.say("jobs and leases have a log")

    def next_tab(self) -> None:
        """Another tab of the inspector beside the table."""
        from hypha_tui.screens.inspection import InspectorPane

        for pane in self._main.view.query(InspectorPane).results():
            pane.next_tab()

    def related(self) -> None:
        """What the object under the cursor has to do with, to jump there."""
        from hypha_tui.screens.inspector import show_related

        selected = self._main.view.selected
        if selected is not None:
            show_related(self._app, *selected, lambda one: self._main.open_inspector(one.kind, one.id))

    def value(self, words: str) -> None:
        """A long line in full."""
        from hypha_tui.screens.value import ValueScreen

        self._app.push_screen(ValueScreen(self._app.drawing, self._main.current, words))

    def open_form(self, path: str) -> None:
        """The form for a new job, with the draft that was left in it; `path`: with that file or folder."""
        app, selected = self._app, self._main.view.selected
        job_id = selected[1] if selected is not None and selected[0] == "job" else ""
        if not app.has_files:
            self._main.say(NO_FILES)
            return

        def closed(result: SubmitResult | None) -> None:
            if result is not None:
                self._main.say(f"job {result.job_id} is accepted by {app.store.name_of(result.scheduler)}")

        from hypha_tui.screens.submit import SubmitScreen

        form = SubmitScreen(
            app.drawing, app.client, lambda: app.store, self._drafts, app.environment, path=path, job_id=job_id
        )
        app.push_screen(form, closed)
