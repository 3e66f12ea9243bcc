"""What the columns of each table say: one description for the screens and for the twin commands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar, cast

from hypha_tui.store import lease_cells, text
from hypha_tui.store.advance import advance
from hypha_tui.store.cluster import FINISHED, LIVE_LEASES, ClusterStore
from hypha_tui.store.glyphs import Glyphs
from node.views import AnyView, DatasetView, JobView, LeaseView, PeerView, TransferView
from node.wire import Resources

V = TypeVar("V", bound=AnyView)
Cell = tuple[str, str]
"""Text and tone."""

STATE_TONES: Final = {
    "up": "ok", "unreachable": "lost", "left": "done",
    "offered": "offer", "held": "ok", "expired": "lost", "released": "done", "lapsed": "done",
    "active": "busy", "done": "done", "failed": "lost", "cancelled": "done",
    "queued": "offer", "waiting": "late", "starting": "busy", "running": "ok", "exporting": "busy",
    "pausing": "busy", "paused": "late", "cordoned": "late", "draining": "late",
    "dispatched": "busy", "ready": "ok", "exported": "ok", "finished": "done", "lost": "lost",
}  # fmt: skip
_RANKS: Final = {
    state: rank
    for rank, states in enumerate(
        (
            ("running", "active", "held", "up"),
            ("exporting", "starting", "offered"),
            ("waiting", "queued", "unreachable", "pausing", "paused"),
            ("failed", "expired", "lost"),
        )
    )
    for state in states
}
"""What goes on comes first, then what waits, what went wrong, what is over."""
RENEWING_PART, LATE_PART = 0.6, 0.5
"""Leases are renewed with two thirds left. With less left than the first part one is being renewed, with less than the
second it should have been long ago."""


@dataclass(frozen=True, slots=True)
class Look:
    """What a cell may need beside its object: the rest of the cluster, the time, the glyphs."""

    store: ClusterStore
    now: float
    glyphs: Glyphs

    def state(self, tone: str, word: str) -> Cell:
        """A state is a sign, a word and a colour: never colour alone."""
        return f"{self.glyphs.state.get(tone, ' ')} {word}", tone

    def name(self, peer_id: str) -> Cell:
        """A peer by its name."""
        return (self.store.name_of(peer_id), "text") if peer_id else ("-", "dim")

    def job(self, job_id: str) -> Cell:
        """A job by its name, or its id."""
        job = self.store.get(JobView, job_id)
        return (job.name if job is not None and job.name else job_id or "-", "text" if job_id else "dim")


@dataclass(frozen=True, slots=True)
class Column(Generic[V]):
    """One column, shown from `level` on (0: 80 cells, 1: 120, 2: 200). One that grows takes spare cells.

    `measure`: the unit of what `sort` gives, for filters (s, ms, d, B, B/s, %, or nothing for a plain number).
    `is_live`: time alone changes it. `vital`: kept before others where there is little room. `aliases`: other names
    for it in filters.
    """

    key: str
    title: str
    width: int
    cell: Callable[[V, Look], Cell]
    sort: Callable[[V, Look], float | str] | None = None
    level: int = 0
    right: bool = False
    grow: bool = False
    measure: str = ""
    is_live: bool = False
    vital: bool = False
    aliases: tuple[str, ...] = ()

    @property
    def is_number(self) -> bool:
        """Whether its values can be compared; a state only has an order."""
        return self.sort is not None and self.key != "state"

    def number(self, view: V, look: Look) -> float | None:
        """The value for comparisons; None where there is none."""
        if self.sort is None or self.cell(view, look)[0] == "-":
            return None
        value = self.sort(view, look)
        return None if isinstance(value, str) else value

    def sort_key(self, view: V, look: Look) -> float | str:
        """What rows are ordered by; the text of the cell unless said otherwise."""
        return self.sort(view, look) if self.sort is not None else self.cell(view, look)[0]


def lease_tone(lease: LeaseView, remaining_s: float) -> tuple[str, str]:
    """The tone and word of a lease now. An overdue one is late until its worker says that it expired."""
    if lease.state == "held":
        if remaining_s < lease.duration_s * LATE_PART:
            return "late", "late"
        return ("busy", "renewing") if remaining_s < lease.duration_s * RENEWING_PART else ("ok", "held")
    return STATE_TONES.get(lease.state, "dim"), lease.state


def _reason(view: PeerView | TransferView | JobView, look: Look) -> Cell:
    return look.store.with_names(view.reason) or "-", "late" if view.reason else "dim"


def resources(amount: Resources | None) -> str:
    """Resources in a few cells: `8c 32G gpu 24G`."""
    if amount is None:
        return "-"
    parts = [f"{amount.cpu:g}c", f"{amount.memory:.3g}G"]
    if amount.gpu:
        parts.append(f"gpu {amount.gpu:.3g}G")
    return " ".join(parts)


def _by_state(view: LeaseView | TransferView | JobView, look: Look) -> float:
    """What goes on first, and of these the newest: an order that time alone does not change."""
    return _RANKS.get(view.state, len(_RANKS)) * 1e9 + look.store.age_s(view.kind, view.id, look.now)


def _state(view: PeerView | TransferView | JobView, look: Look) -> Cell:
    word = shown_state(view)
    return look.state(STATE_TONES.get(word, "dim"), word)


def shown_state(view: PeerView | TransferView | JobView) -> str:
    """Its state; of a worker that is up, also whether it offers anything."""
    if isinstance(view, PeerView) and view.state == "up" and view.cordoned:
        return "draining" if view.draining else "cordoned"
    return view.state


def _lease_state(lease: LeaseView, look: Look) -> Cell:
    return look.state(*lease_tone(lease, look.store.remaining_s(lease.id, look.now)))


def _remaining(lease: LeaseView, look: Look) -> Cell:
    left = look.store.remaining_s(lease.id, look.now)
    if lease.state not in LIVE_LEASES:
        return "-", "dim"
    tone = lease_tone(lease, left)[0]
    bar = look.glyphs.bar(left / lease.duration_s if lease.duration_s else 0.0, 6)
    return f"{bar} {left:5.1f}s", tone


def _progress(transfer: TransferView, look: Look) -> Cell:
    part = transfer.done_bytes / transfer.size_bytes if transfer.size_bytes else 0.0
    return f"{look.glyphs.bar(part, 6)} {int(part * 100):3d}%", STATE_TONES.get(transfer.state, "dim")


def eta_s(job: JobView, age_s: float) -> float | None:
    """A guess from what is done so far; None before the first round (or slice) and after the last."""
    _, done, whole = advance(job)
    if done < 1 or done >= whole or job.state in FINISHED:
        return None
    return age_s / done * (whole - done)


def _advance(job: JobView, _look: Look) -> Cell:
    unit, done, whole = advance(job)
    return (f"{done}/{whole}" if unit == "round" else f"{advance(job).part:.0%}"), "text"


def _fall(job: JobView, _look: Look) -> Cell:
    if job.eval_loss is None:
        return "-", "dim"
    if not job.first_eval_loss or job.eval_loss == job.first_eval_loss:
        return f"{job.eval_loss:.3f}", "text"
    change = (job.eval_loss / job.first_eval_loss - 1) * 100
    return f"{job.eval_loss:.3f} {change:+.0f}%", "ok" if change < 0 else "late"


PEER_COLUMNS: Final[list[Column[PeerView]]] = [
    Column("state", "STATE", 13, _state),
    Column("name", "NAME", 14, lambda v, k: (v.name or text.short_id(v.id), "text"), grow=True),
    Column("roles", "ROLES", 13, lambda v, k: (",".join(v.roles), v.roles[0] if len(v.roles) == 1 else "text")),
    Column(
        "rtt",
        "RTT ms",
        7,
        lambda v, k: (text.number(v.rtt_ms, 1), "text"),
        lambda v, k: v.rtt_ms or 0.0,
        right=True,
        measure="ms",
    ),
    Column(
        "seen",
        "SEEN",
        4,
        lambda v, k: _seen(v, k),
        lambda v, k: unseen_s(v, k),
        right=True,
        measure="s",
        is_live=True,
    ),
    Column("free", "FREE", 14, lambda v, k: (resources(v.free), "text")),
    Column("total", "TOTAL", 14, lambda v, k: (resources(v.total), "dim"), level=1),
    Column(
        "up",
        "UP",
        7,
        lambda v, k: (text.long_age(uptime_s(v, k)), "text"),
        lambda v, k: uptime_s(v, k) or 0.0,
        1,
        right=True,
        measure="s",
        is_live=True,
    ),
    Column("id", "ID", 12, lambda v, k: (v.id, "dim"), level=1),
    Column(
        "cert",
        "CERT d",
        7,
        lambda v, k: _certificate(v),
        lambda v, k: v.certificate_days or 0.0,
        2,
        right=True,
        measure="d",
    ),
    Column("gpu", "GPU", 14, lambda v, k: gpu(v), level=2),
    Column("version", "VERSION", 9, lambda v, k: (v.version or "-", "dim"), level=2),
    Column("address", "ADDRESS", 34, lambda v, k: (v.addresses[0] if v.addresses else "-", "dim"), level=2),
    Column("reason", "REASON", 26, _reason, level=2),
]


def gpu(peer: PeerView | None) -> Cell:
    """A worker's GPU by name, or how much memory of one it lends."""
    if peer is None or not (peer.gpu_name or (peer.total is not None and peer.total.gpu)):
        return "-", "dim"
    return (peer.gpu_name or f"{peer.total.gpu:.3g}G" if peer.total is not None else "-"), "text"


