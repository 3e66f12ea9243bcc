"""Slices: datasets and their providers, how far each job is through its epoch, and the transfers under way."""

from __future__ import annotations

from collections.abc import Callable

from textual.app import ComposeResult
from textual.containers import Container

from hypha_tui.screens.view import Target, View
from hypha_tui.store import text
from hypha_tui.store.cluster import FINISHED, Changes
from hypha_tui.store.columns import COLUMNS, Look
from hypha_tui.widgets.drawing import Drawing, Line
from hypha_tui.widgets.lines import Lines
from hypha_tui.widgets.live_table import LiveTable

_TONES = {"used": "done", "assigned": "busy", "available": "ok"}


class SlicesView(View):
    """Datasets above, transfers below."""

    scopes = ("table",)

    def __init__(self, drawing: Drawing, look: Callable[[], Look]) -> None:
        super().__init__("slices", drawing, look)
        self._datasets = LiveTable(
            "dataset", COLUMNS["dataset"], drawing, look, empty="no data node announces a dataset", id="slices-datasets"
        )
        self._transfers = LiveTable(
            "transfer",
            COLUMNS["transfer"],
            drawing,
            look,
            sort="state",
            empty="nothing on its way",
            id="slices-transfers",
        )
        self._map = Lines(drawing, id="slices-map", classes="panel")
        for table, title in ((self._datasets, "Datasets"), (self._transfers, "Transfers")):
            table.add_class("panel")
            table.border_title = title
        self._map.border_title = "The present epoch"

    def compose(self) -> ComposeResult:
        """Three panels."""
        yield self._transfers
        yield self._map
        with Container(id="slices-top"):
            yield self._datasets

    def sync(self, changes: Changes | None) -> None:
        """All three."""
        self._datasets.sync(changes)
        self._transfers.sync(changes)
        self._map.show(slice_lines(self.look(), self._map.size.width))

    @property
    def state_line(self) -> str:
        """Of the pane that has the focus."""
        return self._pane.state_line

    @property
    def filter_text(self) -> str:
        """Of the pane that has the focus."""
        return self._pane.filter_text

    def set_filter(self, words: str) -> None:
        """Filter the pane that has the focus."""
        self._pane.set_filter(words)

    @property
    def selected(self) -> Target | None:
        """The cursor of the pane that has the focus."""
        return None if self._pane.cursor_id is None else (self._pane.kind, self._pane.cursor_id)

    @property
    def _pane(self) -> LiveTable:
        return self._datasets if self._datasets.has_focus else self._transfers


def slice_lines(look: Look, width: int) -> list[Line]:
    """A bar for each job that is under way: used, assigned, available."""
    lines: list[Line] = []
    for job in look.store.jobs_by_activity():
        total = sum(job.slices.values())
        if not total or (job.state in FINISHED and lines):
            continue
        epoch = f" epoch {job.epoch:<2} {'rows' if job.rounds else 'slices'} "
        counts: Line = []
        for state, tone in _TONES.items():
            counts += [(f"  {state} ", "dim"), (f"{job.slices.get(state, 0):,}", tone)]
        left = width - len(epoch) - sum(len(part) for part, _ in counts)
        name = text.fit(job.name or job.id, max(min(14, left), 6), mark=look.glyphs.cut)
        room = max(left - len(name), 0)
        bar: Line = [
            (glyph * round(job.slices.get(state, 0) / total * room), _TONES[state])
            for state, glyph in (("used", look.glyphs.bar_full), ("assigned", look.glyphs.sparks[4]))
        ]
        filled = sum(len(part) for part, _ in bar)
        line: Line = [(name, "title"), (epoch, "dim"), *bar]
        line += [(look.glyphs.bar_empty * max(room - filled, 0), _TONES["available"]), *counts]
        lines.append(line)
    return lines[:4] or [[("no job has slices yet", "dim")]]
