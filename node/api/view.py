"""The cluster as one view: what many boards show and what membership knows, merged. No I/O, no clock.

A peer's own board is the authority for the peer itself; an object that two boards show is taken from its owner (a lease
from its worker, a transfer from its receiver, a job from its scheduler). What a peer showed goes when the peer is gone;
only its jobs stay, marked, as long as membership remembers it: an operator must not lose sight of a job. Its leases
stay too, marked as expired, until they would have run out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from msgspec.structs import replace

from node.board import moved_on
from node.views import (
    AnyView,
    DatasetView,
    Delta,
    Event,
    Frame,
    JobView,
    LeaseView,
    PeerView,
    Point,
    Snapshot,
    TransferView,
)
from node.wire import PeerRecord

GRACE_S = 3.0
"""How long a peer's objects stay after its stream broke, unless it turned out to be unreachable."""
ITEMS_PER_PEER = 20_000
EVENTS_KEPT = 1_000
POINTS_KEPT = 4_000

Key = tuple[str, str]


class Known(Protocol):
    """What membership knows of a peer."""

    @property
    def record(self) -> PeerRecord:
        """Its newest signed record."""

    @property
    def reachable(self) -> bool:
        """Whether calls to it work."""

    @property
    def rtt_ms(self) -> float | None:
        """Round trip, in milliseconds."""

    @property
    def seen_at(self) -> float:
        """When it was last heard of, on the monotonic clock."""


@dataclass(slots=True)
class _Source:
    """A board that is, or was, observed."""

    seq: int = 0
    event_seq: int = 0
    is_live: bool = False
    is_unreachable: bool = False
    heard_at: float = 0.0
    lost_at: float | None = None
    reason: str = ""
    items: dict[Key, tuple[float, AnyView]] = field(default_factory=dict)


class Feed:
    """Changes of the cluster since the last `take`, coalesced by object; what one client has still to be told."""

    def __init__(self, cluster: Cluster, on_change: Callable[[], None]) -> None:
        self._cluster = cluster
        self._on_change = on_change
        self._items: dict[Key, tuple[float, AnyView] | None] = {}
        self._events: deque[tuple[float, Event]] = deque(maxlen=EVENTS_KEPT)
        self._points: deque[Point] = deque(maxlen=POINTS_KEPT)
        self._seq = 0

    def snapshot(self, now: float) -> Snapshot:
        """The whole cluster; what was noted before is in it."""
        self._forget()
        self._seq += 1
        return Snapshot(seq=self._seq, items=self._cluster.items(now), events=self._cluster.events(now))

    def take(self, now: float) -> Delta | None:
        """What changed since the last call, or None."""
        if not (self._items or self._events or self._points):
            return None
        self._seq += 1
        delta = Delta(
            seq=self._seq,
            items=[moved_on(shown[1], now - shown[0]) for shown in self._items.values() if shown is not None],
            dropped=[key for key, shown in self._items.items() if shown is None],
            events=[_aged(event, now - at) for at, event in self._events],
            points=list(self._points),
        )
        self._forget()
        return delta

    def note(self, key: Key, shown: tuple[float, AnyView] | None) -> None:
        """An object changed, or is gone."""
        self._items[key] = shown
        self._on_change()

    def note_news(self, events: Iterable[tuple[float, Event]], points: Iterable[Point]) -> None:
        """Something happened, or was measured."""
        self._events.extend(events)
        self._points.extend(points)
        if self._events or self._points:
            self._on_change()

    def _forget(self) -> None:
        self._items.clear()
        self._events.clear()
        self._points.clear()


