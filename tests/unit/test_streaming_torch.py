"""The loader as a PyTorch dataset, under PyTorch's own loader and torchdata's stateful one."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from node.streaming import FolderSource, StreamingConfig
from node.streaming.torch_dataset import StreamingDataset
from tests.unit.streaming_data import dataset

pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")


def made(folder: Path, batch_size: int = 7) -> StreamingDataset:
    return StreamingDataset(partial(FolderSource, folder), StreamingConfig(batch_size=batch_size, shuffle_seed=3))


@pytest.mark.parametrize("processes", [0, 2])
def test_torchdatas_loader_saves_and_restores_it_in_mid_epoch(tmp_path: Path, processes: int) -> None:
    rows = dataset(tmp_path)

    def fresh() -> StatefulDataLoader[dict[str, torch.Tensor]]:
        return StatefulDataLoader(made(tmp_path), batch_size=None, num_workers=processes)

    whole = [batch["id"].tolist() for batch in fresh()]
    assert sorted(one for batch in whole for one in batch) == list(range(rows)), "no process repeats what another reads"
    loader = fresh()
    batches = iter(loader)
    head = [next(batches)["id"].tolist() for _ in range(9)]
    state = json.loads(json.dumps(loader.state_dict()))
    other = fresh()
    other.load_state_dict(state)
    assert head + [batch["id"].tolist() for batch in other] == whole


def test_each_epoch_is_another_order_and_set_epoch_goes_to_any(tmp_path: Path) -> None:
    rows = dataset(tmp_path)
    own = made(tmp_path, batch_size=0)
    loader = DataLoader(own, batch_size=4)
    epochs = [torch.cat([batch["id"] for batch in loader]).tolist() for _ in range(2)]
    assert epochs[0] != epochs[1] and sorted(epochs[0]) == sorted(epochs[1]) == list(range(rows))
    own.set_epoch(0)
    assert torch.cat([batch["id"] for batch in loader]).tolist() == epochs[0]
    own.close()
