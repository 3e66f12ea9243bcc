"""Numbers below the smallest normal float count as zero while a model computes.

x86 takes up to a hundred times as long for an operation on one of them, and gradients are full of them as soon as a
model is sure of what it never sees: a small byte model trained at half its speed after 200 steps. Outside of a model's
own arithmetic they stay what they are, since all nodes make the same bytes of a version (`node.training.outer`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def flushed() -> Iterator[None]:
    """For this thread. Also a decorator."""
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


def start_threads() -> None:
    """Start torch's own threads so: they keep what held for whoever started them. None of them reckons a version."""
    with flushed():
        torch.zeros(1 << 20).add_(1)
