"""A thousand workers and a hundred jobs through the scheduler's logic, without network, clock or disk.

    python -m benchmarks.scale [--jobs 100] [--workers 1000] [--rounds 3]

Every job has its parameter server and its share of the workers. Workers take slices, report every batch and contribute;
a tenth of them is lost on the way and replaced. Measured: the CPU time that the logic takes to plan one round of one
job (all reports, slices, the commit and the ledger's part of it), and the memory of all of it.
"""

from __future__ import annotations

import argparse
import random
import resource
import statistics
import sys
import time
import tracemalloc
from dataclasses import dataclass, field

from node.scheduler import messages as m
from node.scheduler.allocation import Need
from node.scheduler.job import Job
from node.scheduler.messages import JobEffect
from node.scheduler.order import AGGREGATE, TRAIN, Order
from node.wire import (
    CommitRound,
    Contribution,
    ExecutorKind,
    InnerOptimizer,
    ModelSource,
    OuterOptimizer,
    Progress,
    Resources,
    Span,
    TaskStatus,
    VersionFile,
)

SLICES = 1_000
ROWS = 256
BATCH = 32
BATCHES = 12
"""Of each worker in a round, about."""


@dataclass
class Load:
    """One job and its simulated workers."""

    number: int
    workers: int
    rounds: int
    now: float = 0.0
    spent_s: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        job_id = f"job-{self.number}"
        order = Order(
            job_id=job_id,
            name=job_id,
            dataset="d",
            validation_dataset="v",
            rounds=self.rounds + 1,
            budget=self.workers * BATCH * BATCHES,
            batch_size=BATCH,
            workers=self.workers,
            min_workers=1,
            model=ModelSource(task="causal-lm", seed=self.number),
            inner=InnerOptimizer(learning_rate=1e-3),
            outer=OuterOptimizer(learning_rate=0.7, momentum=0.9),
            needs={role: Need(job_id, role, ExecutorKind(class_=role), Resources()) for role in (TRAIN, AGGREGATE)},
        )
        self.job = Job(order, now=0.0)
        self.job.begin(0.0)
        self.leases = 0
        self.numbers: dict[str, int] = {}
        self.rows: dict[str, list[Span]] = {}
        self.rng = random.Random(self.number)
        self.tell(m.DataFound((ROWS,) * SLICES, "digest"))
        server = self.hold(AGGREGATE)
        for _ in range(self.workers):
            self.hold(TRAIN)
        files = [VersionFile(kind="weights", number=0, sha256="0", size_bytes=10**9)]
        self.tell(m.TaskReported(TaskStatus(task_id=server, lease_id="l0", state="ready", files=files)))
        self.tell(m.BaseKept(0, tuple(files)))

    def tell(self, event: m.JobEvent) -> list[JobEffect]:
        """One event, 10 ms after the one before."""
        self.now += 0.01
        return self.job.handle(self.now, event)

    def hold(self, role: str) -> str:
        """Another lease; answers with the newest task."""
        lease_id = f"l{self.leases}"
        self.leases += 1
        self.tell(m.LeaseHeld(role, lease_id, f"peer-{self.number}-{self.leases}", 1.0))
        return next(reversed(self.job.group.tasks))

    def round(self) -> None:
        """One round, from its first batch to its commit."""
        began = time.process_time()
        if self.rng.random() < 0.1 * self.workers:
            lost = self.rng.choice(self.job.group.alive(TRAIN))
            self.tell(m.LeaseLost(lost.lease_id, "gone"))
            self.hold(TRAIN)
        tasks = [task.task_id for task in self.job.group.alive(TRAIN)]
        sizes = {task: self.rng.uniform(0.5, 2.0) for task in tasks}
        open_ = dict.fromkeys(tasks, 0)
        done: dict[str, int] = {}
        while open_:
            for task in list(open_):
                self.now += 0.001
                open_[task] += 1
                if open_[task] * BATCH > sum(s.end - s.start for s in self.rows.get(task, [])):
                    self.take_slice(task)
                report = Progress(
                    task_id=task,
                    round=self.job.round,
                    batches=open_[task],
                    samples=open_[task] * BATCH,
                    batch_s=0.1 * sizes[task],
                )
                plan, _ = self.job.progress(self.now, report)
                if plan.target_batches is not None and open_[task] >= plan.target_batches:
                    done[task] = open_.pop(task)
        self.tell(m.Committing(self.report(done)))
        self.spent_s.append(time.process_time() - began)

    def take_slice(self, task: str) -> None:
        """The task's next rows."""
        self.numbers[task] = self.numbers.get(task, 0) + 1
        span, _ = self.job.next_slice(self.now, task, self.numbers[task])
        assert span is not None
        self.rows.setdefault(task, []).append(span)

    def report(self, done: dict[str, int]) -> CommitRound:
        """What the parameter server asks to commit; each task's rows as far as it has trained on them."""
        number = self.job.round + 1
        shares = []
        for task, batches in done.items():
            used, left = split(self.rows.pop(task, []), batches * BATCH)
            self.rows[task] = left
            peer_id = self.job.group.tasks[task].peer_id
            share = Contribution(
                task_id=task, peer_id=peer_id, samples=batches * BATCH, sha256="0", norm=1.0, spans=used
            )
            shares.append(share)
        server = self.job.group.server
        assert server is not None
        weights, momentum, delta = (
            VersionFile(kind=kind, number=number, sha256=f"{number}", size_bytes=10**6)
            for kind in ("weights", "momentum", "delta")
        )
        return CommitRound(
            task_id=server.task_id,
            epoch=self.job.epoch,
            round=self.job.round,
            weights=weights,
            momentum=momentum,
            delta=delta,
            contributions=shares,
        )


def split(spans: list[Span], rows: int) -> tuple[list[Span], list[Span]]:
    """The first rows of these, and the rest."""
    used: list[Span] = []
    for at, span in enumerate(spans):
        size = span.end - span.start
        if size > rows:
            edge = span.start + rows
            if rows:
                used.append(Span(span.pass_, span.index, span.start, edge))
            return used, [Span(span.pass_, span.index, edge, span.end), *spans[at + 1 :]]
        used.append(span)
        rows -= size
    return used, []


@dataclass(frozen=True)
class Measured:
    """What it took."""

    median_s: float
    worst_s: float
    memory_bytes: int


def measure(jobs: int, workers: int, rounds: int) -> Measured:
    """All jobs, round by round."""
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    loads = [Load(number, max(1, workers // jobs), rounds) for number in range(jobs)]
    for load in loads:
        load.round()
    memory = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    for load in loads:
        load.spent_s.clear()
        for _ in range(rounds - 1):
            load.round()
        load.job.validate()
    spent = [seconds for load in loads for seconds in load.spent_s]
    return Measured(statistics.median(spent), max(spent), memory)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=100)
    parser.add_argument("--workers", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    for jobs in (asked.jobs, 1):
        found = measure(jobs, asked.workers, asked.rounds)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 if sys.platform == "darwin" else 1024)
        print(
            f"{jobs} jobs, {asked.workers} workers: a round in {found.median_s * 1e3:.1f} ms (median), "
            f"{found.worst_s * 1e3:.1f} ms (worst); {found.memory_bytes / 1e6:.0f} MB of state, "
            f"{peak:.0f} MB resident at most"
        )


if __name__ == "__main__":
    main()
