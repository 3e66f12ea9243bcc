"""The order in which an epoch goes through the slices of a dataset."""

from __future__ import annotations

import random


def order_of(seed: int, pass_: int, count: int) -> list[int]:
    """The order of a pass: a permutation that depends on nothing but these three."""
    order = list(range(count))
    random.Random(f"hypha slices {seed} {pass_}").shuffle(order)
    return order
