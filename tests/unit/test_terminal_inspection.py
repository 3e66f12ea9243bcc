"""What the inspector and the map of slices say, without a terminal."""

from __future__ import annotations

import random

from msgspec.structs import replace

from hypha_tui.store import digest
from hypha_tui.store.cluster import ClusterStore
from hypha_tui.store.columns import COLUMNS, Look
from hypha_tui.store.flows import flows
from hypha_tui.store.glyphs import ASCII, UNICODE
from hypha_tui.store.mentions import find_event, mentions
from hypha_tui.store.plans import plan
from hypha_tui.store.related import related
from hypha_tui.store.renewals import Renewals
from hypha_tui.store.slicemap import Grid, cell_of, counts, read_out, row_of, whole_states
from hypha_tui.store.tasklines import TaskLines, overlap
from hypha_tui.store.timeline import job_bar, job_moments, lease_lines, moment_lines
from node.views import (
    AnyView,
    Delta,
    Event,
    LeaseHistory,
    LeaseMark,
    LogChunk,
    Point,
    SliceHolder,
    SliceMap,
    SlicePart,
    Snapshot,
)
from tests.terminal.feed import cluster_items, dataset, job, lease, peer_id, transfers


def look_at(*items: AnyView, events: list[Event] | None = None, now: float = 100.0) -> Look:
    store = ClusterStore()
    store.apply(Snapshot(seq=1, items=list(items), events=events or []), now)
    return Look(store, now, ASCII)


def told(lines: list[list[tuple[str, str]]]) -> list[str]:
    return ["".join(words for words, _ in line).rstrip() for line in lines]


def wall(age_s: float) -> str:
    return f"T{-age_s:+.1f}"


# ---- related ----------------------------------------------------------------------------------------------------


def test_one_gets_from_a_lease_to_the_data_node_and_back_by_what_is_related() -> None:
    items = [*cluster_items(4), replace(transfers(1)[0], id="own", target=peer_id(3))]
    store = look_at(*items).store
    held = lease(0, remaining_s=5.0)

    def jump(kind: str, id_: str, to: str) -> str:
        return next(one.id for one in related(store, kind, id_) if one.kind == to)

    assert jump("lease", held.id, "job") == "diloco-7"
    worker = next(one.id for one in related(store, "job", "diloco-7") if one.label == "train at")
    assert worker in {peer_id(number) for number in range(4, 9)}
    slice_ = jump("lease", held.id, "transfer")
    source = next(one for one in related(store, "transfer", slice_) if one.label == "from")
    assert (source.kind, source.name) == ("peer", "data-1")
    served = jump("peer", source.id, "dataset")
    assert jump("dataset", served, "job") == "diloco-7"
    assert held.id in {one.id for one in related(store, "job", "diloco-7")}


def test_what_is_related_is_there_and_is_told_once() -> None:
    store = look_at(*cluster_items(4)).store
    for kind in ("peer", "lease", "transfer", "job", "dataset"):
        for id_ in store.items(kind):
            found = related(store, kind, id_)
            assert all(one.id in store.items(one.kind) for one in found)
            assert len({(one.kind, one.id) for one in found}) == len(found)
            assert (kind, id_) not in {(one.kind, one.id) for one in found}
    assert related(store, "lease", "no such") == []


def test_events_about_an_object_are_those_that_name_it() -> None:
    events = [
        Event(node=peer_id(4), seq=1, name="lease.offered", text="offered", fields={"lease": "abc", "job": "diloco-7"}),
        Event(
            node=peer_id(5),
            seq=2,
            name="task.started",
            text="task diloco-7.0.1 starts",
            fields={"task": "diloco-7.0.1"},
        ),
        Event(node=peer_id(2), seq=3, name="dataset.announced", text="", fields={"dataset": "stdlib-bytes"}),
    ]
    look = look_at(*cluster_items(4), events=events)

    def names(kind: str, id_: str) -> list[str]:
        return [seen.event.name for seen in mentions(look.store, kind, id_)]

    assert names("lease", "abc") == ["lease.offered"]
    assert names("job", "diloco-7") == ["lease.offered", "task.started"]
    assert names("peer", peer_id(5)) == ["task.started"]
    assert names("dataset", dataset().id) == ["dataset.announced"]
    number = str(look.store.events[1].number)
    assert find_event(look.store, number) is look.store.events[1]
    assert {(one.kind, one.id) for one in related(look.store, "event", number)} == {
        ("peer", peer_id(5)),
        ("job", "diloco-7"),
    }


