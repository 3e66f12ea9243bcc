"""Which worker a slice is meant for, where a job asks for a partition strategy. Pure.

The strategies are those of the streaming loader. They decide what a worker is given while it has slices of its own
left; one that is through helps whoever has the most left, so no slice waits for a worker that is slow or gone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from node.errors import JobError
from node.jobspec import PartitionSpec

if TYPE_CHECKING:
    from node.streaming.partition import Strategy

FIRST_COME = "first-come"


class Partition:
    """The owners of the slices of one job."""

    def __init__(self, spec: PartitionSpec) -> None:
        self._spec = spec
        self._made_for: tuple[Any, ...] = ()
        self._owners: Sequence[int] = ()
        self._speeds: tuple[float, ...] | None = None

    def owners(self, pass_: int, order: Sequence[int], speeds: Sequence[float]) -> Sequence[int] | None:
        """The rank of the worker that each slice is meant for, by the slice's number; None where whoever asks first is
        served first. `order` is that of the pass, `speeds` are those of the workers by rank, 0 where not known yet."""
        if self._spec.strategy == FIRST_COME:
            return None
        told = self._speeds_for(speeds)
        made_for = (pass_, len(order), len(speeds), told)
        if made_for != self._made_for:
            self._made_for = made_for
            self._owners = _divided(self._spec, order, len(speeds), told)
        return self._owners

    def _speeds_for(self, speeds: Sequence[float]) -> tuple[float, ...] | None:
        """The speeds to go by: the last ones, until a worker's is further from its than the threshold."""
        if self._spec.strategy != "adaptive" or not all(speeds):
            return None
        before = self._speeds
        if before is None or len(before) != len(speeds) or _furthest(speeds, before) > self._spec.rebalance_threshold:
            self._speeds = tuple(speeds)
        return self._speeds


def _furthest(speeds: Sequence[float], before: Sequence[float]) -> float:
    return max(abs(now / then - 1) for now, then in zip(speeds, before, strict=True))


def check(spec: PartitionSpec, slices: int) -> None:
    """Raise `JobError` where a dataset of so many slices cannot be shared out like this."""
    if spec.strategy == FIRST_COME:
        return
    at = 0
    for start, end in sorted(spec.ranges) if spec.strategy == "range" else []:
        if start != at or end < start:
            raise JobError(f"partition: the ranges do not have every slice once, see slice {min(start, at)}")
        at = end
    if spec.strategy == "range" and at != slices:
        raise JobError(f"partition: the ranges end at slice {at}, the dataset has {slices}")
    _strategy(spec)


def _divided(spec: PartitionSpec, order: Sequence[int], world: int, speeds: tuple[float, ...] | None) -> Sequence[int]:
    strategy = _strategy(spec)
    from node.streaming.partition import divide

    owners = divide(strategy, list(order), world, speeds=speeds).tolist()
    by_slice = [0] * len(order)
    for index, owner in zip(order, owners, strict=True):
        by_slice[index] = owner
    return by_slice


def _strategy(spec: PartitionSpec) -> Strategy:
    try:
        from node.streaming import partition
    except ImportError as error:
        raise JobError(
            "a partition needs NumPy where the scheduler runs", hint="pip install 'hypha-tui[train]' there"
        ) from error
    by_hash = partition.HashBased(num_partitions=spec.num_partitions, hash_seed=spec.hash_seed)
    match spec.strategy:
        case "contiguous":
            return partition.Contiguous()
        case "hash":
            return by_hash
        case "range":
            return partition.RangeBased(ranges=tuple(spec.ranges))
        case "adaptive":
            base: partition.RoundRobin | partition.Contiguous | partition.HashBased = partition.RoundRobin()
            if spec.base != "round-robin":
                base = by_hash if spec.base == "hash" else partition.Contiguous()
            return partition.Adaptive(base=base, rebalance_threshold=spec.rebalance_threshold)
        case _:
            return partition.RoundRobin()
