"""A hash of whole numbers that is the same on every machine and in every version of NumPy."""

from __future__ import annotations

import hashlib
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Ids: TypeAlias = "NDArray[np.int64]"


def mixed(ids: Ids, key: str) -> NDArray[np.uint64]:
    """64 well-mixed bits for each id under a key (the finalizer of SplitMix64, Steele et al. 2014)."""
    salt = np.uint64(int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "little"))
    with np.errstate(over="ignore"):
        x = ids.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + salt
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def shuffled(count: int, key: str) -> Ids:
    """A permutation of `count` numbers that depends on the key alone."""
    return np.argsort(mixed(np.arange(count), key), kind="stable")
