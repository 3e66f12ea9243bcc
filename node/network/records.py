"""Signed records that this node holds: peers, providers, advertisements. The highest `seq` of a key wins.

Pure: time comes in as monotonic seconds, signatures are checked by the caller.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from node.identity.caller import Caller
from node.wire import Advertisement, Passed, PeerRecord, ProviderRecord, Record, Signed

R = TypeVar("R", PeerRecord, ProviderRecord, Advertisement)

MAX_TTL_S = {PeerRecord: 3600.0, ProviderRecord: 3600.0, Advertisement: 120.0}
MIN_REMAINING_S = 0.5
"""A record with less life than this is not taken: two nodes must not keep one alive by handing it to and fro."""
MEMORY_S = 7200.0
MAX_GONE = 20_000
MAX_RECORDS = 20_000
MAX_PER_ORIGIN = 256
MAX_SENT = 1_500
"""Records in one message; what does not fit goes with the next exchange."""
MAX_SENT_BYTES = 3 << 20


class News(enum.Enum):
    """What a record is to us."""

    NEW = "new"
    NEWER = "newer"
    KNOWN = "known"
    EXPIRED = "expired"
    TOO_MANY = "too many"

    def __init__(self, text: str) -> None:
        self.is_news = text in ("new", "newer")
        """Whether we hold it since now, and others may want it."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A record whose signature has been checked: `origin` signed it and it speaks of nobody else."""

    record: Record
    signed: Signed
    origin: Caller
    remaining_s: float
    hops: int = 0

    @property
    def key(self) -> str:
        """Which record it is."""
        return key_of(self.record)


@dataclass(frozen=True, slots=True)
class Held:
    """A record and when, by our clock, it ends."""

    opened: Opened
    ends_at: float
    size_bytes: int

    def passed(self, now: float) -> Passed:
        """The record as it goes to others."""
        return Passed(signed=self.opened.signed, remaining_s=self.ends_at - now, hops=self.opened.hops + 1)


def key_of(record: Record) -> str:
    """The key that a record replaces earlier ones under."""
    if isinstance(record, PeerRecord):
        return f"peer:{record.peer_id}"
    if isinstance(record, ProviderRecord):
        return f"provider:{record.peer_id}:{record.dataset}"
    return f"advert:{record.peer_id}:{record.advert_id}"


class Records:
    """All records of one node, with their ends."""

    def __init__(self) -> None:
        self._held: dict[str, Held] = {}
        self._per_origin: Counter[str] = Counter()
        self._gone: dict[str, tuple[int, float]] = {}

    def judge(self, record: Record, remaining_s: float) -> News:
        """What `record` would be to us, before the work of checking its signature."""
        key = key_of(record)
        held = self._held.get(key)
        if held is not None:
            return News.NEWER if record.seq > held.opened.record.seq else News.KNOWN
        if remaining_s < MIN_REMAINING_S or record.seq <= self._gone.get(key, (-1, 0.0))[0]:
            return News.EXPIRED
        if len(self._held) >= MAX_RECORDS or self._per_origin[record.peer_id] >= MAX_PER_ORIGIN:
            return News.TOO_MANY
        return News.NEW

    def merge(self, opened: Opened, now: float) -> News:
        """Take a record in, if it is news."""
        record = opened.record
        life_s = min(opened.remaining_s, record.ttl_s, MAX_TTL_S[type(record)])
        news = self.judge(record, life_s)
        if news.is_news:
            if news is News.NEW:
                self._per_origin[record.peer_id] += 1
            self._held[opened.key] = Held(opened, now + life_s, _size(opened.signed))
        return news

    def expire(self, now: float) -> list[Record]:
        """Drop what has ended and return it. A dropped record does not come back under the same `seq`."""
        ended = [(key, held) for key, held in self._held.items() if held.ends_at <= now]
        for key, held in ended:
            self._drop(key, held, now)
        if self._gone and (len(self._gone) > MAX_GONE or next(iter(self._gone.values()))[1] <= now):
            kept = [item for item in self._gone.items() if item[1][1] > now]
            self._gone = dict(kept[-MAX_GONE:])
        return [held.opened.record for _, held in ended]

    def drop_origin(self, peer_id: str, now: float) -> None:
        """Forget everything that a peer, no longer trusted, has signed."""
        for key, held in [item for item in self._held.items() if item[1].opened.record.peer_id == peer_id]:
            self._drop(key, held, now)

    def _drop(self, key: str, held: Held, now: float) -> None:
        record = held.opened.record
        del self._held[key]
        self._gone.pop(key, None)
        self._gone[key] = (record.seq, now + MEMORY_S)
        self._per_origin[record.peer_id] -= 1
        if not self._per_origin[record.peer_id]:
            del self._per_origin[record.peer_id]

    def get(self, key: str) -> Held | None:
        """The record with this key."""
        return self._held.get(key)

    def of(self, kind: type[R]) -> Iterator[R]:
        """All records of one kind."""
        for held in self._held.values():
            record = held.opened.record
            if isinstance(record, kind):
                yield record

    def all(self) -> list[Held]:
        """Everything held."""
        return list(self._held.values())

    def known(self) -> dict[str, int]:
        """Key and `seq` of everything, for an exchange."""
        return {key: held.opened.record.seq for key, held in self._held.items()}

    def compare(self, known: dict[str, int], now: float) -> tuple[list[Passed], list[str]]:
        """Records that the sender of `known` lacks, and the keys that we lack, both bounded."""
        lacking = (held for key, held in self._held.items() if known.get(key, -1) < held.opened.record.seq)
        wanted = [key for key, seq in known.items() if self._wants(key, seq)]
        return bounded(lacking, now), wanted[:MAX_SENT]

    def select(self, keys: Iterable[str], now: float) -> list[Passed]:
        """The records with these keys, as far as they are held, bounded."""
        return bounded((held for key in keys if (held := self._held.get(key)) is not None), now)

    def _wants(self, key: str, seq: int) -> bool:
        held = self._held.get(key)
        if held is not None:
            return held.opened.record.seq < seq
        return self._gone.get(key, (-1, 0.0))[0] < seq


def _size(signed: Signed) -> int:
    return len(signed.payload) + len(signed.signature) + sum(map(len, signed.chain)) + 64


def bounded(held: Iterable[Held], now: float) -> list[Passed]:
    """Records as they go to others, as many as fit into one message."""
    sent: list[Passed] = []
    room = MAX_SENT_BYTES
    for item in held:
        room -= item.size_bytes
        if room < 0 or len(sent) >= MAX_SENT:
            break
        if item.ends_at - now >= MIN_REMAINING_S:
            sent.append(item.passed(now))
    return sent