def _since_told(peer: PeerView, look: Look) -> float:
    item = look.store.items("peer").get(peer.id)
    return look.now - item.at if item is not None else 0.0


def unseen_s(peer: PeerView, look: Look) -> float:
    """How long a peer has been silent; one that is up is heard all the time."""
    return 0.0 if peer.state == "up" else peer.seen_s + _since_told(peer, look)


def uptime_s(peer: PeerView, look: Look) -> float | None:
    """How long a peer has been up by now."""
    if peer.uptime_s is None or peer.state != "up":
        return None
    return peer.uptime_s + _since_told(peer, look)


def _seen(peer: PeerView, look: Look) -> Cell:
    return ("now", "dim") if peer.state == "up" else (text.age(unseen_s(peer, look)), "late")


def _certificate(peer: PeerView | None) -> Cell:
    if peer is None or peer.certificate_days is None:
        return "-", "dim"
    return f"{peer.certificate_days:.0f}", "late" if peer.certificate_days < 7 else "text"


LEASE_COLUMNS: Final[list[Column[LeaseView]]] = [
    Column("state", "STATE", 10, _lease_state, _by_state, is_live=True),
    Column("lease", "LEASE", 8, lambda v, k: (v.id, "text"), aliases=("id",)),
    Column("worker", "WORKER", 10, lambda v, k: k.name(v.worker), grow=True),
    Column("job", "JOB", 12, lambda v, k: k.job(v.job_id), grow=True),
    Column(
        "remaining",
        "REMAINING",
        13,
        _remaining,
        lambda v, k: k.store.remaining_s(v.id, k.now),
        measure="s",
        is_live=True,
        vital=True,
        aliases=("ttl", "left"),
    ),
    Column("renewals", "RENEWED", 7, lambda v, k: (str(v.renewals), "text"), lambda v, k: v.renewals, right=True),
    Column(
        "rtt",
        "RTT ms",
        6,
        lambda v, k: lease_cells.rtt(v, k),
        lambda v, k: lease_cells.rtt_ms(v, k),
        right=True,
        measure="ms",
    ),
    Column(
        "speed",
        "SAMP/S",
        6,
        lambda v, k: lease_cells.speed(v, k),
        lambda v, k: lease_cells.samples_per_s(v, k),
        1,
        right=True,
    ),
    Column("price", "PRICE/h", 7, lambda v, k: (f"{v.price:.2f}", "text"), lambda v, k: v.price, 1, right=True),
    Column("scheduler", "SCHEDULER", 10, lambda v, k: k.name(v.scheduler), level=1, aliases=("sched",)),
    Column("executor", "EXECUTOR", 18, lambda v, k: (v.executor, "text"), level=1),
    Column("resources", "RESOURCES", 15, lambda v, k: (resources(v.resources), "text"), level=1),
    Column("gpu", "GPU", 10, lambda v, k: gpu(k.store.get(PeerView, v.worker)), level=2),
    Column(
        "duration",
        "FOR",
        4,
        lambda v, k: (f"{v.duration_s:.0f}s", "dim"),
        lambda v, k: v.duration_s,
        2,
        right=True,
        measure="s",
    ),
    Column(
        "age",
        "AGE",
        6,
        lambda v, k: (text.long_age(k.store.age_s("lease", v.id, k.now)), "dim"),
        lambda v, k: k.store.age_s("lease", v.id, k.now),
        2,
        right=True,
        measure="s",
        is_live=True,
    ),
    Column("cert", "CERT d", 6, lambda v, k: _certificate(k.store.get(PeerView, v.worker)), level=2, right=True),
    Column("task", "TASK", 24, lambda v, k: (v.task_id or "-", "dim"), level=2),
    Column("error", "LAST ERROR", 30, lambda v, k: lease_cells.last_error(v, k), level=2),
]


