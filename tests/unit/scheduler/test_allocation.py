from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from node.scheduler.allocation import (
    BACKOFF_LIMIT_S,
    AcceptOffer,
    Advertise,
    Allocation,
    AllocationEffect,
    DropOffer,
    Need,
    OfferHeld,
)
from node.wire import BindMount, ExecutorKind, Resources

NEED = Need("job", "train", ExecutorKind(class_="train", name="x"), Resources(gpu=10), bid=0.5, max_price=1.0)


def search(wanted: int = 2, seed: int = 1) -> Allocation:
    numbers = itertools.count()
    return Allocation(NEED, wanted, new_id=lambda: f"call-{next(numbers)}", rng=random.Random(seed))


def offer(peer: str, price: float = 0.5, advert: str = "call-0", lease: str = "") -> OfferHeld:
    return OfferHeld(advert, lease or f"lease-{peer}-{advert}", peer, price, Resources(gpu=10))


def accepted(effects: Sequence[AllocationEffect]) -> list[str]:
    return [effect.offer.peer_id for effect in effects if isinstance(effect, AcceptOffer)]


def dropped(effects: Sequence[AllocationEffect]) -> list[str]:
    return [effect.peer_id for effect in effects if isinstance(effect, DropOffer)]


def test_the_cheapest_offers_of_the_window_win_not_the_first_ones() -> None:
    """H29: offers are collected for the window and then ranked."""
    allocation = search(2)
    (advert,) = allocation.tick(0.0)
    assert isinstance(advert, Advertise)
    assert (advert.count, advert.exclude, advert.need.bid) == (2, (), 0.5)
    allocation.offered(0.21, offer("fast", 0.9))
    allocation.offered(0.22, offer("quick", 0.8))
    assert allocation.tick(0.3) == []
    allocation.offered(0.45, offer("slow", 0.1))
    effects = allocation.tick(0.52)
    assert accepted(effects) == ["slow", "quick"]
    assert dropped(effects) == ["fast"]


@pytest.mark.parametrize(
    ("wanted", "heeds", "is_taken"),
    [
        ({"mounts": (BindMount(host_path="/data"),)}, {"mounts", "stores"}, True),
        ({"mounts": (BindMount(host_path="/data"),)}, {"stores"}, False),
        ({"stores": ("s3://bucket/a",)}, {"mounts"}, False),
        ({"stores": ("s3://bucket/a",), "mounts": (BindMount(host_path="/data"),)}, set(), False),
        ({}, set(), True),
    ],
)
def test_a_worker_that_has_not_looked_at_all_that_a_job_needs_is_not_taken(
    wanted: dict[str, Any], heeds: set[str], is_taken: bool
) -> None:
    """An old worker offers for every advertisement: what it does not know it ignores."""
    allocation = Allocation(replace(NEED, **wanted), 1, new_id=lambda: "call-0", rng=random.Random(1))
    allocation.tick(0.0)
    effects = allocation.offered(0.3, replace(offer("old"), heeds=frozenset(heeds)))
    assert dropped(effects) == ([] if is_taken else ["old"])
    assert accepted(allocation.tick(0.61)) == (["old"] if is_taken else [])
    assert ("1 worker refused: too old a version, which knows no " in allocation.answers()) != is_taken


def test_equal_prices_are_ranked_the_same_in_every_order_of_arrival() -> None:
    orders = []
    for arrival in itertools.permutations(["a", "b", "c"]):
        allocation = search(2)
        allocation.tick(0.0)
        for peer in arrival:
            allocation.offered(0.3, offer(peer))
        orders.append(accepted(allocation.tick(0.61)))
    assert orders == [["a", "b"]] * 6


def test_a_late_offer_is_ranked_in_a_window_of_its_own() -> None:
    allocation = search(1)
    allocation.tick(0.0)
    assert allocation.tick(0.5) == []
    assert allocation.offered(0.9, offer("late", 0.9)) == []
    assert allocation.offered(1.0, offer("later", 0.2)) == []
    effects = allocation.tick(1.21)
    assert accepted(effects) == ["later"]
    assert dropped(effects) == ["late"]


