"""A job's leases: looked for, accepted, renewed, let go. The shell around `allocation.py` and `leases.py`."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from typing import TYPE_CHECKING, Protocol

from node.errors import PeerError, Refused
from node.leasehistory import LeaseHistories
from node.scheduler import messages as m
from node.scheduler.allocation import AcceptOffer, Advertise, Allocation, AllocationEffect, DropOffer, Need, OfferHeld
from node.scheduler.calls import WorkerCalls, is_nobody_there
from node.scheduler.leases import (
    LEASE_S,
    SILENT_S,
    Doubted,
    HeldLeases,
    LeaseEffect,
    Lost,
    Renew,
    Trusted,
)
from node.scheduler.order import AGGREGATE
from node.telemetry import metrics
from node.views import LeaseHistory
from node.wire import Advertisement, Decline, Offer

if TYPE_CHECKING:
    from node.network.overlay import Overlay

log = logging.getLogger(__name__)

SERVER_SILENT_S = 0.5
"""A parameter server does not report, and a group without one does not get on: it is asked as often as this."""
END_S = 3.0


class Spawn(Protocol):
    """Runs something beside the rest, owned by the job's task group."""

    def __call__(self, work: Coroutine[None, None, None], *, lasting: bool = False) -> None:
        """`lasting`: seen through when the job is over."""