TRANSFER_COLUMNS: Final[list[Column[TransferView]]] = [
    Column("state", "STATE", 8, _state, _by_state),
    Column("what", "WHAT", 8, lambda v, k: (v.what, "text")),
    Column("name", "NAME", 10, lambda v, k: (v.name.removesuffix(".safetensors"), "text"), grow=True),
    Column("source", "FROM", 8, lambda v, k: k.name(v.source)),
    Column("target", "TO", 8, lambda v, k: k.name(v.target)),
    Column(
        "progress",
        "PROGRESS",
        11,
        _progress,
        lambda v, k: v.done_bytes / v.size_bytes if v.size_bytes else 0.0,
        measure="%",
    ),
    Column(
        "speed",
        "SPEED",
        9,
        lambda v, k: (text.rate(v.bytes_per_s), "text"),
        lambda v, k: v.bytes_per_s,
        right=True,
        measure="B/s",
    ),
    Column(
        "size",
        "SIZE",
        8,
        lambda v, k: (text.size(v.size_bytes), "dim"),
        lambda v, k: v.size_bytes,
        1,
        right=True,
        measure="B",
    ),
    Column("job", "JOB", 14, lambda v, k: k.job(v.job_id), level=1),
    Column(
        "age",
        "AGE",
        5,
        lambda v, k: (text.age(k.store.age_s("transfer", v.id, k.now)), "dim"),
        lambda v, k: k.store.age_s("transfer", v.id, k.now),
        1,
        right=True,
        measure="s",
        is_live=True,
    ),
    Column("reason", "REASON", 40, _reason, level=2),
]

