"""The arbiter ranks by bid, asks its price, and says why it declines."""

from __future__ import annotations

import pytest

from node.wire import Advertisement, ExecutorKind, Resources
from node.worker.arbiter import WINDOW_S, Answer, Arbiter, Terms

TOTAL = Resources(cpu=4, memory=8, storage=100)
FREE_OF_CHARGE = Terms()
KINDS = [ExecutorKind(class_="train", name="ours"), ExecutorKind(class_="aggregate", name="parameter-server")]


def advert(
    advert_id: str = "a1", *, bid: float = 1.0, cpu: float = 2, gpu: float = 0, ttl_s: float = 5, **more: object
) -> Advertisement:
    fields: dict[str, object] = {
        "peer_id": "scheduler",
        "seq": 1,
        "advert_id": advert_id,
        "job_id": "job",
        "executor": ExecutorKind(class_="train"),
        "resources": Resources(cpu=cpu, memory=1, gpu=gpu),
        "bid": bid,
        "count": 1,
        "ttl_s": ttl_s,
    }
    return Advertisement(**(fields | more))  # type: ignore[arg-type]


def decide(*adverts: Advertisement, terms: Terms = FREE_OF_CHARGE, free: Resources = TOTAL) -> list[Answer]:
    arbiter = Arbiter("me", KINDS, terms, stores=["s3://ours"])
    for number, item in enumerate(adverts):
        arbiter.hear(item, 0.001 * number)
    return arbiter.decide(TOTAL, free, WINDOW_S)


def reasons(*adverts: Advertisement, terms: Terms = FREE_OF_CHARGE, free: Resources = TOTAL) -> list[str]:
    return [answer.reason for answer in decide(*adverts, terms=terms, free=free)]


def test_the_best_bid_gets_the_resources_not_the_first_one() -> None:
    """H29: collects for a window, then ranks."""
    answers = decide(advert("low", bid=1, cpu=3), advert("high", bid=5, cpu=3))
    assert [(a.advert.advert_id, a.reason) for a in answers] == [("high", ""), ("low", "busy: cpu 1 free < 3")]


def test_nothing_is_due_before_the_window_is_over() -> None:
    arbiter = Arbiter("me", KINDS, Terms())
    assert arbiter.due_at() is None
    arbiter.hear(advert(), 10.0)
    arbiter.hear(advert("a2"), 10.1)
    assert arbiter.due_at() == 10.0 + WINDOW_S


@pytest.mark.parametrize(
    ("wanted", "reason"),
    [
        (advert(gpu=10), "gpu 0 < 10"),
        (advert(cpu=8), "cpu 4 < 8"),
        (advert(executor=ExecutorKind(class_="train", name="xyz")), "no executor train/xyz"),
        (advert(executor=ExecutorKind(class_="inference")), "no executor inference"),
        (advert(resources=Resources(cpu=-1)), "asks for less than nothing"),
        (advert(stores=["s3://ours/a", "s3://theirs/b"]), "nothing is fetched from s3://theirs/b"),
    ],
)
def test_a_decline_says_what_is_missing(wanted: Advertisement, reason: str) -> None:
    assert reasons(wanted) == [reason]


def test_a_worker_answers_for_the_stores_that_its_owner_has_listed() -> None:
    assert reasons(advert(stores=["s3://ours/sets/a"])) == [""]
    assert reasons(advert(stores=["s3://ours-too/a"])) == ["nothing is fetched from s3://ours-too/a"]


def test_a_busy_worker_says_so() -> None:
    assert reasons(advert(cpu=2), free=Resources(cpu=1, memory=8)) == ["busy: cpu 1 free < 2"]


def test_an_advert_that_asks_for_no_gpu_is_served_without_one() -> None:
    """H24: a cluster of CPUs is a first-class case."""
    assert decide(advert(gpu=0))[0].resources == Resources(cpu=2, memory=1)


@pytest.mark.parametrize("bid", [5.0, 3.0, 2.5, 2.0])
def test_the_price_is_asked_whatever_is_bid_from_the_floor_on(bid: float) -> None:
    (answer,) = decide(advert(bid=bid), terms=Terms(price=3, floor=2))
    assert (answer.reason, answer.price) == ("", 3)


def test_an_offer_never_asks_less_than_the_floor() -> None:
    (answer,) = decide(advert(bid=5), terms=Terms(floor=2))
    assert (answer.reason, answer.price) == ("", 2)


def test_a_bid_under_the_floor_is_declined() -> None:
    assert reasons(advert(bid=1.5), terms=Terms(price=3, floor=2)) == ["bid 1.5 < 2"]


def test_whole_offers_everything_and_only_when_all_is_free() -> None:
    whole = Terms(strategy="whole")
    answers = decide(advert("a1", cpu=1), advert("a2", cpu=1), terms=whole)
    assert answers[0].resources == TOTAL
    assert answers[1].reason.startswith("busy:")


def test_an_advert_heard_twice_is_answered_once_and_an_excluded_worker_keeps_quiet() -> None:
    arbiter = Arbiter("me", KINDS, Terms())
    arbiter.hear(advert(), 0.0)
    arbiter.hear(advert(), 0.1)
    arbiter.hear(advert("other", exclude=["me"]), 0.1)
    assert len(arbiter.decide(TOTAL, TOTAL, 0.3)) == 1
    arbiter.hear(advert(), 0.4)
    assert arbiter.decide(TOTAL, TOTAL, 0.7) == []


def test_an_advert_that_ran_out_is_not_answered() -> None:
    arbiter = Arbiter("me", KINDS, Terms())
    arbiter.hear(advert(ttl_s=0.1), 0.0)
    assert arbiter.decide(TOTAL, TOTAL, 0.2) == []
