"""What goes into a job's state machine, and what comes out of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from node.scheduler.steering import CancelAsked as CancelAsked
from node.scheduler.steering import HandOverAsked as HandOverAsked
from node.scheduler.steering import PauseAsked as PauseAsked
from node.scheduler.steering import ReleaseAsked as ReleaseAsked
from node.scheduler.steering import SteeringEvent
from node.views import Point
from node.wire import CommitRound, Dispatch, ExportedFile, Member, Span, TaskStatus, VersionFile

# ---- what outlives a process ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HeldLease:
    """A lease in our hands."""

    role: str
    lease_id: str
    peer_id: str
    price: float


@dataclass(frozen=True, slots=True)
class SavedTask:
    """A task as the store has it. `slice_number` and `slice` are of the last grant, to answer it again."""

    task_id: str
    role: str
    peer_id: str
    lease_id: str
    epoch: int
    since_round: int
    state: str
    detail: str = ""
    exit_code: int | None = None
    exported: tuple[ExportedFile, ...] = ()
    return_number: int = 0
    files: tuple[VersionFile, ...] = ()
    slice_number: int = 0
    slice: Span | None = None


# ---- events ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DataFound:
    """The dataset (and the validation dataset) is served by somebody; `rows` are those of its slices, in order."""

    rows: tuple[int, ...]
    digest: str = ""
    classes: tuple[int, ...] = ()
    """The commonest class of each slice, where its rows have been counted by class."""


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
class GroupSet:
    """The parameter server has taken these members over; round `round` was its open one."""

    task_id: str
    members: frozenset[str]
    round: int


@dataclass(frozen=True, slots=True)
class Committing:
    """The parameter server asks for a round to be committed; its delta lies in our journal."""

    report: CommitRound


@dataclass(frozen=True, slots=True)
class BaseKept:
    """These files of one version lie in our journal, verified: its weights, and its momentum above version 0."""

    epoch: int
    files: tuple[VersionFile, ...]


@dataclass(frozen=True, slots=True)
class BaseFailed:
    """They could not be fetched."""

    epoch: int
    reason: str


@dataclass(frozen=True, slots=True)
class ExportPulled:
    """The final model lies whole in `model_dir`."""

    model_dir: str


@dataclass(frozen=True, slots=True)
class ExportFailed:
    """The final model cannot be stored here."""

    reason: str


@dataclass(frozen=True, slots=True)
class StartFailed:
    """The checkpoint that the job is to start from cannot be had."""

    reason: str


@dataclass(frozen=True, slots=True)
class ResultStored:
    """The result of a slice lies whole at its destination, sent by this task."""

    task_id: str
    index: int
    name: str
    sha256: str
    size_bytes: int


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
    | GroupSet
    | Committing
    | BaseKept
    | BaseFailed
    | ExportPulled
    | ExportFailed
    | StartFailed
    | ResultStored
    | SteeringEvent
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
class SaveLease:
    """Write down a lease that we hold."""

    lease: HeldLease


@dataclass(frozen=True, slots=True)
class SaveLeaseGone:
    """Strike a lease out."""

    lease_id: str


@dataclass(frozen=True, slots=True)
class SaveTask:
    """Write a task down, in place of what is known of it."""

    task: SavedTask


@dataclass(frozen=True, slots=True)
class SaveGrant:
    """Write down that a task was given these rows with this request, before it is answered."""

    task_id: str
    number: int
    span: Span


@dataclass(frozen=True, slots=True)
class SaveGranted:
    """Write down that these are the rows that a task has now."""

    task_id: str
    spans: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class SaveRound:
    """Write a round, with all that belongs to it, in one transaction: that is what commits it."""

    report: CommitRound
    samples: int
    seconds: float
    bytes_up: int
    bytes_down: int
    pass_: int
    """The oldest pass that is open after it."""


@dataclass(frozen=True, slots=True)
class SaveBase:
    """Write down that the journal begins with these files, and has nothing before them."""

    files: tuple[VersionFile, ...]


@dataclass(frozen=True, slots=True)
class SaveResult:
    """Write down that the result of these rows is stored: they are committed, and no task has them any more."""

    task_id: str
    span: Span
    name: str
    sha256: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class SaveState:
    """Write the job's row: its state, reason, epoch and round are now these."""


@dataclass(frozen=True, slots=True)
class PullBase:
    """Fetch these files of one version from the parameter server; `BaseKept` or `BaseFailed` follow."""

    epoch: int
    peer_id: str
    files: tuple[VersionFile, ...]


@dataclass(frozen=True, slots=True)
class KeepCheckpoint:
    """Keep a whole copy of a version: these files of the parameter server, and the rows that count in it."""

    version: int
    peer_id: str
    files: tuple[VersionFile, ...]
    pass_: int
    committed: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class PullExport:
    """Fetch the exported model from the parameter server; `ExportPulled` or `ExportFailed` follow."""

    peer_id: str
    files: tuple[ExportedFile, ...]


@dataclass(frozen=True, slots=True)
class StoreIndex:
    """Put the list of all results beside them; `ExportPulled` or `ExportFailed` follow."""


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


SaveEffect = SaveLease | SaveLeaseGone | SaveTask | SaveGrant | SaveGranted | SaveRound | SaveBase | SaveResult

JobEffect = (
    FindData
    | Search
    | Shun
    | StartTask
    | SetGroup
    | ReleaseHeld
    | SaveEffect
    | SaveState
    | PullBase
    | KeepCheckpoint
    | PullExport
    | StoreIndex
    | Plotted
    | Happened
)
