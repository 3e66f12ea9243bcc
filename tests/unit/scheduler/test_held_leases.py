from __future__ import annotations

import random

from node.scheduler.leases import LEASE_S, SILENT_S, Doubted, HeldLeases, Lost, Renew, Trusted


def held(seed: int = 1) -> HeldLeases:
    leases = HeldLeases(random.Random(seed))
    leases.hold(0.0, "l", "worker", LEASE_S)
    return leases


def test_a_lease_is_renewed_at_a_third_of_its_life() -> None:
    """A scheduler that dies at any moment leaves 16 s at least to start it again."""
    leases = held()
    leases.heard(7.5, "worker")
    assert leases.next_at() == 8.0
    assert leases.tick(7.9) == []
    assert leases.tick(8.0) == [Renew("l", "worker", 24.0)]
    assert leases.tick(8.1) == []
    leases.renewed(8.0, "l", 24.0)
    leases.heard(15.5, "worker")
    assert leases.next_at() == 16.0
    leases.validate()


def test_a_parameter_server_is_asked_more_often_for_it_does_not_report() -> None:
    leases = HeldLeases(random.Random(1))
    leases.hold(0.0, "l", "worker", LEASE_S, silent_s=0.5)
    assert leases.next_at() == 0.5


def test_a_worker_that_falls_silent_is_asked_sooner() -> None:
    leases = held()
    assert leases.next_at() == SILENT_S
    leases.heard(3.0, "worker")
    assert leases.tick(3.0 + SILENT_S - 0.1) == []
    assert leases.tick(3.0 + SILENT_S) == [Renew("l", "worker", 24.0)]


def test_a_failed_renewal_is_tried_again_until_the_lease_ends() -> None:
    """H26: one failed request does not lose a lease."""
    leases = held()
    now, attempts = 0.0, 0
    lost: list[tuple[Lost, float]] = []
    while not lost and now < 40:
        for effect in leases.tick(now):
            if isinstance(effect, Renew):
                attempts += 1
                leases.failed(now, "l", "no route")
            else:
                lost.append((effect, now))
        leases.validate()
        now += 0.01
    assert attempts >= 30
    ((effect, at),) = lost
    assert isinstance(effect, Lost)
    assert 24.0 <= at < 24.05
    assert effect.reason == "not renewed in 24 s: no route"


def test_a_cut_of_five_seconds_loses_nothing_whenever_it_comes() -> None:
    """H26."""
    for cut_at in range(30, 60):
        leases = held(cut_at)
        now = 0.0
        while now < 90:
            for effect in leases.tick(now):
                assert isinstance(effect, Renew), cut_at
                if cut_at <= now < cut_at + 5:
                    leases.failed(now, "l", "cut")
                else:
                    leases.renewed(now, "l", LEASE_S)
            now += 0.05


def test_a_lease_counts_from_when_its_renewal_was_sent() -> None:
    """H27: never believe in a lease longer than its worker does."""
    leases = held()
    leases.tick(8.0)
    leases.renewed(8.0, "l", 24.0)
    leases.heard(31.0, "worker")
    assert leases.tick(31.0) == [Renew("l", "worker", 24.0)]
    (lost,) = leases.tick(32.0)
    assert isinstance(lost, Lost)


def test_a_worker_on_whose_machine_nobody_listens_any_more_is_doubted_at_once_and_soon_gone() -> None:
    """A killed process is missed in a second, not at the end of its lease. A timeout in between starts anew."""
    leases = held()
    leases.tick(SILENT_S)
    assert leases.failed(5.0, "l", "refused", is_nobody_there=True) == [Doubted("l")]
    assert leases.failed(5.5, "l", "refused", is_nobody_there=True) == []
    assert leases.failed(5.55, "l", "no answer") == [Trusted("l")]
    assert leases.failed(6.0, "l", "refused", is_nobody_there=True) == [Doubted("l")]
    assert leases.renewed(6.1, "l", 24.0) == [Trusted("l")]
    assert leases.failed(7.0, "l", "refused", is_nobody_there=True) == [Doubted("l")]
    assert leases.failed(7.7, "l", "refused", is_nobody_there=True) == [
        Lost("l", "worker", "the worker is gone: refused")
    ]
    assert len(leases) == 0


def test_a_refusal_loses_the_lease_at_once() -> None:
    leases = held()
    leases.tick(SILENT_S)
    assert leases.refused("l", "stale") == [Lost("l", "worker", "stale")]
    assert leases.refused("l", "stale") == []
    assert len(leases) == 0


def test_one_refused_connection_is_retried_sooner_but_decides_nothing() -> None:
    leases = held()
    leases.tick(SILENT_S)
    leases.failed(SILENT_S, "l", "connection refused", is_nobody_there=True)
    next_at = leases.next_at()
    assert next_at is not None
    assert SILENT_S < next_at <= SILENT_S + 0.2
    assert "l" in leases


def test_a_hint_brings_the_next_renewal_forward() -> None:
    leases = held()
    leases.check_soon(1.0, "worker")
    assert leases.tick(1.0) == [Renew("l", "worker", 24.0)]


def test_late_answers_about_a_released_lease_are_ignored() -> None:
    leases = held()
    leases.tick(SILENT_S)
    leases.release("l")
    leases.renewed(SILENT_S, "l", 24.0)
    leases.failed(8.0, "l", "x")
    assert leases.tick(30.0) == []
    assert leases.next_at() is None
