"""A group in its rounds, by a clock of its own: real plans and real progress of tasks, imagined steps and exchanges."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from node.scheduler.plan import RoundPlan
from node.wire import Plan, Span
from node.worker.bridge_state import Destination, TaskProgress

REPORT_EVERY_S = 0.25
ROWS = 1 << 40


@dataclass(frozen=True)
class Way:
    """What an exchange takes, in seconds."""

    call: float = 0.004
    """A report and its answer."""
    up: float = 0.05
    prepare: float = 0.05
    commit: float = 0.05
    down: float = 0.05
    merge: float = 0.02

    @property
    def exchange(self) -> float:
        """From an update's end to the new weights at its worker, where nobody else is waited for."""
        return self.up + self.prepare + self.commit + self.down


@dataclass
class Committed:
    """A round, when it was over, and how many samples it counts."""

    at: float
    samples: int


@dataclass
class Member:
    """One worker."""

    name: str
    batch_s: float
    progress: TaskProgress
    worked_s: float = 0.0
    is_training: bool = False
    wants_update: bool = False
    is_lost: bool = False
    has_arrived: bool = False
    merged: int = 0
    told_round: int = 0
    is_reporting: bool = False
    reports_at: float | None = None
    samples: dict[int, int] = field(default_factory=dict)


