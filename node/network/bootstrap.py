"""Finding the first peers, and finding them again: gateways, peers of the last run, nodes that the LAN announces."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable

from node.addresses import Address, parse
from node.board import Board
from node.errors import PeerError, PeerUnreachable
from node.network.backoff import Allowance, Backoff
from node.network.knowledge import Knowledge

log = logging.getLogger(__name__)

KEEP_EVERY_S = 5.0
"""How often each gateway is greeted: this is how its restart is noticed."""
KEEP_PER_MEMBER_S = 0.008
"""Longer in a large cluster, so that a gateway of a thousand nodes answers about a hundred hellos a second."""
FIRST_S = 0.4
MOST_S = 6.0
MOST_UNTRUSTED_S = 30.0
REMEMBERED_EVERY_S = 5.0
GREET_S = 4.0
CANDIDATES_AT_ONCE = 20
CANDIDATE_EVERY_S = 2.0
CANDIDATES_WAITING = 256


class Bootstrap:
    """Greets whoever may lead into the cluster. Never gives up."""

    def __init__(self, knowledge: Knowledge, board: Board, rng: random.Random) -> None:
        self._knowledge = knowledge
        self._board = board
        self._rng = rng
        self._candidates: asyncio.Queue[Address] = asyncio.Queue(CANDIDATES_WAITING)
        self._allowance = Allowance(burst=CANDIDATES_AT_ONCE, every_s=CANDIDATE_EVERY_S)

    async def keep_gateway(self, text: str) -> None:
        """Stay in touch with the gateway at an address, until cancelled; ends if it is this node itself."""
        address = parse(text)
        knowledge = self._knowledge
        backoff = Backoff(self._rng, first_s=FIRST_S, most_s=MOST_S)
        told: set[str] = set()
        joined = ""
        while True:
            try:
                peer_id = await knowledge.greet(address, timeout_s=GREET_S)
            except PeerError as error:
                delay_s = backoff.failed()
                if not isinstance(error, PeerUnreachable):
                    delay_s *= MOST_UNTRUSTED_S / MOST_S
                if _kind(error) not in told:
                    told.add(_kind(error))
                    self._tell(
                        "gateway.unreachable",
                        f"gateway {text}: {error}; trying again until it answers",
                        level="warning",
                    )
                joined = ""
                await asyncio.sleep(delay_s)
                continue
            backoff.succeeded()
            told.clear()
            if peer_id == knowledge.own_id:
                log.info("gateway.self address=%s", text)
                return
            if joined != peer_id:
                joined = peer_id
                self._tell("gateway.joined", f"joined through gateway {text} ({peer_id})")
                knowledge.kick()
            pause_s = max(KEEP_EVERY_S, KEEP_PER_MEMBER_S * knowledge.membership.count())
            await asyncio.sleep(pause_s * self._rng.uniform(0.8, 1.2))

    async def try_remembered(self, remembered: Callable[[], dict[str, list[str]]]) -> None:
        """While no peer answers, try those of the last run, until cancelled."""
        while True:
            if self._knowledge.membership.reachable_count() == 0:
                for peer_id, addresses in list(remembered().items()):
                    await self._try(peer_id, addresses)
            await asyncio.sleep(REMEMBERED_EVERY_S * self._rng.uniform(0.8, 1.5))

    async def _try(self, peer_id: str, addresses: list[str]) -> None:
        if peer_id == self._knowledge.own_id or not addresses:
            return
        self._knowledge.suggest(peer_id, addresses)
        try:
            await self._knowledge.greet(peer_id, timeout_s=GREET_S)
        except PeerError as error:
            log.debug("remembered.silent peer=%s reason=%s", peer_id, error)

    def suggest(self, address: Address) -> None:
        """Somebody on the LAN says that a peer is at this address. A hint only, and dropped when there are too many."""
        if address.peer_id is None or self._knowledge.membership.is_reachable(address.peer_id):
            return
        if self._candidates.full():
            log.debug("candidate.dropped address=%s reason=too many", address)
            return
        self._candidates.put_nowait(address)

    async def try_candidates(self) -> None:
        """Greet suggested peers, a bounded number of new ones a minute, until cancelled."""
        while True:
            address = await self._candidates.get()
            peer_id = address.peer_id or ""
            if self._knowledge.membership.is_reachable(peer_id):
                continue
            await asyncio.sleep(self._allowance.wait_s(time.monotonic()))
            try:
                await self._knowledge.greet(address, timeout_s=GREET_S)
            except PeerError as error:
                log.debug("candidate.refused address=%s reason=%s", address, error)
                continue
            log.info("lan.joined address=%s", address)
            self._knowledge.kick()

    def _tell(self, name: str, text: str, *, level: str = "info") -> None:
        log.log(logging.WARNING if level == "warning" else logging.INFO, "%s %s", name, text)
        self._board.happened(name, text, level=level)


def _kind(error: PeerError) -> str:
    return f"{type(error).__name__}: {error.message}"
