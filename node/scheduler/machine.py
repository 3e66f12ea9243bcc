"""What a job's shell needs of its state machine. `job.Job` trains a model; another kind of job is another machine.

A machine is pure: events and the time go in, effects come out, and the shell (`runner.py`) carries these out in the
order in which they were given. Everything that a machine cannot do without after a restart is in its effects: the shell
writes it to the store before it answers whoever caused it, and hands it back as `Saved` at the next start.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from node.scheduler.allocation import Need
from node.scheduler.group import Group
from node.scheduler.journal import Chain
from node.scheduler.ledger import Ledger
from node.scheduler.messages import HeldLease, JobEffect, JobEvent, SavedTask
from node.views import JobView, Point
from node.wire import CommitRound, Plan, Progress, Span


@dataclass(frozen=True, slots=True)
class Saved:
    """What the store knows of a job that an earlier process ran, or that an operator resumes."""

    epoch: int = 0
    round: int = 0
    pass_: int = 0
    """The oldest pass over the data that is not over."""
    next_number: int = 0
    """Of the next task."""
    data_digest: str = ""
    digest: str = ""
    """SHA-256 of the committed weights."""
    contributors: list[tuple[str, int]] = field(default_factory=list)
    """Whose updates the newest version holds, and of which round."""
    leases: list[HeldLease] = field(default_factory=list)
    """Those that were held; what they are worth now, their renewals will show."""
    tasks: list[SavedTask] = field(default_factory=list)
    """All tasks, those that ended included."""
    granted: list[tuple[str, Span]] = field(default_factory=list)
    """Rows that tasks have and that no round has committed, in the order of their grants."""
    committed: list[Span] = field(default_factory=list)
    """Rows that count."""
    chain: Chain = field(default_factory=Chain)
    """The journal's files."""
    points: list[Point] = field(default_factory=list)
    samples: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    bytes_before_up: int = 0
    bytes_before_down: int = 0
    """Those of earlier epochs."""


class Machine(Protocol):
    """A job's state machine."""

    @property
    def job_id(self) -> str: ...

    @property
    def name(self) -> str: ...

    @property
    def dataset(self) -> str: ...

    @property
    def validation_dataset(self) -> str:
        """Looked up before anything else where it is not empty."""

    @property
    def data_digest(self) -> str:
        """Of the dataset's manifest, once it is found."""

    @property
    def needs(self) -> dict[str, Need]:
        """The kinds of leases it may ask for with `messages.Search`, by role."""

    @property
    def group(self) -> Group:
        """All tasks: whoever calls about one is held against it (`peer_id`, `lease_id`, `is_alive`)."""

    @property
    def state(self) -> str: ...

    @property
    def reason(self) -> str: ...

    @property
    def epoch(self) -> int: ...

    @property
    def round(self) -> int:
        """The open one; so many are committed."""

    @property
    def model_dir(self) -> str:
        """Where the results lie, once they do."""

    @property
    def chain(self) -> Chain:
        """The journal's files; empty where no parameter server is."""

    @property
    def ledger(self) -> Ledger | None:
        """Whose which rows are; None until the dataset is found."""

    @property
    def is_over(self) -> bool:
        """Whether the job has ended, in whatever way."""

    def begin(self, now: float) -> list[JobEffect]:
        """The first thing to do, in this process."""

    def asks_to_commit(self, report: CommitRound) -> bool:
        """Whether this round is to be committed; False where it is already. Raises `Refused`."""

    def handle(self, now: float, event: JobEvent) -> list[JobEffect]:
        """Take an event; answers with what is to be done. Raises `Refused`, having changed nothing."""

    def progress(self, now: float, report: Progress) -> tuple[Plan, list[JobEffect]]:
        """A task of this job reports on its way."""

    def next_slice(self, now: float, task_id: str, number: int) -> tuple[Span | None, list[JobEffect]]:
        """The rows for request `number` of a task, the same for the same number; None when there are none now."""

    def view(self, now: float, scheduler: str) -> JobView:
        """As an operator sees it."""

    def abandon(self, reason: str) -> None:
        """The shell cannot go on with this job: it has failed."""

    def validate(self) -> None:
        """Raise AssertionError where the state contradicts itself."""