JOB_COLUMNS: Final[list[Column[JobView]]] = [
    Column("state", "STATE", 11, _state, _by_state),
    Column("name", "JOB", 16, lambda v, k: (v.name or v.id, "text"), grow=True),
    Column("round", "ROUND", 8, _advance, lambda v, k: v.round, right=True),
    Column("workers", "WORK", 5, lambda v, k: _workers(v), lambda v, k: v.workers, right=True),
    Column("loss", "LOSS", 6, lambda v, k: (text.number(v.loss), "text"), lambda v, k: v.loss or 0.0, right=True),
    Column("eval", "VALIDATION", 11, _fall, lambda v, k: v.eval_loss or 0.0, right=True),
    Column(
        "speed",
        "SAMP/S",
        7,
        lambda v, k: (text.number(v.samples_per_s, 1), "text"),
        lambda v, k: v.samples_per_s or 0.0,
        right=True,
    ),
    Column(
        "samples", "SAMPLES", 9, lambda v, k: (text.count(v.samples), "text"), lambda v, k: v.samples, 1, right=True
    ),
    Column("eta", "ETA", 7, lambda v, k: _eta(v, k), lambda v, k: _eta_s(v, k), 1, True, measure="s", is_live=True),
    Column("dataset", "DATASET", 14, lambda v, k: (v.dataset, "text"), level=1),
    Column("sent", "UP", 9, lambda v, k: (text.size(v.bytes_up), "dim"), lambda v, k: v.bytes_up, 1, True, measure="B"),
    Column("scheduler", "SCHEDULER", 14, lambda v, k: k.name(v.scheduler), level=2),
    Column(
        "received",
        "DOWN",
        9,
        lambda v, k: (text.size(v.bytes_down), "dim"),
        lambda v, k: v.bytes_down,
        2,
        right=True,
        measure="B",
    ),
    Column("id", "ID", 20, lambda v, k: (v.id, "dim"), level=2),
    Column("reason", "REASON", 40, _reason, level=2),
]


