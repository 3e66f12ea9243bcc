"""The tasks of a job: one parameter server and its training tasks. Pure bookkeeping for `job.py`."""

from __future__ import annotations

from dataclasses import dataclass, field

from node.scheduler.messages import AGGREGATE, TRAIN, Order
from node.views import TaskView
from node.wire import AggregateTask, Dispatch, Member, TrainTask

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

    @property
    def is_alive(self) -> bool:
        """Whether it may still do something."""
        return self.state in ALIVE

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

    def __init__(self, order: Order) -> None:
        self.tasks: dict[str, Task] = {}
        self._order = order
        self._next_number = 0

    def add(self, role: str, lease_id: str, peer_id: str, *, epoch: int, round_: int) -> Task:
        """A new task under this lease."""
        task_id = f"{self._order.job_id}.{epoch}.{self._next_number}"
        self._next_number += 1
        task = Task(task_id, role, peer_id, lease_id, epoch, round_, round=round_)
        self.tasks[task_id] = task
        return task

    def alive(self, role: str) -> list[Task]:
        """Tasks of a role that are not over, in the order of their dispatch."""
        return [task for task in self.tasks.values() if task.role == role and task.is_alive]

    @property
    def server(self) -> Task | None:
        """The parameter server's task."""
        return next(iter(self.alive(AGGREGATE)), None)

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

    def dispatch_of(self, task: Task, *, evaluate: bool) -> Dispatch:
        """The message that starts a task."""
        order = self._order
        body: TrainTask | AggregateTask
        if task.role == AGGREGATE:
            body = AggregateTask(
                model=order.model,
                optimizer=order.outer,
                rounds=order.rounds,
                members=list(self.members()),
                min_members=order.min_workers,
            )
        else:
            server = self.server
            assert server is not None, "a training task needs its parameter server"
            body = TrainTask(
                model=order.model,
                dataset=order.dataset,
                parameter_server=server.peer_id,
                optimizer=order.inner,
                batch_size=order.batch_size,
                rounds=order.rounds,
                preprocessor=order.preprocessor,
                validation_dataset=order.validation_dataset,
                evaluate=evaluate,
            )
        return Dispatch(
            lease_id=task.lease_id,
            job_id=order.job_id,
            task_id=task.task_id,
            epoch=task.epoch,
            executor=order.needs[task.role].executor,
            task=body,
            folder_sha256=order.folder_sha256,
            runs_job_code=order.runs_job_code,
        )
