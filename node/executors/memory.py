"""How many rows of a batch fit in memory. Trying it out would end the process on a CPU, so there it is reckoned."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path

import torch

log = logging.getLogger(__name__)

LIMIT = "HYPHA_MEMORY_BYTES"
"""Environment variable: what the lease allows this executor, all of its processes together."""
USABLE = 0.9
SMALL, DOUBLED = 2, 4


def limit_bytes() -> int:
    """What the node allows, or else what the machine has."""
    text = os.environ.get(LIMIT, "")
    return int(text) if text.isdigit() else os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def resident_bytes() -> int:
    """What the process occupies now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def rows_that_fit(limit: int, attempt: Callable[[int], None], *, own: set[int], free_bytes: int) -> int:
    """The largest batch of `limit`, half of it, a quarter.. rows whose forward and backward pass stay in `free_bytes`.

    `attempt(n)` makes these passes for n rows. From what a small batch and a doubled one need follows what a row needs;
    `own` are the addresses of what the model occupies anyhow. At least 1.
    """
    if limit <= 1:
        return limit
    if limit < DOUBLED:
        fixed, row = 0, passes_bytes(limit, attempt, own) // limit
    else:
        small, doubled = (passes_bytes(size, attempt, own) for size in (SMALL, DOUBLED))
        row = max(0, doubled - small) // (DOUBLED - SMALL)
        fixed = max(0, small - SMALL * row)
    rows = limit
    while rows > 1 and fixed + rows * row > free_bytes:
        rows //= 2
    if rows < limit:
        log.warning("batch.halved rows=%d of=%d row_bytes=%d free_bytes=%d", rows, limit, row, free_bytes)
    return rows


def passes_bytes(rows: int, attempt: Callable[[int], None], own: set[int]) -> int:
    """What the passes of a batch need at their peak: all that the forward pass keeps for the backward pass and, while
    the largest of it is worked on, its gradient and one more of the size (measured: within 4 % for language models)."""
    kept: dict[int, int] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        attempt(rows)
    return sum(kept.values()) + 2 * max(kept.values(), default=0)
