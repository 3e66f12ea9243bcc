"""How a stream is read: by how many workers, in which order, in which parts."""

from __future__ import annotations

from typing import Literal

import msgspec

from node.errors import ConfigError
from node.streaming.partition import RoundRobin, Strategy

Shuffle = Literal["none", "slices", "rows"]
Unit = Literal["slices", "rows"]


class StreamingConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A stream's settings; `validate` says what is wrong with them.

    `shuffle_seed`: None keeps the order of the dataset. `shuffle`: what a seed shuffles, the slices, or also the rows
    within each. `unit`: what the strategy deals out. By slices a worker downloads its own slices only; by rows each
    worker reads every slice. `batch_size`: 0 yields single rows. `prefetch_slices`: how many slices are fetched ahead.
    `checkpoint_every`: after so many samples the loader hands its state to `on_checkpoint`; 0 never.
    """

    world_size: int = 1
    rank: int = 0
    strategy: Strategy = RoundRobin()
    unit: Unit = "slices"
    shuffle_seed: int | None = None
    shuffle: Shuffle = "rows"
    columns: tuple[str, ...] = ()
    batch_size: int = 0
    prefetch_slices: int = 2
    checkpoint_every: int = 0

    def validate(self) -> None:
        """Raise `ConfigError` for a setting that cannot be."""
        if self.world_size < 1:
            raise ConfigError(f"world_size is {self.world_size}", hint="it must be at least 1")
        if not 0 <= self.rank < self.world_size:
            raise ConfigError(f"rank is {self.rank}", hint=f"it must be from 0 to {self.world_size - 1}")
        for name in ("batch_size", "prefetch_slices", "checkpoint_every"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} is {getattr(self, name)}", hint="it must not be negative")
