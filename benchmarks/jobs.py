"""Jobs run for a measurement: a cluster with the parameter server on a node of its own, watched between two commits."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.job import STAMPS_A_LINE, Job, write_dataset
from tests.chaos.site import SERVER, Site

WAIT_S = 180.0


@contextmanager
def cluster(workers: int, *, rows: int = 20_000, paces: Sequence[float] = (), is_linked: bool = True) -> Iterator[Site]:
    """A cluster of so many workers, each `paces[n]` times slower than a job says, and one for the parameter server.

    Links count and shape what passes; they look up each caller in `/proc`, which takes 0.1 s.
    """
    with (
        tempfile.TemporaryDirectory(prefix="hypha-bench-") as name,
        Site(Path(name) / "cluster", is_linked=is_linked) as site,
    ):
        datasets = write_dataset(Path(name) / "datasets", rows=rows)
        site.build([datasets, datasets.with_name("letters-validation")], workers=workers, paces=paces, apart=True)
        yield site


@dataclass
class Window:
    """What happened between two commits."""

    began: float
    ended: float
    """On the monotonic clock."""
    rounds: int
    to_server: dict[str, int]
    from_server: dict[str, int]
    """Bytes between each worker and the parameter server's node."""
    sent: dict[str, int]
    received: dict[str, int]
    """All bytes of each node."""

    @property
    def seconds(self) -> float:
        """How long it was."""
        return self.ended - self.began


def watch(site: Site, job: Job, *, skip: int, rounds: int, shaped: Callable[[], None] = lambda: None) -> Window:
    """Submit a job, let `skip` rounds pass, and watch the next ones; the job is left running."""
    shaped()
    job_id = site.submit(job)
    site.wait_round(job_id, skip, within_s=WAIT_S)
    began, before = time.monotonic(), _counts(site)
    first = site.state(job_id)[2]
    site.wait_round(job_id, first + rounds, within_s=WAIT_S)
    ended, after = time.monotonic(), _counts(site)
    state, reason, last = site.state(job_id)
    if state in ("failed", "cancelled"):
        raise RuntimeError(f"the job {state}: {reason}")
    time.sleep(2.0)  # for the last stamps to be printed
    moved = [{name: new[name] - old.get(name, 0) for name in new} for old, new in zip(before, after, strict=True)]
    return Window(began, ended, last - first, *moved)


def utilisation(site: Site, window: Window, worker: str) -> tuple[float, float]:
    """(share of the time in which the worker was in a step, seconds of its median step)."""
    steps = [step for step in site.steps(worker) if window.began <= step[0] and step[1] <= window.ended]
    if len(steps) < 2 * STAMPS_A_LINE:
        raise RuntimeError(f"{worker} has made {len(steps)} steps only")
    busy = [ended - began for began, ended in steps]
    return sum(busy) / (steps[-1][1] - steps[0][0]), statistics.median(busy)


def _counts(site: Site) -> tuple[dict[str, int], ...]:
    between, lines = dict(site.links.bytes_between), dict(site.links.lines)
    return (
        {name: between.get((name, SERVER), 0) for name in site.workers},
        {name: between.get((SERVER, name), 0) for name in site.workers},
        {name: line.sent for name, line in lines.items()},
        {name: line.received for name, line in lines.items()},
    )
