"""What the cluster could give a job now: which workers match, why others do not, what they cost, who has the data.

A worker decides by itself when it is asked; this says beforehand what it would say, from what it shows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from hypha_tui.store import text
from node import mounts
from node.jobspec import JobSpec, Price
from node.schema import nearest
from node.storeurl import first_outside, is_store_url
from node.views import DatasetView, PeerView
from node.wire import BindMount, Resources

TRAIN: Final = "train"
AGGREGATE: Final = "aggregate"
INFER: Final = "inference"
_SINGULAR: Final = {
    "answer": "answers", "are": "is", "ask": "asks", "fetch": "fetches", "have": "has", "lack": "lacks",
    "take": "takes",
}  # fmt: skip
_AMOUNTS: Final = (
    ("gpu", "GPU memory", "GB"),
    ("cpu", "cores", "cores"),
    ("memory", "memory", "GB"),
    ("storage", "disk", "GB"),
)


@dataclass(frozen=True, slots=True)
class Need:
    """What a job asks of each of `count` workers."""

    what: str
    executor: str
    resources: Resources
    price: Price
    count: int
    mounts: Sequence[BindMount] = ()
    stores: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Found:
    """Who could serve a need now, the cheapest first, and why the others could not: how many, and the reason."""

    need: Need
    peers: tuple[PeerView, ...]
    reasons: tuple[tuple[int, str], ...]

    @property
    def is_enough(self) -> bool:
        """Whether all that are wanted can be had."""
        return len(self.peers) >= self.need.count

    @property
    def price_per_h(self) -> float:
        """What those that would be taken ask in an hour."""
        return sum(peer.price or 0.0 for peer in self.peers[: self.need.count])


@dataclass(frozen=True, slots=True)
class Matching:
    """A job against the cluster. A training job needs a parameter server too."""

    workers: Found
    server: Found | None
    min_workers: int

    @property
    def price_per_h(self) -> float:
        """What the job would cost an hour."""
        return self.workers.price_per_h + (self.server.price_per_h if self.server is not None else 0.0)

    @property
    def tone(self) -> str:
        """`ok`: all that are wanted are there; `late`: the job starts with fewer; `lost`: it waits."""
        if self.server is not None and not self.server.is_enough:
            return "lost"
        if self.workers.is_enough:
            return "ok"
        return "late" if len(self.workers.peers) >= self.min_workers else "lost"

    @property
    def sentence(self) -> str:
        """`44 workers match, 16 needed, 18.70/h`, or why there are too few."""
        words = _counted(self.workers)
        if self.server is not None and not self.server.is_enough:
            reasons = _reasons(self.server)
            return f"no parameter server can be had{': ' + reasons if reasons else ''}; {words}"
        if not self.workers.is_enough:
            reasons = _reasons(self.workers)
            return f"{words}{': ' + reasons if reasons else ''}"
        return f"{words}, {self.price_per_h:.2f}/h" if self.price_per_h else words


def matching(spec: JobSpec, peers: Iterable[PeerView]) -> Matching:
    """What `peers` could do for the job now."""
    workers = [peer for peer in peers if "worker" in peer.roles]
    role = INFER if spec.is_inference else TRAIN
    count = spec.num_workers + spec.spare_workers
    need = Need(
        "worker",
        _executor(role, spec.worker_executor),
        spec.worker,
        spec.worker_price,
        count,
        spec.bind_mounts,
        spec.stores(),
    )
    if spec.is_inference:
        return Matching(_find(need, workers), None, 1)
    server_need = Need(
        "parameter server",
        _executor(AGGREGATE, spec.parameter_server_executor),
        spec.parameter_server,
        spec.parameter_server_price,
        1,
        spec.bind_mounts,
    )
    found, server = _find(need, workers), _find(server_need, workers)
    return Matching(_beside(found, server), server, spec.min_workers)


def datasets_line(spec: JobSpec, known: Sequence[DatasetView]) -> tuple[str, str]:
    """Who has the data, in words, and the tone."""
    lines = [_dataset(name, known) for name in (spec.dataset, spec.validation_dataset) if name]
    tone = "late" if any(tone == "late" for _, tone in lines) else "ok"
    return "; ".join(words for words, _ in lines), tone


def _executor(role: str, name: str) -> str:
    return f"{role}/{name}" if name else role


def _find(need: Need, workers: Sequence[PeerView]) -> Found:
    matches: list[PeerView] = []
    reasons: Counter[str] = Counter()
    for peer in workers:
        reason = objection(need, peer)
        if reason:
            reasons[reason] += 1
        else:
            matches.append(peer)
    matches.sort(key=lambda peer: (peer.price or 0.0, peer.name, peer.id))
    ranked = sorted(reasons.items(), key=lambda item: (-item[1], item[0]))
    return Found(need, tuple(matches), tuple((count, reason) for reason, count in ranked))


def _beside(found: Found, server: Found) -> Found:
    """The workers that are left when the parameter server sits on one of them that cannot carry both."""
    others = {peer.id for peer in found.peers}
    if not server.peers or len(found.peers) > found.need.count or any(peer.id not in others for peer in server.peers):
        return found
    both = _sum(found.need.resources, server.need.resources)
    if any(peer.free is None or not _shortage(both, peer.free) for peer in server.peers):
        return found
    taken = server.peers[0].id
    left = tuple(peer for peer in found.peers if peer.id != taken)
    return Found(found.need, left, (*found.reasons, (1, "would be the parameter server")))


def objection(need: Need, peer: PeerView) -> str:
    """Why a worker would not be taken; empty if it would. What it does not show is not held against it."""
    if peer.state != "up":
        return "cannot be reached"
    if peer.cordoned or peer.draining:
        return "take no new work (cordoned)"
    if peer.executors and not any(_runs(one, need.executor) for one in peer.executors):
        return f"have no executor {need.executor}"
    lacking = _shortage(need.resources, peer.total) if peer.total is not None else ""
    if lacking:
        return f"lack {lacking}"
    for name in ("mounts", "stores"):
        if getattr(need, name) and getattr(peer, name) is None and peer.executors:
            return f"are too old to know {name}"
    unmountable = mounts.objection(need.mounts, peer.mounts) if peer.mounts is not None else ""
    if unmountable:
        return f"have {unmountable}"
    forbidden = first_outside(need.stores, peer.stores) if peer.stores is not None else ""
    if forbidden:
        return f"fetch nothing from {forbidden}"
    if need.price.bid < peer.floor:
        return f"answer no bid of {need.price.bid:g}"
    if peer.price is not None and peer.price > need.price.limit:
        return f"ask more than {need.price.limit:.2f}/h"
    busy = _shortage(need.resources, peer.free) if peer.free is not None else ""
    return "are busy" if busy else ""


def _runs(has: str, wanted: str) -> bool:
    return has == wanted or ("/" not in wanted and has.split("/", 1)[0] == wanted)


def _shortage(wanted: Resources, has: Resources) -> str:
    for name, words, unit in _AMOUNTS:
        amount = getattr(wanted, name)
        if amount > getattr(has, name) + 1e-9:
            return f"{words} ({amount:g}{'' if unit == words else ' ' + unit} asked)"
    return ""


def _sum(one: Resources, other: Resources) -> Resources:
    return Resources(**{name: getattr(one, name) + getattr(other, name) for name, _, _ in _AMOUNTS})


def _counted(found: Found) -> str:
    have, need = len(found.peers), found.need.count
    return f"{have:,} {'worker matches' if have == 1 else 'workers match'}, {need:,} needed"


def _reasons(found: Found) -> str:
    return ", ".join(f"{count:,} {_agreed(reason, count)}" for count, reason in found.reasons[:3])


def _agreed(reason: str, count: int) -> str:
    """`30 lack ..`, but `1 lacks ..`."""
    if count != 1:
        return reason
    verb, _, rest = reason.partition(" ")
    return f"{_SINGULAR.get(verb, verb)} {rest}"


def _dataset(name: str, known: Sequence[DatasetView]) -> tuple[str, str]:
    if is_store_url(name):
        return f"{name}: the scheduler and the workers read it themselves", "ok"
    found = [view for view in known if view.name == name]
    if not found:
        close = nearest(name, sorted({view.name for view in known}))
        hint = f"; did you mean {close}?" if close else ""
        return f"nobody announces {name!r} now; the job would wait for it{hint}", "late"
    versions = {view.digest for view in found}
    if len(versions) > 1:
        return f"{name}: {len(found)} providers disagree, there are {len(versions)} versions of it", "late"
    one = found[0]
    who = "1 provider" if len(found) == 1 else f"{len(found)} providers"
    return f"{name}: {one.slices:,} slices, {one.rows:,} rows, {text.size(one.size_bytes)}, {who}", "ok"
