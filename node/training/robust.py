"""Rules for making one pseudo-gradient out of several, coordinate by coordinate, and who is left out by them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

import numpy as np

from node.training.files import Array

OUTERMOST = 0.9
"""An update whose values were cut in more than this share of the places has no part in the result."""


def clip_factors(norms: Mapping[str, float], clip_norm: float) -> dict[str, float]:
    """By how much each update that is longer than `clip_norm` times the median norm is to be shortened; 0 is off."""
    if not clip_norm or not norms:
        return {}
    limit = clip_norm * statistics.median(norms.values())
    return {name: limit / norm for name, norm in norms.items() if norm > limit}


def trimmed_count(count: int, trim: float) -> int:
    """How many of the highest and of the lowest of `count` values are cut: `trim` of them, rounded, but never all."""
    return min(math.floor(trim * count + 0.5), (count - 1) // 2)


def cut_of(rule: str, count: int, trim: float) -> int:
    """How many values a rule cuts on each side. The median is what is left when all but one or two are."""
    if rule == "median":
        return (count - 1) // 2
    return trimmed_count(count, trim) if rule == "trimmed-mean" else 0


def trimmed_mean(rows: Array, cut: int, out: Array, scratch: Array) -> Array:
    """The mean of each column without its `cut` highest and lowest values, into `out`; how often each row was cut.

    `rows` is left sorted by columns.
    """
    given = rows.copy() if cut else rows
    sort_columns(rows, scratch)
    kept = rows[cut : len(rows) - cut]
    out[:] = kept[0]
    for row in kept[1:]:
        np.add(out, row, out=out)
    np.divide(out, np.float32(len(kept)), out=out)
    if not cut:
        return np.zeros(len(rows), np.int64)
    return np.array([np.count_nonzero((row < kept[0]) | (row > kept[-1])) for row in given], np.int64)


def sort_columns(rows: Array, scratch: Array) -> None:
    """Sorts each column, by comparing neighbours: far faster than a sort along the short axis."""
    count = len(rows)
    for turn in range(count):
        for low in range(turn % 2, count - 1, 2):
            np.minimum(rows[low], rows[low + 1], out=scratch)
            np.maximum(rows[low], rows[low + 1], out=rows[low + 1])
            rows[low] = scratch


def left_out(names: Sequence[str], cut_places: Array, places: int) -> dict[str, str]:
    """The updates that a rule has cut nearly everywhere, each with the reason."""
    shares = [cut / places if places else 0.0 for cut in cut_places]
    return {
        name: f"its values were the outermost in {share:.0%} of the places"
        for name, share in zip(names, shares, strict=True)
        if share > OUTERMOST
    }
