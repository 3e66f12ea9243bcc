from __future__ import annotations

import random

import pytest

from node.scheduler.ending import Runner, ends


def waits(runners: dict[str, Runner], done: dict[str, int], others: list[float]) -> float:
    times = [*(runners[name].takes(batches) for name, batches in done.items()), *others]
    return max(times) - min(times)


def test_a_slow_member_is_let_finish_its_batch_where_the_others_can_fill_the_time() -> None:
    runners = {"slow": Runner(9.5, 9, 0.8, 8), "fast": Runner(38.0, 38, 0.2, 8)}
    assert ends(runners, [], 384, 0) == {"slow": 9, "fast": 39}, "the slow one waits for 0.6 s"
    assert ends(runners, [], 384, 24) == {"slow": 10, "fast": 40}, "none waits"


def test_whoever_is_asked_late_ends_with_those_whose_end_is_settled() -> None:
    runners = {"fast": Runner(38.0, 38, 0.2, 8)}
    assert ends(runners, [1.0], 312, 0) == {"fast": 39}
    assert ends(runners, [1.0], 312, 40) == {"fast": 43}
    assert ends({}, [1.0], 100, 10) == {}


def test_what_is_done_already_is_never_taken_back() -> None:
    assert ends({"a": Runner(12.3, 12, 1.0, 4)}, [], 4, 0) == {"a": 12}


@pytest.mark.parametrize("seed", range(5))
def test_the_samples_are_reached_with_no_more_than_the_slack_and_nobody_waits_longer_for_it(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(100):
        runners = {}
        for number in range(rng.randrange(1, 9)):
            position = rng.uniform(-2.0, 40.0)
            batch_s, size = rng.choice([0.01, 0.05, 0.2, 1.0]), float(rng.randrange(1, 17))
            runners[f"w{number}"] = Runner(position, max(0, int(position)), batch_s, size)
        begun = sum(runner.least * runner.batch_size for runner in runners.values())
        samples, slack = begun + rng.uniform(0.0, 500.0), rng.uniform(0.0, 50.0)
        others = [rng.uniform(0.0, 2.0) for _ in range(rng.randrange(3))]
        plain, chosen = ends(runners, others, samples, 0.0), ends(runners, others, samples, slack)
        least, made = (sum(runners[name].batch_size * n for name, n in done.items()) for done in (plain, chosen))
        assert made >= samples - 1e-6
        assert made <= least + slack + 1e-6
        assert waits(runners, chosen, others) <= waits(runners, plain, others) + 1e-9
        assert all(chosen[name] >= runner.least for name, runner in runners.items())
