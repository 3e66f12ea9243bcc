"""Series, axes and plots: any zoom at a bounded cost, strange values, and only what is new drawn again."""

from __future__ import annotations

import math
import random

import pytest

from hypha_tui.store.cluster import ClusterStore
from hypha_tui.store.glyphs import ASCII, UNICODE, Glyphs
from hypha_tui.store.series import CAPACITY, Average, Axis, Series
from hypha_tui.widgets.overlay import Choice, Overlay, manner_of, metrics_of
from hypha_tui.widgets.plot import Curve, Manner, Plot
from hypha_tui.widgets.window import Window
from node.views import Delta, Point, Snapshot
from tests.terminal.feed import job, points


def series_of(values: list[float]) -> Series:
    series = Series()
    for x, y in enumerate(values):
        series.put(float(x), y)
    return series


def words(plot: Plot, curves: list[Curve], manner: Manner, glyphs: Glyphs = ASCII, height: int = 16) -> list[str]:
    return ["".join(part for part, _ in line) for line in plot.lines(curves, 80, height, glyphs, manner)]


def test_a_hundred_thousand_points_are_kept_from_first_to_last_in_bounded_memory() -> None:
    series = Series()
    for n in range(100_000):
        series.put(float(n), 1_000.0 if n == 12_345 else float(n % 7))
    assert len(series) <= CAPACITY + 512
    parts = series.columns(0.0, 99_999.0, 240)
    assert all(part is not None for part in parts)
    assert max(part.high for part in parts if part) == 1_000.0
    assert series.first_x == 0.0


def test_the_extremes_of_any_stretch_are_those_of_its_points() -> None:
    random_ = random.Random(4)
    values = [random_.random() for _ in range(1_000)]
    series = series_of(values)
    for _ in range(200):
        start = random_.randrange(999)
        stop = random_.randrange(start + 1, 1_000)
        found = series.extremes(start, stop)
        assert (found.low, found.high) == (min(values[start:stop]), max(values[start:stop]))


def test_the_newest_value_is_replaced_without_a_rebuild() -> None:
    """A worker tells its loss of the round under way every second."""
    series = series_of([1.0] * 100)
    for n in range(50):
        series.put(99.0, 5.0 - n / 100)
    assert series.rebuilt_at == 0
    assert series.extremes(0, 100).high == 4.51
    assert len(series) == 100


def test_values_in_any_order_give_the_same_curve() -> None:
    order = list(range(600))
    random.Random(3).shuffle(order)
    shuffled = Series()
    for x in order:
        shuffled.put(float(x), math.sin(x / 9))
    assert shuffled.points() == series_of([math.sin(x / 9) for x in range(600)]).points()


def test_an_average_takes_in_only_what_is_new() -> None:
    series = series_of([4.0, 4.0, 0.0])
    average = Average(series, 0.5)
    first = average.series()
    assert [round(y, 3) for _, y in first.points()] == [4.0, 4.0, 1.714]
    series.put(2.0, 4.0)
    series.put(3.0, math.nan)
    series.put(4.0, 4.0)
    assert average.series() is first
    assert [y for _, y in first.points() if y == y] == pytest.approx([4.0] * 4)


def test_rounds_lie_where_their_commits_are_and_come_back_from_there() -> None:
    axis = Axis(series_of([30.0, 60.0, 120.0]))
    assert [axis.at(x) for x in (-1.0, 0.0, 0.5, 2.0, 3.0)] == [0.0, 30.0, 45.0, 120.0, 180.0]
    assert axis.round_at(90.0) == 1.5
    assert axis.round_at(axis.at(0.25)) == 0.25


def test_a_new_value_touches_only_the_columns_at_its_end() -> None:
    series, other = series_of([3.0 - n / 100 for n in range(103)]), series_of([2.0] * 103)
    curves = [Curve("a", series, "c1"), Curve("b", other, "c2")]
    plot = Plot()
    before = words(plot, curves, Manner(), UNICODE)
    for n in range(103, 107):
        series.put(float(n), 2.0)
        other.put(float(n), 2.0)
    traced = plot.traced
    after = words(plot, curves, Manner(), UNICODE)
    assert 0 < plot.traced - traced <= 24, "of some 280 columns"
    assert after != before
    assert after == words(Plot(), curves, Manner(), UNICODE), "as if it had been drawn at once"
    traced = plot.traced
    words(plot, curves, Manner(), UNICODE)
    assert plot.traced == traced, "nothing new, nothing traced"


def test_values_that_are_no_numbers_leave_a_gap_and_a_cross_on_the_axis() -> None:
    values = [5.0] * 20
    values[10] = math.nan
    lines = words(Plot(), [Curve("loss", series_of(values), "c1")], Manner())
    row = next(line for line in lines[1:] if "*" in line)
    assert " " in row[row.index("*") : row.rindex("*")]
    assert "x" in lines[-2]
    assert lines[-2].index("x") == pytest.approx(9 + 71 / 2, abs=3)
    for strange in ([math.nan], [math.inf, -math.inf], [math.nan, 1.0], [0.0, -1.0]):
        for log_y in (False, True):
            lines = words(Plot(), [Curve("x", series_of(strange), "c1")], Manner(log_y=log_y))
            assert len(lines) == 16
            assert all(len(line) <= 80 for line in lines)


