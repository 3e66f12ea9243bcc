"""The short form of `make chaos`: one cluster, the same job undisturbed and under a fixed schedule of faults."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

from benchmarks.links import Links
from tests.chaos.checks import left_after_stop
from tests.chaos.job import Job, write_dataset
from tests.chaos.schedule import KINDS, ROLES, faults
from tests.chaos.site import Site
from tests.chaos.storm import Settings, loss_wrong, suffer

SEED = 642
WORKERS = 3
SETTINGS = Settings(
    workers=WORKERS,
    minutes=0.15,
    faults_a_minute=40,
    job=Job(rounds=12, samples=300, workers=WORKERS, pace_s=0.04),
)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="who calls is found out from /proc")
@pytest.mark.timeout(180)
def test_a_job_under_faults_counts_each_row_once_and_learns_what_it_would_have(tmp_path: Path) -> None:
    """Kill, stop, cut and slow of every role: the job ends, samples exact, same bytes, same loss. H1, U21, U24, U50."""
    dataset = write_dataset(tmp_path / "datasets", rows=1600)
    with Site(tmp_path / "cluster") as site:
        site.build([dataset, dataset.with_name("letters-validation")], workers=WORKERS)
        base, _ = suffer(site, None, SETTINGS, dataset, print)
        assert base.faults == []
        outcome, harm = suffer(site, SEED, SETTINGS, dataset, print)
        runtime = site.runtime
        wrong = outcome.faults + loss_wrong(outcome, base) + left_after_stop(tmp_path, site.stop(), runtime)
    assert harm, "nothing has happened to it"
    assert wrong == [], harm


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
