"""The terminal's store: frames in, state and changes out, without Textual."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from hypha_tui.client.link import LinkState
from hypha_tui.store import text
from hypha_tui.store.cluster import EVENTS_KEPT, ClusterStore
from hypha_tui.store.columns import COLUMNS, Look
from hypha_tui.store.glyphs import ASCII, UNICODE, glyphs_for
from hypha_tui.store.plans import plan
from hypha_tui.store.series import CAPACITY, Series
from hypha_tui.store.slicemap import pass_line
from hypha_tui.widgets.plot import Curve, draw
from node.views import Delta, Event, Point, Snapshot
from tests.terminal.feed import cluster_items, job, lease, peers


def filled(now: float = 100.0) -> ClusterStore:
    store = ClusterStore()
    store.apply(Snapshot(seq=1, items=cluster_items(3)), now)
    store.set_link(LinkState("live"))
    return store


def test_a_snapshot_replaces_everything() -> None:
    store = filled()
    store.apply(Snapshot(seq=9, items=[*peers(1)]), 101.0)
    assert len(store.items("peer")) == 4
    assert not store.items("lease")
    assert not store.is_stale


def test_a_delta_changes_and_drops_and_tells_which() -> None:
    store = filled()
    store.take_changes()
    gone = lease(1, remaining_s=0).id
    store.apply(Delta(seq=2, items=[job(round_=13)], dropped=[("lease", gone)]), 101.0)
    changes = store.take_changes()
    assert changes.dirty == {"job": {"diloco-7"}, "lease": {gone}}
    assert changes.members == {"lease"}
    assert not store.take_changes()


def test_a_gap_drops_the_delta_and_asks_for_a_snapshot() -> None:
    store = filled()
    store.apply(Delta(seq=3, items=[job(round_=40)]), 101.0)
    assert store.needs_resync
    assert store.is_stale
    assert store.views(type(job()))[0].round == 12
    store.apply(Snapshot(seq=7, items=[job(round_=41)]), 102.0)
    assert not store.is_stale
    store.apply(Delta(seq=8, items=[job(round_=42)]), 102.0)
    assert store.views(type(job()))[0].round == 42


def test_an_old_delta_is_ignored() -> None:
    store = filled()
    store.apply(Delta(seq=1, items=[job(round_=40)]), 101.0)
    assert not store.needs_resync


def test_remaining_time_counts_on_from_receipt_for_live_leases_only() -> None:
    store = filled()
    held, expired = lease(1, remaining_s=6.0), lease(50, remaining_s=0.0, state="expired")
    store.apply(Delta(seq=2, items=[held, expired]), 200.0)
    assert store.remaining_s(held.id, 202.5) == 3.5
    assert store.remaining_s(held.id, 208.0) == -2.0
    assert store.remaining_s(expired.id, 208.0) == 0.0


def test_events_are_kept_once_and_in_bounds() -> None:
    """A snapshot after a gap repeats events; a restarted node counts from 1 again."""
    store = ClusterStore()
    first = [Event(node="a", seq=n, name="x", text=str(n), age_s=100.0 - n) for n in range(1, 11)]
    store.apply(Snapshot(seq=1, items=[], events=first), 10.0)
    store.apply(Snapshot(seq=2, items=[], events=first), 11.0)
    assert [seen.event.seq for seen in store.events] == list(range(1, 11))
    store.apply(Delta(seq=3, events=[Event(node="a", seq=1, name="x", text="after a restart")]), 12.0)
    assert store.events[-1].event.text == "after a restart"
    many = [Event(node="b", seq=n, name="x", text="t") for n in range(EVENTS_KEPT + 50)]
    store.apply(Delta(seq=4, events=many), 13.0)
    assert len(store.events) == EVENTS_KEPT


def test_points_come_into_series_once() -> None:
    store = ClusterStore()
    points = [Point(job_id="j", name="loss", round=n, value=float(n), t_s=0.0, worker="w") for n in range(5)]
    store.add_points(points)
    store.add_points(points)
    assert store.series_of("j", "loss")["w"].points() == [(float(n), float(n)) for n in range(5)]


def test_a_series_keeps_the_extremes_however_many_points_it_holds() -> None:
    series = Series()
    for n in range(3 * CAPACITY):
        series.put(float(n), 1_000.0 if n == 2 * CAPACITY + 77 else float(n % 7))
    assert len(series) <= CAPACITY + 512
    parts = [part for part in series.columns(series.first_x, series.last_x, 40) if part is not None]
    assert len(parts) == 40
    assert max(part.high for part in parts) == 1_000.0
    assert min(part.low for part in parts) == 0.0


def test_a_series_at_every_zoom_agrees_with_its_points() -> None:
    series = Series()
    values = [((n * 7919) % 1013) / 10 for n in range(4_000)]
    for n, value in enumerate(values):
        series.put(float(n), value)
    for start, end in ((0, 3_999), (100, 3_000), (3_900, 3_999)):
        parts = [part for part in series.columns(start, end, 30) if part is not None]
        assert max(part.high for part in parts) == max(values[start : end + 1])


def test_points_out_of_order_find_their_place_and_a_second_value_replaces_the_first() -> None:
    series = Series()
    for x, y in ((1.0, 1.0), (3.0, 3.0), (2.0, 2.0), (3.0, 9.0)):
        series.put(x, y)
    assert series.points() == [(1.0, 1.0), (2.0, 2.0), (3.0, 9.0)]
    assert series.last == 9.0


def test_a_curve_falls_from_the_upper_left_to_the_lower_right() -> None:
    series = Series()
    for n in range(20):
        series.put(float(n), 20.0 - n)
    lines = ["".join(part for part, _ in line) for line in draw([Curve("loss", series, "c1")], 60, 12, ASCII)]
    assert len(lines) == 12
    assert all(len(line) <= 60 for line in lines)
    assert lines[1].index("*") < lines[8].rindex("*")
    assert lines[1].lstrip().startswith("20.00")
    assert lines[-1].split() == ["0", "5", "10", "15", "round", "20"]


def test_a_curve_of_strange_values_is_still_drawn() -> None:
    series = Series()
    for n, value in enumerate([float("nan"), 0.0, -1.0, float("inf"), 3.0]):
        series.put(float(n), value)
    for log_y in (False, True):
        assert len(draw([Curve("x", series, "c1")], 60, 10, UNICODE, log_y=log_y)) == 10
    assert draw([Curve("x", series, "c1")], 10, 2, UNICODE) == [[("too small for a curve", "dim")]]
    assert draw([], 60, 10, UNICODE) == [[("no values yet", "dim")]]


def test_every_column_of_every_kind_has_text() -> None:
    store = filled()
    look = Look(store, 101.0, ASCII)
    for kind, columns in COLUMNS.items():
        for item in store.items(kind).values():
            for column in columns:
                words, tone = column.cell(item.view, look)
                assert isinstance(words, str)
                assert tone
                column.sort_key(item.view, look)


@pytest.mark.parametrize("width", [76, 116, 196])
def test_the_rows_of_an_epoch_are_told_in_full_whatever_the_width(width: int) -> None:
    counts = {"available": 1_200_300, "assigned": 40_500, "used": 98_700}
    store = ClusterStore()
    line = pass_line(replace(job(), slices=counts), Look(store, 101.0, ASCII), width)
    words = "".join(part for part, _ in line)
    assert len(words) == width
    assert words.endswith("used 98,700  assigned 40,500  available 1,200,300")


def test_a_plan_never_exceeds_its_width() -> None:
    for columns in COLUMNS.values():
        for width in range(20, 240):
            chosen = plan(columns, width)
            assert sum(size for _, size in chosen) + 2 * (len(chosen) - 1) <= width


def test_glyphs_are_one_cell_wide_and_ascii_is_ascii() -> None:
    """T38: no emoji, no wide glyph."""
    from rich.cells import cell_len

    for glyphs in (UNICODE, ASCII):
        singles = [*glyphs.state.values(), *glyphs.sparks, glyphs.cut, glyphs.cursor, glyphs.bar_full, glyphs.arrow]
        assert all(cell_len(glyph) == 1 for glyph in singles)
        assert len(glyphs.bar(0.01, 8)) == 8
    assert all(ord(c) < 0x80 for c in "".join(ASCII.state.values()) + ASCII.sparks + ASCII.bar(0.5, 4))


def test_the_locale_decides_on_glyphs_and_not_what_python_believes() -> None:
    """T37."""
    assert glyphs_for({"LANG": "en_US.UTF-8", "TERM": "xterm"}) is UNICODE
    assert glyphs_for({"LANG": "en_US.UTF-8", "LC_ALL": "C"}) is ASCII
    assert glyphs_for({"LANG": "C.UTF-8", "TERM": "linux"}) is ASCII
    assert glyphs_for({}) is ASCII


def test_numbers_and_names_are_short_and_steady() -> None:
    assert [text.age(s) for s in (0.4, 41, 200, 7_300, 500_000)] == ["0s", "41s", "3m", "2h", "5d"]
    assert [text.size(n) for n in (0, 980, 4_100_000, 88e6)] == ["0 B", "980 B", "4.1 MB", "88.0 MB"]
    assert text.number(81_200.0) == "81.2k"
    assert text.cut("w-amsterdam-very-long-03", 11, mark="~") == "w-ams~ng-03"
    assert len(text.fit("東京東京東京", 6, mark="~")) < 6
    assert text.clean("a\x1b[2Jb\u202ec") == "a [2Jb c"