def _workers(job: JobView) -> Cell:
    if job.state in FINISHED:
        return "-", "dim"
    tone = "late" if job.workers < job.workers_wanted else "text"
    return f"{job.workers}/{job.workers_wanted}", tone


def _eta_s(job: JobView, look: Look) -> float:
    return eta_s(job, look.store.age_s("job", job.id, look.now)) or 0.0


def _eta(job: JobView, look: Look) -> Cell:
    return text.long_age(eta_s(job, look.store.age_s("job", job.id, look.now))), "text"


DATASET_COLUMNS: Final[list[Column[DatasetView]]] = [
    Column("name", "DATASET", 20, lambda v, k: (v.name, "text"), grow=True),
    Column("provider", "PROVIDER", 14, lambda v, k: k.name(v.peer_id)),
    Column("slices", "SLICES", 7, lambda v, k: (text.count(v.slices), "text"), lambda v, k: v.slices, right=True),
    Column("rows", "ROWS", 10, lambda v, k: (text.count(v.rows), "text"), lambda v, k: v.rows, right=True),
    Column(
        "size",
        "SIZE",
        9,
        lambda v, k: (text.size(v.size_bytes), "text"),
        lambda v, k: v.size_bytes,
        right=True,
        measure="B",
    ),
    Column("digest", "DIGEST", 12, lambda v, k: (v.digest[:12], "dim")),
]

COLUMNS: Final[dict[str, list[Column[AnyView]]]] = cast(
    "dict[str, list[Column[AnyView]]]",
    {
        "peer": PEER_COLUMNS,
        "lease": LEASE_COLUMNS,
        "transfer": TRANSFER_COLUMNS,
        "job": JOB_COLUMNS,
        "dataset": DATASET_COLUMNS,
    },
)


TREND_CELLS: Final = 8


def _trend(view: AnyView, look: Look, tone: str) -> Cell:
    values = look.store.sparks.of(view.kind, view.id)
    return (look.glyphs.spark(values, TREND_CELLS), tone) if len(values) > 1 else ("-", "dim")


_TRENDS: Final[dict[str, tuple[str, Column[AnyView]]]] = {
    "peer": ("rtt", Column("trend", "RTT", TREND_CELLS, lambda v, k: _trend(v, k, "c1"), level=1)),
    "lease": ("rtt", Column("trend", "RENEWALS", TREND_CELLS, lambda v, k: _trend(v, k, "c3"), level=2)),
    "transfer": ("speed", Column("trend", "SPEED", TREND_CELLS, lambda v, k: _trend(v, k, "c2"), level=1)),
    "job": ("loss", Column("trend", "LOSS", TREND_CELLS, lambda v, k: _trend(v, k, "c1"), level=1)),
}
"""Beside which column the last values stand. Only a terminal that watches has them."""


def screen_columns(kind: str) -> list[Column[AnyView]]:
    """The columns of a kind on the screen: those of the twin command, and the trend of the one that moves."""
    beside, trend = _TRENDS.get(kind, ("", None))
    found: list[Column[AnyView]] = []
    for column in COLUMNS[kind]:
        found.append(column)
        if trend is not None and column.key == beside:
            found.append(trend)
    return found
