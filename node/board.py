"""The board: what this node shows to whoever looks at it. Objects, a bounded list of events, and their changes.

Roles put views on it; nothing is computed or sent while nobody observes.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from msgspec.structs import replace

from node.views import AnyView, Delta, Event, JobView, LeaseView, PeerView, Point, Snapshot, TransferView

EVENTS_KEPT = 500
POINTS_KEPT = 2_000


class Observer:
    """Changes of a board since the last `take()`, coalesced by object. One slow observer costs a bounded set."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._items: dict[tuple[str, str], AnyView | None] = {}
        self._events: deque[tuple[float, Event]] = deque(maxlen=EVENTS_KEPT)
        self._points: deque[Point] = deque(maxlen=POINTS_KEPT)
        self._seq = 0
        self._on_change: Callable[[], None] | None = None

    def snapshot(self) -> Snapshot:
        """All that is on the board now; changes noted before this are in it and are forgotten."""
        self._items.clear()
        self._events.clear()
        self._points.clear()
        self._seq += 1
        return Snapshot(seq=self._seq, items=self._board.items(), events=self._board.events())

    def take(self) -> Delta | None:
        """The changes since the last call, or None."""
        if not (self._items or self._events or self._points):
            return None
        self._seq += 1
        now = time.monotonic()
        delta = Delta(
            seq=self._seq,
            items=[item for item in self._items.values() if item is not None],
            dropped=[key for key, item in self._items.items() if item is None],
            events=[_aged(event, now - at) for at, event in self._events],
            points=list(self._points),
        )
        self._items.clear()
        self._events.clear()
        self._points.clear()
        return delta

    def wake(self, callback: Callable[[], None] | None) -> None:
        """Call `callback` (on the loop, cheap) at every change; None stops it."""
        self._on_change = callback

    def close(self) -> None:
        """Stop observing."""
        self._board.forget(self)

    def _note(self, key: tuple[str, str], item: AnyView | None) -> None:
        self._items[key] = item
        self._notify()

    def _note_event(self, at: float, event: Event) -> None:
        self._events.append((at, event))
        self._notify()

    def _note_point(self, point: Point) -> None:
        self._points.append(point)
        self._notify()

    def _notify(self) -> None:
        if self._on_change is not None:
            self._on_change()


class Board:
    """What this node shows. Only the loop's thread may call it."""

    def __init__(self, peer_id: str) -> None:
        self.peer_id = peer_id
        self._items: dict[tuple[str, str], tuple[float, AnyView]] = {}
        self._events: deque[tuple[float, Event]] = deque(maxlen=EVENTS_KEPT)
        self._observers: set[Observer] = set()
        self._event_seq = 0

    def put(self, item: AnyView) -> None:
        """Show `item`, in place of the one with its kind and id. Durations in it are as of now."""
        key = (item.kind, item.id)
        self._items[key] = (time.monotonic(), item)
        for observer in self._observers:
            observer._note(key, item)

    def drop(self, kind: str, id_: str) -> None:
        """Take an object off the board; unknown ones are ignored."""
        if self._items.pop((kind, id_), None) is not None:
            for observer in self._observers:
                observer._note((kind, id_), None)

    def happened(self, name: str, text: str, *, level: str = "info", **fields: str) -> None:
        """Record an event: a dotted name in the past tense (`lease.renewed`), one line of text, ids as fields."""
        self._event_seq += 1
        event = Event(node=self.peer_id, seq=self._event_seq, name=name, text=text, level=level, fields=fields)
        at = time.monotonic()
        self._events.append((at, event))
        for observer in self._observers:
            observer._note_event(at, event)

    def measured(self, point: Point) -> None:
        """Pass a metric's new value to observers; the history of a metric lives in the scheduler's store."""
        for observer in self._observers:
            observer._note_point(point)

    def items(self) -> list[AnyView]:
        """Every object, with its durations moved on to now."""
        now = time.monotonic()
        return [moved_on(item, now - at) for at, item in self._items.values()]

    def events(self) -> list[Event]:
        """The last events, oldest first, each with its age."""
        now = time.monotonic()
        return [_aged(event, now - at) for at, event in self._events]

    def observe(self) -> Observer:
        """Begin to observe; `close()` the observer when done."""
        observer = Observer(self)
        self._observers.add(observer)
        return observer

    def forget(self, observer: Observer) -> None:
        """Stop telling `observer`."""
        self._observers.discard(observer)


def moved_on(item: AnyView, by_s: float) -> AnyView:
    """`item` as it is `by_s` seconds later: ages grow, remaining times shrink."""
    if isinstance(item, LeaseView):
        left = item.remaining_s - by_s if item.state in ("offered", "held") else item.remaining_s
        return replace(item, remaining_s=max(0.0, left), age_s=item.age_s + by_s)
    if isinstance(item, JobView | TransferView):
        return replace(item, age_s=item.age_s + by_s)
    if isinstance(item, PeerView):
        uptime_s = None if item.uptime_s is None else item.uptime_s + by_s
        return replace(item, seen_s=item.seen_s + by_s, uptime_s=uptime_s)
    return item


def _aged(event: Event, by_s: float) -> Event:
    return replace(event, age_s=event.age_s + by_s)