# ---- lives ------------------------------------------------------------------------------------------------------


def test_the_life_of_a_lease_is_told_from_the_offer_to_the_next_renewal() -> None:
    held = replace(lease(1, remaining_s=6.0), renewals=70)
    look = look_at(held)
    marks = [
        LeaseMark(name="offered", age_s=30.4, text="at 1.2"),
        LeaseMark(name="accepted", age_s=30.0),
        LeaseMark(name="dispatched", age_s=29.0),
        *(LeaseMark(name="renewed", age_s=age) for age in (12.0, 9.0, 4.0)),
    ]
    history = LeaseHistory(lease_id=held.id, marks=marks, earlier_renewals=66, next_renewal_s=2.0)
    lines = told(lease_lines(held, history, 0.5, look, wall, 90))
    assert lines[0].startswith("offered      T-30.9")
    assert "after 0.40s" in lines[1]
    assert lines[3] == "renewed      70 times   every 4.00s, 5.00s at most   last 4.50s ago"
    assert lines[4].endswith("in 1.5s")
    assert lines[5] == "ends         T+6.0  in 6.0s of 10s, unless renewed"
    (life,) = (line for line in lines if line.startswith("life"))
    assert [life.count(sign) for sign in ("o", "n", "x", ">")] == [1, 1, 1, 1]
    assert life.index("o") < life.index("#") < life.index(">") < life.index("n") < life.index("x")
    assert all(len(line) <= 90 for line in lines if line.startswith(("life", "lately")))
    assert "and 66 earlier renewals" in lines


def test_a_lease_that_is_over_ends_where_it_ended_and_says_why() -> None:
    over = replace(lease(1, remaining_s=4.0, state="expired"), reason="its worker cannot be asked: refused")
    history = LeaseHistory(
        lease_id=over.id,
        marks=[
            LeaseMark(name="accepted", age_s=20.0),
            LeaseMark(name="lost", age_s=3.0, text="not renewed in 24 s"),
        ],
        problems=["its worker does not tell: refused"],
    )
    lines = told(lease_lines(over, history, 0.0, look_at(over), wall, 80))
    assert any(line.startswith("lost") and "not renewed in 24 s" in line for line in lines)
    assert "because      its worker cannot be asked: refused" in lines
    assert lines[-1] == "its worker does not tell: refused"
    assert not any(line.startswith(("ends", "next")) for line in lines)
    waiting = told(lease_lines(over, None, 0.0, look_at(over), wall, 80))
    assert "asking its worker and its scheduler..." in waiting


def test_the_life_of_a_job_has_its_rounds_with_their_durations_and_what_went_wrong() -> None:
    events = [
        Event(
            node=peer_id(1),
            seq=1,
            name="lease.lost",
            text="w is lost",
            level="warning",
            age_s=40.0,
            fields={"job": "diloco-7"},
        )
    ]
    look = look_at(job(), events=events)
    points = [
        Point(job_id="diloco-7", name=name, round=round_, value=value, t_s=100.0 + 30.0 * round_)
        for round_ in range(3)
        for name, value in (("bytes_up", 1e6), ("loss", 3.0 - round_), ("samples_per_s", 312.0))
    ]
    look.store.add_points(points)
    moments = job_moments(job(), mentions(look.store, "job", "diloco-7"), look)
    lines = told(moment_lines(moments, wall))
    assert len(lines) == len(moments) == 5
    assert any("round 3" in line and "took 30.0s  loss 1.000  312 samples/s" in line for line in lines)
    assert any("submitted" in line and "6m ago" in line for line in lines)
    bar = told(job_bar(moments, look, 60))[0]
    assert bar.count("|") == 3
    assert "!" in bar
    assert job_bar([], look, 60) == []


