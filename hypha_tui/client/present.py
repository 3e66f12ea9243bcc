"""What a stream of frames has told so far: enough to make a snapshot of it at any moment. No I/O."""

from __future__ import annotations

from collections import deque
from typing import Final

from msgspec.structs import replace

from node.views import AnyView, Event, Frame, JobView, LeaseView, PeerView, Snapshot, TransferView

EVENTS_KEPT: Final = 500


class Present:
    """Objects and the last events, each with the moment that it was told at."""

    def __init__(self) -> None:
        self._items: dict[tuple[str, str], tuple[float, AnyView]] = {}
        self._events: deque[tuple[float, Event]] = deque(maxlen=EVENTS_KEPT)

    def apply(self, t: float, frame: Frame) -> None:
        """Take in a frame that came at `t`."""
        if isinstance(frame, Snapshot):
            self._items.clear()
            self._events.clear()
        else:
            for key in frame.dropped:
                self._items.pop((key[0], key[1]), None)
        for item in frame.items:
            self._items[(item.kind, item.id)] = (t, item)
        self._events.extend((t, event) for event in frame.events)

    def snapshot(self, seq: int, t: float) -> Snapshot:
        """Everything as it is at `t`."""
        return Snapshot(
            seq=seq,
            items=[moved_on(item, t - at) for at, item in self._items.values()],
            events=[replace(event, age_s=event.age_s + t - at) for at, event in self._events],
        )


def moved_on(item: AnyView, by_s: float) -> AnyView:
    """An object `by_s` seconds later: ages grow, remaining times shrink."""
    if isinstance(item, LeaseView):
        left = item.remaining_s - by_s if item.state in ("offered", "held") else item.remaining_s
        return replace(item, remaining_s=left, age_s=item.age_s + by_s)
    if isinstance(item, JobView | TransferView):
        return replace(item, age_s=item.age_s + by_s)
    if isinstance(item, PeerView):
        uptime_s = None if item.uptime_s is None else item.uptime_s + by_s
        return replace(item, seen_s=item.seen_s + by_s, uptime_s=uptime_s)
    return item