@pytest.mark.parametrize("values", [[2.5], [2.5] * 40, [1e-9, 1e12], [-3.0, 3.0]])
@pytest.mark.parametrize("log_y", [False, True])
def test_one_value_a_constant_and_any_range_are_drawn(values: list[float], log_y: bool) -> None:
    for glyphs in (ASCII, UNICODE):
        lines = words(Plot(), [Curve("x", series_of(values), "c1")], Manner(log_y=log_y), glyphs)
        assert len(lines) == 16
        assert any(set(line[9:]) - {" "} for line in lines[1:-2])


def test_the_legend_tells_every_run_at_the_cursor() -> None:
    curves = [Curve("run-a", series_of([3.0, 2.0, 1.0]), "c1"), Curve("run-b", series_of([9.0, 8.0, 7.5]), "c2")]
    plot = Plot()
    assert "run-a 1.000" in words(plot, curves, Manner())[0]
    legend, *rows = words(plot, curves, Manner(cursor=1.0))
    assert legend.startswith("round 1 ")
    assert "run-a 2.000" in legend
    assert "run-b 8.000" in legend
    assert sum("|" in row[9:] for row in rows) > 5


def test_a_curve_over_time_has_its_round_marks_where_the_commits_were() -> None:
    commits = series_of([10.0, 20.0, 30.0, 100.0])
    curve = Curve("loss", series_of([4.0, 3.0, 2.0, 1.0]), "c1", axis=Axis(commits))
    manner = Manner(x_kind="time", rounds=Axis(commits), last_round=3.0)
    lines = words(Plot(), [curve], manner)
    assert lines[-1].split()[-2:] == ["time", "1:45"]
    marks = [at - 9 for at, sign in enumerate(lines[-2]) if sign == "+" and at > 8]
    assert marks == [6, 13, 20, 67]


def test_zooming_halves_follows_the_newest_and_comes_back() -> None:
    window = Window()
    curve = Curve("loss", series_of([float(n) for n in range(101)]), "c1")
    window.follow([curve])
    window.zoom(1, 0.0, 100.0)
    assert window.stretch == (50.0, 100.0)
    curve.series.put(101.0, 1.0)
    window.follow([curve])
    assert window.stretch == (51.0, 101.0)
    window.move(-1, 50, *window.stretch)
    assert window.cursor == 100.0
    window.zoom(1, *window.stretch)
    assert window.stretch is not None
    assert window.stretch[0] <= 100.0 <= window.stretch[1]
    curve.series.put(102.0, 1.0)
    held = window.stretch
    window.follow([curve])
    assert window.stretch == held, "a stretch with a cursor in it stands still"
    window.move(-90, 50, *window.stretch)
    assert window.stretch is not None
    assert window.stretch[0] < held[0], "the cursor takes the stretch with it"
    for _ in range(4):
        if window.stretch is not None:
            window.zoom(-1, *window.stretch)
    assert window.stretch is None


def test_runs_lie_over_each_other_with_names_a_baseline_and_averages() -> None:
    store = ClusterStore()
    store.apply(Snapshot(seq=1, items=[job("one"), job("two"), job("old", state="done")]), 0.0)
    for name in ("one", "two", "old"):
        store.add_points(points(name, rounds=5, workers=3))
    overlay = Overlay()
    alone = overlay.curves(store, Choice(runs=("one",)), "loss")
    assert len(alone) == 3, "one curve for each worker"
    three = overlay.curves(store, Choice(runs=("one", "two", "old"), baseline="old", weight=0.6), "eval_loss")
    named = [(curve.label, curve.tone) for curve in three if not curve.faint]
    assert named == [("one", "c1"), ("two", "c2"), ("old (base)", "dim")]
    assert sum(curve.faint for curve in three) == 3
    again = overlay.curves(store, Choice(runs=("one", "two", "old"), baseline="old", weight=0.6), "eval_loss")
    assert [id(curve.series) for curve in again] == [id(curve.series) for curve in three], "averages are kept"


def test_an_axis_that_is_not_known_stays_with_rounds() -> None:
    store = ClusterStore()
    store.apply(Snapshot(seq=1, items=[job("one")]), 0.0)
    store.add_points(points("one", rounds=5))
    assert manner_of(store, Choice(("one",), x_kind="samples"), "loss", None, None).x_kind == "round"
    done = [
        Point(job_id="one", name=name, round=n, value=64.0 * (n + 1), t_s=7.0 * (n + 1))
        for n in range(5)
        for name in ("bytes_up", "samples_total")
    ]
    store.apply(Delta(seq=2, points=done), 1.0)
    manner = manner_of(store, Choice(("one",), x_kind="samples"), "bytes_up", None, None)
    assert manner.x_kind == "samples"
    assert manner.form(2_000_000.0) == "2.0 MB"
    assert store.commits["one"].points()[-1] == (4.0, 35.0)
    assert metrics_of(store, ["one"]) == ["loss", "eval_loss", "samples_per_s", "samples_total", "bytes_up"]


def test_a_job_without_rounds_has_its_metrics_over_time() -> None:
    from msgspec.structs import replace

    store = ClusterStore()
    store.apply(Snapshot(seq=1, items=[replace(job("infer"), rounds=0)]), 0.0)
    store.add_points(
        [Point(job_id="infer", name="samples_per_s", round=0, value=5.0 + n, t_s=2.0 * n) for n in range(9)]
    )
    assert len(store.series_of("infer", "samples_per_s")[""]) == 9
    assert manner_of(store, Choice(("infer",)), "samples_per_s", None, None).x_kind == "time"
