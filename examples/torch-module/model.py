"""A byte-level language model: what a `torch` job brings."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


class ByteGru(nn.Module):
    """Embedding, one GRU, logits of the next byte."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, width)
        self.gru = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, 256)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits for each position."""
        states, _ = self.gru(self.embedding(tokens))
        return self.head(states)


def build() -> nn.Module:
    """The model, with its first weights. Called with torch seeded by the job's `seed`."""
    return ByteGru()


def loss(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """The mean loss of a batch; `batch` has the tensors of a slice by name."""
    tokens = batch["input_ids"]
    logits = model(tokens[:, :-1])
    return functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