def test_the_waiting_text_groups_refusals_by_reason() -> None:
    allocation = search(2)
    allocation.tick(0.0)
    for peer in ("a", "b", "c"):
        allocation.declined("call-0", peer, "gpu 0 < 10")
    allocation.declined("call-0", "d", "no executor train/x")
    assert allocation.answers() == ""
    allocation.tick(0.5)
    assert allocation.answers() == "3 workers refused: gpu 0 < 10; 1 worker refused: no executor train/x"


def test_the_waiting_text_says_when_nobody_answers_and_when_offers_are_too_dear() -> None:
    allocation = search(2)
    allocation.tick(0.0)
    allocation.tick(0.5)
    assert allocation.answers() == "no worker answered"
    (advert,) = allocation.tick(2.0)
    assert isinstance(advert, Advertise)
    allocation.offered(2.2, offer("a", 1.5, advert.advert_id))
    allocation.offered(2.2, offer("b", 1.1, advert.advert_id))
    assert sorted(dropped(allocation.tick(2.6))) == ["a", "b"]
    assert allocation.answers() == "2 offers above your maximum price 1.0"


def test_reasons_of_workers_that_went_away_are_forgotten() -> None:
    allocation = search(1)
    allocation.tick(0.0)
    allocation.declined("call-0", "gone", "busy")
    allocation.tick(0.5)
    allocation.tick(2.0)
    allocation.tick(2.6)
    assert allocation.answers() == "no worker answered"


def test_a_search_that_is_short_asks_again_with_a_growing_pause() -> None:
    """H22: too few offers is not the end."""
    allocation = search(1)
    now, calls = 0.0, []
    while now < 60:
        calls += [now for effect in allocation.tick(now) if isinstance(effect, Advertise)]
        allocation.validate()
        now += 0.05
    pauses = [later - earlier for earlier, later in itertools.pairwise(calls)]
    assert 1.0 < pauses[0] < 2.0
    assert pauses[-1] > 5
    assert max(pauses) <= BACKOFF_LIMIT_S * 1.25 + 1


def test_a_new_worker_ends_the_pause() -> None:
    allocation = search(1)
    for now in (0.0, 0.5, 2.0, 2.5, 5.0):
        allocation.tick(now)
    allocation.tick(5.5)
    assert allocation.tick(5.6) == []
    allocation.poke(5.6)
    assert [type(effect) for effect in allocation.tick(5.6)] == [Advertise]


def test_only_what_is_missing_is_asked_for_and_holders_are_left_out() -> None:
    allocation = search(3)
    allocation.tick(0.0)
    allocation.offered(0.2, offer("a"))
    allocation.tick(0.6)
    assert allocation.accepted("lease-a-call-0")
    (advert,) = allocation.tick(2.0)
    assert isinstance(advert, Advertise)
    assert (advert.count, advert.exclude) == (2, ("a",))
    assert dropped(allocation.offered(2.1, offer("a", advert=advert.advert_id)) + allocation.tick(2.6)) == ["a"]


def test_a_lost_lease_is_looked_for_again_at_once() -> None:
    allocation = search(1)
    allocation.tick(0.0)
    allocation.offered(0.2, offer("a"))
    allocation.tick(0.6)
    allocation.accepted("lease-a-call-0")
    assert allocation.next_at() is None
    allocation.lost(100.0, "lease-a-call-0")
    assert allocation.answers() == "", "nobody was asked for this one yet"
    assert [type(effect) for effect in allocation.tick(100.0)] == [Advertise]


def one_held() -> Allocation:
    allocation = search(1)
    allocation.tick(0.0)
    allocation.offered(0.3, offer("a"))
    allocation.tick(0.6)
    assert allocation.accepted("lease-a-call-0")
    return allocation


