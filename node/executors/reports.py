"""What the executor tells the bridge of its batches, from a thread, so that no batch waits for an answer.

The bridge answers each report with how many more batches the round is to have, counted from that report; kept here as a
total, it is obeyed exactly however late the answer comes, unless it asks for fewer batches than were done meanwhile.
How far training may run ahead of the answers is bounded by time: fast batches are reported several at once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from node.executors.bridge_client import BridgeError

EVERY_S = 0.025
"""Between two reports: 40 a second cost less than one percent of a core."""
AHEAD_S = 0.1
"""Training may be so far ahead of the answers, but always by one batch."""
AHEAD_BATCHES = 64
PATIENCE = 0.005
"""The share of a batch's time that is waited for its answer: slow batches are then never one too many."""
ANSWER_DEADLINE_S = 120.0
FORGET = 0.2


@dataclass(frozen=True, slots=True)
class _Report:
    rows: int
    took_s: float
    loss: float


class Reports:
    """The reports of one executor, in order, and the target of the round at hand."""

    def __init__(self, status: Callable[[object], dict[str, Any]]) -> None:
        self._status = status
        self._condition = threading.Condition()
        self._waiting: list[_Report] = []
        self._answered = 0
        self._told = 0
        self._target: int | None = None
        self._is_done = False
        self._urgent = False
        self._failure: BaseException | None = None
        self._closed = False
        self._batch_s = 0.0
        self._thread = threading.Thread(target=self._work, name="reports", daemon=True)
        self._thread.start()

    @property
    def batch_s(self) -> float:
        """A batch's time, forgetting average; 0 before the first."""
        return self._batch_s

    def begin(self) -> None:
        """A round begins; everything of the one before has been answered."""
        with self._condition:
            self._told = self._answered = 0
            self._target = None

    def forget_target(self) -> None:
        """The round at hand is another one than was thought."""
        with self._condition:
            self._target = None

    def add(self, rows: int, took_s: float, loss: float) -> None:
        """A batch is done."""
        with self._condition:
            self._waiting.append(_Report(rows, took_s, loss))
            self._told += 1
            self._batch_s = took_s if not self._batch_s else (1 - FORGET) * self._batch_s + FORGET * took_s
            self._urgent = self._urgent or self._told == 1
            self._condition.notify_all()

    def wants_more(self, begun: int) -> bool | None:
        """Whether the round is to have more batches than the `begun` ones; None if the job is done.

        Waits for answers where training is too far ahead of them; for all of them before it says no.
        """
        with self._condition:
            self._wait_for(self._told - self._ahead(), ANSWER_DEADLINE_S)
            if self._told == 1:
                self._wait_for(1, ANSWER_DEADLINE_S)
            elif self._target is None:
                self._wait_for(self._told, PATIENCE * self._batch_s)
            if self._target is not None and begun >= self._target and self._told == begun:
                self._wait_for(self._told, ANSWER_DEADLINE_S)
            self._check()
            if self._is_done:
                return None
            return self._target is None or begun < self._target

    def flush(self) -> None:
        """Waits until every report has been answered."""
        with self._condition:
            self._wait_for(self._told, ANSWER_DEADLINE_S)
            self._check()

    def close(self) -> None:
        """Ends the thread; what was not sent stays unsent."""
        with self._condition:
            self._closed = True
            self._condition.notify_all()
        self._thread.join(5.0)

    def _ahead(self) -> int:
        """How many batches may be unanswered when the next one starts."""
        return max(1, min(AHEAD_BATCHES, int(AHEAD_S / self._batch_s))) if self._batch_s else 1

    def _wait_for(self, answered: int, timeout_s: float) -> None:
        """Waits until so many batches were answered; a report that waits for its turn goes out at once."""
        if self._answered >= answered or self._failure or self._is_done:
            return
        if timeout_s == ANSWER_DEADLINE_S:
            self._urgent = True
            self._condition.notify_all()
        arrived = self._condition.wait_for(
            lambda: self._answered >= answered or self._failure is not None or self._is_done, timeout_s
        )
        if not arrived and timeout_s == ANSWER_DEADLINE_S:
            raise BridgeError(f"the bridge did not answer a status within {timeout_s:.0f} s")

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _work(self) -> None:
        next_at = 0.0
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._closed or self._waiting)
                if not self._urgent:
                    self._condition.wait_for(lambda: self._closed or self._urgent, max(0.0, next_at - time.monotonic()))
                if self._closed:
                    return
                reports, self._waiting, self._urgent = self._waiting, [], False
            try:
                answer = self._status(_body(reports))
                counter = _counter(answer) if answer.get("type") == "ScheduleUpdate" else None
            except BaseException as error:
                with self._condition:
                    self._failure = error
                    self._condition.notify_all()
                return
            next_at = time.monotonic() + EVERY_S
            with self._condition:
                self._answered += len(reports)
                self._is_done = answer.get("type") == "Done"
                if counter is not None:
                    self._target = self._answered + counter
                self._condition.notify_all()


def _body(reports: list[_Report]) -> dict[str, Any]:
    """One report as the contract has it; of several batches the sums, with their number."""
    rows = sum(report.rows for report in reports)
    status: dict[str, Any] = {
        "batch_size": rows,
        "round_time": round(sum(report.took_s for report in reports) * 1000, 3),
        "loss": sum(report.loss * report.rows for report in reports) / rows,
    }
    if len(reports) > 1:
        status["batches"] = len(reports)
    return {"status": status}


def _counter(answer: dict[str, Any]) -> int:
    counter = answer.get("counter")
    if type(counter) is not int or counter < 0:
        raise BridgeError(f"the bridge asked for {counter!r} more batches")
    return counter
