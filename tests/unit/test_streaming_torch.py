"""The loader as a PyTorch dataset, under PyTorch's own loader and torchdata's stateful one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from node.errors import ConfigError
from node.streaming import FolderSource, StreamingConfig
from node.streaming.torch_dataset import StreamingDataset, merged_state
from tests.unit.streaming_data import dataset

pytestmark = [
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create 3 worker processes:UserWarning"),
]

Loader = StatefulDataLoader[dict[str, torch.Tensor]]


def made(folder: Path, batch_size: int = 7, world_size: int = 1, rank: int = 0) -> StreamingDataset:
    config = StreamingConfig(batch_size=batch_size, shuffle_seed=3, world_size=world_size, rank=rank)
    return StreamingDataset(partial(FolderSource, folder), config)


def loader_of(own: StreamingDataset, processes: int, **more: Any) -> Loader:
    return StatefulDataLoader(own, batch_size=None, num_workers=processes, **more)


def batches_of(loader: Loader) -> Iterator[list[int]]:
    return (batch["id"].tolist() for batch in loader)


def rows_of(batches: list[list[int]]) -> list[int]:
    return [one for batch in batches for one in batch]


@pytest.mark.parametrize("processes", [0, 1, 2, 3])
def test_torchdatas_loader_saves_and_restores_it_in_mid_epoch(tmp_path: Path, processes: int) -> None:
    rows = dataset(tmp_path)
    whole = list(batches_of(loader_of(made(tmp_path), processes)))
    assert sorted(rows_of(whole)) == list(range(rows)), "no process repeats what another reads"
    loader = loader_of(made(tmp_path), processes)
    batches = batches_of(loader)
    head = [next(batches) for _ in range(9)]
    state = json.loads(json.dumps(loader.state_dict()))
    other = loader_of(made(tmp_path), processes)
    other.load_state_dict(state)
    assert head + list(batches_of(other)) == whole


@pytest.mark.parametrize("processes", [0, 2])
def test_whichever_batch_it_is_stopped_after_this_epoch_and_the_next_are_as_undisturbed(
    tmp_path: Path, processes: int
) -> None:
    """Also where one process has come to its end and another has not, and where the epoch is over (faults U56, U57)."""
    dataset(tmp_path, slices=3)
    keep: dict[str, Any] = {"persistent_workers": processes > 0}
    loader = loader_of(made(tmp_path, batch_size=4), processes, **keep)
    states, first = [], []
    for batch in batches_of(loader):
        first.append(batch)
        states.append(json.loads(json.dumps(loader.state_dict())))
    states.append(json.loads(json.dumps(loader.state_dict())))
    second = list(batches_of(loader))
    assert sorted(rows_of(first)) == sorted(rows_of(second)) and first != second
    for at in range(len(first) - 3, len(states)):
        other = loader_of(made(tmp_path, batch_size=4), processes, **keep)
        other.load_state_dict(states[at])
        left = first[at + 1 :] if at < len(first) else second
        assert list(batches_of(other)) == left
        early = loader_of(made(tmp_path, batch_size=4), processes, **keep)
        early.load_state_dict(states[at])
        early.load_state_dict(json.loads(json.dumps(early.state_dict())))
        assert list(batches_of(early)) == left, "a state that is taken again before the first batch is the same one"


@pytest.mark.parametrize(("before", "after"), [((1, 2), (3, 0)), ((2, 0), (1, 3)), ((1, 3), (2, 1))])
def test_any_number_of_ranks_and_processes_go_on_from_the_states_of_all(
    tmp_path: Path, before: tuple[int, int], after: tuple[int, int]
) -> None:
    rows = dataset(tmp_path, slices=24)
    seen, states = [], []
    for rank in range(before[0]):
        loader = loader_of(made(tmp_path, 7, before[0], rank), before[1])
        batches = batches_of(loader)
        seen += rows_of([next(batches) for _ in range(8)])
        states.append(loader.state_dict())
    together = json.loads(json.dumps(merged_state(states)))
    assert len(json.dumps(together)) < 500
    for rank in range(after[0]):
        own = made(tmp_path, 7, after[0], rank)
        own.load_state_dict(together)
        seen += rows_of(list(batches_of(loader_of(own, after[1]))))
    assert sorted(seen) == list(range(rows))
    if before[0] > 1:
        with pytest.raises(ConfigError, match="worker 1 of 2 is missing"):
            merged_state(states[:1])


def test_after_a_merged_state_set_epoch_begins_whole_epochs(tmp_path: Path) -> None:
    rows = dataset(tmp_path)
    loader = loader_of(made(tmp_path), 2)
    next(batches_of(loader))
    own = made(tmp_path)
    own.load_state_dict(merged_state([loader.state_dict()]))
    other = loader_of(own, 2)
    assert len(rows_of(list(batches_of(other)))) == rows - 7
    own.set_epoch(1)
    assert sorted(rows_of(list(batches_of(other)))) == list(range(rows))
    own.close()


def test_a_state_of_an_earlier_batch_is_refused(tmp_path: Path) -> None:
    dataset(tmp_path)
    loader = loader_of(made(tmp_path), 1, snapshot_every_n_steps=4)
    batches = batches_of(loader)
    for _ in range(2):
        next(batches)
    with pytest.raises(ConfigError, match="snapshot_every_n_steps=1"):
        merged_state([loader.state_dict()])


def test_each_epoch_is_another_order_and_set_epoch_goes_to_any(tmp_path: Path) -> None:
    rows = dataset(tmp_path)
    own = made(tmp_path, batch_size=0)
    loader = DataLoader(own, batch_size=4)
    epochs = [torch.cat([batch["id"] for batch in loader]).tolist() for _ in range(2)]
    assert epochs[0] != epochs[1] and sorted(epochs[0]) == sorted(epochs[1]) == list(range(rows))
    own.set_epoch(0)
    assert torch.cat([batch["id"] for batch in loader]).tolist() == epochs[0]
    forked = DataLoader(own, batch_size=4, num_workers=1)
    own.set_epoch(1)
    assert torch.cat([batch["id"] for batch in forked]).tolist() == epochs[1], "a process does without our threads"
    own.close()