def test_for_a_lease_that_is_doubted_offers_are_gathered_and_one_is_taken_the_moment_it_is_lost() -> None:
    allocation = one_held()
    assert allocation.tick(9.9) == []
    allocation.doubt(10.0, "lease-a-call-0")
    (advert,) = allocation.tick(10.0)
    assert isinstance(advert, Advertise)
    assert (advert.count, advert.exclude) == (1, ("a",))
    allocation.offered(10.3, offer("b", advert="call-1"))
    assert allocation.tick(10.7) == []
    assert allocation.next_at() is None
    allocation.lost(10.8, "lease-a-call-0")
    assert accepted(allocation.tick(10.8)) == ["b"]
    allocation.validate()


def test_a_worker_that_comes_while_a_call_is_open_is_asked_right_after_it() -> None:
    """It has not heard that call; a worker that was killed and started again is one of these."""
    allocation = search(1)
    allocation.tick(0.0)
    allocation.poke(0.2)
    (again,) = allocation.tick(0.5)
    assert isinstance(again, Advertise)
    assert allocation.tick(1.0) == [], "nobody came since: now it pauses"
    allocation = one_held()
    allocation.doubt(10.0, "lease-a-call-0")
    allocation.tick(10.0)
    allocation.lost(10.9, "lease-a-call-0")
    (again,) = allocation.tick(10.9)
    assert isinstance(again, Advertise)
    assert again.exclude == ()


def test_offers_for_a_lease_that_was_doubted_without_reason_are_let_go() -> None:
    allocation = one_held()
    allocation.doubt(10.0, "lease-a-call-0")
    allocation.tick(10.0)
    allocation.offered(10.3, offer("b", advert="call-1"))
    allocation.trust("lease-a-call-0")
    effects = allocation.tick(10.9)
    assert (accepted(effects), dropped(effects)) == ([], ["b"])
    assert allocation.tick(20.0) == []
    assert allocation.held == {"lease-a-call-0": "a"}


def test_an_acceptance_that_comes_after_the_end_of_the_search_is_not_kept() -> None:
    allocation = search(1)
    allocation.tick(0.0)
    allocation.offered(0.2, offer("a"))
    allocation.tick(0.6)
    assert dropped(allocation.stop()) == ["a"]
    assert not allocation.accepted("lease-a-call-0")


def test_a_peer_that_failed_is_taken_only_where_no_other_offers() -> None:
    allocation = search(1)
    allocation.avoid.add("cheap")
    allocation.tick(0.0)
    allocation.offered(0.2, offer("cheap", 0.1))
    allocation.offered(0.2, offer("dear", 0.9))
    assert accepted(allocation.tick(0.6)) == ["dear"]
    alone = search(1)
    alone.avoid.add("cheap")
    alone.tick(0.0)
    alone.offered(0.2, offer("cheap", 0.1))
    assert accepted(alone.tick(0.6)) == ["cheap"]


def test_random_offers_refusals_and_losses_never_hold_more_than_wanted() -> None:
    for seed in range(50):
        rng = random.Random(seed)
        allocation = search(3, seed)
        now, open_calls = 0.0, ["call-0"]
        accepting: list[str] = []
        for step in range(300):
            now += rng.random() * 0.3
            effects = allocation.tick(now)
            event = rng.random()
            if event < 0.5:
                effects += allocation.offered(
                    now, offer(f"p{rng.randrange(6)}", rng.random() * 1.3, rng.choice(open_calls), f"l{step}")
                )
            elif event < 0.6 and allocation.held:
                allocation.lost(now, rng.choice(sorted(allocation.held)))
            elif event < 0.7 and accepting:
                allocation.not_accepted(now, accepting.pop())
            elif accepting:
                allocation.accepted(accepting.pop(0))
            open_calls += [effect.advert_id for effect in effects if isinstance(effect, Advertise)]
            accepting += [effect.offer.lease_id for effect in effects if isinstance(effect, AcceptOffer)]
            allocation.validate()
            assert len(allocation.held) <= 3
