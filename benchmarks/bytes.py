"""Bytes on the wire: DiLoCo at H = 50 with int4 beside averaging after every step.

    python -m benchmarks.bytes

A real cluster with mutual TLS, four workers, the parameter server on a node of its own; every node is behind a link
that counts what passes in either direction, TLS and HTTP included. Theory is what the codec needs for the parameters,
up and down, once a round and worker: 4 bytes, or for int4 half a byte and two bytes of scale for 64 of them.
"""

from __future__ import annotations

import os

from benchmarks.jobs import Window, cluster, watch
from tests.chaos.job import Job

WORKERS = 4
BATCH = 8
PARAMETERS = 2_000_000
PACE_S = 0.02
INT4_BYTES = 0.5 + 2 / 64
CASES = (("averaging every step", 1, "none", 4.0, 12), ("H = 50, int4", 50, "int4", INT4_BYTES, 4))


def measured(steps: int, codec: str, rounds: int) -> Window:
    """Some rounds of a job that exchanges after `steps` batches of each worker."""
    job = Job(
        rounds=100_000,
        samples=WORKERS * BATCH * steps,
        workers=WORKERS,
        batch=BATCH,
        pace_s=PACE_S,
        ballast=PARAMETERS - 1_274,
        sections=f'[sync]\ncodec = "{codec}"\n',
        validated=False,
        least=WORKERS,
    )
    with cluster(WORKERS) as site:
        return watch(site, job, skip=2, rounds=rounds)


def main() -> None:
    """Run and print."""
    print(f"{PARAMETERS / 1e6:g} M parameters, {WORKERS} workers, {os.cpu_count()} cores")
    heads = f"{'a round and worker':>20}{'theory':>12}{'over it':>9}{'a step and worker':>20}{'all of a worker':>18}"
    print(f"{'':<24}{heads}")
    steps_bytes = []
    for how, steps, codec, each, rounds in CASES:
        window = measured(steps, codec, rounds)
        names = [name for name in window.to_server if name.startswith("worker")]
        moved = sum(window.to_server[name] + window.from_server[name] for name in names)
        every = sum(window.sent[name] + window.received[name] for name in names)
        round_bytes = moved / window.rounds / WORKERS
        theory = 2 * each * PARAMETERS
        steps_bytes.append((round_bytes / steps, every / window.rounds / WORKERS / steps))
        print(
            f"{how:<24}{round_bytes / 1e6:>17.3f} MB{theory / 1e6:>9.3f} MB{round_bytes / theory - 1:>9.2%}"
            f"{round_bytes / steps / 1e3:>17.2f} kB{every / window.rounds / WORKERS / steps / 1e3:>15.2f} kB",
            flush=True,
        )
    (often, often_all), (seldom, seldom_all) = steps_bytes
    print(f"fewer bytes with the parameter server: {often / seldom:.0f} times")
    print(f"fewer bytes of all traffic of a worker: {often_all / seldom_all:.0f} times")


if __name__ == "__main__":
    main()
