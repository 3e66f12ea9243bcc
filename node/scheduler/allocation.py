"""Finding workers for one need of a job: advertise, collect offers for a window, rank them, take the best, try again.

Pure: no clock, no network. Every advertisement opens a *call*; its offers are collected until the window closes, then
ranked by price and a stable order, so the cheapest wins and not the fastest. What is not taken is let go at once.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from node.wire import BindMount, ExecutorKind, Resources

WORKER_WINDOW_S = 0.2
"""How long a worker gathers advertisements before it answers."""
OFFER_WINDOW_S = 0.3
"""How long offers are gathered once the first can have come."""
CALL_TTL_S = 6.0
"""How long an answer to an advertisement is welcome."""
BACKOFF_FIRST_S = 1.0
BACKOFF_LIMIT_S = 10.0


@dataclass(frozen=True, slots=True)
class Need:
    """What to look for. `bid` is advertised; `max_price` never leaves the scheduler."""

    job_id: str
    role: str
    executor: ExecutorKind
    resources: Resources
    bid: float = 0.0
    max_price: float | None = None
    mounts: tuple[BindMount, ...] = ()
    stores: tuple[str, ...] = ()
    """Addresses in object storage that its tasks read."""

    @property
    def to_heed(self) -> list[str]:
        """What only a worker may be taken for that has looked at it; older ones know nothing of it."""
        return [name for name in ("mounts", "stores") if getattr(self, name)]


@dataclass(frozen=True, slots=True)
class OfferHeld:
    """An offer that has come in: a worker holds these resources for us for a while."""

    advert_id: str
    lease_id: str
    peer_id: str
    price: float
    resources: Resources
    heeds: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Advertise:
    """Publish an advertisement for `count` workers."""

    advert_id: str
    need: Need
    count: int
    ttl_s: float
    exclude: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AcceptOffer:
    """Renew this lease for the first time, which accepts it; answer with `accepted` or `not_accepted`."""

    offer: OfferHeld


@dataclass(frozen=True, slots=True)
class DropOffer:
    """Release this lease: it is not needed."""

    lease_id: str
    peer_id: str


AllocationEffect = Advertise | AcceptOffer | DropOffer


@dataclass(slots=True)
class _Call:
    advert_id: str
    published_at: float
    offers: dict[str, OfferHeld] = field(default_factory=dict)
    first_offer_at: float | None = None

    def decides_at(self) -> float:
        """When the offers of this call are ranked."""
        earliest = self.published_at + WORKER_WINDOW_S + OFFER_WINDOW_S
        return earliest if self.first_offer_at is None else max(earliest, self.first_offer_at + OFFER_WINDOW_S)


class Allocation:
    """The search for the workers of one need. `wanted` leases are to be held in all."""

    def __init__(self, need: Need, wanted: int, *, new_id: Callable[[], str], rng: random.Random) -> None:
        self.need = need
        self.wanted = wanted
        self.exclude: set[str] = set()
        """Peers that must not be taken."""
        self.avoid: set[str] = set()
        """Peers to take only where no other offers."""
        self._new_id = new_id
        self._rng = rng
        self._held: dict[str, str] = {}
        self._doubted: set[str] = set()
        self._accepting: dict[str, OfferHeld] = {}
        self._call: _Call | None = None
        self._past_calls: dict[str, float] = {}
        self._refusals: dict[str, tuple[str, str]] = {}
        self._too_dear = 0
        self._has_asked = False
        self._next_call_at: float | None = None
        self._is_call_old = False
        """Whether something has changed that the open call could not reach: the next one follows at once."""
        self._backoff_s = BACKOFF_FIRST_S

    @property
    def held(self) -> dict[str, str]:
        """Leases in our hands and their peers."""
        return dict(self._held)

    @property
    def short(self) -> int:
        """How many are neither held nor about to be."""
        return self.wanted - len(self._held) - len(self._accepting)

    def want(self, wanted: int) -> None:
        """Look for so many in all from now on."""
        if self.short <= 0:
            # Answers to earlier calls do not say why one is missing now.
            self._has_asked = False
        self.wanted = wanted

    def tick(self, now: float) -> list[AllocationEffect]:
        """Do what is due: rank a call whose window is over, or open the next one."""
        effects: list[AllocationEffect] = []
        self._past_calls = {key: end for key, end in self._past_calls.items() if end > now}
        call = self._call
        if call is not None and now >= call.decides_at() and not self._is_waiting:
            effects += self._decide(now, call)
        wanted = self.short > 0 or self._is_waiting
        if self._call is None and wanted and (self._next_call_at is None or now >= self._next_call_at):
            effects.append(self._open_call(now))
        return effects

    @property
    def _is_waiting(self) -> bool:
        """Offers are gathered for a lease that is only doubted: nothing is taken before it is lost."""
        return self.wanted > 0 and self.short <= 0 and bool(self._doubted)

    def hold(self, lease_id: str, peer_id: str) -> None:
        """A lease of an earlier process, held again."""
        self._held[lease_id] = peer_id

    def doubt(self, now: float, lease_id: str) -> None:
        """A held lease is likely to be lost soon: gather offers already."""
        if lease_id in self._held:
            self._doubted.add(lease_id)
            self.poke(now)

    def trust(self, lease_id: str) -> None:
        """It is not."""
        self._doubted.discard(lease_id)

    def offered(self, now: float, offer: OfferHeld) -> list[AllocationEffect]:
        """A worker offers. One that is late, where we are still short, opens a window of its own: never first come."""
        if offer.lease_id in self._held or offer.lease_id in self._accepting:
            return []
        unknown = [name for name in self.need.to_heed if name not in offer.heeds]
        if unknown:
            self._refusals[offer.peer_id] = (offer.advert_id, f"too old a version, which knows no {unknown[0]}")
            return [DropOffer(offer.lease_id, offer.peer_id)]
        self._refusals.pop(offer.peer_id, None)
        if self._call is None and self._past_calls.get(offer.advert_id, 0.0) > now and self.short > 0:
            self._call = _Call(offer.advert_id, published_at=now - WORKER_WINDOW_S)
            self._next_call_at = None
        call = self._call
        if call is None or not self.knows(offer.advert_id):
            return [DropOffer(offer.lease_id, offer.peer_id)]
        if call.first_offer_at is None:
            call.first_offer_at = now
        before = call.offers.get(offer.peer_id)
        call.offers[offer.peer_id] = offer
        if before is not None and before.lease_id != offer.lease_id:
            return [DropOffer(before.lease_id, before.peer_id)]
        return []

    def declined(self, advert_id: str, peer_id: str, reason: str) -> None:
        """A worker says no; the reason is kept for the waiting text."""
        if self.knows(advert_id):
            self._refusals[peer_id] = (advert_id, reason)

    def accepted(self, lease_id: str) -> bool:
        """The first renewal went through. False: nobody waits for this lease any more, let it go."""
        offer = self._accepting.pop(lease_id, None)
        if offer is None:
            return False
        self._held[lease_id] = offer.peer_id
        self._backoff_s = BACKOFF_FIRST_S
        return True

    def not_accepted(self, now: float, lease_id: str) -> None:
        """The first renewal failed: look again soon."""
        if self._accepting.pop(lease_id, None) is not None:
            self._schedule(now)

    def lost(self, now: float, lease_id: str, *, reason: str = "") -> None:
        """A held lease is gone; look for another at once. With a `reason`, it counts as that peer's refusal."""
        if self.short <= 0:
            # Answers to earlier calls do not say why this one is missing.
            self._has_asked = False
        peer_id = self._held.pop(lease_id, None)
        self._doubted.discard(lease_id)
        if peer_id is None:
            return
        if reason:
            self._refusals[peer_id] = ("", reason)
        self._backoff_s = BACKOFF_FIRST_S
        if self._call is None:
            self._next_call_at = now
        self._is_call_old = self._call is not None

    def poke(self, now: float) -> None:
        """Somebody new is here: do not wait for the back-off to end."""
        self._is_call_old = self._call is not None
        if self._call is None and self._next_call_at is not None:
            self._backoff_s = BACKOFF_FIRST_S
            self._next_call_at = min(self._next_call_at, now)

    def stop(self) -> list[AllocationEffect]:
        """Look for nobody any more, and let go of what is not held."""
        self.wanted = 0
        self._doubted.clear()
        offers = list(self._call.offers.values()) if self._call is not None else []
        offers += self._accepting.values()
        self._call = None
        self._accepting.clear()
        return [DropOffer(offer.lease_id, offer.peer_id) for offer in offers]

    def knows(self, advert_id: str) -> bool:
        """Whether this advertisement is ours and answers to it are still welcome."""
        return (self._call is not None and self._call.advert_id == advert_id) or advert_id in self._past_calls

    def next_at(self) -> float | None:
        """When `tick` has something to do, if nothing else happens."""
        if self._call is not None:
            return None if self._is_waiting else self._call.decides_at()
        return self._next_call_at if self.short > 0 or self._is_waiting else None

    def answers(self) -> str:
        """Why we are short, in words; empty before the first call was decided and where nothing is missing."""
        if self.short <= 0 or not self._has_asked:
            return ""
        parts: list[str] = []
        by_reason = Counter(reason for _, reason in self._refusals.values())
        for reason, count in sorted(by_reason.items(), key=lambda item: (-item[1], item[0]))[:3]:
            parts.append(f"{count} {_plural('worker', count)} refused: {reason}")
        if self._too_dear:
            dear = self._too_dear
            parts.append(f"{dear} {_plural('offer', dear)} above your maximum price {self.need.max_price}")
        return "; ".join(parts) if parts else "no worker answered"

    def validate(self) -> None:
        """Raise AssertionError where the state contradicts itself."""
        assert not (self._held.keys() & self._accepting.keys())
        taken = [*self._held.values(), *(offer.peer_id for offer in self._accepting.values())]
        assert len(taken) == len(set(taken)), "a peer is taken twice"
        assert self._call is None or self._next_call_at is None
        assert self._doubted <= self._held.keys()
        assert BACKOFF_FIRST_S <= self._backoff_s <= BACKOFF_LIMIT_S

    def _open_call(self, now: float) -> Advertise:
        self._call = _Call(advert_id=self._new_id(), published_at=now)
        self._next_call_at = None
        self._is_call_old = False
        exclude = tuple(sorted(self._taken_peers() | self.exclude))
        count = max(self.short, len(self._doubted))
        return Advertise(self._call.advert_id, self.need, count, CALL_TTL_S, exclude)

    def _decide(self, now: float, call: _Call) -> list[AllocationEffect]:
        effects: list[AllocationEffect] = []
        self._call = None
        self._past_calls[call.advert_id] = call.published_at + CALL_TTL_S
        ranked = sorted(call.offers.values(), key=lambda o: (o.peer_id in self.avoid, o.price, o.peer_id, o.lease_id))
        self._too_dear = sum(1 for offer in ranked if self._is_too_dear(offer))
        self._has_asked = True
        # Whoever refused an earlier call and did not answer this one is not here any more.
        self._refusals = {
            peer: (asked, why) for peer, (asked, why) in self._refusals.items() if asked in ("", call.advert_id)
        }
        for offer in ranked:
            if self.short > 0 and self._is_welcome(offer):
                effects.append(self._accept(offer))
            else:
                effects.append(DropOffer(offer.lease_id, offer.peer_id))
        if self.short > 0 and self._is_call_old:
            self._next_call_at = now
        elif self.short > 0:
            self._schedule(now)
        return effects

    def _accept(self, offer: OfferHeld) -> AcceptOffer:
        self._accepting[offer.lease_id] = offer
        return AcceptOffer(offer)

    def _schedule(self, now: float) -> None:
        if self._call is None and self._next_call_at is None:
            self._next_call_at = now + self._backoff_s * self._rng.uniform(0.75, 1.25)
            self._backoff_s = min(BACKOFF_LIMIT_S, self._backoff_s * 2)

    def _is_too_dear(self, offer: OfferHeld) -> bool:
        return self.need.max_price is not None and offer.price > self.need.max_price

    def _is_welcome(self, offer: OfferHeld) -> bool:
        return not self._is_too_dear(offer) and offer.peer_id not in (self.exclude | self._taken_peers())

    def _taken_peers(self) -> set[str]:
        return set(self._held.values()) | {offer.peer_id for offer in self._accepting.values()}


def _plural(noun: str, count: int) -> str:
    return noun if count == 1 else noun + "s"
