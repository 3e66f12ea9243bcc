"""The ledger promises nothing twice, and silence frees everything."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node.errors import Refused
from node.wire import ExecutorKind, Resources
from node.worker.leases import OFFER_TTL_S, Ledger

TRAIN = ExecutorKind(class_="train")
TOTAL = Resources(cpu=4, memory=8, storage=100, gpu=0)


def offered(ledger: Ledger, lease_id: str = "l1", cpu: float = 2, now: float = 0.0, scheduler: str = "s1") -> bool:
    made = ledger.offer(lease_id, scheduler, "job", TRAIN, Resources(cpu=cpu, memory=1), 1.0, now)
    return made is not None


def test_an_offer_reserves_its_resources_at_once() -> None:
    ledger = Ledger(TOTAL)
    assert offered(ledger, "l1", cpu=3)
    assert ledger.free().cpu == 1
    assert not offered(ledger, "l2", cpu=2)
    assert offered(ledger, "l3", cpu=1)


def test_the_first_renewal_accepts_and_later_ones_extend() -> None:
    ledger = Ledger(TOTAL)
    offered(ledger)
    assert ledger.renew("l1", "s1", "job", 10, now=5).state == "held"
    assert ledger.expire(now=14.9) == []
    assert ledger.renew("l1", "s1", "job", 10, now=14).renewals == 2
    assert [lease.state for lease in ledger.expire(now=24.1)] == ["expired"]
    assert ledger.free() == TOTAL


def test_an_offer_that_nobody_takes_lapses_after_eight_seconds() -> None:
    """H30: long enough for a slow path, H27: a duration, never an instant of another machine's clock."""
    ledger = Ledger(TOTAL)
    offered(ledger)
    assert OFFER_TTL_S >= 2
    assert ledger.expire(now=7.9) == []
    assert [lease.state for lease in ledger.expire(now=8.0)] == ["lapsed"]
    with pytest.raises(Refused, match="lapsed") as told:
        ledger.renew("l1", "s1", "job", 10, now=8.1)
    assert told.value.code == "stale"


def test_a_lease_belongs_to_the_scheduler_it_was_offered_to() -> None:
    """H28: a lease is named by its id, and fenced."""
    ledger = Ledger(TOTAL)
    offered(ledger)
    for call in (
        lambda: ledger.renew("l1", "s2", "job", 10, now=1),
        lambda: ledger.release("l1", "s2"),
        lambda: ledger.held_by("l1", "s2", now=1),
    ):
        with pytest.raises(Refused) as told:
            call()
        assert told.value.code == "denied"
    with pytest.raises(Refused) as told:
        ledger.renew("l1", "s1", "another job", 10, now=1)
    assert told.value.code == "conflict"


def test_a_task_needs_a_lease_that_is_accepted_and_still_runs() -> None:
    ledger = Ledger(TOTAL)
    offered(ledger)
    with pytest.raises(Refused) as told:
        ledger.held_by("l1", "s1", now=1)
    assert told.value.code == "conflict"
    ledger.renew("l1", "s1", "job", 10, now=1)
    assert ledger.held_by("l1", "s1", now=2).lease_id == "l1"
    with pytest.raises(Refused) as told:
        ledger.held_by("l1", "s1", now=11)
    assert told.value.code == "stale"


def test_releasing_twice_is_as_good_as_once() -> None:
    ledger = Ledger(TOTAL)
    offered(ledger)
    assert ledger.release("l1", "s1") is not None
    assert ledger.release("l1", "s1") is None
    assert ledger.free() == TOTAL


@pytest.mark.parametrize("duration_s", [0, -1, float("nan"), float("inf"), 1e9])
def test_a_senseless_duration_is_refused(duration_s: float) -> None:
    ledger = Ledger(TOTAL)
    offered(ledger)
    with pytest.raises(Refused) as told:
        ledger.renew("l1", "s1", "job", duration_s, now=0)
    assert told.value.code == "invalid"


@settings(max_examples=60, deadline=None)
@given(st.integers(min_value=0, max_value=2**32))
def test_whatever_happens_no_resource_is_promised_twice(seed: int) -> None:
    rng = random.Random(seed)
    ledger, now = Ledger(TOTAL), 0.0
    for step in range(80):
        now += rng.choice([0.0, 0.1, 3.0, 9.0])
        known = rng.choice([lease.lease_id for lease in ledger.live] or ["none"])
        scheduler = rng.choice(["s1", "s2"])
        try:
            match rng.randrange(5):
                case 0 | 1:
                    offered(ledger, f"l{step}", cpu=rng.choice([0.1, 1, 2.5, 4]), now=now, scheduler=scheduler)
                case 2:
                    ledger.renew(known, scheduler, "job", rng.choice([1.0, 10.0]), now)
                case 3:
                    ledger.release(known, scheduler)
                case _:
                    ledger.expire(now)
        except Refused:
            continue
        finally:
            ledger.validate()
    ledger.expire(now + 1e6)
    assert ledger.free() == TOTAL
