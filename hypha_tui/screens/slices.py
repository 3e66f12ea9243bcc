"""Slices: datasets and their providers, the state of every slice of a job's pass, and the transfers under way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Final, cast

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container
from textual.widget import Widget

from hypha_tui.keys.keymap import keys_of
from hypha_tui.screens.view import Target, View
from hypha_tui.store import text
from hypha_tui.store.cluster import FINISHED, Changes
from hypha_tui.store.columns import COLUMNS, Look, screen_columns
from hypha_tui.store.flows import flow_lines, flows
from hypha_tui.widgets.drawing import Drawing
from hypha_tui.widgets.live_table import LiveTable
from hypha_tui.widgets.slice_field import SliceField
from hypha_tui.widgets.work import start
from node.errors import HyphaError
from node.views import DatasetView, JobView, SliceMap

if TYPE_CHECKING:
    from hypha_tui.screens.app import HyphaApp

ASK_EVERY_S: Final = 2.0
"""A map whose job tells other counts is asked for again so soon."""
DEADLINE_S: Final = 8.0


class SlicesView(View):
    """Datasets, the map, transfers."""

    scopes = ("table", "slices")
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(key.keys, key.action, key.label, id=key.id, show=False)
        for key in keys_of("slices")
        if key.id == "slices.job"
    ]

    def __init__(self, drawing: Drawing, look: Callable[[], Look]) -> None:
        super().__init__("slices", drawing, look)
        self._datasets = LiveTable(
            "dataset", COLUMNS["dataset"], drawing, look, empty="no data node announces a dataset", id="slices-datasets"
        )
        self._transfers = LiveTable(
            "transfer",
            screen_columns("transfer"),
            drawing,
            look,
            sort="state",
            empty="nothing on its way",
            id="slices-transfers",
        )
        self.field = SliceField(drawing, look, id="slices-map")
        for pane, title in ((self._datasets, "Datasets"), (self._transfers, "Transfers"), (self.field, "Slices")):
            pane.add_class("panel")
            pane.border_title = title
        self._titles: dict[Widget, str] = {}
        self._job_id = ""
        self._map: SliceMap | None = None
        self._note = ""
        self._asked_at = -1e9
        self._asked_for: tuple[object, ...] = ()

    def compose(self) -> ComposeResult:
        """Three panels."""
        with Container(id="slices-top"):
            yield self._transfers
            yield self._datasets
        yield self.field

    def sync(self, changes: Changes | None) -> None:
        """All three."""
        look = self.look()
        self._datasets.sync(changes)
        self._transfers.sync(changes)
        words = "  ".join("".join(part for part, _ in line).strip() for line in flow_lines(flows(look), look))
        self._entitle(self._transfers, f"Transfers  {words}")
        self._show_map(look)

    def next_job(self) -> None:
        """The map of the next job that has slices."""
        jobs = [job.id for job in self._jobs(self.look())]
        if jobs:
            at = jobs.index(self._job_id) if self._job_id in jobs else -1
            self._choose(jobs[(at + 1) % len(jobs)])
            self._show_map(self.look())

    @property
    def state_line(self) -> str:
        """Of the pane that has the focus."""
        return self._pane.state_line

    @property
    def filter_text(self) -> str:
        """Of the pane that has the focus."""
        return self._pane.filter_text

    def set_filter(self, words: str, otherwise: str | None = None) -> None:
        """Filter the pane that has the focus."""
        self._pane.set_filter(words, otherwise)

    @property
    def selected(self) -> Target | None:
        """The cursor of the pane that has the focus; on the map, the worker that has the slice, else the job."""
        if self.field.has_focus:
            holder = self.field.under_cursor
            return ("peer", holder) if holder else ("job", self._job_id) if self._job_id else None
        return None if self._pane.cursor_id is None else (self._pane.kind, self._pane.cursor_id)

    def select(self, target: Target) -> None:
        """Put the cursor on an object."""
        for table in (self._datasets, self._transfers):
            if table.kind == target[0]:
                table.select(target[1])

    @property
    def _pane(self) -> LiveTable:
        return self._datasets if self._datasets.has_focus else self._transfers

    # ---- the map ----------------------------------------------------------------------------------------------

    def _jobs(self, look: Look) -> list[JobView]:
        """Jobs that have slices: those with workers first, those that are over last."""
        jobs = [job for job in look.store.jobs_by_activity() if sum(job.slices.values())]
        return sorted(jobs, key=lambda job: (job.state in FINISHED, not job.workers))

    def _choose(self, job_id: str) -> None:
        if job_id != self._job_id:
            self._job_id, self._map, self._note = job_id, None, "asking the scheduler..." if job_id else ""
            self._asked_at, self._asked_for = -1e9, ()

    def _show_map(self, look: Look) -> None:
        jobs = self._jobs(look)
        job = next((job for job in jobs if job.id == self._job_id), jobs[0] if jobs else None)
        self._choose(job.id if job is not None else "")
        title = "Slices"
        slices = 0
        if job is not None:
            slices = next((d.slices for d in look.store.views(DatasetView) if d.name == job.dataset), 0)
            more = f"   {len(jobs)} jobs, J next" if len(jobs) > 1 else ""
            title = f"Slices of {job.dataset} in pass {job.epoch} of {job.name or job.id}{more}"
            self._ask(job, look)
        self._entitle(self.field, title)
        self.field.show(job, self._map, slices, self._note)

    def _entitle(self, pane: Widget, title: str) -> None:
        """Setting a title paints the whole pane, so only another one is set."""
        if self._titles.get(pane) != title:
            self._titles[pane] = title
            pane.border_title = Text(text.clean(title))

    def _ask(self, job: JobView, look: Look) -> None:
        """Ask for the map when the job's counts are others than those it was asked for."""
        counts = (job.epoch, *sorted(job.slices.items()))
        if counts != self._asked_for and look.now - self._asked_at >= ASK_EVERY_S:
            self._asked_at, self._asked_for = look.now, counts
            start(self, partial(self._load, job.id), "slices")

    async def _load(self, job_id: str) -> None:
        try:
            async with asyncio.timeout(DEADLINE_S):
                found = await cast("HyphaApp", self.app).client.slice_map(job_id)
        except (HyphaError, TimeoutError) as error:
            self._note, self._asked_for = text.clean(str(error) or "the scheduler does not answer"), ()
        else:
            if job_id == self._job_id:
                self._map, self._note = found, ""
        self._show_map(self.look())
