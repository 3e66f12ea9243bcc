"""A panel with curves in it."""

from __future__ import annotations

from typing import Final

from textual.events import Resize

from hypha_tui.store.cluster import ClusterStore
from hypha_tui.store.columns import Look
from hypha_tui.widgets.drawing import Drawing
from hypha_tui.widgets.lines import Lines
from hypha_tui.widgets.plot import PLAIN, Manner, Plot
from hypha_tui.widgets.plot import Curve as PlotCurve

MOST: Final = 16
"""Curves of one metric that are drawn; more could not be told apart."""


class Curve(Lines):
    """Shows curves. Nothing is drawn again when no value is new."""

    def __init__(self, drawing: Drawing, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(drawing, id=id, classes=classes)
        self.plot_kept = Plot()
        self._curves: list[PlotCurve] = []
        self._manner = PLAIN
        self._drawn_of: tuple[object, ...] = ()

    def plot(self, look: Look, job_id: str, metric: str, *, log_y: bool = False) -> None:
        """Show a metric of one job."""
        kind = "time" if look.store.is_timed(job_id) else "round"
        self.show_curves(curves_of(look.store, job_id, metric), Manner(log_y=log_y, x_kind=kind))

    def show_curves(self, curves: list[PlotCurve], manner: Manner) -> None:
        """Show these, in this manner."""
        self._curves, self._manner = curves, manner
        newest = tuple(
            (id(curve.series), curve.series.version, curve.label, curve.tone, curve.axis) for curve in curves
        )
        commits = manner.rounds.known.version if manner.rounds is not None else 0
        drawn_of = (newest, manner, commits, self.size, self._drawing.glyphs)
        if drawn_of != self._drawn_of:
            self._drawn_of = drawn_of
            self._draw()

    def on_resize(self, event: Resize) -> None:
        """Draw for the new size."""
        self._draw()

    def _draw(self) -> None:
        size, glyphs = self.size, self._drawing.glyphs
        self.show(self.plot_kept.lines(self._curves, size.width, size.height, glyphs, self._manner))


def curves_of(store: ClusterStore, job_id: str, metric: str) -> list[PlotCurve]:
    """A metric's curves: the job's own and one for each worker, each with a colour that stays with it."""
    found = sorted(store.series_of(job_id, metric).items())[:MOST]
    return [
        PlotCurve(store.name_of(worker) if worker else "the job", series, f"c{number % 8 + 1}")
        for number, (worker, series) in enumerate(found)
    ]
