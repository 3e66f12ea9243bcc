"""The filter language, and the rows, marks and arrangements that tables keep."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from msgspec.structs import replace
from rich.style import Style
from textual.strip import Strip

from hypha_tui.process.pace import Pace
from hypha_tui.settings import arrangement
from hypha_tui.settings.arrangement import Arrangement
from hypha_tui.store.cluster import ClusterStore
from hypha_tui.store.columns import COLUMNS, Look, screen_columns
from hypha_tui.store.filters import FilterError, parse
from hypha_tui.store.glyphs import ASCII
from hypha_tui.store.marks import Marks
from hypha_tui.store.rows import SLICE, Rows
from hypha_tui.store.sparks import KEPT
from hypha_tui.themes import Palette
from hypha_tui.widgets.drawing import Drawing
from hypha_tui.widgets.drawn_rows import MOST, DrawnRows
from hypha_tui.widgets.table_line import shifted
from node.views import Delta, Snapshot
from node.wire import Resources
from tests.terminal.feed import cluster_items, lease, peer_id, peers


def look_at(workers: int = 12, now: float = 101.0) -> Look:
    store = ClusterStore()
    store.apply(Snapshot(seq=1, items=cluster_items(workers)), 100.0)
    return Look(store, now, ASCII)


def found(words: str, kind: str = "lease", look: Look | None = None) -> set[str]:
    """Names of the peers, or of the workers of the leases, that match."""
    look = look or look_at()
    chosen = parse(words, COLUMNS[kind])
    views = [item.view for item in look.store.items(kind).values() if chosen.matches(item.view, look)]
    return {look.store.name_of(getattr(view, "worker", view.id)) for view in views}


def test_terms_are_anded_and_each_form_of_term_selects() -> None:
    everyone = found("")
    assert len(everyone) == 12
    assert found("ams") == {"w-ams-00", "w-ams-08"}
    assert found("ams 08") == {"w-ams-08"}
    assert found("!ams") == everyone - found("ams")
    assert found(r"/w-(ams|fra)-0\d/ !w-ams") == {"w-fra-01", "w-fra-09"}
    assert found("worker:nyc") == found("WORKER:/nyc/") == {"w-nyc-02", "w-nyc-10"}
    assert found("worker=w-nyc-02") == found('worker="w-nyc-02"') == {"w-nyc-02"}
    assert found("ttl<3s") == found("remaining<3") == found("left<3000ms") != set()
    assert found("ttl<3s") | found("ttl>=3s") == everyone
    assert found("ttl>0.05m") == found("ttl>3s")
    assert found("renewals=22") == {"w-nyc-02"}
    assert found("state=held job:diloco") <= everyone
    assert found("rtt>100", "peer") == found("rtt>0.1s", "peer") != set()
    assert found("size>60M size<64.5MB", "transfer") and not found("size>70M", "transfer")
    assert found("progress>50%", "transfer") == found("progress>50", "transfer") != set()


def test_gpus_and_silence_are_asked_for_by_name_and_a_value_that_is_not_known_matches_no_comparison() -> None:
    one, two = peers(2)[-2:]
    store = ClusterStore()
    big = replace(one, gpu_name="NVIDIA H100", total=Resources(cpu=8, memory=32, gpu=80), rtt_ms=None)
    store.apply(Snapshot(seq=1, items=[big, two, lease(0, remaining_s=5.0)]), 0.0)
    look = Look(store, 1.0, ASCII)
    assert found("gpu:h100", "peer", look) == {one.name}
    assert found("gpu:h100", "lease", look) == {one.name}
    assert one.name not in found("rtt<1000", "peer", look) | found("rtt>=0", "peer", look)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("colour:red", "there is no column 'colour'"),
        ("rennewals>3", "did you mean renewals"),
        ("worker>3", "worker is not a number; write worker:3"),
        ("ttl<soon", "'soon' is no value of remaining; units are ms, s, m, h, d"),
        ("/w-(/", "is no regular expression"),
        ("/ip4/10.0.0.1", "has no / at its end"),
        ("/(a+)+$/", "could take very long"),
        ("/(a|aa)+$/", "could take very long"),
        (r"/(a)\1/", "could take very long"),
        ("/.*.*.*.*x/", "could take very long"),
        (f"/{'a' * 101}/", "is longer than 100 characters"),
    ],
)
def test_what_cannot_be_understood_is_told(words: str, says: str) -> None:
    with pytest.raises(FilterError) as caught:
        parse(words, COLUMNS["lease"])
    assert says in str(caught.value)
    assert caught.value.exit_code == 2


def test_the_slowest_pattern_that_is_taken_is_quick_on_the_longest_name() -> None:
    view = replace(lease(0, remaining_s=5.0), worker="a" * 5_000, executor="a" * 5_000)
    look = look_at()
    chosen = parse("/a*a*a*x/", COLUMNS["lease"])
    began = time.process_time()
    assert not chosen.matches(view, look)
    assert time.process_time() - began < 0.5


def test_while_a_term_is_being_written_nothing_is_hidden_by_it() -> None:
    assert found("worker:") == found("ttl<") == found('"') == found("")


def rows_of(look: Look, kind: str = "lease", sort: str = "worker") -> Rows:
    columns = screen_columns(kind)
    rows = Rows(kind, columns, next(column for column in columns if column.key == sort))
    rows.filter_all(look)
    rows.arrange(look)
    return rows


def test_five_hundred_leases_that_end_in_one_frame_are_one_new_order() -> None:
    """T3."""
    look = look_at(1_000)
    rows = rows_of(look)
    gone = [("lease", id_) for id_ in rows.order[:500]]
    look.store.take_changes()
    look.store.apply(Delta(seq=2, dropped=gone), 101.0)
    before = rows.sorts
    rows.retest(look.store.take_changes().dirty["lease"], look)
    assert rows.arrange(look)
    assert rows.sorts == before + 1
    assert len(rows.order) == 500
    assert not rows.row_of.keys() & {id_ for _, id_ in gone}


def test_a_long_pass_yields_between_slices_and_takes_in_what_changes_meanwhile() -> None:
    """T6."""
    look = look_at(2 * SLICE + 10)
    rows = rows_of(look)
    passing = rows.passes(look, parse("ams", rows.columns))
    next(passing)
    newcomer = replace(lease(2, remaining_s=9.0), id="new", executor="ams-trainer")
    look.store.apply(Delta(seq=2, items=[newcomer], dropped=[("lease", rows.order[0])]), 101.0)
    rows.retest({newcomer.id, rows.order[0]}, look)
    dropped = rows.order[0]
    assert sum(1 for _ in passing) == 1
    rows.arrange(look)
    assert newcomer.id in rows.row_of
    assert dropped not in rows.row_of
    assert all("ams" in f"{look.store.name_of(look.store.items('lease')[id_].view.worker)} ams" for id_ in rows.order)


def test_rows_that_tie_keep_their_order_by_id() -> None:
    look = look_at(50)
    rows = rows_of(look, sort="duration")
    assert rows.order == sorted(rows.order)
    rows.is_reversed = True
    rows.arrange(look)
    assert rows.order == sorted(rows.order)


def test_marks_survive_another_order_and_a_filter_and_end_with_their_object() -> None:
    marks = Marks()
    for id_ in ("c", "a", "b"):
        marks.toggle(id_)
    marks.toggle("b")
    assert marks.of(["a", "b", "c"]) == ["a", "c"]
    assert marks.of(["c"]) == ["c", "a"]
    marks.keep({"c", "d"})
    assert len(marks) == 1
    marks.anchor = "d"
    order = ["a", "b", "c", "d"]
    assert list(marks.reached(order, {id_: row for row, id_ in enumerate(order)}, "b")) == ["b", "c", "d"]


def test_a_hidden_row_keeps_no_cells_and_those_kept_are_bounded() -> None:
    """T4."""
    look = look_at(1_000)
    plan = [(column, column.width) for column in screen_columns("lease")]
    drawn = DrawnRows(Drawing(Palette({}), ASCII))
    rows = rows_of(look)
    for id_ in rows.order:
        drawn.update(id_, "lease", plan, look)
    assert len(drawn) == MOST
    drawn.keep(set(rows.order[-10:]))
    assert len(drawn) == 10


def test_a_row_that_moves_on_the_screen_is_not_painted_anew_and_one_that_looks_otherwise_is() -> None:
    look = look_at(3)
    plan = [(column, column.width) for column in screen_columns("lease")]
    drawing = Drawing(Palette({}), ASCII)
    drawn = DrawnRows(drawing)
    id_ = rows_of(look).order[0]

    def strip(look: Look = look, left: int = 0, width: int = 80) -> Strip:
        return drawn.strip(id_, "lease", plan, look, left=left, width=width, base=Style())

    first = strip()
    assert strip() is first and first.cell_length == 80
    assert strip(Look(look.store, look.now + 0.5, ASCII)) is first
    assert [segment.text for segment in strip(left=3)] != [segment.text for segment in first]
    assert strip(width=90).cell_length == 90
    first = strip()
    drawing.palette = Palette({"title": Style(bold=True)})
    assert strip() is not first
    first = strip()
    look.store.apply(Delta(seq=2, items=[replace(lease(0, remaining_s=1.0), id=id_, worker="another")]), look.now)
    assert "another" in strip().text and strip() is not first


def test_a_frozen_store_does_not_see_what_comes_later() -> None:
    look = look_at(3)
    held = Look(look.store.held(), look.now, ASCII)
    id_ = lease(0, remaining_s=1.0).id
    look.store.apply(Delta(seq=2, items=[lease(0, remaining_s=9.9)], dropped=[("peer", peer_id(4))]), 105.0)
    assert held.store.remaining_s(id_, held.now) == 0.0
    assert held.store.name_of(peer_id(4)) == "w-fra-01"
    assert look.store.remaining_s(id_, 105.0) == 9.9


def test_sparklines_keep_some_values_of_what_is_here_and_none_of_what_is_gone() -> None:
    store = ClusterStore()
    peer = peers(1)[-1]
    store.apply(Snapshot(seq=1, items=[peer]), 0.0)
    for seq in range(2, 40):
        store.apply(Delta(seq=seq, items=[replace(peer, rtt_ms=float(seq))]), float(seq))
    assert store.sparks.of("peer", peer.id) == [float(seq) for seq in range(40 - KEPT, 40)]
    store.apply(Delta(seq=40, dropped=[("peer", peer.id)]), 41.0)
    assert store.sparks.of("peer", peer.id) == []


def test_slow_frames_halve_the_rate_and_calm_brings_it_back() -> None:
    pace = Pace(4.0)
    pace.drew(0.2, 0.0)
    assert pace.hz == 2.0
    pace.drew(0.2, 1.0)
    pace.drew(0.2, 2.0)
    assert pace.hz == 1.0
    pace.drew(0.01, 6.0)
    assert pace.hz == 1.0
    pace.drew(0.01, 7.1)
    assert pace.hz == 2.0
    pace.drew(0.01, 12.2)
    assert pace.hz == 4.0
    pace.is_blurred = True
    assert pace.hz == 1.0
    assert Pace(0.0).hz == 0.0


def test_arrangements_are_kept_and_a_broken_file_is_told_and_left_out(tmp_path: Path) -> None:
    file = tmp_path / "state" / arrangement.FILE
    assert arrangement.load(file) == ({}, "")
    kept = {"leases-table": Arrangement(sort="remaining", is_reversed=True, hidden=["price"], filter="ams")}
    arrangement.save(file, kept)
    assert arrangement.load(file) == (kept, "")
    assert file.stat().st_mode & 0o077 == 0
    for broken in (b'{"leases-table": {"sort": 3}}', b'{"leases-table": {"sort": "\xff"}}', b"[" * 100_000):
        file.write_bytes(broken)
        found, problem = arrangement.load(file)
        assert found == {}
        assert "is broken" in problem


def test_a_line_that_is_looked_at_sideways_begins_in_mid_cell() -> None:
    line = [("abc  ", "text"), ("東京  ", "dim"), ("x", "ok")]
    assert shifted(line, 0, 20) == line
    assert shifted(line, 2, 20) == [("c  ", "text"), *line[1:]]
    assert shifted(line, 6, 20) == [(" 京  ", "dim"), ("x", "ok")]
    assert shifted(line, 0, 3) == line
    assert shifted(line, 1, 3) == [("bc  ", "text")]
