"""Numbers below the smallest normal float: zero while a model computes, and nowhere else."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from accelerate import Accelerator

from node.executors.denormals import flushed, start_threads
from node.executors.job import Optimizer
from node.executors.models import LoadedModel
from node.executors.trainer import Trainer

TINY = 1e-40
"""Half of it is a float32, too, but none that is normal."""

pytestmark = pytest.mark.skipif(not torch.set_flush_denormal(False), reason="this processor has no such switch")


def halved() -> float:
    return float(np.float32(TINY) * np.float32(0.5))


def test_they_are_zero_inside_and_what_they_are_afterwards() -> None:
    with flushed():
        assert float(torch.tensor(TINY).mul(0.5)) == 0.0
        with pytest.raises(ZeroDivisionError), flushed():
            raise ZeroDivisionError
    assert halved() > 0


def test_a_model_is_trained_without_them(tmp_path: Path) -> None:
    found: list[float] = []

    def loss(model: torch.nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        found.append(float(torch.tensor(TINY).mul(0.5)))
        return model(batch["x"]).square().mean()

    loaded = LoadedModel(torch.nn.Linear(2, 1), loss, tmp_path, "torch")
    Trainer(Accelerator(cpu=True), loaded, Optimizer(learning_rate=0.1), None).train({"x": torch.ones(3, 2)})
    assert found == [0.0] and halved() > 0


def test_torchs_threads_flush_and_ours_reckon_exactly() -> None:
    """The outer step is made by NumPy, in threads of ours that are begun outside."""
    start_threads()
    found: list[float] = []
    thread = threading.Thread(target=lambda: found.append(halved()))
    thread.start()
    thread.join()
    assert found == [halved()] and found[0] > 0
