"""The cluster as this terminal knows it: fed by snapshots and deltas, read by screens and commands.

Plain Python, driven by `now` (monotonic seconds). Nothing here draws, waits or reads a clock.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar, cast

from hypha_tui.client.link import LinkState
from hypha_tui.store.renewals import Renewals
from hypha_tui.store.series import Series
from hypha_tui.store.sparks import Sparks
from node.views import (
    AnyView,
    ClusterView,
    Delta,
    Event,
    Frame,
    JobView,
    LeaseView,
    PeerView,
    Point,
    Snapshot,
    TaskView,
)

EVENTS_KEPT: Final = 5_000
FINISHED: Final = frozenset({"done", "failed", "cancelled"})
TRAINING: Final = frozenset({"running", "pausing", "exporting"})
LIVE_LEASES: Final = frozenset({"offered", "held"})
KINDS: Final = ("peer", "lease", "transfer", "job", "dataset")

PEER_ID_BEGINS: Final = "12D3Koo"
_PEER_ID: Final = re.compile(r"12D3Koo[1-9A-HJ-NP-Za-km-z]{45}")

V = TypeVar("V", bound=AnyView)


@dataclass(frozen=True, slots=True)
class Item:
    """An object and when we were told of it: its durations count on from there."""

    view: AnyView
    at: float
    version: int


@dataclass(frozen=True, slots=True)
class SeenEvent:
    """An event and the moment (our monotonic clock) it happened."""

    number: int
    event: Event
    at: float


@dataclass(slots=True)
class Changes:
    """What changed since the last look. `members`: kinds in which objects came or went. `second`: a second went by."""

    dirty: dict[str, set[str]] = field(default_factory=dict)
    members: set[str] = field(default_factory=set)
    events: bool = False
    points: bool = False
    link: bool = False
    second: bool = False

    def __bool__(self) -> bool:
        return bool(self.dirty or self.members or self.events or self.points or self.link)


class ClusterStore:
    """Objects by kind and id, events, metric series, and the state of the link they come through."""

    def __init__(self) -> None:
        self.link = LinkState("connecting")
        self.cluster: ClusterView | None = None
        self.events: deque[SeenEvent] = deque(maxlen=EVENTS_KEPT)
        self.series: dict[tuple[str, str, str], Series] = {}
        self._by_metric: dict[tuple[str, str], dict[str, Series]] = {}
        self.commits: dict[str, Series] = {}
        """When each round of a job was committed, in seconds since it began."""
        self.sparks = Sparks()
        self.renewals = Renewals()
        self.last_frame_at: float | None = None
        self.needs_resync = False
        self._items: dict[str, dict[str, Item]] = {kind: {} for kind in KINDS}
        self._seq: int | None = None
        self._version = 0
        self._event_number = 0
        self._known_events: set[tuple[str, int, str, str]] = set()
        self._tasks: dict[str, tuple[int, dict[str, TaskView]]] = {}
        self._roles: dict[str, tuple[int, int]] | None = None
        """As they were counted, while no peer came, went or changed in what is counted."""
        self._changes = Changes()

    # ---- feeding ---------------------------------------------------------------------------------

    def apply(self, frame: Frame, now: float) -> None:
        """Take in a frame. A delta that does not follow the last frame is dropped and asks for a snapshot."""
        if isinstance(frame, Snapshot):
            self._apply_snapshot(frame, now)
        elif self._seq is None or frame.seq != self._seq + 1:
            if self._seq is None or frame.seq > self._seq:
                self.needs_resync = True
            return
        else:
            self._apply_delta(frame, now)
        self._seq = frame.seq
        self.last_frame_at = now

    def set_link(self, link: LinkState) -> None:
        """Note how the link is. Data stay; `is_stale` says whether they may be old."""
        if link != self.link:
            self.link = link
            self._changes.link = True

    def add_points(self, points: Iterable[Point]) -> None:
        """Add values of metrics; ones already known change nothing."""
        for point in points:
            key = (point.job_id, point.name, point.worker)
            series = self.series.get(key)
            if series is None:
                series = self.series[key] = Series()
                self._by_metric.setdefault(key[:2], {})[point.worker] = series
            series.put(point.t_s if self.is_timed(point.job_id) else float(point.round), point.value)
            if point.name == "bytes_up" and not point.worker:  # told once, at the commit
                self.commits.setdefault(point.job_id, Series()).put(float(point.round), point.t_s)
            self._changes.points = True

    def held(self) -> ClusterStore:
        """The objects as they are now, for a table that is frozen: what comes in later does not change them."""
        copy = ClusterStore()
        copy.link, copy.cluster, copy.sparks, copy.renewals = self.link, self.cluster, self.sparks, self.renewals
        copy._items = {kind: dict(items) for kind, items in self._items.items()}
        return copy

    def rewind(self) -> None:
        """Forget events, metrics and renewals: the next snapshot may be of an earlier moment."""
        self.events.clear()
        self._known_events.clear()
        self.series.clear()
        self._by_metric.clear()
        self.commits.clear()
        self.renewals = Renewals()
        self._changes.events = self._changes.points = True

    def take_changes(self) -> Changes:
        """The changes since the last call."""
        changes, self._changes = self._changes, Changes()
        return changes

    @property
    def is_dirty(self) -> bool:
        """Whether there are changes that nobody took."""
        return bool(self._changes)

    # ---- reading ---------------------------------------------------------------------------------

    def items(self, kind: str) -> dict[str, Item]:
        """Objects of a kind by id. Do not change it."""
        return self._items[kind]

    def views(self, kind: type[V]) -> list[V]:
        """The present views of a kind."""
        return [cast(V, item.view) for item in self._items[kind.kind].values()]

    def get(self, kind: type[V], id_: str) -> V | None:
        """One object."""
        item = self._items[kind.kind].get(id_)
        return None if item is None else cast(V, item.view)

    def name_of(self, peer_id: str) -> str:
        """A peer's name, or the telling part of its id."""
        peer = self.get(PeerView, peer_id)
        if peer is not None and peer.name:
            return peer.name
        return peer_id[-8:] if peer_id.startswith(PEER_ID_BEGINS) else peer_id

    def with_names(self, words: str) -> str:
        """Foreign words with the ids of known peers in them replaced by their names."""
        if PEER_ID_BEGINS not in words:
            return words
        names = {peer.id: peer.name for peer in self.views(PeerView) if peer.name}
        return with_names(words, names)

    def remaining_s(self, lease_id: str, now: float) -> float:
        """What is left of a lease, counted on from when we heard of it; negative once it is overdue."""
        item = self._items["lease"].get(lease_id)
        if item is None:
            return 0.0
        lease = cast(LeaseView, item.view)
        return lease.remaining_s - (now - item.at) if lease.state in LIVE_LEASES else lease.remaining_s

    def task_of(self, lease: LeaseView) -> TaskView | None:
        """The task that runs under a lease, as its job tells it."""
        item = self._items["job"].get(lease.job_id)
        if item is None:
            return None
        known = self._tasks.get(lease.job_id)
        if known is None or known[0] != item.version:
            tasks = {task.task_id: task for task in cast(JobView, item.view).tasks}
            known = self._tasks[lease.job_id] = (item.version, tasks)
        return known[1].get(lease.task_id)

    def age_s(self, kind: str, id_: str, now: float) -> float:
        """An object's age now."""
        item = self._items[kind].get(id_)
        if item is None:
            return 0.0
        return float(getattr(item.view, "age_s", 0.0)) + now - item.at

    @property
    def is_stale(self) -> bool:
        """Whether what is shown may be old: the link is not live, or a gap is being mended."""
        return self.link.state != "live" or self.needs_resync or self._seq is None

    def data_age_s(self, now: float) -> float | None:
        """Time since the last frame; None before the first."""
        return None if self.last_frame_at is None else now - self.last_frame_at

    def roles(self) -> dict[str, tuple[int, int]]:
        """For each role: how many peers are up, and how many are known. Do not change it."""
        if self._roles is None:
            up: Counter[str] = Counter()
            known: Counter[str] = Counter()
            for peer in self.views(PeerView):
                for role in peer.roles:
                    known[role] += 1
                    up[role] += peer.state == "up"
            self._roles = {role: (up[role], known[role]) for role in known}
        return self._roles

    def jobs_by_activity(self) -> list[JobView]:
        """Jobs, those that train first, then those on their way, then what is over; of each the newest first."""
        return sorted(
            self.views(JobView),
            key=lambda job: (job.state in FINISHED, job.state not in TRAINING, job.age_s, job.id),
        )

    def is_timed(self, job_id: str) -> bool:
        """Whether a job has no rounds, so that its metrics lie over time."""
        job = self.get(JobView, job_id)
        return job is not None and not job.rounds

    def series_of(self, job_id: str, name: str) -> dict[str, Series]:
        """The series of a job's metric by worker ("" is the job's own). Do not change it."""
        return self._by_metric.get((job_id, name), {})

    def metrics_of(self, job_id: str) -> list[str]:
        """Names of the metrics there are values of."""
        return sorted(name for job, name in self._by_metric if job == job_id)

    # ---- inside ----------------------------------------------------------------------------------

    def _apply_snapshot(self, frame: Snapshot, now: float) -> None:
        self.needs_resync = False
        here = {(item.kind, item.id) for item in frame.items}
        for kind, items in self._items.items():
            for id_ in [id_ for id_ in items if (kind, id_) not in here]:
                self._drop(kind, id_)
        for item in frame.items:
            self._put(item, now)
        self._add_events(frame.events, now)

    def _apply_delta(self, frame: Delta, now: float) -> None:
        for kind, id_ in frame.dropped:
            self._drop(kind, id_)
        for item in frame.items:
            self._put(item, now)
        self._add_events(frame.events, now)
        self.add_points(frame.points)

    def _put(self, view: AnyView, now: float) -> None:
        items = self._items[view.kind]
        self._version += 1
        before = items.get(view.id)
        if before is None:
            self._changes.members.add(view.kind)
        if isinstance(view, PeerView) and (before is None or _counted(before.view) != _counted(view)):
            self._roles = None
        items[view.id] = Item(view, now, self._version)
        self.sparks.put(view)
        if isinstance(view, LeaseView):
            self.sparks.note("lease", view.id, self.renewals.put(view, now))
        self._changes.dirty.setdefault(view.kind, set()).add(view.id)

    def _drop(self, kind: str, id_: str) -> None:
        if self._items.get(kind, {}).pop(id_, None) is not None:
            self.sparks.drop(kind, id_)
            self.renewals.drop(id_)
            self._tasks.pop(id_, None)
            self._roles = None if kind == "peer" else self._roles
            self._changes.members.add(kind)
            self._changes.dirty.setdefault(kind, set()).add(id_)

    def _add_events(self, events: list[Event], now: float) -> None:
        for event in sorted(events, key=lambda event: -event.age_s):
            key = _event_key(event)
            if key in self._known_events:
                continue
            if len(self.events) == EVENTS_KEPT:
                self._known_events.discard(_event_key(self.events[0].event))
            self._known_events.add(key)
            self._event_number += 1
            self.events.append(SeenEvent(self._event_number, event, now - event.age_s))
            self._changes.events = True


def with_names(words: str, names: Mapping[str, str]) -> str:
    """`words` with each peer id in them replaced by its name; one without a name stays."""
    return _PEER_ID.sub(lambda found: names.get(found[0], found[0]), words)


def _counted(peer: AnyView) -> tuple[list[str], bool]:
    """What counts of a peer, for its roles."""
    assert isinstance(peer, PeerView)
    return peer.roles, peer.state == "up"


def _event_key(event: Event) -> tuple[str, int, str, str]:
    """A restarted node counts from 1 again, so the number alone does not tell events apart."""
    return event.node, event.seq, event.name, event.text
