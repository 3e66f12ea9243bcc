"""A GPT in plain torch, tied as usual; also a job's `model.py` (it needs nothing but torch)."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import nn
from torch.nn import functional

VOCABULARY = int(os.environ.get("GPT_VOCABULARY", "50304"))
WIDTH = int(os.environ.get("GPT_WIDTH", "768"))
LAYERS = int(os.environ.get("GPT_LAYERS", "12"))
HEADS = max(1, WIDTH // 64)
CONTEXT = 1024


class Block(nn.Module):
    """Attention and a feed-forward net, each behind a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH, bias=False), nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The block's output."""
        rows, tokens, _ = x.shape
        parts = self.qkv(self.before(x)).view(rows, tokens, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(rows, tokens, -1))
        hidden: torch.Tensor = x + self.down(functional.gelu(self.up(self.between(x))))
        return hidden


class Gpt(nn.Module):
    """The model; answers logits."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.tokens.weight
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Logits of the next token at each place."""
        x = self.tokens(input_ids) + self.places(torch.arange(input_ids.shape[1], device=input_ids.device))
        for block in self.blocks:
            x = block(x)
        logits: torch.Tensor = self.head(self.norm(x))
        return logits


def build() -> nn.Module:
    """The module, as a job's `model.py` makes it."""
    return Gpt()


def loss(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Each token is predicted from those before it."""
    tokens = batch["input_ids"]
    logits = model(tokens)[:, :-1]
    return functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), tokens[:, 1:].reshape(-1))
