"""When to try again."""

from __future__ import annotations

import random

from node.network.backoff import Allowance, Backoff


def test_delays_double_up_to_the_cap_with_jitter_and_start_over_after_a_success() -> None:
    backoff = Backoff(random.Random(1), first_s=1.0, most_s=8.0)
    delays = [backoff.failed() for _ in range(100)]
    for delay_s, most_s in zip(delays, [1, 2, 4, 8, 8, 8], strict=False):
        assert most_s / 2 <= delay_s <= most_s
    assert max(delays) <= 8.0
    backoff.succeeded()
    assert backoff.failed() <= 1.0


def test_two_nodes_do_not_come_back_at_the_same_moment() -> None:
    first, second = (Backoff(random.Random(seed), first_s=1.0, most_s=8.0) for seed in (1, 2))
    assert first.failed() != second.failed()


def test_an_allowance_lets_a_burst_through_and_then_one_at_a_time() -> None:
    allowance = Allowance(burst=3, every_s=2.0)
    assert [allowance.wait_s(0.0) for _ in range(5)] == [0.0, 0.0, 0.0, 2.0, 4.0]
    assert allowance.wait_s(100.0) == 0.0