# ---- slices -----------------------------------------------------------------------------------------------------


def test_every_slice_is_in_the_map_however_many_there_are() -> None:
    drawn = random.Random(7)
    for slices, width, height in (
        (24, 76, 5),
        (9_216, 76, 5),
        (9_216, 196, 40),
        (100_000, 76, 5),
        (1, 1, 1),
        (0, 76, 5),
    ):
        states = "".join(drawn.choices("uap.", (50, 5, 5, 40), k=slices))
        grid = Grid.fitting(slices, width, height)
        assert grid.rows <= height
        shown = [index for cell in range(grid.cells) for index in grid.of_cell(cell)]
        assert shown == list(range(slices))
        rows = [row_of(states, grid, row, UNICODE) for row in range(grid.rows)]
        assert sum(len(words) for row in rows for words, _ in row) == grid.cells
        assert counts(states).total() == slices


def test_a_cell_shows_what_is_assigned_and_how_much_of_it_is_used() -> None:
    assert cell_of("uuuu", range(4), UNICODE) == ("█", "done")
    assert cell_of("....", range(4), UNICODE)[1] == "dim"
    assert cell_of("uua.", range(4), UNICODE)[1] == "busy"
    half, most = cell_of("uu..", range(4), UNICODE), cell_of("uuu.", range(4), UNICODE)
    assert half[1] == most[1] == "offer"
    assert UNICODE.sparks.index(half[0]) < UNICODE.sparks.index(most[0]) < len(UNICODE.sparks) - 1
    assert all(ord(cell_of(states, range(1), ASCII)[0]) < 0x80 for states in "uap.")


def test_the_cursor_reads_out_the_slice_its_state_and_its_worker() -> None:
    parts = [SlicePart(slice=1, rows=8, assigned=6, used=2, holder=0), SlicePart(slice=2, rows=8, used=3)]
    found = SliceMap(
        job_id="j",
        dataset="d",
        pass_=0,
        states="uap.",
        parts=parts,
        holders=[SliceHolder(task_id="t", peer_id=peer_id(3))],
    )
    look = look_at(*cluster_items(1))

    def read(slices: range) -> str:
        return told([read_out(found, found.states, slices, look)])[0]

    assert read(range(1)) == "slice 0  used"
    assert read(range(1, 2)) == "slice 1  assigned  6 of 8 rows at w-ams-00  2 of 8 rows used"
    assert read(range(4)).startswith("slices 0 to 3  used 1  partly used 1  assigned 1  available 1")
    over = replace(found, is_whole=False)
    assert whole_states(over, 6) == "uap..."
    assert whole_states(found, 6) == "uap."


def test_transfers_are_counted_by_what_ails_them() -> None:
    base = transfers(1)[0]
    items = [
        replace(base, id="moves"),
        replace(base, id="stalled", bytes_per_s=0.0, age_s=9.0),
        replace(base, id="begins", bytes_per_s=0.0, age_s=0.1),
        replace(base, id="broke", state="failed", name="x"),
        replace(base, id="again", name="x"),
        *(
            replace(base, id=f"d{n}", name=f"d{n}", state="done", size_bytes=n * 100, bytes_per_s=100.0)
            for n in range(1, 21)
        ),
    ]
    found = flows(look_at(*items))
    assert (found.active, found.stalled, found.failed, found.again) == (4, 1, 1, 1)
    assert (found.median_s, found.slow_s) == (11.0, 20.0)


# ---- logs and digests ---------------------------------------------------------------------------------------------