class Cluster:
    """The merged view. `now` is this node's monotonic clock in all methods."""

    def __init__(self, own_id: str) -> None:
        self._own_id = own_id
        self._known: dict[str, Known] = {}
        self._sources: dict[str, _Source] = {}
        self._holders: dict[Key, set[str]] = {}
        self._shown: dict[Key, tuple[str, float, AnyView]] = {}
        self._events: deque[tuple[float, Event]] = deque(maxlen=EVENTS_KEPT)
        self._feeds: set[Feed] = set()

    def open_feed(self, on_change: Callable[[], None]) -> Feed:
        """Begin to note changes for a client; `on_change` is called, cheaply, at each."""
        feed = Feed(self, on_change)
        self._feeds.add(feed)
        return feed

    def close_feed(self, feed: Feed) -> None:
        """Stop noting changes for this client."""
        self._feeds.discard(feed)

    def apply(self, peer_id: str, frame: Frame, now: float) -> bool:
        """Take in a frame of a peer's board. False: there is a gap, and only a new snapshot helps."""
        source = self._sources.setdefault(peer_id, _Source())
        if isinstance(frame, Snapshot):
            gone = source.items.keys() - {_key(item) for item in frame.items}
            if frame.events and frame.events[-1].seq < source.event_seq:
                source.event_seq = 0  # it has started anew
        elif not source.is_live or frame.seq > source.seq + 1:
            return False
        elif frame.seq <= source.seq:
            return True
        else:
            gone = set(frame.dropped)
        source.seq = frame.seq
        source.is_live, source.is_unreachable, source.lost_at, source.reason = True, False, None, ""
        source.heard_at = now
        for key in gone:
            self._take_off(peer_id, source, key)
        for item in frame.items:
            self._take_on(peer_id, source, item, now)
        self._take_news(peer_id, source, frame, now)
        self._show_peer(peer_id, now)
        return True

    def lost(self, peer_id: str, reason: str, now: float, *, is_unreachable: bool) -> None:
        """A peer's stream ended or could not be opened."""
        source = self._sources.setdefault(peer_id, _Source())
        if source.is_live or source.lost_at is None:
            source.lost_at = now
        source.is_live, source.is_unreachable, source.reason = False, is_unreachable, reason
        if is_unreachable:
            self._clear(peer_id, source, now)
        self._show_peer(peer_id, now)

    def membership(self, peers: Iterable[Known], now: float) -> None:
        """Take in all peers that membership knows; what others showed is forgotten."""
        self._known = {known.record.peer_id: known for known in peers}
        for peer_id in self._sources.keys() - self._known.keys() - {self._own_id}:
            for key in list(self._sources[peer_id].items):
                self._take_off(peer_id, self._sources[peer_id], key)
            del self._sources[peer_id]
        for _, peer_id in [key for key in self._shown if key[0] == PeerView.kind and key[1] not in self._known]:
            self._show_peer(peer_id, now)
        for peer_id, known in self._known.items():
            source = self._sources.get(peer_id)
            if source is not None and known.record.leaving and not source.is_live:
                self._clear(peer_id, source, now)
            self._show_peer(peer_id, now)

    def tick(self, now: float) -> None:
        """Take off what peers showed whose stream has been broken for longer than the grace."""
        for peer_id, source in self._sources.items():
            if source.lost_at is not None and now - source.lost_at > GRACE_S and source.items:
                self._clear(peer_id, source, now)

    def items(self, now: float) -> list[AnyView]:
        """Every object, as of now."""
        return [self._as_of(key, at, item, now) for key, (_, at, item) in self._shown.items()]

    def events(self, now: float) -> list[Event]:
        """The last events of all nodes, oldest first."""
        return [_aged(event, now - at) for at, event in sorted(self._events, key=lambda pair: pair[0])]

    def heard_of(self, peer_id: str) -> bool:
        """Whether this peer's board was seen, or tried in vain."""
        return peer_id in self._sources

    def is_live(self, peer_id: str) -> bool:
        """Whether this peer's board is being observed."""
        source = self._sources.get(peer_id)
        return source is not None and source.is_live

    def job(self, job_id: str, now: float) -> JobView | None:
        """One job."""
        shown = self._shown.get((JobView.kind, job_id))
        item = moved_on(shown[2], now - shown[1]) if shown else None
        return item if isinstance(item, JobView) else None

    def _take_on(self, peer_id: str, source: _Source, item: AnyView, now: float) -> None:
        key = _key(item)
        if isinstance(item, PeerView) and item.id != peer_id:
            return
        if key not in source.items and len(source.items) >= ITEMS_PER_PEER:
            return
        source.items[key] = (now, item)
        if not isinstance(item, PeerView):
            self._holders.setdefault(key, set()).add(peer_id)
            self._choose(key)

    def _take_off(self, peer_id: str, source: _Source, key: Key) -> None:
        if source.items.pop(key, None) is not None and key != (PeerView.kind, peer_id):
            self._holders[key].discard(peer_id)
            self._choose(key)

    def _choose(self, key: Key) -> None:
        """Show the best of what the boards say about an object."""
        before = self._shown.get(key)
        held = [(id_, *self._sources[id_].items[key]) for id_ in self._holders[key]]
        best = min(held, key=lambda one: (owner_of(one[2]) != one[0], one[0]), default=None)
        if best is None:
            del self._holders[key]
            self._shown.pop(key, None)
            self._note(key, None)
        elif best != before:
            self._shown[key] = best
            self._note(key, best[1:])

    def _clear(self, peer_id: str, source: _Source, now: float) -> None:
        """A peer is gone: so is what it showed, but for itself, its jobs, and leases until they would have run out.

        One that took its leave has ended its leases itself.
        """
        known = self._known.get(peer_id)
        has_left = known is not None and known.record.leaving
        for key, (at, item) in list(source.items.items()):
            if isinstance(item, JobView):
                reason = f"its scheduler cannot be asked: {source.reason or 'it has left'}"
                if item.reason != reason and item.state not in ("done", "failed", "cancelled"):
                    source.items[key] = (now, replace(moved_on(item, now - at), reason=reason))
                    self._choose(key)
            elif has_left and not isinstance(item, PeerView):
                self._take_off(peer_id, source, key)
            elif isinstance(item, LeaseView) and item.state in ("offered", "held") and item.remaining_s > now - at:
                reason = f"its worker cannot be asked: {source.reason}"
                source.items[key] = (now, replace(moved_on(item, now - at), state="expired", reason=reason))
                self._choose(key)
            elif isinstance(item, LeaseView) and item.reason and item.remaining_s > now - at:
                continue
            elif not isinstance(item, PeerView):
                self._take_off(peer_id, source, key)

    def _show_peer(self, peer_id: str, now: float) -> None:
        key = (PeerView.kind, peer_id)
        view = self._peer(peer_id, now)
        before = self._shown.get(key)
        if view is None:
            if before is not None:
                del self._shown[key]
                self._note(key, None)
        elif before is None or _is_news(before[2], view):
            self._shown[key] = (peer_id, now, view)
            self._note(key, (now, view))

    def _peer(self, peer_id: str, now: float) -> PeerView | None:
        known = self._known.get(peer_id)
        source = self._sources.get(peer_id, _Source())
        own = source.items.get((PeerView.kind, peer_id))
        if known is None and peer_id != self._own_id:
            return None
        view = moved_on(own[1], now - own[0]) if own else _of_record(known.record) if known else None
        if known is None or not isinstance(view, PeerView):
            return view if isinstance(view, PeerView) else None
        if peer_id == self._own_id:
            return replace(view, state="up", seen_s=0.0)
        if known.record.leaving and not source.is_live:
            state = "left"
        elif source.is_live or (known.reachable and not source.is_unreachable):
            state = "up"
        else:
            state = "unreachable"
        if state != "up":
            view = replace(view, uptime_s=None, seen_s=max(0.0, now - max(known.seen_at, source.heard_at)))
        else:
            view = replace(view, seen_s=0.0)
        return replace(view, state=state, rtt_ms=known.rtt_ms, reason=source.reason or view.reason)

    def _as_of(self, key: Key, at: float, item: AnyView, now: float) -> AnyView:
        if isinstance(item, PeerView) and item.state == "up":
            source = self._sources.get(key[1])
            is_heard = source is not None and source.is_live and key[1] != self._own_id
            seen_s = max(0.0, now - source.heard_at) if source is not None and is_heard else 0.0
            moved = moved_on(item, now - at)
            assert isinstance(moved, PeerView)
            return replace(moved, seen_s=seen_s)
        return moved_on(item, now - at)

    def _take_news(self, peer_id: str, source: _Source, frame: Frame, now: float) -> None:
        events = [
            (now - event.age_s, event)
            for event in frame.events
            if event.node == peer_id and event.seq > source.event_seq
        ]
        if events:
            source.event_seq = events[-1][1].seq
            self._events.extend(events)
        points = frame.points if isinstance(frame, Delta) else []
        for feed in self._feeds:
            feed.note_news(events, points)

    def _note(self, key: Key, shown: tuple[float, AnyView] | None) -> None:
        for feed in self._feeds:
            feed.note(key, shown)


def owner_of(item: AnyView) -> str:
    """The peer whose word about an object counts."""
    match item:
        case PeerView():
            return item.id
        case LeaseView():
            return item.worker
        case TransferView():
            return item.target
        case JobView():
            return item.scheduler
        case DatasetView():
            return item.peer_id


def _of_record(record: PeerRecord) -> PeerView:
    return PeerView(
        id=record.peer_id,
        name=record.name,
        roles=record.roles,
        addresses=record.addresses,
        state="up",
        version=record.version,
    )


def _is_news(before: AnyView, after: PeerView) -> bool:
    if not isinstance(before, PeerView):
        return True
    if before.rtt_ms is not None and after.rtt_ms is not None:
        if abs(before.rtt_ms - after.rtt_ms) > 1.0 + 0.25 * before.rtt_ms:
            return True
        after = replace(after, rtt_ms=before.rtt_ms)
    return before != replace(after, seen_s=before.seen_s, uptime_s=before.uptime_s)


def _key(item: AnyView) -> Key:
    return (item.kind, item.id)


def _aged(event: Event, by_s: float) -> Event:
    return replace(event, age_s=max(0.0, by_s))
