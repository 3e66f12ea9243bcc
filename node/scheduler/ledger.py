"""Which rows of the dataset are whose: available, granted or committed. Each row counts once in every pass.

Pure. A row is committed by the round that averaged the update it was trained for, never when it was handed out. What a
task had and no round committed goes back when the task is gone, or when the task returns it, and is served again first
of all. The order of a pass is a permutation of the slices that depends on the seed and the pass alone; within a slice
rows go from first to last. A pass ends when all its rows are committed; while the last ones are under way, tasks that
ask get rows of the next pass, so nobody waits.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable, Mapping, Sequence

from node.errors import JobError, Refused
from node.ordering import order_of
from node.scheduler.shares import Shares
from node.wire import Span

Rows = list[tuple[int, int]]
"""Ranges of one slice: sorted, apart from each other, none empty."""
Sharing = Callable[[int, Sequence[int]], Shares | None]
"""Answers, for a pass and its order, with what is meant for whom; None where it is the first to ask."""


def without(rows: Iterable[tuple[int, int]], start: int, end: int) -> Rows:
    """These ranges less one."""
    left: Rows = []
    for low, high in rows:
        if low < min(high, start):
            left.append((low, min(high, start)))
        if max(low, end) < high:
            left.append((max(low, end), high))
    return left


def joined(rows: Iterable[tuple[int, int]], start: int, end: int) -> Rows:
    """These ranges and one more that has no row of theirs."""
    made: Rows = []
    for low, high in sorted([*rows, (start, end)]):
        if made and made[-1][1] == low:
            made[-1] = (made[-1][0], high)
        else:
            made.append((low, high))
    return made


class _Pass:
    """One pass: slices from `cursor` on (in its order) are untouched; `free` and `done` are of those before it."""

    def __init__(self, seed: int, number: int, rows: Sequence[int]) -> None:
        self.order = order_of(seed, number, len(rows))
        self.place = {index: at for at, index in enumerate(self.order)}
        self.cursor = 0
        self.free: dict[int, Rows] = {}
        self.queue: list[int] = []
        """Places of the slices in `free`, in order."""
        self.done: dict[int, Rows] = {}
        self.committed = 0
        self.frees = 0
        """How often rows have come back."""

    @property
    def is_spent(self) -> bool:
        """Whether nothing is free."""
        return not self.queue and self.cursor == len(self.order)

    def free_of(self, index: int, rows: int) -> Rows:
        """What of a slice nobody has."""
        if self.place[index] >= self.cursor:
            return [(0, rows)] if rows else []
        return self.free.get(index, [])

    def set_free(self, index: int, rows: Rows) -> None:
        """What of a touched slice nobody has, from now on."""
        place = self.place[index]
        if rows and index not in self.free:
            bisect.insort(self.queue, place)
        elif not rows and index in self.free:
            self.queue.remove(place)
        if rows:
            self.free[index] = rows
        else:
            self.free.pop(index, None)

    def reach(self, place: int, rows: Sequence[int]) -> None:
        """Slices up to this place are touched from now on."""
        while self.cursor <= place:
            index = self.order[self.cursor]
            self.cursor += 1
            self.set_free(index, [(0, rows[index])] if rows[index] else [])


class Ledger:
    """The rows of a job's dataset. `rows` are the numbers of rows of its slices."""

    def __init__(self, rows: Sequence[int], seed: int, *, pass_: int = 0) -> None:
        if not sum(rows):
            raise JobError("the dataset has no rows", hint="build it again with `hypha-node dataset build`")
        self.rows = tuple(rows)
        self.pass_ = pass_
        """The oldest pass that is not over."""
        self._total = sum(rows)
        self._seed = seed
        self._passes: dict[int, _Pass] = {}
        self._granted: dict[str, list[Span]] = {}
        self._last: dict[str, tuple[int, Span]] = {}

    @classmethod
    def restored(
        cls,
        rows: Sequence[int],
        seed: int,
        *,
        pass_: int,
        committed: Iterable[Span],
        granted: Iterable[tuple[str, Span]],
        last: dict[str, tuple[int, Span]],
    ) -> Ledger:
        """The ledger that an earlier process wrote down: what is committed of the passes from `pass_` on, what tasks
        have, and the last grant of each."""
        ledger = cls(rows, seed, pass_=pass_)
        ledger._last = dict(last)
        for span in committed:
            if span.pass_ >= pass_:
                ledger._take(span)
                ledger._count(span)
        for task_id, span in granted:
            ledger._take(span)
            ledger._granted.setdefault(task_id, []).append(span)
        return ledger

    def give(self, task_id: str, number: int, rank: int = 0, sharing: Sharing | None = None) -> tuple[Span, bool]:
        """The rows for request `number` of a task, and whether they are new: the same number gets the same rows again.

        `rank` is the task's place among those that share the rows by `sharing`.

        Raises `Refused` (`stale`) for a request older than the last.
        """
        known = self._last.get(task_id)
        if known is not None and number <= known[0]:
            if number == known[0]:
                return known[1], False
            raise Refused("stale", f"slice request {number} of task {task_id} is older than the last, {known[0]}")
        at = self.pass_
        while (span := self._first_free(at, rank, sharing)) is None:
            at += 1
        self._take(span)
        self._granted.setdefault(task_id, []).append(span)
        self._last[task_id] = (number, span)
        return span, True

    def conflicts(self, shares: Iterable[tuple[str, Sequence[Span]]]) -> dict[int, str]:
        """Which of these shares may not be committed, by position, and why: a task's rows are its own, or nobody's.
        The others may be committed together."""
        found: dict[int, str] = {}
        wanted: dict[tuple[int, int], Rows] = {}
        for number, (task_id, spans) in enumerate(shares):
            problem = next(filter(None, (self._problem_of(task_id, span) for span in spans)), "")
            problem = problem or self._wanted_twice(task_id, spans, wanted)
            if problem:
                found[number] = problem
                continue
            for span in spans:
                wanted.setdefault((span.pass_, span.index), []).append((span.start, span.end))
        return found

    def commit(self, task_id: str, spans: Sequence[Span]) -> None:
        """A round counts these rows of a task. They are in no conflict."""
        for span in spans:
            self._ungrant(task_id, span)
            self._take(span)
            self._count(span)
        while (oldest := self._passes.get(self.pass_)) is not None and oldest.committed == self._total:
            del self._passes[self.pass_]
            self.pass_ += 1

    def returned(self, task_id: str, spans: Iterable[Span]) -> None:
        """A task gives rows back. What it does not have (any more) stays as it is."""
        for span in spans:
            for piece in self._ungrant(task_id, span):
                self._free(piece)

    def lost(self, task_id: str) -> list[Span]:
        """The task is gone: what it had goes back. Answers with that."""
        self._last.pop(task_id, None)
        given = self._granted.pop(task_id, [])
        for span in given:
            self._free(span)
        return given

    def granted_to(self, task_id: str) -> list[Span]:
        """Rows that a task has and no round has committed, in the order of their grants."""
        return list(self._granted.get(task_id, []))

    def granted(self) -> list[tuple[str, Span]]:
        """Every task's rows that no round has committed."""
        return [(task_id, span) for task_id, spans in self._granted.items() for span in spans]

    def used_rows(self) -> dict[int, int]:
        """Of the slices of the present pass that have committed rows: how many."""
        its_pass = self._passes.get(self.pass_)
        done = its_pass.done if its_pass is not None else {}
        return {index: sum(high - low for low, high in rows) for index, rows in done.items()}

    def committed(self) -> list[Span]:
        """Committed rows of the passes that are not over."""
        return [
            Span(number, index, low, high)
            for number, its_pass in sorted(self._passes.items())
            for index, done in sorted(its_pass.done.items())
            for low, high in done
        ]

    def counts(self) -> dict[str, int]:
        """How many rows of the present pass are in each state."""
        done = self._open(self.pass_).committed
        held = sum(s.end - s.start for spans in self._granted.values() for s in spans if s.pass_ == self.pass_)
        return {"available": self._total - done - held, "assigned": held, "used": done}

    def validate(self) -> None:
        """Raise AssertionError where the state contradicts itself: some row is not in exactly one state."""
        held: dict[tuple[int, int], Rows] = {}
        for spans in self._granted.values():
            for span in spans:
                held.setdefault((span.pass_, span.index), []).append((span.start, span.end))
        assert all(number >= self.pass_ for number, _ in held)
        for number, its_pass in self._passes.items():
            assert number >= self.pass_
            assert its_pass.queue == sorted(its_pass.place[index] for index in its_pass.free)
            done = 0
            for index, rows in enumerate(self.rows):
                parts = sorted(
                    [*its_pass.free_of(index, rows), *its_pass.done.get(index, []), *held.get((number, index), [])]
                )
                edge = 0
                for low, high in parts:
                    assert low == edge, f"slice {index} of pass {number}: rows {edge} to {low}"
                    edge = high
                assert edge == rows, f"slice {index} of pass {number} ends at {edge}"
                done += sum(high - low for low, high in its_pass.done.get(index, []))
            assert done == its_pass.committed

    def _open(self, number: int) -> _Pass:
        its_pass = self._passes.get(number)
        if its_pass is None:
            its_pass = self._passes[number] = _Pass(self._seed, number, self.rows)
        return its_pass

    def _first_free(self, number: int, rank: int, sharing: Sharing | None) -> Span | None:
        its_pass = self._open(number)
        if its_pass.is_spent:
            return None
        shares = sharing(number, its_pass.order) if sharing is not None else None
        if shares is not None:
            found = shares.find(rank, lambda index: its_pass.free_of(index, self.rows[index]), its_pass.frees)
            return Span(number, *found) if found is not None else None
        if its_pass.queue:
            index = its_pass.order[its_pass.queue[0]]
            return Span(number, index, *its_pass.free[index][0])
        untouched = (index for index in its_pass.order[its_pass.cursor :] if self.rows[index])
        index = next(untouched, -1)
        return Span(number, index, 0, self.rows[index]) if index >= 0 else None

    def _take(self, span: Span) -> None:
        """These rows are nobody's any more, if they were."""
        its_pass = self._open(span.pass_)
        its_pass.reach(its_pass.place[span.index], self.rows)
        its_pass.set_free(span.index, without(its_pass.free.get(span.index, []), span.start, span.end))

    def _free(self, span: Span) -> None:
        its_pass = self._open(span.pass_)
        its_pass.frees += 1
        its_pass.set_free(span.index, joined(its_pass.free.get(span.index, []), span.start, span.end))

    def _count(self, span: Span) -> None:
        its_pass = self._open(span.pass_)
        its_pass.done[span.index] = joined(its_pass.done.get(span.index, []), span.start, span.end)
        its_pass.committed += span.end - span.start

    def _ungrant(self, task_id: str, span: Span) -> list[Span]:
        """Take rows from a task; answers with those that it had."""
        kept: list[Span] = []
        taken: list[Span] = []
        for held in self._granted.get(task_id, []):
            low, high = max(held.start, span.start), min(held.end, span.end)
            if (held.pass_, held.index) != (span.pass_, span.index) or low >= high:
                kept.append(held)
                continue
            taken.append(Span(held.pass_, held.index, low, high))
            kept += [Span(held.pass_, held.index, *rest) for rest in without([(held.start, held.end)], low, high)]
        if taken:
            self._granted[task_id] = kept
        return taken

    def _wanted_twice(self, task_id: str, spans: Sequence[Span], wanted: Mapping[tuple[int, int], Rows]) -> str:
        own: dict[tuple[int, int], Rows] = {}
        for span in spans:
            place = span.pass_, span.index
            others = [*wanted.get(place, ()), *own.setdefault(place, [])]
            if any(low < span.end and span.start < high for low, high in others):
                return f"task {task_id}: rows of slice {span.index} in pass {span.pass_} would be committed twice"
            own[place].append((span.start, span.end))
        return ""

    def _problem_of(self, task_id: str, span: Span) -> str:
        where = f"rows {span.start} to {span.end} of slice {span.index} in pass {span.pass_}"
        if not 0 <= span.index < len(self.rows) or not 0 <= span.start < span.end <= self.rows[span.index]:
            return f"task {task_id}: there are no {where}"
        if span.pass_ < self.pass_:
            return f"task {task_id}: {where} are committed already"
        left: Rows = [(span.start, span.end)]
        for held in self._granted.get(task_id, []):
            if (held.pass_, held.index) == (span.pass_, span.index):
                left = without(left, held.start, held.end)
        its_pass = self._passes.get(span.pass_)
        if left and its_pass is None:
            return f"task {task_id}: {where} were never given out"
        for low, high in its_pass.free_of(span.index, self.rows[span.index]) if its_pass else []:
            left = without(left, low, high)
        return f"task {task_id}: {where} are not its own: committed, or another task's" if left else ""
