"""Overview: the whole cluster on one screen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Container
from textual.widget import Widget

from hypha_tui.screens.view import Target, View
from hypha_tui.store import text
from hypha_tui.store.cluster import Changes
from hypha_tui.store.columns import COLUMNS, Cell, Column, Look
from hypha_tui.store.digest import leases_digest, links_digest, slices_digest, transfers_digest
from hypha_tui.store.summary import brief
from hypha_tui.widgets.curve import Curve
from hypha_tui.widgets.drawing import Drawing
from hypha_tui.widgets.event_log import EventLog
from hypha_tui.widgets.lines import Lines
from hypha_tui.widgets.live_table import LiveTable
from node.views import AnyView, DatasetView, JobView


class OverviewView(View):
    """Jobs, leases, the curve of the busiest job, transfers, the cluster, the last events."""

    scopes = ("table",)

    def __init__(self, drawing: Drawing, look: Callable[[], Look], wall: Callable[[], float]) -> None:
        super().__init__("overview", drawing, look)
        self._jobs = LiveTable(
            "job", _job_columns(), drawing, look, sort="state", empty="no jobs: press 5, then a", id="over-table"
        )
        self._job = Lines(drawing, id="over-job")
        self._jobs_panel = Container(self._jobs, self._job, id="over-jobs", classes="panel")
        self._table_height = 0
        self._titles: dict[Widget, str] = {}
        self._leases = Lines(drawing, id="over-leases", classes="panel")
        self._slices = Lines(drawing, id="over-slices", classes="panel")
        self._links = Lines(drawing, id="over-links", classes="panel")
        self._curve = Curve(drawing, id="over-curve", classes="panel")
        self._transfers = Lines(drawing, id="over-transfers", classes="panel")
        self._events = EventLog(drawing, look, wall, id="over-events")
        self._events.add_class("panel")

    def compose(self) -> ComposeResult:
        """Three rows."""
        titles: list[tuple[Widget, str]] = [
            (self._jobs_panel, "Jobs"),
            (self._leases, "Leases"),
            (self._slices, "Slices"),
            (self._links, "Links"),
            (self._curve, "Validation loss"),
            (self._transfers, "Transfers"),
            (self._events, "Events"),
        ]
        for widget, title in titles:
            widget.border_title = title
        with Container(id="over-top"):
            yield self._jobs_panel
            yield self._leases
            yield self._slices
        with Container(id="over-middle"):
            yield self._curve
            yield self._transfers
            yield self._links
        yield self._events

    def sync(self, changes: Changes | None) -> None:
        """Every panel; each repaints only what differs."""
        look = self.look()
        self._jobs.sync(changes)
        self._show_job(look)
        for panel, title in self._counted(look):
            self._entitle(panel, title)
        self._leases.show(leases_digest(look, self._leases.size.width))
        self._slices.show(slices_digest(look, self._slices.size.width))
        self._links.show(links_digest(look, self._links.size.width))
        self._transfers.show(transfers_digest(look, self._transfers.size.width))
        self._events.sync(changes is None or changes.events)

    def _counted(self, look: Look) -> list[tuple[Widget, str]]:
        """Panels and their titles, with how many there are."""
        items = look.store.items
        slices = sum(view.slices for view in look.store.views(DatasetView))
        counts = (
            (self._jobs_panel, "Jobs", len(items("job"))),
            (self._leases, "Leases", len(items("lease"))),
            (self._slices, "Slices", slices),
            (self._transfers, "Transfers", len(items("transfer"))),
        )
        return [(panel, f"{name} {count:,}" if count else name) for panel, name, count in counts]

    def _entitle(self, panel: Widget, title: str) -> None:
        if self._titles.get(panel) != title:
            self._titles[panel] = title
            panel.border_title = Text(title)

    def _show_job(self, look: Look) -> None:
        """The job under the cursor in the lines that the table leaves free."""
        room = self._jobs_panel.content_size.height
        table = min(len(self._jobs.order) + 1, room)
        if self._table_height != table:
            self._table_height = table
            self._jobs.styles.height = max(table, 2)
        job = look.store.get(JobView, self._jobs.cursor_id or "")
        if job is not None:
            self._plot(look, job)
        self._job.show(brief(job, look, self._job.size.width) if job is not None and table < room else [])

    def _plot(self, look: Look, job: JobView) -> None:
        """The job's validation loss, or where it has none the loss of its workers."""
        has_validation = job.eval_loss is not None or not look.store.series_of(job.id, "loss")
        what = "Validation loss" if has_validation else "Training loss"
        title = text.clean(f"{what}, {job.name or job.id}")
        self._entitle(self._curve, title)
        self._curve.plot(look, job.id, "eval_loss" if has_validation else "loss")

    def on_live_table_moved(self, _message: LiveTable.Moved) -> None:
        """Another job: other lines."""
        self._show_job(self.look())

    @property
    def state_line(self) -> str:
        """The jobs table's."""
        return self._jobs.state_line

    @property
    def selected(self) -> Target | None:
        """The job under the cursor."""
        return None if self._jobs.cursor_id is None else ("job", self._jobs.cursor_id)


def _job_columns() -> list[Column[AnyView]]:
    """The columns that matter most, narrow enough for a third of the screen."""
    widths = {"state": 11, "name": 12, "round": 6, "workers": 4, "value": 6, "loss": 6, "speed": 6, "eta": 7}
    by_key = {column.key: column for column in COLUMNS["job"]}
    by_key["value"] = replace(by_key["eval"], key="value", title="VALID", cell=_eval_loss)
    return [replace(by_key[key], width=width, level=0) for key, width in widths.items()]


def _eval_loss(view: AnyView, _look: Look) -> Cell:
    return text.number(view.eval_loss if isinstance(view, JobView) else None), "text"
