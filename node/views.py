"""What an operator sees of a cluster: one type per kind of object, and the frames that carry changes of them.

JSON on the operator API, MessagePack between nodes. A duration such as `remaining_s` is as of the moment the frame was
written; whoever receives it counts on from there.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from node.wire import Resources


class View(msgspec.Struct, frozen=True, kw_only=True):
    """An object on the board. `id` is unique within its kind over the cluster."""

    kind: ClassVar[str]
    id: str


class PeerView(View, frozen=True, tag="peer", tag_field="kind"):
    """A node. `state`: up, unreachable, left."""

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


class LeaseView(View, frozen=True, tag="lease", tag_field="kind"):
    """A lease, as its worker knows it. `state`: offered, held, expired, released, lapsed (an offer never accepted)."""

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
    """A job. `state`: queued, waiting, starting, running, exporting, done, failed, cancelled; `reason` says why.

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
    Names: loss, eval_loss, samples_per_s, learning_rate, bytes_up, bytes_down, or an executor's own."""

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


class SubmitResult(msgspec.Struct, frozen=True, kw_only=True):
    """A job is accepted: it is in the scheduler's store."""

    job_id: str
    scheduler: str


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


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """Why a request of the operator API failed (RFC 9457's fields that we use, and the code of `node.wire`)."""

    status: int
    code: str
    title: str
    detail: str = ""
    hint: str = ""
