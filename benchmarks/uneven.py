"""Two workers, one four times slower: how much of their time do they wait?

    python -m benchmarks.uneven [--rounds 4]

A real cluster; batches sleep 0.2 s and 0.8 s beside their real step. Idle is the time outside of steps (forward,
backward, optimizer).
"""

from __future__ import annotations

import argparse

from benchmarks.jobs import cluster, utilisation, watch
from tests.chaos.job import Job

PACES = (1.0, 4.0)
PACE_S = 0.2
BATCH = 8
ROUND_S = 12.0


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.uneven", description=__doc__)
    parser.add_argument("--rounds", type=int, default=4)
    chosen = parser.parse_args()
    samples = int(sum(ROUND_S / (PACE_S * pace) for pace in PACES) * BATCH)
    overlapped = '[sync]\ncodec = "int8"\noverlap = true\ndelay_batches = 2\n'
    for how, sections in (("wait for the new weights", ""), ("overlap", overlapped)):
        job = Job(rounds=100_000, samples=samples, workers=2, batch=BATCH, pace_s=PACE_S, sections=sections)
        with cluster(len(PACES), paces=PACES) as site:
            window = watch(site, job, skip=3, rounds=chosen.rounds)
            for name, pace in zip(("worker-1", "worker-2"), PACES, strict=True):
                share, step_s = utilisation(site, window, name)
                print(
                    f"{how:<28}{pace:g} times as slow: batch {step_s * 1000:6.1f} ms, idle {1 - share:.1%}", flush=True
                )
        print(f"{'':<28}round {window.seconds / window.rounds:.2f} s")


if __name__ == "__main__":
    main()
