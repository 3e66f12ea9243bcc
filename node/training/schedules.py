"""Learning-rate schedules of the inner optimizer, as factors of the base rate; the same curves as Transformers'.

A schedule counts a worker's batches over the whole job, not over a round.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from node.errors import JobError

NAMES = ("cosine-with-warmup", "linear-with-warmup", "wsd")


def factor_of(name: str, *, warmup_steps: int, total_steps: int, decay_steps: int) -> Callable[[int], float]:
    """The factor for a step, counted from 0. An empty name is a constant rate; `wsd` without a total never decays."""
    warmup = max(1, warmup_steps)

    def progress(step: int, begin: int, length: int) -> float:
        return min(1.0, (step - begin) / max(1, length))

    def cosine(step: int) -> float:
        return 0.5 * (1 + math.cos(math.pi * progress(step, warmup_steps, total_steps - warmup_steps)))

    def linear(step: int) -> float:
        return 1 - progress(step, warmup_steps, total_steps - warmup_steps)

    def stable_then_decay(step: int) -> float:
        begin = total_steps - decay_steps
        if not total_steps or step < begin:
            return 1.0
        return 0.5 * (1 + math.cos(math.pi * progress(step, begin, decay_steps)))

    curves = {
        "": lambda step: 1.0,
        "cosine-with-warmup": cosine,
        "linear-with-warmup": linear,
        "wsd": stable_then_decay,
    }
    if name not in curves:
        raise JobError(f"unknown learning-rate schedule {name!r}", hint=f"one of {', '.join(NAMES)}")
    if name in ("cosine-with-warmup", "linear-with-warmup") and total_steps <= warmup_steps:
        raise JobError(f"schedule {name} needs more total steps ({total_steps}) than warm-up steps ({warmup_steps})")
    curve = curves[name]
    return lambda step: step / warmup if step < warmup_steps else curve(step)
