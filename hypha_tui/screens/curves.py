"""Curves: one metric of one run or several, large; two or three more metrics beside it where there is room."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar, Final

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container
from textual.message import Message

from hypha_tui.keys.keymap import keys_of
from hypha_tui.screens.runs import RunsScreen
from hypha_tui.screens.view import Target, View
from hypha_tui.store import text
from hypha_tui.store.cluster import Changes
from hypha_tui.store.columns import Look
from hypha_tui.widgets.curve import Curve
from hypha_tui.widgets.drawing import Drawing
from hypha_tui.widgets.overlay import TITLES, WEIGHTS, X_KINDS, Choice, Overlay, axis_of, manner_of, metrics_of, name_of
from hypha_tui.widgets.plot import AXIS_WIDTH
from hypha_tui.widgets.window import Window
from node.views import JobView

BESIDE: Final = ("loss", "eval_loss", "samples_per_s", "learning_rate")
_AVERAGING: Final = dict(zip(WEIGHTS, ("", "averaged", "averaged more"), strict=True))


class CurvesView(View, can_focus=True):
    """Metrics over rounds, time or samples; runs over each other, a baseline, averages, zoom and a cursor."""

    scopes = ("curves",)
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(key.keys, key.action, key.label, id=key.id, show=False) for key in keys_of("curves")
    ]

    class Changed(Message):
        """What is shown was changed by a key."""

    def __init__(self, drawing: Drawing, look: Callable[[], Look]) -> None:
        super().__init__("curves", drawing, look)
        self._metric = "loss"
        self._choice = Choice()
        self._overlay = Overlay()
        self._window = Window()
        self._titles: dict[Curve, str] = {}
        self._main = Curve(drawing, id="curve-main", classes="panel")
        self._small = [Curve(drawing, id=f"curve-small-{number}", classes="panel") for number in range(3)]

    def compose(self) -> ComposeResult:
        """One large, up to three small."""
        yield self._main
        with Container(id="curve-strip"):
            yield from self._small

    @property
    def job_id(self) -> str:
        """The run that is shown, the first of several: the chosen one, else the most active."""
        return self._known_choice().runs[0] if self._known_choice().runs else ""

    def show_job(self, job_id: str) -> None:
        """Choose one run."""
        self._choice = replace(self._choice, runs=(job_id,))
        self._window = Window()
        self._changed()

    # ---- keys --------------------------------------------------------------------------------------------

    def action_next_metric(self) -> None:
        """The next metric there are values of."""
        metrics = self._metrics()
        at = metrics.index(self._metric) if self._metric in metrics else -1
        self._metric = metrics[(at + 1) % len(metrics)]
        self._changed()

    def action_next_job(self) -> None:
        """The next run, by activity."""
        ids = [job.id for job in self.look().store.jobs_by_activity()]
        if ids:
            at = ids.index(self.job_id) if self.job_id in ids else -1
            self.show_job(ids[(at + 1) % len(ids)])

    def action_log_axis(self) -> None:
        """Logarithmic axis on or off."""
        self._choice = replace(self._choice, log_y=not self._choice.log_y)
        self._changed()

    def action_average(self) -> None:
        """More averaging, or none again."""
        at = WEIGHTS.index(self._choice.weight)
        self._choice = replace(self._choice, weight=WEIGHTS[(at + 1) % len(WEIGHTS)])
        self._changed()

    def action_x_axis(self) -> None:
        """Rounds, time or samples: the next that is known of this run."""
        store = self.look().store
        at = X_KINDS.index(self._choice.x_kind)
        kinds = [*X_KINDS[at + 1 :], *X_KINDS[: at + 1]]
        known = [kind for kind in kinds if kind == "round" or axis_of(store, self.job_id, kind) is not None]
        self._choice = replace(self._choice, x_kind=known[0] if known else "round")
        self._window = Window()
        self._changed()

    def action_baseline(self) -> None:
        """The present run is what others are compared with; a second time, no longer."""
        is_off = self._choice.baseline == self.job_id or not self.job_id
        self._choice = replace(self._choice, baseline="" if is_off else self.job_id)
        self._changed()

    def action_runs(self) -> None:
        """Choose runs from a list."""
        store = self.look().store
        runs = [(job.id, f"{name_of(store, job.id)}  {job.state}") for job in store.jobs_by_activity()]
        choice = self._known_choice()

        def chosen(answer: tuple[tuple[str, ...], str] | None) -> None:
            if answer is not None:
                picked, baseline = answer
                self._choice = replace(self._choice, runs=picked or choice.runs, baseline=baseline)
                self._changed()

        self.app.push_screen(RunsScreen(runs, choice.runs, choice.baseline), chosen)

    def action_zoom(self, by: int) -> None:
        """In (1) or out (-1), around the cursor, else with the newest values at the right end."""
        self._window.zoom(by, *self._main.plot_kept.shown)
        self._changed()

    def action_reset(self) -> None:
        """Everything, without a cursor."""
        self._window = Window()
        self._changed()

    def action_cursor(self, by: int) -> None:
        """Move the cursor so many cells; at the edge of a stretch, the stretch moves."""
        cells = max(self._main.size.width - AXIS_WIDTH - 1, 1)
        self._window.move(by, cells, *self._main.plot_kept.shown)
        self._changed()

    # ---- drawing -----------------------------------------------------------------------------------------

    def sync(self, changes: Changes | None) -> None:
        """Draw what has new values."""
        if changes is not None and not (changes.points or changes.members or "job" in changes.dirty):
            return
        look = self.look()
        choice = self._known_choice()
        self._overlay.forget_unused()
        shown = [self._metric, *[one for one in BESIDE if one != self._metric]]
        for curve, metric in zip([self._main, *self._small], shown, strict=False):
            if not curve.display:
                continue
            mine = choice if curve is self._main else replace(choice, log_y=False)
            curves = self._overlay.curves(look.store, mine, metric)
            if curve is self._main:
                self._window.follow(curves)
            window, cursor = (self._window.stretch, self._window.cursor) if curve is self._main else (None, None)
            self._entitle(curve, metric, mine, look)
            curve.show_curves(curves, manner_of(look.store, mine, metric, window, cursor))

    def _entitle(self, curve: Curve, metric: str, choice: Choice, look: Look) -> None:
        names = [name_of(look.store, run) for run in choice.runs]
        of = names[0] if len(names) == 1 else f"{len(names)} runs" if names else "no job"
        extras = ["log"] if choice.log_y else []
        extras += [_AVERAGING[choice.weight]] if choice.weight else []
        title = text.clean(", ".join([TITLES.get(metric, metric), of, *extras]))
        if self._titles.get(curve) != title:
            self._titles[curve] = title
            curve.border_title = Text(title)

    @property
    def state_line(self) -> str:
        """Which metric of how many, and how it is shown."""
        metrics = self._metrics()
        at = metrics.index(self._metric) + 1 if self._metric in metrics else 1
        choice = self._known_choice()
        words = [f"metric {at} of {len(metrics)}: {self._metric}"]
        if len(choice.runs) > 1:
            words.append(f"{len(choice.runs)} runs")
        if choice.baseline:
            words.append(f"baseline {name_of(self.look().store, choice.baseline)}")
        if choice.x_kind != "round":
            words.append(f"over {choice.x_kind}")
        if self._window.stretch is not None:
            words.append("zoomed (0: all)")
        return "   ".join(words)

    @property
    def selected(self) -> Target | None:
        """The run."""
        return ("job", self.job_id) if self.job_id else None

    def focus_first(self) -> None:
        """Keys go to the screen as a whole."""
        self.focus()

    def _changed(self) -> None:
        self.sync(None)
        self.post_message(self.Changed())

    def _known_choice(self) -> Choice:
        """The choice, of runs that are still there; the most active one where none is."""
        store = self.look().store
        runs = tuple(run for run in self._choice.runs if store.get(JobView, run) is not None)
        if not runs:
            runs = tuple(job.id for job in store.jobs_by_activity()[:1])
        return replace(self._choice, runs=runs)

    def _metrics(self) -> list[str]:
        choice = self._known_choice()
        return metrics_of(self.look().store, [*choice.runs, *filter(None, [choice.baseline])])
