"""Every row counts once in every pass, whatever is lost, repeated or given back."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from node.errors import JobError, Refused
from node.ordering import order_of
from node.scheduler.ledger import Ledger
from node.wire import Span

ROWS = (5, 3, 8, 1, 0, 7)


def rows_of(spans: list[Span]) -> list[tuple[int, int, int]]:
    return [(span.pass_, span.index, row) for span in spans for row in range(span.start, span.end)]


class Run:
    """Tasks that train, contribute, return rows, die and are replaced; the ledger may be restarted at any time."""

    def __init__(self, seed: int, tasks: int) -> None:
        self.rng = random.Random(seed)
        self.ledger = Ledger(ROWS, seed=7)
        self.names = iter(range(10**6))
        self.tasks = {self.new_name(): 0 for _ in range(tasks)}
        self.last: dict[str, tuple[int, Span]] = {}
        self.committed: list[Span] = []

    def new_name(self) -> str:
        return f"t{next(self.names)}"

    def step(self) -> None:
        task = self.rng.choice(sorted(self.tasks))
        held = self.ledger.granted_to(task)
        match self.rng.choices(["give", "again", "commit", "return", "die", "restart"], [6, 1, 4, 1, 1, 1])[0]:
            case "give":
                self.tasks[task] += 1
                span, is_new = self.ledger.give(task, self.tasks[task])
                assert is_new
                self.last[task] = (self.tasks[task], span)
            case "again" if task in self.last:
                assert self.ledger.give(task, self.tasks[task]) == (self.last[task][1], False)
            case "commit" if held:
                spans = self.some_of(held)
                assert self.ledger.conflicts([(task, spans)]) == {}
                self.ledger.commit(task, spans)
                self.committed += spans
            case "return" if held:
                self.ledger.returned(task, [*self.some_of(held), *self.committed[-3:]])
            case "die":
                self.ledger.lost(task)
                del self.tasks[task]
                self.last.pop(task, None)
                self.tasks[self.new_name()] = 0
            case "restart":
                self.ledger = self.again()
        self.ledger.validate()

    def some_of(self, held: list[Span]) -> list[Span]:
        """The first rows that a task has, up to the middle of a slice."""
        spans = held[: self.rng.randrange(1, len(held) + 1)]
        last = spans[-1]
        return [*spans[:-1], Span(last.pass_, last.index, last.start, self.rng.randrange(last.start, last.end) + 1)]

    def again(self) -> Ledger:
        """The ledger that its parts, as they are written down, make."""
        granted = [(task, span) for task in self.tasks for span in self.ledger.granted_to(task)]
        return Ledger.restored(
            ROWS,
            7,
            pass_=self.ledger.pass_,
            committed=[span for span in self.committed if span.pass_ >= self.ledger.pass_],
            granted=granted,
            last=self.last,
        )


@pytest.mark.parametrize("tasks", [1, 2, 5])
@pytest.mark.parametrize("seed", range(12))
def test_every_row_of_a_pass_is_committed_exactly_once_whoever_dies_whenever(tasks: int, seed: int) -> None:
    """H43, U50, U51, U56, U75: what did not count is served again, once."""
    run = Run(seed, tasks)
    for _ in range(300):
        run.step()
    counted = Counter(rows_of(run.committed))
    assert not counted or max(counted.values()) == 1, "a row counts twice"
    whole = {(n, index, row) for n in range(run.ledger.pass_) for index, rows in enumerate(ROWS) for row in range(rows)}
    assert {row for row in counted if row[0] < run.ledger.pass_} == whole
    assert run.ledger.pass_ >= 1


@pytest.mark.parametrize("seed", range(10))
def test_a_ledger_that_is_read_again_is_the_same_one(seed: int) -> None:
    """U34: what it would serve next, and to whom it answers what, does not depend on the restart."""
    run = Run(seed, 3)
    for _ in range(120):
        run.step()
    again = run.again()
    assert again.counts() == run.ledger.counts()
    assert again.committed() == run.ledger.committed()
    for number in range(40):
        assert again.give("new", number + 1) == run.ledger.give("new", number + 1)
    assert all(again.granted_to(task) == run.ledger.granted_to(task) for task in run.tasks)


def test_the_order_of_a_pass_depends_on_seed_and_pass_alone() -> None:
    """U52: the same sequence for any number of workers."""
    orders = []
    for workers in (1, 2, 3, 5):
        ledger = Ledger([4] * 20, seed=3)
        given = [ledger.give(f"t{number % workers}", number + 1)[0] for number in range(40)]
        orders.append([span.index for span in given])
    assert all(order == orders[0] for order in orders)
    assert orders[0] == order_of(3, 0, 20) + order_of(3, 1, 20)
    assert order_of(3, 0, 20) != order_of(3, 1, 20)
    assert order_of(3, 0, 20) != order_of(4, 0, 20)
    assert order_of(5, 2, 6) == [1, 2, 4, 3, 5, 0], "a stored order must stay the same in every version"


def test_rows_count_when_their_round_is_committed_and_not_when_they_are_handed_out() -> None:
    """H43."""
    ledger = Ledger([4, 4], seed=1)
    span, _ = ledger.give("a", 1)
    assert ledger.counts() == {"available": 4, "assigned": 4, "used": 0}
    ledger.commit("a", [Span(0, span.index, 0, 3)])
    assert ledger.counts() == {"available": 4, "assigned": 1, "used": 3}
    assert ledger.lost("a") == [Span(0, span.index, 3, 4)]
    assert ledger.counts() == {"available": 5, "assigned": 0, "used": 3}
    assert ledger.give("b", 1)[0] == Span(0, span.index, 3, 4), "the rest is served first of all, as a part of a slice"


def test_a_request_that_is_repeated_gets_the_same_rows_and_an_older_one_is_refused() -> None:
    ledger = Ledger([4, 4], seed=1)
    first = ledger.give("a", 1)
    assert ledger.give("a", 1) == (first[0], False)
    ledger.give("a", 2)
    with pytest.raises(Refused, match="older than the last") as caught:
        ledger.give("a", 1)
    assert caught.value.code == "stale"


def test_near_the_end_of_a_pass_nobody_waits() -> None:
    ledger = Ledger([2, 2], seed=1)
    slow, _ = ledger.give("slow", 1)
    for number in range(5):
        span, _ = ledger.give("fast", number + 1)
        ledger.commit("fast", [span])
    assert ledger.pass_ == 0
    ledger.commit("slow", [slow])
    assert ledger.pass_ == 3
    ledger.validate()


@pytest.mark.parametrize(
    ("task", "span", "words"),
    [
        ("b", Span(0, 0, 0, 4), "not its own"),
        ("a", Span(0, 0, 2, 5), "there are no rows"),
        ("a", Span(0, 9, 0, 1), "there are no rows"),
        ("a", Span(0, 0, 2, 2), "there are no rows"),
        ("a", Span(7, 0, 0, 1), "never given out"),
    ],
)
def test_a_task_cannot_commit_what_is_not_its_own(task: str, span: Span, words: str) -> None:
    """H46: membership is checked, and a refused report changes nothing."""
    ledger = Ledger([4], seed=1)
    ledger.give("a", 1)
    assert words in ledger.conflicts([(task, [span])])[0]
    assert ledger.counts() == {"available": 0, "assigned": 4, "used": 0}


def test_the_same_rows_cannot_be_committed_twice_in_one_round_or_in_two() -> None:
    ledger = Ledger([4, 4], seed=1)
    span, _ = ledger.give("a", 1)
    part = Span(0, span.index, 1, 2)
    assert ledger.conflicts([("a", [span]), ("a", [part])]).keys() == {1}
    assert "twice" in ledger.conflicts([("a", [span, part])])[0]
    ledger.commit("a", [span])
    assert "committed, or another" in ledger.conflicts([("a", [span])])[0]


def test_one_task_s_mistake_is_told_apart_from_what_the_others_may_commit() -> None:
    ledger = Ledger([4, 4, 4], seed=1)
    spans = {task: ledger.give(task, 1)[0] for task in ("a", "b", "c")}
    stolen = [spans["b"], Span(0, spans["a"].index, 0, 1)]
    assert ledger.conflicts([("b", stolen), ("a", [spans["a"]]), ("c", [spans["c"]])]).keys() == {0}
    assert ledger.conflicts([("a", [spans["a"]]), ("b", stolen), ("c", [spans["c"]])]).keys() == {1}


def test_rows_of_a_lost_task_that_nobody_else_has_can_still_count() -> None:
    """Its update may have arrived before it was lost."""
    ledger = Ledger([4, 4], seed=1)
    span, _ = ledger.give("a", 1)
    ledger.lost("a")
    assert ledger.conflicts([("a", [span])]) == {}
    ledger.commit("a", [span])
    ledger.validate()
    assert ledger.give("b", 1)[0].index != span.index


def test_returned_rows_that_were_committed_stay_committed() -> None:
    ledger = Ledger([4], seed=1)
    span, _ = ledger.give("a", 1)
    ledger.commit("a", [Span(0, 0, 0, 2)])
    ledger.returned("a", [span])
    assert ledger.counts() == {"available": 2, "assigned": 0, "used": 2}
    ledger.returned("a", [span])
    assert ledger.counts() == {"available": 2, "assigned": 0, "used": 2}


def test_a_dataset_without_rows_is_an_error() -> None:
    """H44."""
    for rows in ([], [0, 0]):
        with pytest.raises(JobError, match="no rows"):
            Ledger(rows, seed=1)
