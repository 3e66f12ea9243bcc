"""The streaming loader as a PyTorch dataset, with the state that torchdata's stateful loader saves and restores."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import torch
from msgspec.structs import replace
from torch.utils.data import IterableDataset, get_worker_info

from node.errors import ConfigError
from node.streaming.config import StreamingConfig
from node.streaming.loader import StreamingLoader
from node.streaming.source import RowSource, Source
from node.streaming.state import StreamState, from_dict, merge, to_dict
from node.streaming.walk import Labels

ITERATED: Final = "iterated"
"""The epoch, in a process's state, that its last iteration was of."""


class StreamingDataset(IterableDataset[dict[str, Any]]):  # type: ignore[misc, unused-ignore]
    """What is left of the present epoch, as dictionaries of tensors; iterating again is the next epoch.

    `open_source` makes the source: each process of a `DataLoader` has its own, and takes its part of the rank's share.
    With a batch size in the configuration, use `DataLoader(dataset, batch_size=None)`. Where that has processes which
    end with each epoch, `set_epoch` tells them the next one. `state_dict` is of the process that calls it.
    `merged_state` is one of all ranks and processes: given to `load_state_dict` before a loader is made, any number of
    them go on from it.
    """

    def __init__(
        self,
        open_source: Callable[[], Source | RowSource],
        config: StreamingConfig | None = None,
        *,
        labels: Labels | None = None,
    ) -> None:
        super().__init__()
        self._open_source = open_source
        self._config = config or StreamingConfig()
        self._labels = labels
        self._loader: StreamingLoader | None = None
        self._place = (-1, -1, -1)
        self._inherited: list[StreamingLoader] = []
        self._epoch = 0
        self._together: StreamState | None = None
        self._iterated = 0
        self._is_over = False

    def __iter__(self) -> Iterator[dict[str, Any]]:
        loader = self._own()
        if self._is_over:
            self._is_over = False
            return iter(())
        self._iterated = loader.epoch
        return _as_tensors(loader)

    def __getstate__(self) -> dict[str, Any]:
        """Threads and open files stay in the process that made them."""
        return {**self.__dict__, "_loader": None, "_inherited": []}

    def state_dict(self) -> dict[str, Any]:
        """Where this process is: plain and small."""
        return {**to_dict(self._own().state()), ITERATED: self._iterated}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state of this process, or from a merged one."""
        found = from_dict(state)
        self._together = found if found.rank is None else None
        loader = self._own()
        loader.restore(found)
        # torchdata asks a process once more that had come to its end before the others: that must not begin an epoch
        self._iterated = state.get(ITERATED, loader.epoch)
        self._is_over = get_worker_info() is not None and self._iterated < loader.epoch

    def set_epoch(self, epoch: int) -> None:
        """Begin this epoch, unless the dataset is in it already."""
        self._epoch = epoch
        if self._together is not None:
            begun = tuple(one for one in self._together.passes if one.epoch >= epoch)
            self._together = replace(self._together, passes=begun) if begun and begun[0].epoch == epoch else None
        if self._loader is not None and self._loader.epoch != epoch:
            self._loader.reset(epoch)

    def close(self) -> None:
        """Fetch nothing more in this process."""
        if self._loader is not None:
            self._loader.close()
            self._loader = None

    def _own(self) -> StreamingLoader:
        info = get_worker_info()
        number, processes = (info.id, info.num_workers) if info is not None else (0, 1)
        place = (os.getpid(), number, processes)
        if self._loader is not None and place[0] != self._place[0]:
            # a fork has none of its threads: it is left alone, and kept, as its end would miss them
            self._inherited.append(self._loader)
            self._loader = None
        if self._loader is None or place != self._place:
            self.close()
            self._place = place
            config = self._config
            own = replace(config, world_size=config.world_size * processes, rank=config.rank * processes + number)
            self._loader = StreamingLoader(self._open_source(), own, labels=self._labels)
            self._loader.reset(self._epoch)
            if self._together is not None:
                self._loader.restore(self._together)
        return self._loader


def merged_state(loaders: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The state of the whole stream from what `StatefulDataLoader.state_dict()` gave on each rank, for any number of
    ranks and processes; raises `ConfigError` where one is missing."""
    return to_dict(merge([from_dict(state) for loader in loaders for state in _states_in(loader)]))


def _states_in(loader: dict[str, Any]) -> Iterator[object]:
    """The states of the processes of one loader."""
    if loader.get("_steps_since_snapshot"):
        raise ConfigError("the loader's state is that of an earlier batch", hint="set snapshot_every_n_steps=1")
    snapshot = loader.get("_snapshot")
    processes = snapshot["_worker_snapshots"].values() if snapshot else [loader]
    for process in processes:
        yield process.get("dataset_state")


def _as_tensors(loader: StreamingLoader) -> Iterator[dict[str, Any]]:
    for row in loader:
        yield {name: _tensor(value) for name, value in row.items()}


def _tensor(value: Any) -> Any:
    return torch.from_numpy(value) if isinstance(value, np.ndarray) else torch.as_tensor(value)