class Holdings:
    """All leases of one job, and the searches for more."""

    def __init__(
        self,
        overlay: Overlay,
        job_id: str,
        needs: Mapping[str, Need],
        calls: WorkerCalls,
        rng: random.Random,
        *,
        take: Callable[[m.JobEvent], Awaitable[None]],
        spawn: Spawn,
        wake: Callable[[], None],
    ) -> None:
        self._overlay = overlay
        self._job_id = job_id
        self._calls = calls
        self._rng = rng
        self._take = take
        self._spawn = spawn
        self._wake = wake
        self._leases = HeldLeases(rng)
        self._lives = LeaseHistories()
        self._searches = {role: Allocation(need, 0, new_id=self._new_id, rng=rng) for role, need in needs.items()}
        self._answers = dict.fromkeys(self._searches, "")

    # ---- life -----------------------------------------------------------------------------------

    def restore(self, leases: Iterable[m.HeldLease]) -> None:
        """Leases of an earlier process: renewed at once, and lost only where that is refused."""
        now = time.monotonic()
        for lease in leases:
            if lease.role in self._searches:
                self._searches[lease.role].hold(lease.lease_id, lease.peer_id)
                self._hold(lease.role, now, lease.lease_id, lease.peer_id, LEASE_S)
                self._leases.check_soon(now, lease.peer_id)
                self._lives.note(lease.lease_id, "accepted", now, "by an earlier process of the scheduler")

    async def tick(self, now: float) -> None:
        """Do what is due."""
        await self._apply_leases(self._leases.tick(now))
        for role, search in self._searches.items():
            for wanted in search.tick(now):
                self._apply(role, wanted)
            answers = search.answers()
            if answers != self._answers[role]:
                self._answers[role] = answers
                await self._take(m.SearchAnswered(role, answers))

    def next_at(self) -> float | None:
        """When `tick` has something to do, if nothing else happens."""
        times = [self._leases.next_at(), *(search.next_at() for search in self._searches.values())]
        return min((at for at in times if at is not None), default=None)

    async def let_go(self, *, of_leases: bool) -> None:
        """Stop looking. Offers are released, leases too where the job is over; else they are found again later."""
        offers = [offer for search in self._searches.values() for offer in search.stop()]
        left = [(offer.peer_id, offer.lease_id) for offer in offers if isinstance(offer, DropOffer)]
        if of_leases:
            left += [(peer_id, lease_id) for lease_id, peer_id in self._leases.all()]
        if left:
            releases = (self._calls.release(peer_id, lease_id) for peer_id, lease_id in left)
            try:
                async with asyncio.timeout(END_S):
                    await asyncio.gather(*releases, return_exceptions=True)
            except TimeoutError:
                log.info("leases.not_released job=%s count=%d", self._job_id, len(left))

    def holds(self, lease_id: str, peer_id: str = "") -> bool:
        """Whether this lease (of this peer) is held."""
        return any(held == lease_id and peer_id in ("", peer) for held, peer in self._leases.all())

    def history(self, lease_id: str) -> LeaseHistory | None:
        """What this job's scheduler knows of a lease, and plans for it."""
        now = time.monotonic()
        marks = self._lives.marks(lease_id, now)
        if marks is None:
            return None
        planned = self._leases.planned(lease_id)
        return LeaseHistory(
            lease_id=lease_id,
            marks=marks,
            earlier_renewals=self._lives.earlier_renewals(lease_id),
            next_renewal_s=None if planned is None else planned - now,
        )

    # ---- what comes in --------------------------------------------------------------------------

    def offered(self, peer_id: str, offer: Offer) -> bool:
        """Take an offer; False when it answers none of this job's advertisements."""
        for role, search in self._searches.items():
            if search.knows(offer.advert_id):
                heeds = frozenset(offer.heeds)
                held = OfferHeld(offer.advert_id, offer.lease_id, peer_id, offer.price, offer.resources, heeds)
                for effect in search.offered(time.monotonic(), held):
                    self._apply(role, effect)
                self._wake()
                return True
        return False

    def declined(self, peer_id: str, decline: Decline) -> bool:
        """Take a refusal; False when it answers none of this job's advertisements."""
        for search in self._searches.values():
            if search.knows(decline.advert_id):
                search.declined(decline.advert_id, peer_id, decline.reason[:200])
                self._wake()
                return True
        return False

    def workers_came(self, peer_ids: Iterable[str]) -> None:
        """A search that pauses goes on at once, and whoever came back is asked whether its lease still holds."""
        now = time.monotonic()
        for search in self._searches.values():
            search.poke(now)
        for peer_id in peer_ids:
            self._leases.check_soon(now, peer_id)
        self._wake()

    def heard(self, peer_id: str) -> None:
        """This worker called us."""
        self._leases.heard(time.monotonic(), peer_id)

    # ---- what the machine wants -----------------------------------------------------------------

    def search(self, role: str, wanted: int) -> None:
        """Hold so many leases of this role."""
        search = self._searches[role]
        for dropped in search.stop() if wanted == 0 else []:
            self._apply(role, dropped)
        search.want(wanted)

    def shun(self, role: str, peer_id: str, *, never: bool) -> None:
        """Do not take this peer for this role, or only where no other offers."""
        search = self._searches[role]
        (search.exclude if never else search.avoid).add(peer_id)

    def release(self, lease_id: str, peer_id: str, refusal: str = "") -> None:
        """Let a lease go."""
        self._lives.ended(lease_id, "released", time.monotonic(), refusal)
        self._forget(lease_id, refusal)
        self._spawn(self._calls.release(peer_id, lease_id), lasting=True)

    async def refused(self, lease_id: str, reason: str) -> None:
        """A worker says that it does not hold this lease."""
        await self._apply_leases(self._leases.refused(lease_id, reason))

    # ---- inside ---------------------------------------------------------------------------------

    def _hold(self, role: str, sent_at: float, lease_id: str, peer_id: str, duration_s: float) -> None:
        silent_s = SERVER_SILENT_S if role == AGGREGATE else SILENT_S
        self._leases.hold(sent_at, lease_id, peer_id, duration_s, silent_s=silent_s)

    def _forget(self, lease_id: str, refusal: str = "") -> None:
        self._leases.release(lease_id)
        for search in self._searches.values():
            search.lost(time.monotonic(), lease_id, reason=refusal)

    def _apply(self, role: str, effect: AllocationEffect) -> None:
        match effect:
            case Advertise():
                self._spawn(self._advertise(effect))
            case AcceptOffer(offer):
                self._spawn(self._accept(role, offer))
            case DropOffer(lease_id, peer_id):
                self._spawn(self._calls.release(peer_id, lease_id), lasting=True)

    async def _apply_leases(self, effects: Iterable[LeaseEffect]) -> None:
        for effect in effects:
            match effect:
                case Renew():
                    self._spawn(self._renew(effect))
                case Doubted(lease_id):
                    for search in self._searches.values():
                        search.doubt(time.monotonic(), lease_id)
                case Trusted(lease_id):
                    for search in self._searches.values():
                        search.trust(lease_id)
                case Lost(lease_id, peer_id, reason):
                    log.warning("lease.lost lease=%s peer=%s reason=%s", lease_id, peer_id, reason)
                    self._lives.ended(lease_id, "lost", time.monotonic(), reason)
                    self._forget(lease_id)
                    await self._take(m.LeaseLost(lease_id, reason))

    async def _advertise(self, effect: Advertise) -> None:
        need = effect.need
        await self._overlay.publish(
            Advertisement(
                peer_id=self._overlay.peer_id,
                seq=self._overlay.next_seq(),
                advert_id=effect.advert_id,
                job_id=need.job_id,
                executor=need.executor,
                resources=need.resources,
                bid=need.bid,
                count=effect.count,
                ttl_s=effect.ttl_s,
                exclude=list(effect.exclude),
                mounts=list(need.mounts),
                stores=list(need.stores),
            )
        )

    async def _accept(self, role: str, offer: OfferHeld) -> None:
        granted = await self._calls.accept(offer)
        search = self._searches[role]
        if granted is None:
            search.not_accepted(time.monotonic(), offer.lease_id)
            self._wake()
        elif not search.accepted(offer.lease_id):
            self._spawn(self._calls.release(offer.peer_id, offer.lease_id), lasting=True)
        else:
            metrics().lease_renewed("success")
            sent_at, duration_s = granted
            self._hold(role, sent_at, offer.lease_id, offer.peer_id, duration_s)
            self._lives.note(offer.lease_id, "accepted", sent_at)
            await self._take(m.LeaseHeld(role, offer.lease_id, offer.peer_id, offer.price))

    async def _renew(self, effect: Renew) -> None:
        sent_at = time.monotonic()
        try:
            answer = await self._calls.renew(effect.peer_id, effect.lease_id, effect.duration_s)
        except Refused as error:
            metrics().lease_renewed("failure")
            await self.refused(effect.lease_id, f"its worker says: {error.message}")
        except PeerError as error:
            metrics().lease_renewed("failure")
            nobody = is_nobody_there(error)
            now = time.monotonic()
            await self._apply_leases(self._leases.failed(now, effect.lease_id, error.message, is_nobody_there=nobody))
        else:
            metrics().lease_renewed("success")
            self._lives.renewed(effect.lease_id, sent_at)
            await self._apply_leases(self._leases.renewed(sent_at, effect.lease_id, answer.duration_s))
        self._wake()

    def _new_id(self) -> str:
        return f"{self._job_id}:{self._rng.getrandbits(48):012x}"
