"""What goes into a job's state machine, and what comes out of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from node.jobspec import JobSpec
from node.scheduler.allocation import Need
from node.views import Point
from node.wire import (
    Dispatch,
    ExecutorKind,
    ExportedFile,
    InnerOptimizer,
    Member,
    ModelSource,
    OuterOptimizer,
    RoundCommitted,
    TaskStatus,
)

TRAIN = "train"
AGGREGATE = "aggregate"
BATCH_SIZE = 16
"""Where the job does not bound it."""


@dataclass(frozen=True, slots=True)
class Order:
    """A job as its machine needs it: all that never changes while it runs."""

    job_id: str
    name: str
    dataset: str
    validation_dataset: str
    rounds: int
    budget: int
    batch_size: int
    workers: int
    min_workers: int
    model: ModelSource
    inner: InnerOptimizer
    outer: OuterOptimizer
    needs: dict[str, Need]
    preprocessor: ModelSource | None = None
    folder_sha256: str = ""

    @property
    def runs_job_code(self) -> bool:
        """Whether code from the job's own folder is to run on the workers."""
        sources = [self.model] if self.preprocessor is None else [self.model, self.preprocessor]
        return any(source.task == "torch" for source in sources)


def order_of_spec(job_id: str, spec: JobSpec, folder_sha256: str) -> Order:
    """The order that a job file makes."""
    share = max(1, spec.rounds.avg_samples_between_updates // spec.num_workers)
    train, server = spec.worker_price, spec.parameter_server_price
    return Order(
        job_id=job_id,
        name=spec.name,
        dataset=spec.dataset,
        validation_dataset=spec.validation_dataset,
        rounds=spec.rounds.update_rounds,
        budget=spec.rounds.avg_samples_between_updates,
        batch_size=min(spec.rounds.max_batch_size or BATCH_SIZE, share),
        workers=spec.num_workers,
        min_workers=spec.min_workers,
        model=spec.model_source(),
        inner=spec.inner(),
        outer=spec.outer(),
        preprocessor=spec.preprocessor_source(),
        folder_sha256=folder_sha256,
        needs={
            TRAIN: Need(
                job_id,
                TRAIN,
                ExecutorKind(class_=TRAIN, name=spec.worker_executor),
                spec.worker,
                train.bid,
                train.limit,
            ),
            AGGREGATE: Need(
                job_id,
                AGGREGATE,
                ExecutorKind(class_=AGGREGATE, name=spec.parameter_server_executor),
                spec.parameter_server,
                server.bid,
                server.limit,
            ),
        },
    )


# ---- events ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DataFound:
    """The dataset (and the validation dataset) is served by somebody; `slices` of it are to be trained on."""

    slices: int


@dataclass(frozen=True, slots=True)
class DataMissing:
    """It is not; we go on looking."""

    reason: str


@dataclass(frozen=True, slots=True)
class LeaseHeld:
    """An offer was accepted."""

    role: str
    lease_id: str
    peer_id: str
    price: float


@dataclass(frozen=True, slots=True)
class LeaseLost:
    """A lease ran out, or its worker refused to renew it."""

    lease_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class SearchAnswered:
    """Why a search is short, in words."""

    role: str
    text: str


@dataclass(frozen=True, slots=True)
class DispatchRefused:
    """The worker does not want this task."""

    task_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class TaskReported:
    """A worker says how a task is."""

    status: TaskStatus


@dataclass(frozen=True, slots=True)
class Measured:
    """A task's metrics of a round."""

    task_id: str
    round: int
    metrics: dict[str, float]


@dataclass(frozen=True, slots=True)
class Committed:
    """The parameter server closed a round."""

    report: RoundCommitted


@dataclass(frozen=True, slots=True)
class ExportPulled:
    """The final model lies whole in `model_dir`."""

    model_dir: str


@dataclass(frozen=True, slots=True)
class ExportFailed:
    """The final model cannot be stored here."""

    reason: str


@dataclass(frozen=True, slots=True)
class CancelAsked:
    """An operator ends the job."""

    by: str


@dataclass(frozen=True, slots=True)
class Ticked:
    """Time has passed."""


JobEvent = (
    DataFound
    | DataMissing
    | LeaseHeld
    | LeaseLost
    | SearchAnswered
    | DispatchRefused
    | TaskReported
    | Measured
    | Committed
    | ExportPulled
    | ExportFailed
    | CancelAsked
    | Ticked
)


# ---- effects --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FindData:
    """Look the datasets up until they are found; `DataFound` or `DataMissing` follow."""


@dataclass(frozen=True, slots=True)
class Search:
    """Hold `wanted` leases of this role; 0 ends the search."""

    role: str
    wanted: int


@dataclass(frozen=True, slots=True)
class Shun:
    """Take this peer for this role only where no other offers, or (`never`) not at all."""

    role: str
    peer_id: str
    never: bool = False


@dataclass(frozen=True, slots=True)
class StartTask:
    """Dispatch a task; the secret is added by the shell. Keep trying while the lease is held."""

    peer_id: str
    dispatch: Dispatch


@dataclass(frozen=True, slots=True)
class SetGroup:
    """Tell the parameter server who belongs to it. Only the latest counts; keep trying."""

    task_id: str
    peer_id: str
    members: tuple[Member, ...]


@dataclass(frozen=True, slots=True)
class ReleaseHeld:
    """Let a lease go; what runs under it ends. `refusal` is why its worker cannot do it, if so."""

    lease_id: str
    peer_id: str
    refusal: str = ""


@dataclass(frozen=True, slots=True)
class UsedSlice:
    """A line of the slice ledger: who had a slice, and the round in which that was told."""

    pass_: int
    index: int
    task_id: str
    round: int


@dataclass(frozen=True, slots=True)
class SaveRound:
    """Write a round, with all that belongs to it, in one transaction, before the report is acknowledged."""

    epoch: int
    report: RoundCommitted
    samples: int
    seconds: float
    used: tuple[UsedSlice, ...]
    in_hand: tuple[UsedSlice, ...] = ()
    """Given, and not told as used so far; its task may have trained on a part."""


@dataclass(frozen=True, slots=True)
class SaveState:
    """Write the job's row: its state, reason, epoch and round are now these."""


@dataclass(frozen=True, slots=True)
class PullExport:
    """Fetch the exported model from the parameter server; `ExportPulled` or `ExportFailed` follow."""

    peer_id: str
    files: tuple[ExportedFile, ...]


@dataclass(frozen=True, slots=True)
class Plotted:
    """A metric has a new value."""

    point: Point


@dataclass(frozen=True, slots=True)
class Happened:
    """Something an operator may want to know."""

    name: str
    text: str
    level: str = "info"
    fields: dict[str, str] = field(default_factory=dict)


JobEffect = (
    FindData
    | Search
    | Shun
    | StartTask
    | SetGroup
    | ReleaseHeld
    | SaveRound
    | SaveState
    | PullExport
    | Plotted
    | Happened
)
