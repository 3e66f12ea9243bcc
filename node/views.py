"""What an operator sees of a cluster: one type per kind of object, and the frames that carry changes of them.

JSON on the operator API, MessagePack between nodes. A duration such as `remaining_s` is as of the moment the frame was
written; whoever receives it counts on from there.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from node.wire import Mountable, Resources


class View(msgspec.Struct, frozen=True, kw_only=True):
    """An object on the board. `id` is unique within its kind over the cluster."""

    kind: ClassVar[str]
    id: str


class PeerView(View, frozen=True, tag="peer", tag_field="kind"):
    """A node. `state`: up, unreachable, left.

    A worker also tells its `executors` (`class/name`), the `price` an hour that it asks, and the `floor` below which it
    does not answer a bid; `cordoned` it offers nothing, `draining` it hands over what it runs as well.
    """

    kind: ClassVar[str] = "peer"
    name: str
    roles: list[str]
    addresses: list[str]
    state: str
    version: str = ""
    rtt_ms: float | None = None
    seen_s: float = 0.0
    total: Resources | None = None
    free: Resources | None = None
    certificate_days: float | None = None
    uptime_s: float | None = None
    reason: str = ""
    executors: list[str] = []
    price: float | None = None
    floor: float = 0.0
    gpu_name: str = ""
    cordoned: bool = False
    draining: bool = False
    mounts: list[Mountable] | None = None
    """What jobs may mount; None where the node does not say."""
    stores: list[str] | None = None
    """Addresses in object storage from which its tasks may read, with all below; None where the node does not say."""


class LeaseView(View, frozen=True, tag="lease", tag_field="kind"):
    """A lease, as its worker knows it. `state`: offered, held, expired, released, lapsed (an offer never accepted).

    One whose worker cannot be asked is shown as expired, with a `reason`, for the `remaining_s` that it had left.
    """

    kind: ClassVar[str] = "lease"
    worker: str
    scheduler: str
    job_id: str
    state: str
    executor: str
    resources: Resources
    price: float
    duration_s: float
    remaining_s: float
    renewals: int
    age_s: float
    task_id: str = ""
    reason: str = ""


class TransferView(View, frozen=True, tag="transfer", tag_field="kind"):
    """Bytes on their way, as the receiver counts them. `what`: slice, update, step, weights, folder, artifact, export.
    `state`: active, done, failed."""

    kind: ClassVar[str] = "transfer"
    what: str
    name: str
    job_id: str
    source: str
    target: str
    size_bytes: int
    done_bytes: int
    bytes_per_s: float
    state: str
    age_s: float = 0.0
    reason: str = ""


class TaskView(msgspec.Struct, frozen=True, kw_only=True):
    """A task of a job, as its scheduler knows it. `state`: waiting, dispatched, starting, running, ready, exported,
    finished, failed, cancelled, lost."""

    task_id: str
    role: str
    state: str
    peer_id: str = ""
    lease_id: str = ""
    round: int = 0
    batches: int = 0
    samples: int = 0
    batch_s: float = 0.0
    exit_code: int | None = None
    detail: str = ""
    tail: list[str] = []


class JobView(View, frozen=True, tag="job", tag_field="kind"):
    """A job. `state`: queued, waiting, starting, running, pausing, paused, exporting, done, failed, cancelled;
    `reason` says why.

    `round` rounds of `rounds` are committed. `slices` counts the present epoch's rows by state, or, of a job without
    rounds, its slices. `age_s` is since it was submitted, `took_s` until it ended.
    """

    kind: ClassVar[str] = "job"
    name: str
    scheduler: str
    state: str
    reason: str
    dataset: str
    round: int
    rounds: int
    workers: int
    workers_wanted: int
    samples: int
    epoch: int = 0
    slices: dict[str, int] = {}
    loss: float | None = None
    eval_loss: float | None = None
    first_eval_loss: float | None = None
    samples_per_s: float | None = None
    bytes_up: int = 0
    bytes_down: int = 0
    age_s: float = 0.0
    price: float = 0.0
    tasks: list[TaskView] = []
    model_dir: str = ""
    took_s: float | None = None


class DatasetView(View, frozen=True, tag="dataset", tag_field="kind"):
    """A dataset at one of its providers; `id` is `<peer>/<name>`."""

    kind: ClassVar[str] = "dataset"
    name: str
    peer_id: str
    slices: int
    rows: int
    size_bytes: int
    digest: str
    state: str = "ready"
    """`hashing` while its slices are read for its manifest, else `ready`."""
    progress: float = 1.0
    """The part of its bytes that has been read while it is `hashing`."""
    split_of: str = ""
    """The dataset that it is a part of."""


AnyView = PeerView | LeaseView | TransferView | JobView | DatasetView


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened at `node`; `seq` counts that node's events. `level`: info, warning, error."""

    node: str
    seq: int
    name: str
    text: str
    level: str = "info"
    age_s: float = 0.0
    fields: dict[str, str] = {}


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """One value of a job's metric. `worker` is empty for a value of the whole job. `t_s`: since the job began.
    Names: loss, eval_loss, samples_per_s, learning_rate, bytes_up and bytes_down (so far), bytes_round (both ways, in
    this round), compression (how many times smaller updates were than the weights they are for), samples_total (so
    far), or an executor's own."""

    job_id: str
    name: str
    round: int
    value: float
    t_s: float
    worker: str = ""


