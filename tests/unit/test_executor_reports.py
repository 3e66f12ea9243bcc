"""Reports of batches from a thread, and the memory that a batch needs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from node.executors import reports as reports_module
from node.executors.bridge_client import BridgeError
from node.executors.reports import Reports

Answer = dict[str, Any]


class Told:
    """A bridge's end that counts batches; `answer` is asked for each report."""

    def __init__(self, answer: Callable[[int], Answer]) -> None:
        self.answer = answer
        self.bodies: list[dict[str, Any]] = []
        self.batches = 0
        self.gate = threading.Event()
        self.gate.set()

    def status(self, body: Any) -> Answer:
        assert self.gate.wait(5)
        self.bodies.append(body["status"])
        self.batches += body["status"].get("batches", 1)
        return self.answer(self.batches)


@pytest.fixture
def started() -> Iterator[Callable[[Told], Reports]]:
    made: list[Reports] = []

    def start(told: Told) -> Reports:
        made.append(Reports(told.status))
        return made[-1]

    yield start
    for reports in made:
        reports.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "reports"]


def train(reports: Reports, batch_s: float, limit: int = 1000) -> int:
    """Batches of this time until it is enough."""
    begun = 0
    while begun < limit:
        if begun and not reports.wants_more(begun):
            break
        begun += 1
        reports.add(4, batch_s, 1.5)
    return begun


@pytest.mark.parametrize("target", [1, 2, 7, 300])
@pytest.mark.parametrize("batch_s", [0.0001, 0.004, 2.0])
def test_the_number_of_batches_that_is_asked_for_is_done_however_late_the_answer(
    started: Any, target: int, batch_s: float
) -> None:
    """H52: the counter is in batches from the report that it answers on."""
    told = Told(lambda done: {"type": "ScheduleUpdate", "counter": target - done})
    assert train(started(told), batch_s) == target
    assert told.batches == target
    assert sum(body["batch_size"] for body in told.bodies) == 4 * target
    assert all(body["loss"] == 1.5 for body in told.bodies)


def test_fast_batches_are_reported_several_at_once_and_slow_ones_as_upstream_does(started: Any) -> None:
    fast = Told(lambda done: {"type": "Continue"})
    train(started(fast), 0.0001, limit=500)
    assert len(fast.bodies) < 100
    slow = Told(lambda done: {"type": "Continue"})
    reports = started(slow)
    for _ in range(20):
        reports.add(4, 2.0, 1.5)
        reports.flush()  # the next one takes long
    assert slow.bodies == [{"batch_size": 4, "round_time": 2000.0, "loss": 1.5}] * 20


def test_training_runs_ahead_of_the_answers_only_so_far(started: Any) -> None:
    """A daemon that hangs holds the executor after some batches; a slow batch is never two ahead."""
    told = Told(lambda done: {"type": "ScheduleUpdate", "counter": 10_000})
    reports = started(told)
    assert train(reports, 0.01, limit=5) == 5
    told.gate.clear()
    done: list[int] = []
    worker = threading.Thread(target=lambda: done.append(train(reports, 0.01, limit=500)))
    worker.start()
    time.sleep(0.15)
    ahead = reports._told - told.batches
    assert 1 <= ahead <= 11 and not done
    told.answer = lambda count: {"type": "Done"}
    told.gate.set()
    worker.join(5)
    assert not worker.is_alive()


def test_an_earlier_end_and_the_end_of_the_job_are_seen(started: Any) -> None:
    told = Told(lambda done: {"type": "ScheduleUpdate", "counter": 0 if done >= 5 else 50})
    done = train(started(told), 2.0)
    assert 5 <= done <= 6, "asked to stop at once while one batch was under way"
    reports = started(Told(lambda done: {"type": "Done"}))
    reports.add(4, 1.0, 1.0)
    assert reports.wants_more(1) is None


def test_a_bridge_that_refuses_or_never_answers_ends_the_executor(
    started: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H50, H52."""

    def refuse(done: int) -> Answer:
        raise BridgeError("the bridge refused status")

    reports = started(Told(refuse))
    reports.add(1, 1.0, 1.0)
    with pytest.raises(BridgeError, match="refused"):
        reports.wants_more(1)
    monkeypatch.setattr(reports_module, "ANSWER_DEADLINE_S", 0.05)
    told = Told(lambda done: {"type": "Continue"})
    told.gate.clear()
    silent = started(told)
    silent.add(1, 1.0, 1.0)
    with pytest.raises(BridgeError, match="did not answer"):
        silent.wants_more(1)
    told.gate.set()
    bad = started(Told(lambda done: {"type": "ScheduleUpdate", "counter": "soon"}))
    bad.add(1, 1.0, 1.0)
    with pytest.raises(BridgeError, match="asked for 'soon' more"):
        bad.flush()
