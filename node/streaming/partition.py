"""Who gets which row or slice: the partition strategies, as pure functions of ids, order and the number of workers.

Units (rows or slices) come in the order of the epoch. Every unit has exactly one owner, whatever the strategy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from node.errors import ConfigError
from node.streaming.hashing import Ids, mixed

Owners: TypeAlias = "NDArray[np.int64]"

PATTERN: Final = 1024
"""How finely unequal shares are dealt out: the units of a round of this many go by each worker's speed."""


class _Strategy(msgspec.Struct, frozen=True, tag_field="strategy", forbid_unknown_fields=True):
    pass


class RoundRobin(_Strategy, frozen=True, tag="round-robin"):
    """Units are dealt out one by one."""


class Contiguous(_Strategy, frozen=True, tag="contiguous"):
    """One block for each worker, in the order of the epoch; their sizes differ by one unit at most."""


class HashBased(_Strategy, frozen=True, tag="hash"):
    """A unit's id decides its partition, and partitions are dealt out: the same unit goes to the same worker in every
    epoch."""

    num_partitions: int = 64
    hash_seed: int = 0


class RangeBased(_Strategy, frozen=True, tag="range"):
    """Ranges of ids, one `(start, end)` for each worker in turn, `end` not included. They must hold every unit once."""

    ranges: tuple[tuple[int, int], ...]


class Stratified(_Strategy, frozen=True, tag="stratified"):
    """The units of each class are dealt out one by one, so that every worker sees the classes in equal parts."""

    num_classes: int


class Adaptive(_Strategy, frozen=True, tag="adaptive"):
    """As `base` while the workers are about equally fast; once their speeds lie further apart than
    `rebalance_threshold` (the range over the mean), in proportion to their speeds."""

    base: RoundRobin | Contiguous | HashBased | RangeBased | Stratified = RoundRobin()
    rebalance_threshold: float = 0.2


Strategy = RoundRobin | Contiguous | HashBased | RangeBased | Stratified | Adaptive


def divide(
    strategy: Strategy,
    ids: Ids | Sequence[int],
    world: int,
    *,
    labels: NDArray[np.integer] | None = None,
    speeds: Sequence[float] | None = None,
) -> Owners:
    """The owner, from 0 to `world` less one, of each unit. `ids` are in the order of the epoch."""
    units = np.asarray(ids, dtype=np.int64)
    return Divider(strategy, world, len(units), labels=labels, speeds=speeds).next(units)


def spread(speeds: Sequence[float]) -> float:
    """How far apart speeds are: their range over their mean."""
    mean = sum(speeds) / len(speeds) if speeds else 0.0
    return (max(speeds) - min(speeds)) / mean if mean > 0 else 0.0


def check(strategy: Strategy, world: int, units: int, labels: NDArray[np.integer] | None) -> None:
    """Raise `ConfigError` unless the strategy can deal out so many units among so many workers."""
    match strategy:
        case HashBased(num_partitions=count) if count < world:
            raise ConfigError(f"{count} partitions for {world} workers", hint="num_partitions must be at least as many")
        case RangeBased(ranges=ranges):
            _check_ranges(ranges, world, units)
        case Stratified(num_classes=classes):
            if classes < 1:
                raise ConfigError(f"num_classes is {classes}", hint="it must be at least 1")
            if labels is None:
                raise ConfigError("stratified needs the label of each unit", hint="give labels=")
            if len(labels) != units:
                raise ConfigError(f"there are {len(labels):,} labels and {units:,} units")
            if units and not 0 <= int(labels.min()) <= int(labels.max()) < classes:
                raise ConfigError(f"labels go from {labels.min()} to {labels.max()}, num_classes is {classes}")
        case Adaptive(base=base, rebalance_threshold=threshold):
            if not threshold >= 0:
                raise ConfigError(f"rebalance_threshold is {threshold}", hint="it must not be negative")
            check(base, world, units, labels)


