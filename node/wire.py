"""Every message that crosses the network between nodes.

Messages are MessagePack maps. Unknown fields are ignored, so a newer node can talk to an older one.
Durations, never instants, cross the network: clocks of two machines are never compared.

A `Request` is one HTTP call, `POST /rpc/<method>`; its type names the answer. A refusal is a `Refusal`
with HTTP status 4xx and one of these codes:

| code | meaning |
|---|---|
| `denied` | the caller's role or membership does not allow this |
| `unknown` | no such lease, task, job, dataset, slice or version here |
| `stale` | the message belongs to an epoch, round or lease that is over |
| `conflict` | it contradicts something already accepted |
| `invalid` | malformed, or outside the bounds |
| `busy` | not now; the same call may succeed later |
| `full` | no room on disk or in memory |
"""

from __future__ import annotations

import re
from typing import ClassVar, Generic, TypeVar

import msgspec

A = TypeVar("A", bound="Message")

UNDECODABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What decoding the bytes of others may raise: msgspec leaves text that is no UTF-8, and depth, to Python's errors."""
PROTOCOL = 1
MAX_MESSAGE_BYTES = 4 << 20
JOB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
"""What a job may be called. Task ids are `<job>.<epoch>.<number>`."""


class Message(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Base of everything below."""


class Request(Message, Generic[A], frozen=True):
    """A call to one peer; `method` is its path, `answer` the type it is answered with."""

    method: ClassVar[str]
    answer: ClassVar[type[Message]]


class Ack(Message, frozen=True):
    """Done, with nothing to say."""


class Refusal(Message, frozen=True):
    """Why a request was declined; `code` is from the table above.

    `parts`: where only a part of what the request lists is at fault, which of it (by position) and why. The rest of it
    would have been taken."""

    code: str
    detail: str
    hint: str = ""
    parts: dict[int, str] = {}


class Resources(Message, frozen=True):
    """Cores, and gigabytes (10^9 bytes) of memory, disk and video memory."""

    cpu: float = 0.0
    memory: float = 0.0
    storage: float = 0.0
    gpu: float = 0.0


# ---- records that others pass on: signed by their origin ------------------------------------------


class Signed(Message, frozen=True):
    """Bytes, a signature over exactly these bytes, and the certificates (DER, leaf first) that make it count."""

    payload: bytes
    signature: bytes
    chain: list[bytes]


class PeerRecord(Message, frozen=True, tag="peer"):
    """Who a node is and where it can be reached. The highest `seq` of a peer wins."""

    peer_id: str
    seq: int
    name: str
    roles: list[str]
    addresses: list[str]
    ttl_s: float
    version: str = ""
    leaving: bool = False


class ProviderRecord(Message, frozen=True, tag="provider"):
    """A peer serves a dataset; `digest` is the SHA-256 of its manifest. `slices` 0 withdraws it."""

    peer_id: str
    seq: int
    dataset: str
    digest: str
    slices: int
    rows: int
    size_bytes: int
    ttl_s: float


class ExecutorKind(Message, frozen=True):
    """What a task needs to run: a class (`train`, `aggregate`, `inference`) and, if given, one executor's name."""

    class_: str = msgspec.field(name="class")
    name: str = ""


class BindMount(Message, frozen=True):
    """A folder or file of a worker's machine that a task sees at `container_path`."""

    host_path: str
    container_path: str = ""
    read_only: bool = True


class Mountable(Message, frozen=True):
    """What a worker's owner lets jobs mount: this path and all below it."""

    path: str
    read_only: bool = True


class Advertisement(Message, frozen=True, tag="advertisement"):
    """A scheduler looks for `count` workers for one kind of task (topic `hypha/worker`).

    `bid` is the price it offers for each, an hour; what it would pay at most stays with the scheduler.
    """

    peer_id: str
    seq: int
    advert_id: str
    job_id: str
    executor: ExecutorKind
    resources: Resources
    bid: float
    count: int
    ttl_s: float
    """How long offers for it are welcome."""
    exclude: list[str] = []
    """Peers that need not answer."""
    mounts: list[BindMount] = []
    """What its tasks must see of the worker's machine."""
    stores: list[str] = []
    """Addresses in object storage that its tasks read with the worker's own credentials."""


Record = PeerRecord | ProviderRecord | Advertisement


class Passed(Message, frozen=True):
    """A signed record on its way. `remaining_s` is what is left of its life, as the sender knows it."""

    signed: Signed
    remaining_s: float
    hops: int = 0


# ---- membership and gossip ------------------------------------------------------------------------


class Welcome(Message, frozen=True):
    """The answer to `Hello`: who is here."""

    record: Passed
    protocol: int = PROTOCOL


class Hello(Request[Welcome], frozen=True):
    """First call on a link: introduces the caller."""

    method = "hello"
    answer = Welcome
    record: Passed
    protocol: int = PROTOCOL


class Exchanged(Message, frozen=True):
    """What the other end had and we lack, and the keys it wants from us."""

    records: list[Passed]
    wanted: list[str]


class Exchange(Request[Exchanged], frozen=True):
    """Anti-entropy: `known` maps a record key (`peer:<id>`, `provider:<id>:<dataset>`) to its `seq`."""

    method = "exchange"
    answer = Exchanged
    known: dict[str, int]


class Gossip(Request[Ack], frozen=True):
    """Records pushed to a neighbour, which passes on what is new to it."""

    method = "gossip"
    answer = Ack
    records: list[Passed]


class Providers(Message, frozen=True):
    """Provider records of one dataset."""

    records: list[Passed]


class FindProviders(Request[Providers], frozen=True):
    """Who serves this dataset?"""

    method = "providers/find"
    answer = Providers
    dataset: str


# ---- allocation -----------------------------------------------------------------------------------


class Offer(Request[Ack], frozen=True):
    """Worker to scheduler: I hold these resources for you for `ttl_s`; accept by renewing `lease_id`."""

    method = "offer"
    answer = Ack
    advert_id: str
    lease_id: str
    executor: ExecutorKind
    resources: Resources
    price: float
    ttl_s: float
    heeds: list[str] = []
    """Fields of the advertisement, of those that were not in it from the beginning, that this worker has looked at."""


class Decline(Request[Ack], frozen=True):
    """Worker to scheduler: not me, and why (`gpu 0 < 10`), so that a waiting job can say what it waits for."""

    method = "decline"
    answer = Ack
    advert_id: str
    reason: str


class LeaseRenewed(Message, frozen=True):
    """The lease holds for another `duration_s`."""

    duration_s: float


class RenewLease(Request[LeaseRenewed], frozen=True):
    """Scheduler to worker. The first renewal accepts the offer. Only the scheduler it was offered to may renew."""

    method = "lease/renew"
    answer = LeaseRenewed
    lease_id: str
    job_id: str
    duration_s: float


class ReleaseLease(Request[Ack], frozen=True):
    """Scheduler to worker: no longer needed. Tasks under it end. Idempotent."""

    method = "lease/release"
    answer = Ack
    lease_id: str


# ---- tasks ----------------------------------------------------------------------------------------


class ModelSource(Message, frozen=True):
    """Where a model comes from.

    `repository` (Hugging Face) or, when empty, files of the job's own folder. `task` is the kebab-case name of a
    Transformers Auto class (`causal-lm`), or `torch` for a module from the job's folder. A source without weights is
    initialised once, by the parameter server, from `seed`.
    """

    task: str
    repository: str = ""
    revision: str = ""
    filenames: list[str] = []
    input_names: list[str] = []
    seed: int = 0


class InnerOptimizer(Message, frozen=True):
    """AdamW, with the optional schedule `cosine-with-warmup`, `linear-with-warmup` or `wsd`."""

    learning_rate: float
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8
    weight_decay: float = 0.01
    schedule: str = ""
    warmup_steps: int = 0
    total_steps: int = 0
    decay_steps: int = 0


class OuterOptimizer(Message, frozen=True):
    """SGD with Nesterov momentum on the mean pseudo-gradient (DiLoCo, arXiv 2311.08105)."""

    learning_rate: float
    momentum: float


class Sync(Message, frozen=True):
    """What the updates and the answers to them look like on the wire.

    `codec` is `none`, `bf16`, `int8`, `int4`, `topk` (with `density`), or `auto`: by measured bandwidth. With `none`
    the answer to a round is the step; with any other codec it is the encoded mean pseudo-gradient, from which everybody
    makes momentum and step (`node.training.versions`). With `fragments` above 1 round r exchanges fragment
    r mod `fragments` alone. With `overlap` a worker goes on training while its update is on its way, and mixes what
    comes back into its weights: `mixing` of its own, the rest of the new.
    """

    codec: str = "none"
    density: float = 0.02
    fragments: int = 1
    overlap: bool = False
    delay_batches: int = 0
    mixing: float = 0.5


class Aggregation(Message, frozen=True):
    """How a round is closed.

    `rule`: `mean` (by samples), `trimmed-mean` (without the `trim` highest and lowest of the values, as a fraction on
    each side) or `median`, both coordinate by coordinate. `clip_norm`: an update longer than so many times the median
    norm of the round's updates is shortened to that; 0 is off. An update that comes late is refused, or (`late` =
    `carry`) counts in the next round with `late_weight` of its weight. The deadline is the median of recent arrivals
    plus `deadline_k` times their median absolute deviation, within floor and ceiling.
    """

    rule: str = "mean"
    trim: float = 0.2
    clip_norm: float = 0.0
    late: str = "refuse"
    late_weight: float = 0.5
    deadline_k: float = 4.0
    deadline_floor_s: float = 2.0
    deadline_ceiling_s: float = 600.0


class VersionFile(Message, frozen=True):
    """A file that belongs to a version: its `weights`, its `momentum`, or the `delta` that leads to it from the one
    before. `GET /bulk/jobs/<job>/<kind>/<number>` at the parameter server; at the scheduler, for what it keeps,
    `/bulk/jobs/<job>/journal/<kind>/<number>`.

    Where a version is committed or described, `sha256` of weights and momentum is what the version is known by: with
    fragments that is the SHA-256 of their digests in order (`node.training.identity`), and `WholeVersion` tells what to
    fetch."""

    kind: str
    number: int
    sha256: str
    size_bytes: int


class Member(Message, frozen=True):
    """A training task of a group; its update is expected from round `since_round` on."""

    task_id: str
    peer_id: str
    since_round: int


class TrainTask(Message, frozen=True, tag="train"):
    """Train on slices from the scheduler; send pseudo-gradients to `parameter_server`, pull steps from it."""

    model: ModelSource
    dataset: str
    parameter_server: str
    optimizer: InnerOptimizer
    batch_size: int
    rounds: int
    preprocessor: ModelSource | None = None
    validation_dataset: str = ""
    evaluate: bool = False
    """Report the validation loss of the version this task starts from."""
    sync: Sync = Sync()
    outer: OuterOptimizer | None = None
    """For those who make the step themselves."""
    precision: str = "fp32"
    """`fp32`, or `bf16` for autocast."""


class AggregateTask(Message, frozen=True, tag="aggregate"):
    """Be the parameter server: close rounds until version `rounds`, export that.

    Without `start` version 0 is made from the model. Otherwise `start` holds the weights (and momentum, above version
    0) of one version and the deltas that lead from it to the newest: the round of that number is the one to open. They
    are fetched from the scheduler's journal.
    """

    model: ModelSource
    optimizer: OuterOptimizer
    rounds: int
    members: list[Member]
    min_members: int = 1
    sync: Sync = Sync()
    aggregation: Aggregation = Aggregation()
    start: list[VersionFile] = []
    preprocessor: ModelSource | None = None
    """Its files go into the export, too."""
    contributors: list[tuple[str, int]] = []
    """Of the newest version in `start`: whose updates it holds, and of which round, for the members that ask."""


class Output(Message, frozen=True):
    """What an inference task writes of each row.

    `kind`: `classes` (the likeliest class and its probability), `tokens` (up to `max_new_tokens` generated ones),
    `embeddings` (the mean of the last hidden state), `hidden` (all of it) or `logits`. `format`: `jsonl`, one line a
    row, or `safetensors`, tensors whose first dimension is the rows.
    """

    kind: str
    format: str
    max_new_tokens: int = 32


class InferTask(Message, frozen=True, tag="infer"):
    """Run the model over slices from the scheduler, each whole, and upload one result for each."""

    model: ModelSource
    dataset: str
    output: Output
    batch_size: int
    preprocessor: ModelSource | None = None
    precision: str = "fp32"
    model_job: str = ""
    """The job at this scheduler whose final model it is: `GET /bulk/jobs/<job>/trained`, `views.ModelView` as JSON, and
    `../trained/<name>`."""


class Dispatched(Message, frozen=True):
    """The task is starting; its state follows by `TaskStatus`."""


class Dispatch(Request[Dispatched], frozen=True):
    """Scheduler to worker: run this under that lease. Idempotent for the same `task_id`.

    The job's folder, if `folder_sha256` is set, is fetched from the scheduler (`GET /bulk/jobs/<job>/folder`).
    """

    method = "task/dispatch"
    answer = Dispatched
    lease_id: str
    job_id: str
    task_id: str
    epoch: int
    executor: ExecutorKind
    task: TrainTask | AggregateTask | InferTask
    folder_sha256: str = ""
    runs_job_code: bool = False
    mounts: list[BindMount] = []
    token: str = msgspec.field(default="", name="secret")
    """Token for the model's repository. Never logged, never in an executor's arguments or environment."""


class CancelTask(Request[Ack], frozen=True):
    """Scheduler to worker: end this task now. Idempotent."""

    method = "task/cancel"
    answer = Ack
    task_id: str


class ExportedFile(Message, frozen=True):
    """One file of the exported model."""

    name: str
    size_bytes: int
    sha256: str


class TaskStatus(Request[Ack], frozen=True):
    """Worker to scheduler. `state`: starting, running, ready (parameter server: version 0 exists), exported, finished,
    failed, cancelled. A failed task says its exit code and last lines of output."""

    method = "task/status"
    answer = Ack
    task_id: str
    lease_id: str
    state: str
    exit_code: int | None = None
    detail: str = ""
    tail: list[str] = []
    exported: list[ExportedFile] = []
    files: list[VersionFile] = []
    """When `ready`: the weights, and momentum if any, of the version that the parameter server starts from."""


# ---- slices ---------------------------------------------------------------------------------------


class Span(msgspec.Struct, frozen=True, order=True, array_like=True):
    """Rows `start` to `end` (not included) of a slice, in one pass over the dataset."""

    pass_: int
    index: int
    start: int
    end: int


class SliceGrant(Message, frozen=True):
    """Train on rows `start` to `end` of this slice. `index` -1: none now, ask again after `wait_s`. Any provider with
    the digest will do. `rows` is what the whole slice has."""

    index: int
    pass_: int = msgspec.field(default=0, name="pass")
    start: int = 0
    end: int = 0
    name: str = ""
    sha256: str = ""
    size_bytes: int = 0
    rows: int = 0
    first_row: int = 0
    """The number in the dataset of the slice's first row."""
    providers: list[str] = []
    wait_s: float = 0.0


class NextSlice(Request[SliceGrant], frozen=True):
    """Worker to scheduler: my task's next slice, please. The `number` of a request is one more than that of the last
    one answered with a slice; the same number again is answered with the same slice."""

    method = "slice/next"
    answer = SliceGrant
    task_id: str
    dataset: str
    number: int


class SliceInfo(Message, frozen=True):
    """One line of a dataset's manifest."""

    name: str
    size_bytes: int
    rows: int
    sha256: str
    labels: dict[int, int] = {}
    """Rows of each class, by the class's number in the column `labels`; empty where that was not counted."""


class Manifest(Message, frozen=True):
    """A dataset: its slices in name order. `GET /bulk/datasets/<name>/manifest` as JSON; its SHA-256 is the digest."""

    name: str
    slices: list[SliceInfo]
    schema: dict[str, str] = {}
    version: int = 1
    classes: dict[str, list[str]] = {}
    """Names of the classes that a column numbers."""
    split_of: str = ""
    """The dataset that this one is a part of."""


# ---- rounds ---------------------------------------------------------------------------------------
# Round r starts from version r of the weights and, when it commits, makes version r + 1.


class Plan(Message, frozen=True):
    """What a training task is to do: send its update after `target_batches` batches of the round (None: go on), to
    this parameter server, as part of this epoch of the group. Both change when the parameter server is replaced; the
    server is empty while there is none."""

    round: int
    target_batches: int | None = None
    evaluate: bool = False
    """Report the validation loss of the version that this round makes."""
    epoch: int = 0
    parameter_server: str = ""


class Progress(Request[Plan], frozen=True):
    """Worker to scheduler, a few times a second while batches come in. Totals of the round: a lost one is harmless."""

    method = "progress"
    answer = Plan
    task_id: str
    round: int
    batches: int
    samples: int
    batch_s: float
    """Time of one batch, forgetting average, measured on the worker."""
    loss: float | None = None
    returned: list[Span] = []
    """Rows of updates that did not count. What has been committed all the same stays committed."""
    return_number: int = 0
    """One more for each new `returned`; a number that was answered before is ignored."""


class Measure(Request[Ack], frozen=True):
    """Worker to scheduler: metrics of a round; `eval_loss` belongs to the version with that number."""

    method = "measure"
    answer = Ack
    task_id: str
    round: int
    metrics: dict[str, float]


class MembersSet(Message, frozen=True):
    """The parameter server's open round."""

    round: int


class SetMembers(Request[MembersSet], frozen=True):
    """Scheduler to the parameter server's worker: who belongs to the group. Replaces the list."""

    method = "round/members"
    answer = MembersSet
    task_id: str
    members: list[Member]


class WholeFiles(Message, frozen=True):
    """Weights, and above version 0 momentum, each one file."""

    files: list[VersionFile]


class WholeVersion(Request[WholeFiles], frozen=True):
    """To a parameter server: have a version there in whole files. `busy` while they are put together."""

    method = "version/whole"
    answer = WholeFiles
    job_id: str
    number: int


class UpdateAnnounced(Message, frozen=True):
    """The update counts in `round` already; or (None) its bytes are wanted."""

    round: int | None = None


class AnnounceUpdate(Request[UpdateAnnounced], frozen=True):
    """Member to parameter server: an update is about to come, by `PUT /bulk/jobs/<job>/updates/<task>/<sha256>`.

    Round, task and digest make it idempotent; anything of another epoch or a closed round is refused as `stale`, here
    and when its bytes are there. `spans` are the rows that it was trained on; they add up to `samples`. The answer to
    the upload is `UpdateTaken`; `unknown` where nothing was announced."""

    method = "update/announce"
    answer = UpdateAnnounced
    job_id: str
    epoch: int
    task_id: str
    round: int
    samples: int
    sha256: str
    size_bytes: int
    attempt: int = 0
    spans: list[Span] = []


class UpdateTaken(Message, frozen=True):
    """The update is on disk and will count in this round, unless that is void."""

    round: int


class Contribution(Message, frozen=True):
    """One update that a round averaged, with `weight` (samples, unless it was carried over from an earlier round)."""

    task_id: str
    peer_id: str
    samples: int
    sha256: str
    norm: float
    from_round: int = 0
    weight: float = 0.0
    spans: list[Span] = []


class CommitRound(Request[Ack], frozen=True):
    """Parameter server's worker to scheduler: version `round + 1` is prepared; commit it, with all that belongs to it.

    It is committed when this is acknowledged, and never before: until then nobody may use it. The scheduler takes the
    delta over before it answers, so that no committed version is lost with its parameter server. `stale`: the epoch is
    over, the version never was. `left_out` maps a task to the reason its update does not count. Byte counts are totals
    of this parameter server so far. Idempotent. A `conflict` with `parts` is about these contributions alone: prepared
    again without them, the round is committed."""

    method = "round/commit"
    answer = Ack
    task_id: str
    epoch: int
    round: int
    weights: VersionFile
    momentum: VersionFile
    delta: VersionFile
    contributions: list[Contribution]
    left_out: dict[str, str] = {}
    bytes_up: int = 0
    bytes_down: int = 0


# ---- inference --------------------------------------------------------------------------------------


class ResultHeader(Message, frozen=True):
    """What an upload of an inference task is. `PUT /bulk/jobs/<job>/results/<index>` at the scheduler, JSON in the
    header `Hypha-Result`. It is acknowledged once the slice counts as done: the result lies at its destination, and the
    scheduler has written that down. A slice that is done already is refused as `stale`."""

    task_id: str
    index: int
    rows: int
    sha256: str
    size_bytes: int


class StoreHeader(Message, frozen=True):
    """A result or a checkpoint on its way from a scheduler to a data node whose owner takes results in.
    `PUT /bulk/results/<name>`, JSON in the header `Hypha-Store`; `folder` (up to four names with `/` between them) is
    below the node's folder of results. The scheduler that put a folder there may also `GET /bulk/results?folder=..`
    (`StoredFiles`), and `GET` and `DELETE /bulk/results/<name>?folder=..`."""

    folder: str
    sha256: str
    size_bytes: int


class StoredFiles(Message, frozen=True):
    """The files below a folder of results: names within it, and sizes."""

    files: list[tuple[str, int]]


# ---- commands of an operator ------------------------------------------------------------------------
# An operator's command is signed by the operator, so that a node which forwards it cannot make one up.


class Submit(Message, frozen=True, tag="submit"):
    """Run a job. `body_sha256` is the digest of the uploaded body; the same `job_id` twice is one job.

    `scheduler` is the only one that may run it, so that nobody it passes can give it to two; empty from older clients.
    """

    job_id: str
    body_sha256: str
    name: str = ""
    scheduler: str = ""


class Cancel(Message, frozen=True, tag="cancel"):
    """End a job."""

    job_id: str


class Resume(Message, frozen=True, tag="resume"):
    """Go on with a job that is paused, has failed or was cancelled, from its last committed round."""

    job_id: str


class Pause(Message, frozen=True, tag="pause"):
    """Let a job go on to its next commit, then let all its leases go until it is resumed."""

    job_id: str


class Release(Message, frozen=True, tag="release"):
    """Let a lease go. The job that holds it looks for another worker."""

    lease_id: str


class Cordon(Message, frozen=True, tag="cordon"):
    """The worker offers nothing any more; what it runs goes on."""

    peer_id: str


class Uncordon(Message, frozen=True, tag="uncordon"):
    """The worker offers again, and keeps what it runs."""

    peer_id: str


class Drain(Message, frozen=True, tag="drain"):
    """The worker offers nothing any more, and each of its tasks is handed over at its job's next commit."""

    peer_id: str


Command = Submit | Cancel | Resume | Pause | Release
"""What a scheduler carries out."""
WorkerCommand = Cordon | Uncordon | Drain
"""What a worker carries out."""


class Once(Message, frozen=True):
    """What makes a signed command good for one time: these fields lie in the same map as the command's own.

    Whoever carries it out keeps the nonce, and does nothing for one it knows. A command that was signed more than a day
    ago, or will be, is refused. This is the only place where clocks of two machines are compared, and as roughly as
    certificates do it: a nonce alone cannot tell that a node has held a command back. A `Submit` needs neither, for its
    job's id is good for one job of the scheduler it names.
    """

    nonce: str = ""
    signed_unix: float = 0.0


class Export(Message, frozen=True, tag="export"):
    """Hand a job's model over. Signed as a `Command` is, and none, so that it can be taken for no other.

    `GET /bulk/jobs/<job>/model?version=<latest or a number>` and, for one of its files, `/bulk/jobs/<job>/model/<name>`
    at the scheduler, with the signed `RunCommand` in the header `Hypha-Command` as base64. Any node may carry it.
    """

    job_id: str


class Accepted(Message, frozen=True):
    """The command is carried out (a job: written to the store). `job_id` names what it was about: a job or a lease."""

    job_id: str
    scheduler: str


class RunCommand(Request[Accepted], frozen=True):
    """A signed `Command`. A `Submit`'s body goes by `PUT /bulk/submissions/<job_id>` with this message, base64 of its
    MessagePack form, in the header `Hypha-Command`. `worker`, of a lease that no job of the scheduler holds, is the
    forwarding node's word for who gave it; it is not signed, and only ever asked to let that lease go."""

    method = "command"
    answer = Accepted
    signed: Signed
    worker: str = ""


class SteerWorker(Request[Ack], frozen=True):
    """A signed `WorkerCommand`."""

    method = "worker/command"
    answer = Ack
    signed: Signed


class HandOver(Request[Ack], frozen=True):
    """Worker to scheduler: I am being drained. Move what runs under this lease at the next commit, then let it go. The
    wish lapses unless it is repeated every few seconds."""

    method = "lease/handover"
    answer = Ack
    lease_id: str
    job_id: str
    reason: str = ""


class ObserveHeader(Message, frozen=True):
    """First frame of `GET /observe`: frames are a 4-byte big-endian length and a MessagePack `views.Frame`."""

    peer_id: str
    protocol: int = PROTOCOL
