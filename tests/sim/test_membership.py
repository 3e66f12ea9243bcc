"""Membership and gossip of hundreds of nodes, under loss, delay, repetition and partition."""

from __future__ import annotations

from functools import partial

import pytest

from tests.sim.network import Cluster

GATEWAY = "gw"


def cluster_of(count: int, seed: int, **network: float) -> Cluster:
    cluster = Cluster(seed, **network)
    cluster.add(GATEWAY, is_gateway=True).introduce()
    for number in range(count - 1):
        cluster.add(f"n{number:04d}")
    for node in list(cluster.nodes.values())[1:]:
        cluster.after(cluster.rng.uniform(0.0, 0.2), partial(node.join, GATEWAY))
    gateway = cluster.nodes[GATEWAY]
    cluster.every(20.0, gateway.introduce)
    cluster.every(10.0, gateway.exchange)
    cluster.every(2.0, gateway.expire)
    return cluster


def test_205_nodes_that_start_together_know_each_other_soon_though_messages_are_lost() -> None:
    """U1: one gateway, everybody at once, one message in ten lost, some repeated, 200 ms of delay."""
    cluster = cluster_of(205, seed=1, drop=0.1, duplicate=0.05)
    assert cluster.run_until(10.0, lambda: cluster.agree(set(cluster.nodes)))


@pytest.mark.parametrize("seed", range(3))
def test_an_advert_reaches_everybody_in_a_few_hops(seed: int) -> None:
    cluster = cluster_of(100, seed=seed, delay_s=0.02)
    cluster.run_until(8.0)
    cluster.nodes["n0007"].advertise("a")
    cluster.run_until(cluster.now + 1.0)
    arrivals = [node.adverts for node in cluster.nodes.values()]
    assert all([advert for advert, _ in seen] == ["a"] for seen in arrivals), "once each"
    assert max(seen[0][1] for seen in arrivals) - 8.0 < 0.3


def test_a_lost_advert_is_repaired_by_the_exchange() -> None:
    cluster = cluster_of(60, seed=5, delay_s=0.02)
    cluster.run_until(8.0)
    cluster.drop = 0.6
    cluster.nodes["n0007"].advertise("a")
    cluster.run_until(8.5)
    cluster.drop = 0.0
    assert not all(node.adverts for node in cluster.nodes.values())
    cluster.run_until(30.0)
    assert all(len(node.adverts) == 1 for node in cluster.nodes.values())


def test_nodes_that_vanish_are_forgotten_when_their_records_end() -> None:
    cluster = cluster_of(60, seed=7, drop=0.05)
    cluster.run_until(10.0)
    for number in range(0, 58, 2):
        cluster.nodes[f"n{number:04d}"].is_up = False
    left = {peer_id for peer_id, node in cluster.nodes.items() if node.is_up}
    cluster.run_until(60.0)
    assert cluster.run_until(75.0, lambda: cluster.agree(left)), "a record of 60 s does not outlive its node by much"


def test_two_halves_that_were_cut_off_are_one_cluster_again() -> None:
    cluster = cluster_of(60, seed=11)
    cluster.run_until(10.0)
    cluster.side_of = lambda peer_id: int(peer_id[-1] in "02468")
    cluster.run_until(40.0)
    newcomer = cluster.add("z9")
    newcomer.join("n0001")
    cluster.run_until(45.0)
    assert "z9" not in cluster.nodes["n0002"].members()
    cluster.side_of = lambda peer_id: 0
    assert cluster.run_until(70.0, lambda: cluster.agree(set(cluster.nodes)))
