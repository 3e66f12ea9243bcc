"""Tasks that are to be done elsewhere, at their workers' wish: replaced first, where somebody is free. Pure.

A training task trains on until its replacement has done a batch; a parameter server serves until another lease is
held. Both go with a commit, so that no round is lost. Where nobody is found, they go with the next one all the same.
"""

from __future__ import annotations

from collections.abc import Mapping

from node.scheduler.crew import Crew
from node.scheduler.group import Task
from node.scheduler.messages import JobEffect
from node.scheduler.order import AGGREGATE, TRAIN
from node.scheduler.rounds import Rounds
from node.scheduler.steering import Moving, Wish

FIND_WITHIN_S = 10.0
"""A search that has not even said that nobody is free is not waited for any longer.."""
START_WITHIN_S = 90.0
"""..nor a replacement that has been dispatched and does not train."""


class Moves:
    """Those of one training job."""

    def __init__(self, crew: Crew, rounds: Rounds) -> None:
        self._crew = crew
        self._rounds = rounds
        self._moving = Moving()

    def wish(self, now: float, lease_id: str, reason: str) -> list[JobEffect]:
        """What runs under this lease is to move. The wish lapses unless it is repeated."""
        if not self._moving.wish(now, lease_id, reason):
            return []
        self._crew.moving.add(lease_id)
        text = f"what runs under lease {lease_id} moves at a commit, once it can be replaced: {reason}"
        return [self._crew.note("task.moving", text, lease=lease_id), *self._crew.searches()]

    def at_commit(self, now: float, answers: Mapping[str, str]) -> list[JobEffect]:
        """Let go what is replaced, or cannot be by what the searches answer, and what has one too many."""
        effects: list[JobEffect] = []
        before = set(self._crew.moving)
        wishes = self._moving.live(now)
        self._crew.moving &= wishes.keys()
        for lease_id, wish in wishes.items():
            task = self._crew.group.under(lease_id)
            if task is None:
                self._forget(lease_id)
            elif self._may_go(now, task, wish, answers):
                self._forget(lease_id)
                effects += self._crew.let_go(lease_id, wish.reason)
        effects += self._crew.without_surplus()
        return effects if before == self._crew.moving else [*effects, *self._crew.searches()]

    def _forget(self, lease_id: str) -> None:
        self._moving.forget(lease_id)
        self._crew.moving.discard(lease_id)

    def _may_go(self, now: float, task: Task, wish: Wish, answers: Mapping[str, str]) -> bool:
        waited = now - wish.since
        if task.role == AGGREGATE:
            return self._crew.next_server is not None or bool(answers.get(AGGREGATE)) or waited > FIND_WITHIN_S
        train = self._crew.group.alive(TRAIN)
        staying = [other for other in train if other.lease_id not in self._crew.moving]
        arrived = sum(1 for other in staying if other.since_round <= self._rounds.round)
        moving = len(train) - len(staying)
        if arrived + moving - 1 >= self._crew.workers - moving:
            return True
        if arrived < len(staying):
            return waited > START_WITHIN_S
        return bool(answers.get(TRAIN)) or waited > FIND_WITHIN_S
