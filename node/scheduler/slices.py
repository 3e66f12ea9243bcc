"""Which slice goes to which task: AVAILABLE -> ASSIGNED -> USED, in an order that depends on the seed and pass alone.

Pure. A slice is used when a task says it has trained on it, never when it was handed out. What a lost task had been
given and not used goes back, to be served once more, first of all. A pass over the data ends when every slice of it is
used; while the last ones are under way, tasks that ask get slices of the next pass, so nobody waits.

A task uses its grants in the order it got them. So a grant older than one that it reports as used never reached it
(the answer was lost), and goes back too.
"""

from __future__ import annotations

import bisect
import random
from collections import Counter
from dataclasses import dataclass, field
from enum import Enum

from node.errors import JobError


class SliceState(Enum):
    """Where a slice of a pass stands."""

    AVAILABLE = "available"
    ASSIGNED = "assigned"
    USED = "used"


@dataclass(frozen=True, slots=True, order=True)
class Grant:
    """Slice `index` of a pass over the data."""

    pass_: int
    index: int


@dataclass(slots=True)
class _Pass:
    order: list[int]
    place: dict[int, int]
    state: list[SliceState]
    cursor: int = 0
    returned: list[int] = field(default_factory=list)
    used: int = 0


def order_of(seed: int, pass_: int, count: int) -> list[int]:
    """The order of a pass: a permutation that depends on nothing but these three."""
    order = list(range(count))
    random.Random(f"hypha slices {seed} {pass_}").shuffle(order)
    return order


class SliceTracker:
    """The slices of a job's dataset."""

    def __init__(self, count: int, seed: int) -> None:
        if count < 1:
            raise JobError("the dataset has no slices", hint="build it again with `hypha-node dataset build`")
        self.count = count
        self.pass_ = 0
        """The oldest pass that is not over."""
        self._seed = seed
        self._passes: dict[int, _Pass] = {}
        self._given: dict[str, list[Grant]] = {}

    def give(self, task_id: str) -> Grant:
        """The next slice for this task."""
        number = self.pass_
        while (index := self._next_of(self._open(number))) is None:
            number += 1
        grant = Grant(number, index)
        self._open(number).state[index] = SliceState.ASSIGNED
        self._given.setdefault(task_id, []).append(grant)
        return grant

    def used(self, task_id: str, grant: Grant) -> bool:
        """The task has trained on it. True the first time; anything that is not this task's is ignored."""
        given = self._given.get(task_id, [])
        if grant not in given:
            return False
        at = given.index(grant)
        for skipped in given[:at]:
            self._return(skipped)
        del given[: at + 1]
        its_pass = self._passes[grant.pass_]
        its_pass.state[grant.index] = SliceState.USED
        its_pass.used += 1
        while (oldest := self._passes.get(self.pass_)) is not None and oldest.used == self.count:
            del self._passes[self.pass_]
            self.pass_ += 1
        return True

    def lost(self, task_id: str) -> list[Grant]:
        """The task is gone: what it had not used goes back. Answers with that."""
        given = self._given.pop(task_id, [])
        for grant in given:
            self._return(grant)
        return given

    def given_to(self, task_id: str) -> list[Grant]:
        """What the task has and has not used."""
        return list(self._given.get(task_id, []))

    def counts(self) -> dict[str, int]:
        """How many slices of the present pass are in each state."""
        counted = Counter(state.value for state in self._open(self.pass_).state)
        return {state.value: counted.get(state.value, 0) for state in SliceState}

    def validate(self) -> None:
        """Raise AssertionError where the state contradicts itself."""
        assigned = Counter(grant for given in self._given.values() for grant in given)
        assert not assigned or max(assigned.values()) == 1, "a slice is assigned twice"
        for number, its_pass in self._passes.items():
            assert number >= self.pass_
            assert its_pass.used == its_pass.state.count(SliceState.USED)
            held = {index for index, state in enumerate(its_pass.state) if state is SliceState.ASSIGNED}
            assert held == {grant.index for grant in assigned if grant.pass_ == number}
            for index in its_pass.returned:
                assert its_pass.state[index] is SliceState.AVAILABLE

    def _open(self, number: int) -> _Pass:
        its_pass = self._passes.get(number)
        if its_pass is None:
            order = order_of(self._seed, number, self.count)
            place = {index: at for at, index in enumerate(order)}
            its_pass = self._passes[number] = _Pass(order, place, [SliceState.AVAILABLE] * self.count)
        return its_pass

    def _next_of(self, its_pass: _Pass) -> int | None:
        if its_pass.returned:
            return its_pass.returned.pop(0)
        if its_pass.cursor < self.count:
            its_pass.cursor += 1
            return its_pass.order[its_pass.cursor - 1]
        return None

    def _return(self, grant: Grant) -> None:
        its_pass = self._passes[grant.pass_]
        its_pass.state[grant.index] = SliceState.AVAILABLE
        bisect.insort(its_pass.returned, grant.index, key=its_pass.place.__getitem__)
