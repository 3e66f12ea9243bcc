"""A shuffle of any number of things that needs no memory: where each one goes follows from a key alone."""

from __future__ import annotations

import hashlib

ROUNDS = 4
_MASK = (1 << 64) - 1


class Permutation:
    """A permutation of `range(count)`, by a Feistel network over the next power of two, walked until it is inside."""

    def __init__(self, count: int, key: str) -> None:
        bits = max(2, (count - 1).bit_length())
        self._count = count
        self._low = bits // 2
        self._masks = ((1 << (bits - bits // 2)) - 1, (1 << (bits // 2)) - 1)
        digest = hashlib.sha256(key.encode()).digest()
        self._keys = [int.from_bytes(digest[8 * at : 8 * at + 8], "little") for at in range(ROUNDS)]

    def __getitem__(self, index: int) -> int:
        if not 0 <= index < self._count:
            raise IndexError(index)
        low_bits, (high_mask, low_mask) = self._low, self._masks
        first, second, third, fourth = self._keys
        while True:
            high, low = index >> low_bits, index & low_mask
            high ^= _mixed(low + first) & high_mask
            low ^= _mixed(high + second) & low_mask
            high ^= _mixed(low + third) & high_mask
            low ^= _mixed(high + fourth) & low_mask
            index = high << low_bits | low
            if index < self._count:
                return index


def _mixed(value: int) -> int:
    """Well-mixed bits of a number (a round of SplitMix64's finalizer, Steele et al. 2014)."""
    value = (value * 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    return value ^ (value >> 31)
