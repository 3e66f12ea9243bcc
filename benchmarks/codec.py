"""What each codec costs and saves: one thread, float32 in memory, MB of float32 a second.

    python -m benchmarks.codec [--mb 64] [--runs 5]

`write` is what an executor does: the difference to the base, encoded, into a file, with the residual where there is
one; `apply` is what it does with such a delta (a step here). `error` is the relative error of normally distributed
values, without feedback.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
import torch

from node.training.codec import NAMES, Codec, codec_named
from node.training.files import pieces
from node.training.traits import Traits
from node.training.updates import write_update
from node.training.versions import Outer, advanced


def cpu_s(call: Callable[[], object], runs: int) -> float:
    """Processor seconds of a call, the median."""
    taken = []
    for _ in range(runs):
        began = time.thread_time()
        call()
        taken.append(time.thread_time() - began)
    return statistics.median(taken)


def encoded(codec: Codec, values: Any) -> int:
    """Bytes."""
    return sum(
        part.nbytes for start, length in pieces(len(values)) for part in codec.encode(values[start : start + length])
    )


def decoded(codec: Codec, values: Any) -> tuple[float, float]:
    """(seconds of the processor in decoding, relative error)."""
    taken = 0.0
    out = np.empty_like(values)
    for start, length in pieces(len(values)):
        parts = codec.encode(values[start : start + length])
        began = time.thread_time()
        codec.decode(parts, out[start : start + length])
        taken += time.thread_time() - began
    return taken, float(np.linalg.norm(out - values) / np.linalg.norm(values))


def main() -> None:
    """The program."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--mb", type=int, default=64)
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    values = np.random.default_rng(0).standard_normal(options.mb * 250_000, np.float32) * np.float32(1e-3)
    base = {"w": torch.zeros(len(values))}
    after = {"w": torch.from_numpy(values)}
    result: dict[str, Any] = {"mb": options.mb, "load": round(os.getloadavg()[0], 2), "codecs": {}}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "update.safetensors"
        for name in NAMES:
            codec = codec_named(name)
            decoding_s, error = decoded(codec, values)
            seconds = {
                "encode": cpu_s(lambda codec=codec: encoded(codec, values), options.runs),
                "decode": decoding_s,
                "write": cpu_s(
                    lambda name=name: write_update(path, base, after, codec=name, residual=base), options.runs
                ),
                "apply": cpu_s(
                    lambda: advanced(path, base, base, names=["w"], traits=Traits(), outer=Outer(0.7, 0.9)),
                    options.runs,
                ),
            }
            result["codecs"][name] = {
                "share_of_float32": round(path.stat().st_size / values.nbytes, 5),
                **{f"{what}_mb_s": round(options.mb / taken) for what, taken in seconds.items() if taken},
                "error": float(f"{error:.3g}"),
            }
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
