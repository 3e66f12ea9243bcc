"""Where a stream is, in a few numbers: JSON that any number of workers can go on from.

A pass over the dataset is told by generations. A generation is a time in which the number of workers and their speeds
stayed the same: what was left of the pass was shared out among them, and each of them took so many rows of its share.
That says which rows are used, without a list of them. Going on with another number of workers begins a new generation.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from node.errors import ConfigError
from node.streaming.config import Shuffle, Unit
from node.streaming.partition import Strategy
from node.wire import UNDECODABLE

FORMAT = 1


class Generation(msgspec.Struct, frozen=True):
    """How many rows each worker took of its share; `speeds` are those that the shares were made by, if any."""

    counts: tuple[int, ...]
    speeds: tuple[float, ...] | None = None

    @property
    def world_size(self) -> int:
        """How many workers there were."""
        return len(self.counts)


class Pass(msgspec.Struct, frozen=True):
    """One epoch as far as it is used: by earlier generations, and `count` rows of its share by the present one."""

    epoch: int
    generations: tuple[Generation, ...] = ()
    count: int = 0


class StreamState(msgspec.Struct, frozen=True, kw_only=True):
    """A worker's state, or (`rank` None) that of all workers together.

    `passes` are the epochs that are not over, oldest first; there is a second one where some workers have begun the
    next epoch before others were through. `before`: how many rows the worker's share of the epoch before had.
    """

    format: int = FORMAT
    dataset: str
    seed: int | None
    shuffle: Shuffle
    unit: Unit
    strategy: Strategy
    world_size: int
    rank: int | None
    passes: tuple[Pass, ...]
    speeds: tuple[float, ...] | None = None
    before: int = 0

    def to_json(self) -> bytes:
        """The state as JSON."""
        return msgspec.json.encode(self)


def from_json(text: bytes | str) -> StreamState:
    """The state that a JSON text holds; raises `ConfigError`."""
    try:
        state = msgspec.json.decode(text, type=StreamState)
    except UNDECODABLE as error:
        raise ConfigError(f"this is not the state of a stream: {error}") from error
    return _checked(state)


def from_dict(table: object) -> StreamState:
    """The state in a dictionary that `to_dict` made; raises `ConfigError`."""
    try:
        state = msgspec.convert(table, StreamState)
    except msgspec.ValidationError as error:
        raise ConfigError(f"this is not the state of a stream: {error}") from error
    return _checked(state)


def to_dict(state: StreamState) -> dict[str, object]:
    """The state in plain types, as JSON would have it."""
    plain: dict[str, object] = msgspec.to_builtins(state)
    return plain


def merge(states: Sequence[StreamState], *, speeds: Sequence[float] | None = None) -> StreamState:
    """The state of all workers together, from that of each of them; raises `ConfigError` where one is missing.

    `speeds`: rows per second of the workers that are going to go on, for the adaptive strategy.
    """
    if not states:
        raise ConfigError("there is no state to merge")
    first = states[0]
    by_rank = {state.rank: state for state in states}
    missing = [rank for rank in range(first.world_size) if rank not in by_rank]
    if missing:
        raise ConfigError(f"the state of worker {missing[0]} of {first.world_size} is missing")
    if len(by_rank) != len(states):
        raise ConfigError("two states are of the same worker")
    for state in states:
        for name in ("dataset", "seed", "shuffle", "unit", "strategy", "world_size", "speeds"):
            if getattr(state, name) != getattr(first, name):
                raise ConfigError(f"the workers' states are of different streams: their {name} differs")
    oldest = min(state.passes[0].epoch for state in states)
    newest = max(state.passes[0].epoch for state in states)
    if newest > oldest + 1:
        raise ConfigError(f"one worker is in epoch {oldest}, another in epoch {newest}: they are not of one moment")
    ordered = [by_rank[rank] for rank in range(first.world_size)]
    slowest = next(state for state in ordered if state.passes[0].epoch == oldest)
    passes = []
    for place, one in enumerate(slowest.passes):
        counts = [_count(state, one.epoch) for state in ordered]
        passes.append(Pass(one.epoch, (*one.generations, Generation(tuple(counts), first.speeds)), 0))
        if place == 0 and newest > oldest and len(slowest.passes) == 1:
            ahead = [state.passes[0].count if state.passes[0].epoch == newest else 0 for state in ordered]
            passes.append(Pass(newest, (Generation(tuple(ahead), first.speeds),), 0))
    return StreamState(
        dataset=first.dataset,
        seed=first.seed,
        shuffle=first.shuffle,
        unit=first.unit,
        strategy=first.strategy,
        world_size=first.world_size,
        rank=None,
        passes=tuple(passes),
        speeds=tuple(speeds) if speeds is not None else None,
    )


def _count(state: StreamState, epoch: int) -> int:
    """How many rows of its share of an epoch a worker has used."""
    if state.passes[0].epoch > epoch:
        return state.before
    return next(one.count for one in state.passes if one.epoch == epoch)


def _checked(state: StreamState) -> StreamState:
    if state.format != FORMAT:
        raise ConfigError(f"the state has format {state.format}, this version reads {FORMAT}")
    if not state.passes or state.world_size < 1:
        raise ConfigError("the state of the stream has no pass")
    counts = [one.count for one in state.passes]
    counts += [count for one in state.passes for generation in one.generations for count in generation.counts]
    if min(counts) < 0:
        raise ConfigError("the state of the stream has a negative count")
    return state
