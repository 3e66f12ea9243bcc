"""Which advertisements this worker answers, with what offer. No clock, no I/O.

Advertisements are collected for a short window and ranked by their bid, so that the best one gets the resources rather
than the first one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from node import mounts
from node.storeurl import first_outside
from node.wire import Advertisement, BindMount, ExecutorKind, Resources
from node.worker.leases import RESOURCES, shortage

WINDOW_S = 0.2
_REMEMBERED = 2_000
HEEDED: Final = ["mounts", "stores"]
"""What of an advertisement is looked at here that older workers know nothing of."""
NOTHING_MOUNTED: Final = partial(mounts.objection, allowed=())


@dataclass(frozen=True, slots=True)
class Terms:
    """What the owner asks for: the price an hour, the lowest bid that is answered, and how much goes into one offer.

    An offer asks the price even where it is more than the bid: what a scheduler would pay at most, it keeps to itself.
    """

    price: float = 0.0
    floor: float = 0.0
    strategy: str = "flexible"


@dataclass(frozen=True, slots=True)
class Answer:
    """What to tell an advertisement's scheduler: an offer, or the reason against one."""

    advert: Advertisement
    resources: Resources | None = None
    price: float = 0.0
    reason: str = ""


class Arbiter:
    """Collects advertisements and answers each once."""

    def __init__(
        self,
        peer_id: str,
        kinds: Sequence[ExecutorKind],
        terms: Terms,
        window_s: float = WINDOW_S,
        *,
        unmountable: Callable[[Sequence[BindMount]], str] = NOTHING_MOUNTED,
        stores: Sequence[str] = (),
    ) -> None:
        self._peer_id = peer_id
        self._kinds = list(kinds)
        self._terms = terms
        self._window_s = window_s
        self._unmountable = unmountable
        self._stores = stores
        self._waiting: list[tuple[float, Advertisement]] = []
        self._seen: dict[tuple[str, str, int], None] = {}

    def hear(self, advert: Advertisement, now: float) -> None:
        """Take in an advertisement; one that was heard before, or that excludes this worker, is ignored."""
        key = (advert.peer_id, advert.advert_id, advert.seq)
        if key in self._seen or self._peer_id in advert.exclude:
            return
        self._seen[key] = None
        while len(self._seen) > _REMEMBERED:
            del self._seen[next(iter(self._seen))]
        self._waiting.append((now, advert))

    def due_at(self) -> float | None:
        """When `decide` should run; None while nothing waits."""
        return self._waiting[0][0] + self._window_s if self._waiting else None

    def decide(self, total: Resources, free: Resources, now: float, *, closed: str = "") -> list[Answer]:
        """Answer everything heard, the highest bid first. `closed`: why nothing is offered, if so."""
        heard, self._waiting = self._waiting, []
        current = [(at, advert) for at, advert in heard if now < at + advert.ttl_s]
        current.sort(key=lambda item: (-item[1].bid, item[0], item[1].advert_id))
        answers = []
        for _, advert in current:
            answer = Answer(advert, reason=closed) if closed else self._answer(advert, total, free)
            if answer.resources is not None:
                free = _minus(free, answer.resources)
            answers.append(answer)
        return answers

    def _answer(self, advert: Advertisement, total: Resources, free: Resources) -> Answer:
        reason = self._objection(advert, total, free)
        if reason:
            return Answer(advert, reason=reason)
        resources = total if self._terms.strategy == "whole" else advert.resources
        return Answer(advert, resources=resources, price=max(self._terms.price, self._terms.floor))

    def _objection(self, advert: Advertisement, total: Resources, free: Resources) -> str:
        wanted = advert.executor
        if not any(k.class_ == wanted.class_ and wanted.name in ("", k.name) for k in self._kinds):
            return f"no executor {wanted.class_}/{wanted.name}" if wanted.name else f"no executor {wanted.class_}"
        if any(getattr(advert.resources, name) < 0 for name in RESOURCES):
            return "asks for less than nothing"
        lacking = shortage(advert.resources, total)
        if lacking:
            name, have, want = lacking
            return f"{name} {have:g} < {want:g}"
        unmountable = self._unmountable(advert.mounts)
        if unmountable:
            return unmountable
        forbidden = first_outside(advert.stores, self._stores)
        if forbidden:
            return f"nothing is fetched from {forbidden[:100]}"
        if advert.bid < self._terms.floor:
            return f"bid {advert.bid:g} < {self._terms.floor:g}"
        busy = shortage(total if self._terms.strategy == "whole" else advert.resources, free)
        if busy:
            name, have, want = busy
            return f"busy: {name} {have:g} free < {want:g}"
        return ""


def _minus(left: Resources, right: Resources) -> Resources:
    return Resources(**{name: max(0.0, getattr(left, name) - getattr(right, name)) for name in RESOURCES})
