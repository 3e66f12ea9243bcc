"""The tasks of a job. Pure bookkeeping for its machine."""

from __future__ import annotations

from dataclasses import dataclass, field

from node.scheduler.messages import SavedTask
from node.scheduler.order import AGGREGATE, TRAIN
from node.views import TaskView
from node.wire import ExportedFile, Member, VersionFile

ALIVE = frozenset({"dispatched", "starting", "running", "ready", "exported"})
ENDED_SHOWN = 10


@dataclass(slots=True)
class Task:
    """One task, from its dispatch to its end."""

    task_id: str
    role: str
    peer_id: str
    lease_id: str
    epoch: int
    since_round: int
    state: str = "dispatched"
    round: int = 0
    batches: int = 0
    samples: int = 0
    batch_s: float = 0.0
    loss: float | None = None
    loss_plotted_at: float = 0.0
    exit_code: int | None = None
    detail: str = ""
    tail: list[str] = field(default_factory=list)
    exported: tuple[ExportedFile, ...] = ()
    return_number: int = 0
    files: tuple[VersionFile, ...] = ()
    """What a parameter server starts from."""

    @property
    def is_alive(self) -> bool:
        """Whether it may still do something."""
        return self.state in ALIVE

    def saved(self) -> SavedTask:
        """What of it outlives this process, but for its grants."""
        return SavedTask(
            self.task_id,
            self.role,
            self.peer_id,
            self.lease_id,
            self.epoch,
            self.since_round,
            self.state,
            self.detail,
            self.exit_code,
            self.exported,
            self.return_number,
            self.files,
        )

    @classmethod
    def restored(cls, saved: SavedTask, round_: int) -> Task:
        """A task of an earlier process; what it has done of the open round, its next report tells."""
        return cls(
            saved.task_id,
            saved.role,
            saved.peer_id,
            saved.lease_id,
            saved.epoch,
            saved.since_round,
            saved.state,
            round=round_,
            detail=saved.detail,
            exit_code=saved.exit_code,
            exported=saved.exported,
            return_number=saved.return_number,
            files=saved.files,
        )

    def view(self) -> TaskView:
        """As an operator sees it."""
        return TaskView(
            task_id=self.task_id,
            role=self.role,
            state=self.state,
            peer_id=self.peer_id,
            lease_id=self.lease_id,
            round=self.round,
            batches=self.batches,
            samples=self.samples,
            batch_s=self.batch_s,
            exit_code=self.exit_code,
            detail=self.detail,
            tail=list(self.tail),
        )


class Group:
    """All tasks of a job, those that ended included."""

    def __init__(self, job_id: str, next_number: int = 0) -> None:
        self.tasks: dict[str, Task] = {}
        self._job_id = job_id
        self._next_number = next_number
        self._servers: list[Task] = []

    def add(self, role: str, lease_id: str, peer_id: str, *, epoch: int, since_round: int, round_: int) -> Task:
        """A new task under this lease."""
        task_id = f"{self._job_id}.{epoch}.{self._next_number}"
        self._next_number += 1
        task = Task(task_id, role, peer_id, lease_id, epoch, since_round, round=round_)
        self.restore(task)
        return task

    def restore(self, task: Task) -> None:
        """A task of an earlier process."""
        self.tasks[task.task_id] = task
        if task.role == AGGREGATE:
            self._servers.append(task)

    def alive(self, role: str) -> list[Task]:
        """Tasks of a role that are not over, in the order of their dispatch."""
        return [task for task in self.tasks.values() if task.role == role and task.is_alive]

    @property
    def server(self) -> Task | None:
        """The parameter server's task."""
        return next((task for task in self._servers if task.is_alive), None)

    def under(self, lease_id: str) -> Task | None:
        """The task that runs under a lease."""
        return next((task for task in self.tasks.values() if task.lease_id == lease_id and task.is_alive), None)

    def members(self) -> tuple[Member, ...]:
        """Who the parameter server is to expect updates from."""
        return tuple(
            Member(task_id=task.task_id, peer_id=task.peer_id, since_round=task.since_round)
            for task in self.alive(TRAIN)
        )

    def views(self) -> list[TaskView]:
        """Every living task and the last that ended."""
        ended = [task.task_id for task in self.tasks.values() if not task.is_alive]
        hidden = set(ended[:-ENDED_SHOWN])
        return [task.view() for task in self.tasks.values() if task.task_id not in hidden]