class Cluster:
    """Workers, a parameter server and a scheduler. `speeds` are seconds of a batch, of one sample each."""

    def __init__(
        self,
        speeds: dict[str, float],
        budget: int,
        *,
        seed: int,
        overlap: bool = False,
        delay: int = 0,
        way: Way | None = None,
        spread: float = 0.1,
    ) -> None:
        self.now = 0.0
        self.way = way or Way()
        self.rounds: list[Committed] = []
        self.plan = RoundPlan(budget, 1)
        self.members: dict[str, Member] = {}
        self._rng = random.Random(seed)
        self._overlap, self._delay, self._spread = overlap, delay, spread
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._updates: dict[str, int] = {}
        self._expected = set(speeds)
        self._is_closing = False
        for name, batch_s in speeds.items():
            progress = TaskProgress(1 << 30, Destination(0, "server"), overlaps=overlap)
            progress.loads_weights = True
            progress.rows.take(Span(0, 0, 0, ROWS))
            self.members[name] = Member(name, batch_s, progress)
            self.plan.join(name)
        for member in self.members.values():
            self._train(member)

    def run(self, rounds: int, *, limit_s: float = 1e5) -> None:
        """Until so many more rounds are committed."""
        wanted = len(self.rounds) + rounds
        while len(self.rounds) < wanted:
            assert self.now < limit_s, "the rounds do not end"
            self.step()

    def run_until(self, at: float) -> None:
        """Until this moment."""
        while self._queue[0][0] <= at:
            self.step()
        self.now = at

    def step(self) -> None:
        """The next event."""
        self.now, _, act = heapq.heappop(self._queue)
        act()
        self.plan.validate()

    def lose(self, name: str, *, known_after: float) -> None:
        """A worker dies; so much later its scheduler knows, and with it the parameter server."""
        self.members[name].is_lost = True
        self._after(known_after, lambda: self._struck_out(name))

    def _struck_out(self, name: str) -> None:
        self._expected.remove(name)
        self.plan.leave(name)
        self._close_if_all_are_in()

    def idle(self) -> dict[str, float]:
        """The share of the time since the beginning in which each worker was in no step."""
        return {name: 1 - member.worked_s / self.now for name, member in self.members.items()}

    def _after(self, seconds: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (self.now + seconds, next(self._numbers), act))

    # ---- the worker -------------------------------------------------------------------------------

    def _train(self, member: Member) -> None:
        took = member.batch_s * self._rng.uniform(1 - self._spread, 1 + self._spread)
        member.is_training = True
        self._after(took, lambda: self._trained(member, took))

    def _trained(self, member: Member, took: float) -> None:
        if member.is_lost:
            return
        member.is_training = False
        member.worked_s += took
        answer = member.progress.batch(1, 1.0, took, self.now)
        assert answer["type"] != "Error", answer
        member.wants_update = answer.get("counter") == 0
        self._changed(member)
        self._next(member)

    def _next(self, member: Member) -> None:
        progress = member.progress
        if member.is_lost:
            return
        if member.has_arrived and (member.wants_update or not self._overlap or progress.batches >= self._delay):
            member.has_arrived = False
            self._after(self.way.merge, lambda: self._merged(member))
        elif not member.wants_update:
            self._train(member)
        elif progress.exchange is None:
            self._update(member)

    def _merged(self, member: Member) -> None:
        if member.is_lost:
            return
        answer = member.progress.applied(self.now)
        assert answer["type"] == "Continue", answer
        if not self._overlap:
            member.wants_update = False
        self._changed(member)
        self._next(member)

    def _update(self, member: Member) -> None:
        progress = member.progress
        round_, samples = progress.round, progress.batches
        answer = progress.update(self.now)
        assert answer["type"] == "Ok", answer
        member.wants_update = False
        self._changed(member)
        self._after(self.way.up, lambda: self._received(member, round_, samples))
        if self._overlap:
            self._train(member)

    # ---- reports ------------------------------------------------------------------------------------

    def _changed(self, member: Member) -> None:
        progress = member.progress
        batches = progress.batches
        is_early = progress.target is None and batches > 0 and batches & (batches - 1) == 0
        if progress.round != member.told_round or is_early:
            member.reports_at = self.now
        elif member.reports_at is None:
            member.reports_at = self.now + REPORT_EVERY_S
        if not member.is_reporting:
            self._after(max(0.0, member.reports_at - self.now), lambda: self._report(member))

    def _report(self, member: Member) -> None:
        if member.is_lost or member.is_reporting or member.reports_at is None or member.reports_at > self.now:
            return
        member.reports_at, member.is_reporting = None, True
        totals = member.progress.totals()
        member.told_round = totals.round
        self._after(self.way.call / 2, lambda: self._told(member, totals.round, totals.batches, totals.batch_s))

    def _told(self, member: Member, round_: int, batches: int, batch_s: float) -> None:
        target = None
        if round_ < self.plan.round:
            target = max(1, batches)
        elif not member.is_lost:
            target = self.plan.report(self.now, member.name, round_, batches=batches, samples=batches, batch_s=batch_s)
        self._after(self.way.call / 2, lambda: self._answered(member, round_, target))

    def _answered(self, member: Member, round_: int, target: int | None) -> None:
        member.is_reporting = False
        member.progress.plan(Plan(round=round_, target_batches=target, parameter_server="server"))
        if member.reports_at is not None:
            self._after(max(0.0, member.reports_at - self.now), lambda: self._report(member))

    # ---- the parameter server -----------------------------------------------------------------------

    def _received(self, member: Member, round_: int, samples: int) -> None:
        if member.is_lost:
            return
        assert round_ == self.plan.round
        member.progress.rows.taken(round_, round_)
        self._updates[member.name] = samples
        member.progress.sent()
        self._close_if_all_are_in()

    def _close_if_all_are_in(self) -> None:
        if not self._is_closing and self._updates and self._expected <= set(self._updates):
            self._is_closing = True
            self._after(self.way.prepare + self.way.commit, self._committed)

    def _committed(self) -> None:
        self.rounds.append(Committed(self.now, sum(self._updates.values())))
        takers = [self.members[name] for name in self._updates]
        version = self.plan.round + 1
        self._updates, self._is_closing = {}, False
        self.plan.open(version, self.now)
        for member in takers:
            self._after(self.way.down, lambda member=member: self._arrived(member, version))  # type: ignore[misc]

    def _arrived(self, member: Member, version: int) -> None:
        if member.is_lost:
            return
        member.progress.arrived(version, version, {version - 1})
        member.has_arrived = True
        if not member.is_training:
            self._next(member)
