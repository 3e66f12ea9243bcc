"""Which curves a metric has: of one run by worker, of several runs over each other, with averages. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from hypha_tui.store import text
from hypha_tui.store.cluster import ClusterStore
from hypha_tui.store.series import Average, Axis, Series
from hypha_tui.widgets.curve import MOST, curves_of
from hypha_tui.widgets.plot import Curve, Manner
from node.views import JobView

TITLES: Final = {
    "loss": "training loss",
    "eval_loss": "validation loss",
    "learning_rate": "learning rate",
    "samples_per_s": "samples a second",
    "bytes_round": "bytes a round",
    "compression": "compression ratio",
    "samples_total": "samples so far",
    "bytes_up": "bytes of updates sent",
    "bytes_down": "bytes of steps received",
}
X_KINDS: Final = ("round", "time", "samples")
WEIGHTS: Final = (0.0, 0.6, 0.9)


@dataclass(frozen=True, slots=True)
class Choice:
    """What the operator chose to see."""

    runs: tuple[str, ...] = ()
    baseline: str = ""
    x_kind: str = "round"
    weight: float = 0.0
    log_y: bool = False


class Overlay:
    """Makes the curves of a metric; keeps the averages that it made."""

    def __init__(self) -> None:
        self._averages: dict[tuple[int, float], tuple[Series, Average]] = {}
        self._used: set[tuple[int, float]] = set()

    def forget_unused(self) -> None:
        """Drop averages that nothing showed since the last call."""
        self._averages = {key: value for key, value in self._averages.items() if key in self._used}
        self._used.clear()

    def curves(self, store: ClusterStore, choice: Choice, metric: str) -> list[Curve]:
        """The curves of a metric, each with its place on the axis."""
        shown = [run for run in choice.runs if run != choice.baseline]
        if len(shown) == 1 and not choice.baseline:
            found = [(shown[0], curve) for curve in curves_of(store, shown[0], metric)]
        else:
            found = []
            for number, run in enumerate(shown[:MOST]):
                found += [
                    (run, Curve(name_of(store, run), one, f"c{number % 8 + 1}")) for one in whole(store, run, metric)
                ]
            name = f"{name_of(store, choice.baseline)} (base)"
            found += [(choice.baseline, Curve(name, one, "dim")) for one in whole(store, choice.baseline, metric)]
        placed = [self._placed(store, choice, run, metric, curve) for run, curve in found]
        if not choice.weight:
            return placed
        raw = [replace(curve, tone="dim", faint=True) for curve in placed]
        return [*raw, *(replace(curve, series=self._average(curve.series, choice.weight)) for curve in placed)]

    def _average(self, series: Series, weight: float) -> Series:
        key = (id(series), weight)
        self._used.add(key)
        kept = self._averages.get(key)
        if kept is None or kept[0] is not series:
            kept = self._averages[key] = (series, Average(series, weight))
        return kept[1].series()

    def _placed(self, store: ClusterStore, choice: Choice, run: str, metric: str, curve: Curve) -> Curve:
        axis = axis_of(store, run, choice.x_kind)
        if axis is None:
            return curve
        # The loss of a version is that of the commit that made it, the round before.
        return replace(curve, axis=axis, shift=-1.0 if metric == "eval_loss" else 0.0)


def manner_of(
    store: ClusterStore, choice: Choice, metric: str, window: tuple[float, float] | None, cursor: float | None
) -> Manner:
    """How to draw a metric."""
    first = choice.runs[0] if choice.runs else ""
    axis = axis_of(store, first, choice.x_kind)
    kind = choice.x_kind if axis is not None else "time" if store.is_timed(first) else "round"
    last = axis.known.last_x if axis is not None else 0.0
    form = form_of(metric)
    manner = Manner(choice.log_y, kind, window, cursor, axis, last)
    return manner if form is None else replace(manner, form=form)


def form_of(metric: str) -> Callable[[float], str] | None:
    """How values of a metric are written; None: as numbers."""
    return text.size if metric.startswith("bytes") else None


def axis_of(store: ClusterStore, run: str, x_kind: str) -> Axis | None:
    """A run's axis of a kind; None where x is the round, or nothing else is known."""
    if x_kind == "round" or store.is_timed(run):
        return None
    known = store.commits.get(run) if x_kind == "time" else store.series.get((run, "samples_total", ""))
    return Axis(known) if known is not None and len(known) else None


def whole(store: ClusterStore, run: str, metric: str) -> list[Series]:
    """The one curve that stands for a run: its own, else that of its first worker."""
    found = store.series_of(run, metric)
    return [found[min(found)]] if found else []


def name_of(store: ClusterStore, run: str) -> str:
    """A run's name."""
    job = store.get(JobView, run)
    return text.clean(job.name or job.id) if job is not None else text.short_id(run)


def metrics_of(store: ClusterStore, runs: Sequence[str]) -> list[str]:
    """The metrics of these runs: the usual ones first."""
    known = {name for run in runs for name in store.metrics_of(run)}
    usual = [name for name in TITLES if name in known or name in ("loss", "eval_loss", "samples_per_s")]
    return [*usual, *sorted(known - set(TITLES))]
