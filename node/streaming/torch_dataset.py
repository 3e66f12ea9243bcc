"""The streaming loader as a PyTorch dataset, with the state that torchdata's stateful loader saves and restores."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info

from node.streaming.config import StreamingConfig
from node.streaming.loader import StreamingLoader
from node.streaming.source import RowSource, Source
from node.streaming.state import from_dict, to_dict
from node.streaming.walk import Labels


class StreamingDataset(IterableDataset[dict[str, Any]]):  # type: ignore[misc, unused-ignore]
    """What is left of the present epoch, as dictionaries of tensors; iterating again is the next epoch.

    `open_source` makes the source: each process of a `DataLoader` has its own, and takes its part of the rank's share.
    With a batch size in the configuration, use `DataLoader(dataset, batch_size=None)`. Where that has processes which
    end with each epoch, `set_epoch` tells them the next one. `state_dict` is of the process that calls it; `merge` of
    the states of all ranks and processes is one that any number can go on from.
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
        self._place = (-1, -1)
        self._epoch = 0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for row in self._own():
            yield {name: _tensor(value) for name, value in row.items()}

    def __getstate__(self) -> dict[str, Any]:
        """Threads and open files stay in the process that made them."""
        return {**self.__dict__, "_loader": None}

    def state_dict(self) -> dict[str, Any]:
        """Where this process is: plain and small."""
        return to_dict(self._own().state())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state of this process, or from a merged one."""
        self._own().restore(from_dict(state))

    def set_epoch(self, epoch: int) -> None:
        """Begin this epoch, unless the dataset is in it already."""
        self._epoch = epoch
        if self._loader is not None and self._loader.epoch != epoch:
            self._loader.reset(epoch)

    def close(self) -> None:
        """Fetch nothing more in this process."""
        if self._loader is not None:
            self._loader.close()
            self._loader = None

    def _own(self) -> StreamingLoader:
        info = get_worker_info()
        place = (info.id, info.num_workers) if info is not None else (0, 1)
        if self._loader is None or place != self._place:
            self.close()
            number, processes = self._place = place
            config = self._config
            own = msgspec.structs.replace(
                config, world_size=config.world_size * processes, rank=config.rank * processes + number
            )
            self._loader = StreamingLoader(self._open_source(), own, labels=self._labels)
            self._loader.reset(self._epoch)
        return self._loader


def _tensor(value: Any) -> Any:
    return torch.from_numpy(value) if isinstance(value, np.ndarray) else torch.as_tensor(value)
