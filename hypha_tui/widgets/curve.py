"""A panel with curves in it."""

from __future__ import annotations

from textual.events import Resize

from hypha_tui.store.cluster import ClusterStore
from hypha_tui.store.columns import Look
from hypha_tui.widgets.drawing import Drawing
from hypha_tui.widgets.lines import Lines
from hypha_tui.widgets.plot import Curve as PlotCurve
from hypha_tui.widgets.plot import draw


class Curve(Lines):
    """The curves of one metric of one job: one for each worker, or one for the job."""

    def __init__(self, drawing: Drawing, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(drawing, id=id, classes=classes)
        self._curves: list[PlotCurve] = []
        self._log_y = False
        self._drawn_of: tuple[object, ...] = ()

    def plot(self, look: Look, job_id: str, metric: str, *, log_y: bool = False) -> None:
        """Show a metric. Nothing is drawn again when no value is new."""
        self._curves = curves_of(look.store, job_id, metric)
        self._log_y = log_y
        newest = tuple((len(curve.series), curve.series.last, curve.label) for curve in self._curves)
        drawn_of = (job_id, metric, log_y, self.size, self._drawing.glyphs.name, newest)
        if drawn_of != self._drawn_of:
            self._drawn_of = drawn_of
            self._draw()

    def on_resize(self, event: Resize) -> None:
        """Draw for the new size."""
        self._draw()

    def _draw(self) -> None:
        width, height = self.size.width, self.size.height
        self.show(draw(self._curves, width, height, self._drawing.glyphs, log_y=self._log_y))


def curves_of(store: ClusterStore, job_id: str, metric: str) -> list[PlotCurve]:
    """A metric's curves, each with a colour that stays with its worker."""
    found = sorted(store.series_of(job_id, metric).items())
    return [
        PlotCurve(store.name_of(worker) if worker else "the job", series, f"c{number % 8 + 1}")
        for number, (worker, series) in enumerate(found)
    ]
