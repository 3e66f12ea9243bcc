"""Curves: one metric of one job, large; two more beside it where there is room."""

from __future__ import annotations

from collections.abc import Callable

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Container

from hypha_tui.screens.view import Target, View
from hypha_tui.store import text
from hypha_tui.store.cluster import Changes
from hypha_tui.store.columns import Look
from hypha_tui.widgets.curve import Curve
from hypha_tui.widgets.drawing import Drawing
from node.views import JobView

TITLES = {
    "loss": "training loss",
    "eval_loss": "validation loss",
    "samples_per_s": "samples a second",
    "learning_rate": "learning rate",
    "bytes_up": "bytes of updates sent",
    "bytes_down": "bytes of steps received",
}
FIRST = ("loss", "eval_loss", "samples_per_s")


class CurvesView(View, can_focus=True):
    """`m` next metric, `J` next job, `L` logarithmic axis."""

    scopes = ("curves",)

    def __init__(self, drawing: Drawing, look: Callable[[], Look]) -> None:
        super().__init__("curves", drawing, look)
        self._metric = "loss"
        self._job_id = ""
        self._log_y = False
        self._titles: dict[Curve, str] = {}
        self._main = Curve(drawing, id="curve-main", classes="panel")
        self._small = [Curve(drawing, id=f"curve-small-{number}", classes="panel") for number in range(2)]

    def compose(self) -> ComposeResult:
        """One large, two small."""
        yield self._main
        with Container(id="curve-strip"):
            yield from self._small

    @property
    def job_id(self) -> str:
        """The job that is shown: the chosen one, else the most active."""
        store = self.look().store
        if store.get(JobView, self._job_id) is None:
            jobs = store.jobs_by_activity()
            self._job_id = jobs[0].id if jobs else ""
        return self._job_id

    def show_job(self, job_id: str) -> None:
        """Choose a job."""
        self._job_id = job_id
        self.sync(None)

    def next_metric(self) -> None:
        """The next metric there are values of."""
        metrics = self._metrics()
        at = metrics.index(self._metric) if self._metric in metrics else -1
        self._metric = metrics[(at + 1) % len(metrics)]
        self.sync(None)

    def next_job(self) -> None:
        """The next job, by activity."""
        ids = [job.id for job in self.look().store.jobs_by_activity()]
        if ids:
            at = ids.index(self.job_id) if self.job_id in ids else -1
            self.show_job(ids[(at + 1) % len(ids)])

    def toggle_log(self) -> None:
        """Logarithmic axis on or off."""
        self._log_y = not self._log_y
        self.sync(None)

    def sync(self, changes: Changes | None) -> None:
        """Draw what has new values."""
        look = self.look()
        job = look.store.get(JobView, self.job_id)
        name = text.clean(job.name or job.id) if job is not None else "no job"
        shown = [self._metric, *[one for one in FIRST if one != self._metric]]
        for curve, metric in zip([self._main, *self._small], shown, strict=False):
            log_y = self._log_y and curve is self._main
            title = f"{TITLES.get(metric, metric)}, {name}" + (", log" if log_y else "")
            if self._titles.get(curve) != title:
                self._titles[curve] = title
                curve.border_title = Text(text.clean(title))
            curve.plot(look, self._job_id, metric, log_y=log_y)

    @property
    def state_line(self) -> str:
        """Which metric of how many."""
        metrics = self._metrics()
        at = metrics.index(self._metric) + 1 if self._metric in metrics else 1
        return f"metric {at} of {len(metrics)}: {self._metric}"

    @property
    def selected(self) -> Target | None:
        """The job."""
        return ("job", self.job_id) if self.job_id else None

    def focus_first(self) -> None:
        """Keys go to the screen as a whole."""
        self.focus()

    def _metrics(self) -> list[str]:
        known = self.look().store.metrics_of(self.job_id)
        return [*FIRST, *[name for name in known if name not in FIRST]]
