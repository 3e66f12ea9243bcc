"""Membership: who is there, who answers, who is whose neighbour."""

from __future__ import annotations

import random

from node.network.gossip import DEGREE, MAX_HOPS, MAX_WAITING, Gossip, refresh_s
from node.network.membership import PROBE_MOST_S, QUIET_S, Membership
from node.network.records import Opened, Records
from node.wire import PeerRecord
from tests.unit.test_records import opened, peer


def member_of(names: list[str], own: str = "me") -> tuple[Gossip, Membership, Records]:
    records = Records()
    membership = Membership(own, records, random.Random(1))
    gossip = Gossip(records, membership)
    for name in [own, *names]:
        gossip.receive(opened(peer(name, 1)), own, 0.0, passes_on=False)
    return gossip, membership, records


def test_a_refused_connection_makes_a_peer_unreachable_and_an_answer_brings_it_back() -> None:
    _, membership, _ = member_of(["a"])
    assert membership.failed("a", 1.0, is_definite=True)
    assert not membership.is_reachable("a")
    assert [peer.reachable for peer in membership.peers()] == [False, True], "listed all the same"
    assert membership.answered("a", 2.0, 2.0)
    assert membership.is_reachable("a")


def test_one_answer_that_does_not_come_is_not_enough() -> None:
    _, membership, _ = member_of(["a"])
    assert not membership.failed("a", 1.0, is_definite=False)
    assert membership.is_reachable("a")
    assert membership.failed("a", 2.0, is_definite=False)


def test_quiet_peers_are_probed_and_busy_ones_are_not() -> None:
    _, membership, _ = member_of(["a", "b"])
    membership.answered("a", None, 11.0)
    assert membership.due(QUIET_S) == "b"
    assert membership.due(QUIET_S) is None
    assert membership.due(11.0 + QUIET_S) == "a"


def test_an_unreachable_peer_is_probed_with_growing_pauses_and_again_at_once_when_it_shows_up() -> None:
    _, membership, _ = member_of(["a"])
    now, pauses = 0.0, []
    for _ in range(12):
        membership.failed("a", now, is_definite=True)
        step = next(step for step in range(1, 1000) if membership.due(now + step / 10) is not None) / 10
        pauses.append(step)
        now += step
    assert pauses[0] <= 1.1
    assert PROBE_MOST_S / 2 <= pauses[-1] <= PROBE_MOST_S + 0.1
    membership.changed(peer("a", 2), now)
    assert membership.due(now) == "a"


def test_a_peer_that_leaves_is_gone_at_once_and_its_older_records_do_not_bring_it_back() -> None:
    gossip, membership, _ = member_of(["a"])
    leaving = PeerRecord(peer_id="a", seq=5, name="a", roles=[], addresses=[], ttl_s=60.0, leaving=True)
    gossip.receive(opened(leaving), "a", 1.0)
    gossip.receive(opened(peer("a", 4)), "b", 1.0)
    assert [known.record.peer_id for known in membership.peers()] == ["me"]
    gossip.receive(opened(peer("a", 6)), "a", 2.0)
    assert membership.is_reachable("a")


def test_the_neighbours_connect_everybody_and_are_few() -> None:
    names = [f"{random.Random(number).random():.16f}" for number in range(400)]
    links = {name: member_of([other for other in names if other != name], own=name)[1] for name in names[:40]}
    for membership in links.values():
        assert len(membership.neighbours(DEGREE)) == DEGREE
    ring = sorted(names)
    for name, membership in links.items():
        at = ring.index(name)
        assert {ring[at - 1], ring[(at + 1) % len(ring)]} <= set(membership.neighbours(DEGREE)), "the ring is closed"


def test_neighbours_stay_the_same_while_nobody_comes_or_goes() -> None:
    _, membership, _ = member_of([f"p{number}" for number in range(50)])
    before = membership.neighbours(DEGREE)
    assert membership.neighbours(DEGREE) == before
    membership.failed(before[0], 1.0, is_definite=True)
    after = membership.neighbours(DEGREE)
    assert before[0] not in after
    assert len(set(before) & set(after)) >= DEGREE - 2


def test_a_peer_is_found_by_name_id_or_unique_part_of_it() -> None:
    _, membership, _ = member_of(["alpha", "alps", "beta"])
    assert membership.find_name("beta") == "beta"
    assert membership.find_name("alpha") == "alpha"
    assert membership.find_name("alph") == "alpha"
    assert membership.find_name("eta") == "beta"
    assert membership.find_name("al") is None
    assert membership.find_name("") is None


def test_gateways_are_remembered_first() -> None:
    gossip, membership, _ = member_of([])
    for name, roles in (("a", ["worker"]), ("z", ["gateway"])):
        record = PeerRecord(peer_id=name, seq=1, name=name, roles=roles, addresses=[f"/ip4/10.0.0.1/{name}"], ttl_s=9.0)
        gossip.receive(opened(record), name, 0.0)
    assert list(membership.to_remember()) == ["z", "a"]


def test_a_record_goes_to_the_neighbours_but_not_back_and_not_to_its_origin() -> None:
    gossip, _, _ = member_of(["a", "b", "c"])
    gossip.receive(opened(peer("c", 2)), "b", 1.0)
    assert gossip.waiting() == ["a"]
    assert [item.hops for item in gossip.take("a", 2.0)] == [1]
    assert gossip.waiting() == []


def test_a_known_record_is_not_passed_on_again() -> None:
    gossip, _, _ = member_of(["a", "b"])
    assert not gossip.receive(opened(peer("b", 1)), "a", 1.0).is_news
    assert gossip.waiting() == []


def test_a_record_that_has_come_far_enough_goes_no_further() -> None:
    gossip, _, _ = member_of(["a", "b"])
    far = opened(peer("x", 1))
    gossip.receive(Opened(far.record, far.signed, far.origin, far.remaining_s, hops=MAX_HOPS), "a", 1.0)
    assert gossip.waiting() == []


def test_what_waits_is_sent_once_in_its_newest_form() -> None:
    gossip, _, _ = member_of(["a"])
    for seq in (2, 3, 4):
        gossip.receive(opened(peer("x", seq)), "x", 1.0)
    sent = gossip.take("a", 1.0)
    assert len(sent) == 1
    assert sent[0].signed == opened(peer("x", 4)).signed


def test_a_slow_neighbour_costs_a_bounded_amount() -> None:
    gossip, _, _ = member_of(["a"])
    gossip.queue("a", [f"peer:{number}" for number in range(MAX_WAITING + 100)])
    assert len(gossip._waiting["a"]) == MAX_WAITING


def test_nothing_waits_for_unreachable_peers() -> None:
    gossip, membership, _ = member_of(["a", "b"])
    gossip.receive(opened(peer("b", 2)), "b", 1.0)
    membership.failed("a", 1.0, is_definite=True)
    assert gossip.waiting() == []


def test_records_are_renewed_less_often_in_a_large_cluster() -> None:
    assert refresh_s(5) == 30.0
    assert refresh_s(1000) == 300.0
