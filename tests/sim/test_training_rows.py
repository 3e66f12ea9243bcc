"""Training tasks, a parameter server that dies, and a scheduler, in any order of events: each row counts once.

The scheduler and the parameter server here are the least that keeps the contract: the ledger decides, an epoch fences,
a version is committed with the spans of the updates that it holds.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from node.wire import Plan, Span
from node.worker.bridge_state import Destination, TaskProgress

SLICES = 6
ROWS = 40
BATCH = 4
ROUNDS = 12


@dataclass
class Server:
    """A parameter server of one epoch. What was sent to those before it may be committed, and is not its to carry."""

    epoch: int
    first: int
    round: int
    taken: dict[tuple[str, int], list[Span]] = field(default_factory=dict)
    counts_in: dict[tuple[str, int], int] = field(default_factory=dict)


@dataclass
class Version:
    """A committed version: the updates in it, by task and the round they are of."""

    contributors: set[tuple[str, int]]


class World:
    """All of it, driven by one random number generator."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now = 0.0
        self.carries = self.rng.random() < 0.5
        self.rows: dict[tuple[int, int, int], str] = {}
        self.slices = 0
        self.add_slices(SLICES)
        self.server: Server | None = Server(0, 0, 0)
        self.epoch = 0
        self.versions: list[Version] = []
        self.tasks = {
            f"t{number}": TaskProgress(ROUNDS, Destination(0, "s0"), overlaps=self.rng.random() < 0.5)
            for number in range(3)
        }
        for task in self.tasks.values():
            task.loads_weights = True
        self.heard = dict.fromkeys(self.tasks, 0)
        self.delivered: dict[str, tuple[int, int]] = {}
        self.counted: set[tuple[str, int]] = set()

    def add_slices(self, number: int) -> None:
        """So many more, free to be granted."""
        for index in range(self.slices, self.slices + number):
            self.rows |= {(0, index, row): "free" for row in range(ROWS)}
        self.slices += number

    def step(self) -> None:
        """One event of one task, or of the cluster."""
        self.now += 1.0
        name = self.rng.choice(list(self.tasks))
        task = self.tasks[name]
        events = [self.batch] * 5 + [self.update] * 2 + [self.deliver, self.arrive, self.apply, self.report, self.take]
        if self.rng.random() < 0.25:
            self.rng.choice([self.commit, self.commit, self.lose, self.replace])()
        else:
            self.rng.choice(events)(name, task)
        for other in self.tasks.values():
            other.validate()
        self.check()

    def take(self, name: str, task: TaskProgress) -> None:
        """The next slice, or a part of one."""
        for index in self.rng.sample(range(self.slices), self.slices):
            free = [row for row in range(ROWS) if self.rows[0, index, row] == "free"]
            if free:
                start = free[0]
                end = start
                while end < ROWS and self.rows[0, index, end] == "free" and end - start < self.rng.choice([10, 99]):
                    self.rows[0, index, end] = name
                    end += 1
                task.rows.take(Span(0, index, start, end))
                return
        task.rows.finish()

    def batch(self, name: str, task: TaskProgress) -> None:
        """Train on some rows, where there are any."""
        if task.rows.in_hand is not None:
            task.batch(self.rng.choice([BATCH, BATCH, 1]), 1.0, 0.1, self.now)

    def update(self, name: str, task: TaskProgress) -> None:
        """Make an update; whether that is allowed is for the task to say."""
        task.update(self.now)

    def deliver(self, name: str, task: TaskProgress) -> None:
        """To the server that the task knows of, if that is the one there is."""
        server, exchange = self.server, task.exchange
        if server is None or exchange is None or exchange.arriving is not None:
            return
        if task.destination.epoch != server.epoch:
            return
        key = (name, exchange.round)
        spans = task.rows.outstanding[exchange.round].spans
        is_carried = self.carries and server.first <= exchange.round < server.round
        if key in server.taken or exchange.round == server.round or is_carried:
            counts_in = server.counts_in.setdefault(key, server.round)
            server.taken.setdefault(key, spans)
            task.rows.taken(exchange.round, counts_in)
        elif exchange.round < server.round:
            task.rows.late(exchange.round)
        else:
            return
        task.sent()

    def commit(self, *, voids: bool = False) -> None:
        """The open round closes with most of its updates: the ledger takes their rows, each for the first time."""
        server = self.server
        if server is None or server.round >= ROUNDS:
            return
        is_void = server.round not in server.counts_in.values()
        if is_void and not voids and self.rng.random() < 0.95:
            return
        held = {key for key in server.taken if server.counts_in[key] == server.round and self.rng.random() < 0.9}
        for name, round_ in held:
            assert (name, round_) not in self.counted
            self.counted.add((name, round_))
            for span in server.taken[name, round_]:
                for row in range(span.start, span.end):
                    assert self.rows[0, span.index, row] == name, "a row that this task does not have"
                    self.rows[0, span.index, row] = "committed"
        self.versions.append(Version(held))
        server.round += 1

    def lose(self) -> None:
        """The parameter server dies, with what it had taken."""
        if self.server is not None and self.rng.random() < 0.1:
            self.server = None

    def replace(self) -> None:
        """Another one opens the round after the last committed."""
        if self.server is None:
            self.epoch += 1
            self.server = Server(self.epoch, len(self.versions), len(self.versions))

    def arrive(self, name: str, task: TaskProgress) -> None:
        """The next version, or the newest."""
        exchange, server = task.exchange, self.server
        if exchange is None or not exchange.is_sent or exchange.arriving is not None or server is None:
            return
        if task.destination.epoch != server.epoch:
            return
        newest = len(self.versions)
        if newest > exchange.round:
            known = [exchange.round + 1, newest]
            if server.epoch and self.rng.random() < 0.3:
                known = []  # a server that took over knows nothing of who was in the versions before
            counted = {
                round_
                for version in known
                for task_name, round_ in self.versions[version - 1].contributors
                if task_name == name
            }
            task.arrived(newest, newest, counted)

    def apply(self, name: str, task: TaskProgress) -> None:
        """Take in what has arrived."""
        task.applied(self.now)

    def report(self, name: str, task: TaskProgress) -> None:
        """Progress out and plan in; the answer may be lost after the scheduler has heard."""
        number, spans = task.rows.returned
        if number > self.heard[name]:
            self.heard[name] = number
            for span in spans:
                for row in range(span.start, span.end):
                    assert self.rows[0, span.index, row] in (name, "committed")
                    if self.rows[0, span.index, row] == name:
                        self.rows[0, span.index, row] = "free"
        if self.rng.random() < 0.7:
            server = "" if self.server is None else f"s{self.epoch}"
            task.rows.answered(number)
            task.plan(
                Plan(
                    round=task.round,
                    target_batches=self.rng.choice([None, 3]),
                    epoch=self.epoch,
                    parameter_server=server,
                )
            )

    def check(self) -> None:
        """Every row that the ledger says a task has is in exactly one place there."""
        for name, task in self.tasks.items():
            number, returned = task.rows.returned
            unheard = [] if number == self.heard[name] else returned
            queued = [span for spans in task.rows._returns[1:] for span in spans]
            outstanding = [span for update in task.rows.outstanding.values() for span in update.spans]
            hand = [] if task.rows.in_hand is None else [task.rows.in_hand]
            places = [
                (span.pass_, span.index, row)
                for span in [*hand, *task.rows.open, *outstanding, *unheard, *queued]
                for row in range(span.start, span.end)
            ]
            assert len(places) == len(set(places))
            had = {row for row, state in self.rows.items() if state == name}
            assert had <= set(places), f"{name} has lost {sorted(had - set(places))}"
            for row in set(places) - had:
                assert self.rows[row] == "committed"

    def settle(self) -> None:
        """Let everything that is under way come to its end."""
        self.replace()
        self.add_slices(2 * SLICES)
        for _ in range(5 * ROUNDS):
            self.now += 1.0
            for name, task in self.tasks.items():
                for _ in range(6):
                    self.report(name, task)
                self.deliver(name, task)
            self.commit(voids=True)
            for name, task in self.tasks.items():
                self.arrive(name, task)
                task.applied(self.now)
                if task.rows.in_hand is None:
                    self.take(name, task)
                self.batch(name, task)
                task.update(self.now)
            self.check()


@pytest.mark.parametrize("block", range(3))
def test_whatever_happens_every_row_counts_once_or_is_still_somebody_s(block: int) -> None:
    """U23, U50, H43: lost servers, lost answers, late and carried updates, tasks that fall behind."""
    counted = returned = epochs = 0
    for seed in range(block * 20, block * 20 + 20):
        world = World(seed)
        for _ in range(800):
            world.step()
        counted, epochs = counted + len(world.counted), epochs + world.epoch
        returned += sum(world.heard.values())
        world.settle()
        assert all(task.is_done for task in world.tasks.values()), [task.totals() for task in world.tasks.values()]
        assert len(world.versions) == ROUNDS
        for name, task in world.tasks.items():
            for round_ in task.rows.outstanding:
                assert (name, round_) not in world.counted
    assert min(counted, returned, epochs) > 50, "the seeds try nothing"
