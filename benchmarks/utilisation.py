"""How much of its time a worker trains when its line is slow.

    python -m benchmarks.utilisation [lines] [peak] [--rounds 3]

A real cluster with mutual TLS; every worker is behind a link in user space (token bucket and delay, checked by
`python -m benchmarks.links`) of 50 or 10 Mbit/s each way, on which every byte is 50 ms late in either direction. The
model has 5 M parameters, the batches sleep 0.2 s beside their real step (two cores could not train two such models
at an even pace). A worker's utilisation is the time that it spends in steps (forward, backward, optimizer)
over wall time.

`peak`: bytes on the wire in the busiest window of half the time between two fragments, for the model in one piece and
in fragments, both int4 and overlapped, on lines that are not slowed: what a line must carry at most.
"""

from __future__ import annotations

import argparse

from benchmarks.jobs import Window, cluster, utilisation, watch
from benchmarks.links import BIN_S
from tests.chaos.job import Job
from tests.chaos.site import Site

WORKERS = 2
PARAMETERS = 5_000_000
BATCH = 8
STEPS = 50
PACE_S = 0.2
DELAY_S = 0.05
FRAGMENTS = 5
PLAIN = '[sync]\ncodec = "{codec}"\n'
STREAMED = '[sync]\ncodec = "int4"\nfragments = {fragments}\noverlap = true\ndelay_batches = {delay}\n'


def the_job(sections: str) -> Job:
    """50 batches of each worker for the whole model to be exchanged once."""
    return Job(
        rounds=100_000,
        samples=WORKERS * BATCH * STEPS,
        workers=WORKERS,
        batch=BATCH,
        pace_s=PACE_S,
        ballast=PARAMETERS - 1_274,
        sections=sections,
        validated=False,
    )


def busiest(site: Site, window: Window, seconds: float) -> float:
    """The most bytes that a worker sent within so many seconds, mean over the workers."""
    found = []
    for name in site.trainers():
        bins = site.links.lines[name].sent_at
        first, last = int(window.began / BIN_S), int(window.ended / BIN_S)
        width = max(1, int(seconds / BIN_S))
        found.append(max(sum(bins.get(at + step, 0) for step in range(width)) for at in range(first, last)))
    return sum(found) / len(found)


def one(sections: str, *, mbit_s: float | None, cycles: int, fragments: int) -> tuple[Site, Window, list[float], float]:
    """(the site, the window, each worker's utilisation, the median batch)."""
    with cluster(WORKERS) as site:

        def shape() -> None:
            for name in site.workers:
                if name.startswith("worker"):
                    site.links.shape(name, mbit_s=mbit_s, delay_s=DELAY_S if mbit_s else 0.0)

        window = watch(site, the_job(sections), skip=2 * fragments, rounds=cycles * fragments, shaped=shape)
        shares = [utilisation(site, window, name) for name in site.trainers()]
        peak = busiest(site, window, 0.5 * STEPS * shares[0][1] / FRAGMENTS)
        return site, window, [share for share, _ in shares], peak


def lines(cycles: int) -> None:
    """Utilisation behind slow lines."""
    streamed = STREAMED.format(fragments=FRAGMENTS, delay=STEPS // FRAGMENTS - 2)
    print(f"{'line':<16}{'how':<34}{'utilisation of each':>22}{'wall':>9}")
    cases = [
        (50.0, "int4, fragments, overlap", streamed, FRAGMENTS),
        (10.0, "int4, fragments, overlap", streamed, FRAGMENTS),
        (10.0, "int4, whole, no overlap", PLAIN.format(codec="int4"), 1),
        (10.0, "float32, whole, no overlap", PLAIN.format(codec="none"), 1),
    ]
    for mbit_s, how, sections, fragments in cases:
        _, window, shares, _ = one(sections, mbit_s=mbit_s, cycles=cycles, fragments=fragments)
        text = ", ".join(f"{share:.1%}" for share in shares)
        print(f"{mbit_s:g} Mbit/s".ljust(16) + f"{how:<34}{text:>22}{window.seconds:>8.1f}s", flush=True)


def peak(cycles: int) -> None:
    """The most that is sent at once."""
    peaks = {}
    for fragments in (1, FRAGMENTS):
        sections = STREAMED.format(fragments=fragments, delay=STEPS // FRAGMENTS - 2)
        peaks[fragments] = one(sections, mbit_s=None, cycles=cycles, fragments=fragments)[3]
    share = peaks[FRAGMENTS] / peaks[1]
    print(f"busiest window: whole {peaks[1] / 1e6:.2f} MB, {FRAGMENTS} fragments {peaks[FRAGMENTS] / 1e6:.2f} MB")
    print(f"share {share:.3f}, times {FRAGMENTS}: {share * FRAGMENTS:.2f}")


def main() -> None:
    """Run and print."""
    parts = {"lines": lines, "peak": peak}
    parser = argparse.ArgumentParser(prog="python -m benchmarks.utilisation", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="part", help="all if none is named")
    parser.add_argument("--rounds", type=int, default=3, help="how often the whole model is exchanged")
    chosen = parser.parse_args()
    print(f"{PARAMETERS / 1e6:g} M parameters, {WORKERS} workers, {STEPS} batches of {PACE_S} s and more")
    if unknown := set(chosen.parts) - set(parts):
        parser.error(f"no part {', '.join(sorted(unknown))}: {', '.join(parts)}")
    for part in chosen.parts or parts:
        parts[part](chosen.rounds)


if __name__ == "__main__":
    main()