class Snapshot(msgspec.Struct, frozen=True, kw_only=True, tag="snapshot", tag_field="type"):
    """Everything, as of `seq`; a stream begins with it, and repeats it after a gap."""

    seq: int
    items: list[AnyView]
    events: list[Event] = []


class Delta(msgspec.Struct, frozen=True, kw_only=True, tag="delta", tag_field="type"):
    """What changed since `seq - 1`. `dropped` is a list of (kind, id)."""

    seq: int
    items: list[AnyView] = []
    dropped: list[tuple[str, str]] = []
    events: list[Event] = []
    points: list[Point] = []


Frame = Snapshot | Delta


class SchedulerChoice(msgspec.Struct, frozen=True, kw_only=True):
    """Where a job is, or would go: its submission is signed for this scheduler."""

    job_id: str
    scheduler: str


class SubmitResult(msgspec.Struct, frozen=True, kw_only=True):
    """A job is accepted: it is in the scheduler's store."""

    job_id: str
    scheduler: str


class ActResult(msgspec.Struct, frozen=True, kw_only=True):
    """A lease is let go, or a worker is told. `node` carried it out: the lease's scheduler, or the worker."""

    id: str
    node: str


class ModelFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file of a model; `name` may have folders in it, with `/`."""

    name: str
    sha256: str
    size_bytes: int


class ModelView(msgspec.Struct, frozen=True, kw_only=True):
    """What can be exported of a job: its final model, or (not `is_final`) a whole version on the way to it."""

    job_id: str
    version: int
    is_final: bool
    files: list[ModelFile]


class ClusterView(msgspec.Struct, frozen=True, kw_only=True):
    """The cluster in numbers, as the answering node sees it."""

    peer_id: str
    name: str
    version: str
    authority: str
    peers: int
    up: int
    roles: dict[str, int]
    leases: int
    jobs: dict[str, int]
    age_s: float


class LogChunk(msgspec.Struct, frozen=True, kw_only=True):
    """Lines of a task's log."""

    task_id: str
    peer_id: str
    lines: list[str]
    error: str = ""


class LeaseMark(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened to a lease, `age_s` ago. `name`: offered, accepted, renewed, dispatched (its task is
    started), released, expired, lapsed, lost."""

    name: str
    age_s: float
    text: str = ""


class LeaseHistory(msgspec.Struct, frozen=True, kw_only=True):
    """The life of a lease, oldest mark first. The last renewals are marks, `earlier_renewals` are not.

    What its scheduler plans: `next_renewal_s` from now (negative: it is due); None where that is not known. `problems`:
    why something is missing.
    """

    lease_id: str
    marks: list[LeaseMark]
    earlier_renewals: int = 0
    next_renewal_s: float | None = None
    problems: list[str] = []


SLICE_AVAILABLE = "."
SLICE_ASSIGNED = "a"
SLICE_PARTLY = "p"
SLICE_USED = "u"


class SliceHolder(msgspec.Struct, frozen=True, kw_only=True):
    """A task that has rows which no round has committed."""

    task_id: str
    peer_id: str = ""


class SlicePart(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A slice of which not all rows are in one state: `used` are committed, `assigned` are a task's. `holder` is the
    place of that task in `SliceMap.holders`."""

    slice: int
    rows: int
    used: int = 0
    assigned: int = 0
    holder: int = -1


class SliceMap(msgspec.Struct, frozen=True, kw_only=True):
    """Every slice of a job's present pass over its data, a letter each in `states`, in the order of their numbers:
    `.` nobody has had it, `a` (some rows) assigned to a task, `p` partly used, `u` used. `parts` tells more of those
    with `a` and `p`, of 1,000 at most.

    Not `is_whole`: the job runs no more, and slices behind the last letter were not used.
    """

    job_id: str
    dataset: str
    pass_: int
    states: str
    parts: list[SlicePart] = []
    holders: list[SliceHolder] = []
    is_whole: bool = True


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """Why a request of the operator API failed (RFC 9457's fields that we use, and the code of `node.wire`)."""

    status: int
    code: str
    title: str
    detail: str = ""
    hint: str = ""
