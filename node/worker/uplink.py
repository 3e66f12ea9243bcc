"""How fast updates leave this worker, and the codec that this allows for. No clock, no I/O."""

from __future__ import annotations

FORGET = 0.5
SHARE = 0.05
"""The part of a round that sending its update may take."""
UNMEASURED = "int8"

BYTES_OF_A_VALUE = {"none": 4.0, "bf16": 2.0, "int8": 1.0 + 4 / 256, "int4": 0.5 + 2 / 64}


def bytes_of_a_value(codec: str, density: float) -> float:
    """What one float32 of a model costs in an update: scales count, headers do not."""
    # topk: 12 bits for the place and 2 for the value of each one kept, and a scale for 4,096.
    return density * 14 / 8 + 2 / 4096 if codec == "topk" else BYTES_OF_A_VALUE[codec]


class Uplink:
    """The measured speed of uploads."""

    def __init__(self) -> None:
        self.bytes_per_s = 0.0

    def sent(self, size_bytes: int, took_s: float) -> None:
        """An upload went through."""
        speed = size_bytes / max(1e-6, took_s)
        self.bytes_per_s = (1 - FORGET) * self.bytes_per_s + FORGET * speed if self.bytes_per_s else speed

    def codec(self, values: float, round_s: float, density: float) -> str:
        """The least lossy codec with which so many values take at most a twentieth of a round to send."""
        if not (self.bytes_per_s and values and round_s):
            return UNMEASURED
        allowed = SHARE * round_s * self.bytes_per_s
        order = [*BYTES_OF_A_VALUE, "topk"]
        return next((codec for codec in order if values * bytes_of_a_value(codec, density) <= allowed), order[-1])
