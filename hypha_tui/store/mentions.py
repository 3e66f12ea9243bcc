"""Which events are about an object: those that carry its id in a field or in their words, or that it told itself."""

from __future__ import annotations

from hypha_tui.store.cluster import ClusterStore, SeenEvent

EVENT: str = "event"
"""The kind of an event where objects are named by kind and id; its id is its number."""


def find_event(store: ClusterStore, number: str) -> SeenEvent | None:
    """An event by its number."""
    return next((seen for seen in reversed(store.events) if str(seen.number) == number), None)


def mentions(store: ClusterStore, kind: str, id_: str) -> list[SeenEvent]:
    """The events about an object, oldest first."""
    return [seen for seen in store.events if _is_about(seen, kind, id_)]


def _is_about(seen: SeenEvent, kind: str, id_: str) -> bool:
    event = seen.event
    if kind == "peer" and event.node == id_:
        return True
    if kind == "dataset":
        peer_id, _, name = id_.partition("/")
        return event.fields.get("dataset") == name and event.node == peer_id
    # a task's id begins with its job's, and a part of a word is another word
    return any(id_ in words for words in (event.text, *event.fields.values()))
