"""The short form of `make chaos`: a job on a real cluster under a fixed schedule of faults. Undisturbed, it would learn
what the algorithm learns, which is computed here; `make chaos` runs that on a cluster, too."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

from benchmarks.links import Links
from tests.chaos.checks import left_after_stop, loss_wrong
from tests.chaos.job import Job, write_dataset
from tests.chaos.reference import losses_of
from tests.chaos.schedule import KINDS, ROLES, faults
from tests.chaos.site import Site
from tests.chaos.storm import Settings, suffer

SEED = 642
WORKERS = 3
SETTINGS = Settings(
    workers=WORKERS,
    minutes=0.15,
    faults_a_minute=40,
    job=Job(rounds=12, samples=300, workers=WORKERS, rate=2e-2, outer=0.8, momentum=0.3),
)
"""In so few rounds rates and momentum as in `make chaos` would leave the loss falling, and chance the last word."""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="who calls is found out from /proc")
@pytest.mark.timeout(180)
def test_a_job_under_faults_counts_each_row_once_and_learns_what_it_would_have(tmp_path: Path) -> None:
    """Kill, stop, cut and slow of every role: the job ends, samples exact, same bytes, same loss. H1, U21, U24, U50."""
    dataset = write_dataset(tmp_path / "datasets", rows=1600)
    with Site(tmp_path / "cluster") as site:
        site.build([dataset, dataset.with_name("letters-validation")], workers=WORKERS)
        outcome, harm = suffer(site, SEED, SETTINGS, dataset, print)
        runtime = site.runtime
        undisturbed = losses_of(SETTINGS.job, dataset)
        wrong = outcome.faults + loss_wrong(outcome.losses, undisturbed)
        wrong += left_after_stop(tmp_path, site.stop(), runtime)
    assert harm, "nothing has happened to it"
    assert wrong == [], harm


@pytest.mark.parametrize(
    ("losses", "is_right"),
    [
        ({0: 3.0, 100: 2.0, 180: 1.6}, True),
        ({0: 3.0, 100: 2.0, 300: 1.0}, True),
        ({0: 3.0, 100: 2.0, 180: 1.64}, False),
        ({0: 3.0, 100: 2.0, 180: 1.56}, False),
        ({0: 3.0, 100: 2.0, 200: 1.7, 240: 1.5}, False),
        ({0: 3.0, 100: 2.0, 200: float("nan")}, False),
        ({}, False),
        ({0: 3.0, 50: 2.8, 100: 2.2, 200: 1.5}, False),
        ({0: 3.0, 50: 2.2, 100: 1.8, 200: 1.5}, True),
    ],
    ids=[
        "fewer-samples",
        "more-samples",
        "higher",
        "lower",
        "more-samples-and-higher",
        "nan",
        "no-loss",
        "slower",
        "faster",
    ],
)
def test_the_loss_is_compared_at_equal_samples_and_may_end_neither_higher_nor_lower(
    losses: dict[int, float], is_right: bool
) -> None:
    """On a line between two evaluations: undisturbed it is 1.6 after 180 samples."""
    assert (loss_wrong(losses, {0: 3.0, 100: 2.0, 200: 1.5}) == []) is is_right


def test_a_seed_always_gives_the_same_faults_and_all_kinds_and_roles_come_up() -> None:
    """A failing seed can be run again."""
    many = [faults(seed, seconds=60, a_minute=20) for seed in range(40)]
    assert many == [faults(seed, seconds=60, a_minute=20) for seed in range(40)]
    assert {fault.kind for one in many for fault in one} == set(KINDS)
    assert {fault.role for one in many for fault in one} == set(ROLES)


def test_a_cut_link_passes_nothing_until_it_is_healed_and_then_all_of_it() -> None:
    """What a partition is here: connections stay, bytes wait."""
    with socket.create_server(("127.0.0.1", 0)) as server, Links() as links:
        port = links.add("there", server.getsockname()[1])
        with socket.create_connection(("127.0.0.1", port)) as client, server.accept()[0] as taken:
            client.sendall(b"before")
            assert taken.recv(10) == b"before"
            links.cut({"there"}, {""})
            client.sendall(b"held")
            taken.settimeout(0.1)
            with pytest.raises(TimeoutError):
                taken.recv(10)
            links.heal()
            taken.settimeout(5)
            assert taken.recv(10) == b"held"
            assert links.bytes_between["", "there"] == 10