class Divider:
    """Deals out units piece by piece: what `divide` answers for all of them, `next` answers for those that follow.

    `units`: how many there are in all. The labels are looked up by id.
    """

    def __init__(
        self,
        strategy: Strategy,
        world: int,
        units: int,
        *,
        labels: NDArray[np.integer] | None = None,
        speeds: Sequence[float] | None = None,
    ) -> None:
        if isinstance(strategy, Adaptive):
            is_uneven = speeds is not None and spread(speeds) > strategy.rebalance_threshold
            self._pattern = _pattern(speeds) if is_uneven and speeds is not None else None
            strategy = strategy.base
        else:
            self._pattern = None
        self._strategy = strategy
        self._world = world
        self._units = units
        self._labels = labels
        self._at = 0
        self._of_class = np.arange(strategy.num_classes) if isinstance(strategy, Stratified) else None

    def next(self, ids: Ids) -> Owners:
        """The owners of the next units."""
        places = np.arange(self._at, self._at + len(ids))
        self._at += len(ids)
        if self._pattern is not None:
            return self._pattern[places % PATTERN]
        match self._strategy:
            case RoundRobin():
                return places % self._world
            case Contiguous():
                ends = np.array([self._units * (rank + 1) // self._world for rank in range(self._world)])
                return np.searchsorted(ends, places, side="right")
            case HashBased(num_partitions=count, hash_seed=seed):
                partitions = mixed(ids, f"hypha partition {seed}") % np.uint64(count)
                return partitions.astype(np.int64) % self._world
            case RangeBased(ranges=ranges):
                order = sorted(range(len(ranges)), key=lambda n: ranges[n])
                found = np.searchsorted([ranges[n][1] for n in order], ids, side="right")
                return np.array(order)[found] % self._world
            case _:
                return self._by_class(ids)

    def tally(self, first: int, count: int) -> Owners:
        """How many units each worker gets of the next ones, whose ids are `count` from `first` on in any order."""
        at, of_class = self._at, None if self._of_class is None else self._of_class.copy()
        counts = np.bincount(self.next(np.arange(first, first + count)), minlength=self._world)
        self._at, self._of_class = at, of_class
        return counts

    def skip(self, first: int, count: int) -> None:
        """Deal out these units, to whomever."""
        if self._of_class is not None:
            self.next(np.arange(first, first + count))
        else:
            self._at += count

    def _by_class(self, ids: Ids) -> Owners:
        assert self._labels is not None and self._of_class is not None
        owners: Owners = np.empty(len(ids), dtype=np.int64)
        classes = self._labels[ids]
        for class_ in np.unique(classes):
            here = np.flatnonzero(classes == class_)
            owners[here] = (self._of_class[class_] + np.arange(len(here))) % self._world
            self._of_class[class_] += len(here)
        return owners


def _pattern(speeds: Sequence[float]) -> Owners:
    """The owners of `PATTERN` units in a row, each worker's evenly spread, as many as its speed earns it."""
    total = sum(speeds)
    exact = [PATTERN * speed / total for speed in speeds]
    quotas = [int(share) for share in exact]
    for rank in sorted(range(len(exact)), key=lambda n: (quotas[n] - exact[n], n))[: PATTERN - sum(quotas)]:
        quotas[rank] += 1
    ranks: Owners = np.repeat(np.arange(len(quotas)), quotas)
    moments = np.concatenate([(np.arange(quota) + 0.5) / quota for quota in quotas if quota])
    return ranks[np.argsort(moments, kind="stable")]


def _check_ranges(ranges: Sequence[tuple[int, int]], world: int, units: int) -> None:
    if len(ranges) < world:
        raise ConfigError(f"there are {len(ranges)} ranges for {world} workers")
    at = 0
    for start, end in sorted(ranges):
        if start != at or end < start:
            what = "are in two ranges" if start < at else "are in no range"
            raise ConfigError(f"units {min(start, at):,} to {max(start, at):,} {what}")
        at = end
    if at != units:
        raise ConfigError(f"the ranges end at {at:,}, there are {units:,} units")