def test_only_what_is_new_in_an_answer_is_added_to_the_log() -> None:
    assert overlap(["a", "b", "c"], ["b", "c", "d"]) == 2
    assert overlap(["a", "a"], ["a", "a", "a"]) == 2
    assert overlap(["a"], ["x"]) == 0
    lines = TaskLines()

    def chunk(task: str, *words: str, error: str = "") -> LogChunk:
        return LogChunk(task_id=task, peer_id=f"p-{task}", lines=list(words), error=error)

    assert lines.take([chunk("a", "12:00:01 one", "more of one", "12:00:03 three"), chunk("b", "12:00:02 two")], 1.0)
    assert [line.text for line in lines.lines] == ["12:00:01 one", "more of one", "12:00:02 two", "12:00:03 three"]
    assert not lines.take([chunk("a", "more of one", "12:00:03 three"), chunk("b", error="gone")], 2.0)
    assert lines.problems == {"b": "gone"}
    assert lines.take([chunk("a", "12:00:03 three", "ValueError: bad"), chunk("b", "12:00:02 two")], 3.0)
    assert (lines.lines[-1].text, lines.lines[-1].level) == ("ValueError: bad", "error")
    assert lines.problems == {}


def test_renewals_are_as_far_apart_as_they_came_and_one_that_is_late_shows_before_it_comes() -> None:
    renewals = Renewals()
    held = [replace(lease(number, remaining_s=10.0), age_s=20.0, renewals=10) for number in range(20)]
    for one in held:
        assert renewals.put(one, 100.0) is None
    assert renewals.apart_s(101.0) == [2.0] * 20, "on average, so far"
    for one in held[1:]:
        renewals.put(replace(one, renewals=one.renewals + 1, remaining_s=9.5), 103.5)
    assert renewals.apart_s(102.5) == [2.5] + [3.0] * 19
    renewals.put(replace(held[0], renewals=held[0].renewals + 2, remaining_s=10.0), 108.0)
    assert renewals.apart_s(108.0) == [4.0] + [5.0] * 19, "two came in eight seconds; the others wait for five"
    renewals.put(replace(held[1], state="expired"), 108.0)
    renewals.drop(held[2].id)
    assert len(renewals.apart_s(108.0)) == 18
    look = look_at(replace(held[0], renewals=0))
    assert "renewal p95 -" in told(digest.leases_digest(look, 60))[1]
    later = Look(look.store, look.now + 8.0, ASCII)
    look.store.apply(Delta(seq=2, items=[replace(held[0], renewals=1)]), later.now)
    assert "renewal p95 8.0s" in told(digest.leases_digest(later, 60))[1]


def test_states_are_told_by_sign_alone_where_words_have_no_room() -> None:
    look = look_at(*(lease(number, remaining_s=2.0 + number) for number in range(8)))
    assert told(digest.leases_digest(look, 60))[0] == "+ held 4  ! late 3  ~ renewing 1"
    assert told(digest.leases_digest(look, 25))[0] == "+ held 4  ! 3  ~ 1"


def test_what_is_left_of_a_lease_is_kept_where_other_columns_have_no_room() -> None:
    def keys(width: int) -> list[str]:
        return [column.key for column, _ in plan(COLUMNS["lease"], width)]

    assert keys(56) == ["state", "lease", "worker", "remaining", "renewals"]
    assert keys(78) == ["state", "lease", "worker", "job", "remaining", "renewals", "rtt"]
    assert keys(118)[-3:] == ["speed", "price", "scheduler"]


def test_any_number_of_peers_is_told_in_a_few_lines() -> None:
    """T43."""
    for workers in (0, 1, 44, 2_000):
        look = look_at(*(cluster_items(workers) if workers else ()))
        for make in (digest.leases_digest, digest.slices_digest, digest.transfers_digest, digest.links_digest):
            for width in (0, 24, 60):
                lines = make(look, width)
                assert 1 <= len(lines) <= 26
    many = told(digest.leases_digest(look, 60))
    assert "renewal p95" in many[1]
    assert "in < 5 s ends" in many[1]
