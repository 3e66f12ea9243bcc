"""What this node says of itself: its peer record and its provider records, renewed for as long as it runs."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from dataclasses import dataclass, field

import msgspec

from node.board import Board
from node.config import NodeConfig
from node.errors import PeerError
from node.identity.credentials import Identity
from node.network import listeners, remembered
from node.network.gossip import refresh_s
from node.network.knowledge import Knowledge
from node.store import Store
from node.version import __version__
from node.views import PeerView
from node.wire import Advertisement, Mountable, PeerRecord, ProviderRecord, Record, Resources

log = logging.getLogger(__name__)

LIFE = 3.0
"""A record lives this many times as long as it takes until it is renewed."""
TICK_S = 30.0
REANNOUNCE_PAUSE_S = 3.0
LEAVING_TTL_S = 120.0
GOODBYE_S = 0.8


@dataclass(frozen=True, slots=True)
class Offering:
    """What a worker shows of itself; the fields are those of `PeerView`."""

    executors: list[str] = field(default_factory=list)
    price: float | None = None
    floor: float = 0.0
    gpu_name: str = ""
    mounts: list[Mountable] | None = None
    stores: list[str] | None = None


class Announcer:
    """Makes and renews this node's own records, and keeps what its next start needs."""

    def __init__(
        self,
        config: NodeConfig,
        identity: Identity,
        board: Board,
        store: Store,
        knowledge: Knowledge,
        rng: random.Random,
    ) -> None:
        self.addresses: list[str] = []
        self.remembered: dict[str, list[str]] = {}
        """Addresses of peers, from the last run or this one."""
        self._config = config
        self._identity = identity
        self._board = board
        self._store = store
        self._knowledge = knowledge
        self._rng = rng
        self._name = config.name or identity.name
        self._seq = time.time_ns() // 1_000_000
        self._started_at = time.monotonic()
        self._announced_at = 0.0
        self._again = asyncio.Event()
        self._places: list[listeners.Place] = []
        self._resources: tuple[Resources | None, Resources | None] = (None, None)
        self._offering = Offering()
        self._marks = (False, False)
        self._provided: dict[str, ProviderRecord] = {}
        knowledge.on_own = self._meet_earlier_life

    # ---- life -----------------------------------------------------------------------------------------

    async def begin(self, places: list[listeners.Place]) -> None:
        """Make the first record: this node listens at these places."""
        self._places = places
        seq, self.remembered = await remembered.load(self._store)
        self._seq = max(self._seq, seq)
        self.addresses = await asyncio.to_thread(self._own_addresses)
        self._announce()
        await self._save()

    async def keep(self) -> None:
        """Renew the records in time, and when addresses change, until cancelled."""
        while True:
            try:
                async with asyncio.timeout(TICK_S * self._rng.uniform(0.85, 1.0)):
                    await self._again.wait()
                await asyncio.sleep(REANNOUNCE_PAUSE_S)
                self._again.clear()
                self._announced_at = 0.0
            except TimeoutError:
                pass
            addresses = await asyncio.to_thread(self._own_addresses)
            due_at = self._announced_at + refresh_s(self._knowledge.membership.count()) - TICK_S / 2
            if addresses != self.addresses or time.monotonic() >= due_at:
                self.addresses = addresses
                self._announce()
                for dataset in list(self._provided):
                    self._announce_dataset(dataset)
            await self._save()

    async def end(self) -> None:
        """Tell the neighbours that this node leaves, as far as that is done in a moment."""
        try:
            async with asyncio.timeout(GOODBYE_S):
                self._knowledge.add_own(self._record(leaving=True))
                await self._knowledge.flush()
        except (TimeoutError, PeerError) as error:
            log.debug("goodbye.cut reason=%s", error or "too slow")
        await self._save()

    async def _save(self) -> None:
        self.remembered = self._knowledge.membership.to_remember() or self.remembered
        await remembered.save(self._store, self._seq, self.remembered)

    def _own_addresses(self) -> list[str]:
        hosts = listeners.interface_hosts()
        return listeners.advertised(self._places, hosts, self._config.external_addresses, self._config.exclude_cidr)

    # ---- records ----------------------------------------------------------------------------------------

    def next_seq(self) -> int:
        """A number higher than all before it, over restarts too."""
        self._seq += 1
        return self._seq

    def provide(self, dataset: str, digest: str, slices: int, rows: int, size_bytes: int) -> None:
        """Say that this node serves a dataset, and go on saying it."""
        self._provided[dataset] = ProviderRecord(
            peer_id=self._identity.peer_id,
            seq=0,
            dataset=dataset,
            digest=digest,
            slices=slices,
            rows=rows,
            size_bytes=size_bytes,
            ttl_s=0.0,
        )
        self._announce_dataset(dataset)

    def withdraw(self, dataset: str) -> None:
        """Say that this node no longer serves a dataset."""
        if dataset in self._provided:
            self._provided[dataset] = msgspec.structs.replace(self._provided[dataset], slices=0)
            self._announce_dataset(dataset)
            del self._provided[dataset]

    def describe(self, total: Resources | None, free: Resources | None) -> None:
        """What this node has and what of it is free, for whoever looks."""
        self._resources = (total, free)
        self._show()

    def offer(self, offering: Offering) -> None:
        """What this node's worker offers, for whoever looks."""
        self._offering = offering
        self._show()

    def mark(self, *, cordoned: bool, draining: bool) -> None:
        """Whether this node's worker is cordoned, and drained, for whoever looks."""
        self._marks = (cordoned, draining)
        self._show()

    def _announce(self) -> None:
        self._announced_at = time.monotonic()
        self._knowledge.add_own(self._record())
        self._show()

    def _record(self, *, leaving: bool = False) -> PeerRecord:
        return PeerRecord(
            peer_id=self._identity.peer_id,
            seq=self.next_seq(),
            name=self._name,
            roles=self._config.roles,
            addresses=self.addresses,
            ttl_s=LEAVING_TTL_S if leaving else self._ttl_s(),
            version=__version__,
            leaving=leaving,
        )

    def _announce_dataset(self, dataset: str) -> None:
        record = msgspec.structs.replace(self._provided[dataset], seq=self.next_seq(), ttl_s=self._ttl_s())
        self._provided[dataset] = record
        self._knowledge.add_own(record)

    def _ttl_s(self) -> float:
        return LIFE * refresh_s(self._knowledge.membership.count())

    def _show(self) -> None:
        total, free = self._resources
        offering = self._offering
        self._board.put(
            PeerView(
                id=self._identity.peer_id,
                name=self._name,
                roles=self._config.roles,
                addresses=self.addresses,
                state="up",
                version=__version__,
                rtt_ms=0.0,
                total=total,
                free=free,
                certificate_days=self._identity.days_left,
                uptime_s=time.monotonic() - self._started_at,
                executors=offering.executors,
                price=offering.price,
                floor=offering.floor,
                gpu_name=offering.gpu_name,
                mounts=offering.mounts,
                stores=offering.stores,
                cordoned=self._marks[0],
                draining=self._marks[1],
            )
        )

    def _meet_earlier_life(self, record: Record) -> None:
        """A record of ours that we have not made in this life: our clock has gone back, or somebody shares our key."""
        self._seq = max(self._seq, record.seq)
        if isinstance(record, ProviderRecord) and record.dataset not in self._provided and record.slices:
            self._knowledge.add_own(msgspec.structs.replace(record, seq=self.next_seq(), slices=0))
        elif not isinstance(record, Advertisement) and not self._again.is_set():
            log.warning("record.overtaken kind=%s hint=does another node use this certificate?", type(record).__name__)
            self._again.set()
