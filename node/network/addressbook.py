"""Where peers can be reached: what their records say, what worked last, what turned out to be somebody else. Pure."""

from __future__ import annotations

from node.addresses import Address, parse
from node.errors import ConfigError

MAX_ADDRESSES = 16
WRONG_FOR_S = 300.0

Place = tuple[str, int]


class AddressBook:
    """Addresses by peer id."""

    def __init__(self) -> None:
        self._addresses: dict[str, list[Address]] = {}
        self._dialled: dict[str, Address] = {}
        self._worked: dict[str, Place] = {}
        self._wrong: dict[str, dict[Place, float]] = {}

    def set(self, peer_id: str, addresses: list[str]) -> None:
        """Replace a peer's addresses; those that cannot be read are left out."""
        parsed = [address for text in addresses[:MAX_ADDRESSES] if (address := _readable(text)) is not None]
        self._addresses[peer_id] = [address for address in parsed if address.peer_id in (None, peer_id)]

    def dialled(self, peer_id: str, address: Address) -> None:
        """The peer is known to us under this address, whatever its record says."""
        self._dialled[peer_id] = address

    def drop(self, peer_id: str) -> None:
        """Forget a peer, but for the address it was dialled at."""
        self._addresses.pop(peer_id, None)
        self._worked.pop(peer_id, None)
        self._wrong.pop(peer_id, None)

    def of(self, peer_id: str) -> list[Address]:
        """Where to try a peer."""
        dialled = self._dialled.get(peer_id)
        return [*self._addresses.get(peer_id, []), *([dialled] if dialled else [])]

    def order(self, peer_id: str, places: list[Place], now: float) -> list[Place]:
        """Resolved places of a peer: the one that worked last comes first, those of somebody else not at all."""
        wrong = self._wrong.get(peer_id, {})
        left = [place for place in dict.fromkeys(places) if wrong.get(place, now) <= now]
        worked = self._worked.get(peer_id)
        return sorted(left, key=lambda place: place != worked)

    def worked(self, peer_id: str, place: Place) -> None:
        """The peer has answered there."""
        self._worked[peer_id] = place

    def is_someone_else(self, peer_id: str, place: Place, now: float) -> None:
        """Another peer, or none of ours, has answered there: not tried for this peer for a while."""
        self._wrong.setdefault(peer_id, {})[place] = now + WRONG_FOR_S
        if self._worked.get(peer_id) == place:
            del self._worked[peer_id]


def _readable(text: str) -> Address | None:
    try:
        return parse(text)
    except ConfigError:
        return None
