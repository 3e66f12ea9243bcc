"""The slices of an inference job: which are whose, which have their result, how fast it goes. Pure.

A slice is given out whole and is done when its result is stored. There is one pass, and no slice of another.
"""

from __future__ import annotations

from collections import Counter
from itertools import accumulate

from node.errors import Refused
from node.scheduler import messages as m
from node.scheduler.ledger import Ledger
from node.scheduler.machine import Saved
from node.scheduler.messages import JobEffect
from node.wire import Progress, Span

FORGET = 0.3
"""Weight of the newest report in a task's speed."""


class Answers:
    """The slices of one job. `seed` decides their order."""

    def __init__(self, saved: Saved, seed: int) -> None:
        self.data_digest = saved.data_digest
        self._saved = saved
        self._seed = seed
        self._ledger: Ledger | None = None
        self._first_rows: list[int] = []
        self._done: set[int] = {span.index for span in saved.committed}
        self._last: dict[str, int] = {}
        self._tries: Counter[int] = Counter()
        self._pace: dict[str, tuple[float, int, float]] = {}

    def data_found(self, found: m.DataFound) -> str:
        """The dataset is known. Answers with what is wrong, if anything is."""
        has_changed = self.data_digest and found.digest and found.digest != self.data_digest
        if has_changed or (self._ledger is not None and self._ledger.rows != found.rows):
            return "the dataset has changed since the job began"
        if self._ledger is None:
            saved, self._saved = self._saved, Saved()
            last = {t.task_id: (t.slice_number, t.slice) for t in saved.tasks if t.slice is not None}
            self._ledger = Ledger.restored(
                found.rows, self._seed, pass_=0, committed=saved.committed, granted=saved.granted, last=last
            )
            self._first_rows = [0, *accumulate(found.rows)]
            self._last = {task_id: number for task_id, (number, _) in last.items()}
        self.data_digest = found.digest or self.data_digest
        return ""

    @property
    def ledger(self) -> Ledger | None:
        """Whose which slices are; None until the dataset is known."""
        return self._ledger

    @property
    def is_complete(self) -> bool:
        """Whether every slice has its result."""
        return self._ledger is not None and len(self._done) == self._wanted

    @property
    def rows_done(self) -> int:
        """Rows whose result is stored."""
        return sum(self._ledger.rows[index] for index in self._done) if self._ledger is not None else 0

    def next_slice(self, task_id: str, number: int, others: int) -> tuple[Span | None, list[JobEffect]]:
        """The slice for request `number` of a task; None when there is none now.

        A task may fetch one ahead, unless that would leave less than one for each of the `others`.
        """
        ledger = self._ledger
        if ledger is None:
            return None, []
        if number > self._last.get(task_id, 0):
            free = self.counts()["available"]
            if free == 0 or (ledger.granted_to(task_id) and free <= others):
                return None, []
            self._last[task_id] = number
        span, is_new = ledger.give(task_id, number)
        return span, [m.SaveGrant(task_id, number, span)] if is_new else []

    def expects(self, task_id: str, index: int) -> tuple[int, int]:
        """First row and rows of a slice whose result a task sends. Raises `Refused` (`stale`) where it is not (any
        more) this task's to answer."""
        ledger = self._ledger
        if ledger is None:
            raise Refused("busy", "the dataset is not known here yet")
        if index in self._done:
            raise Refused("stale", f"slice {index} has its result")
        if all(span.index != index for span in ledger.granted_to(task_id)):
            raise Refused("stale", f"slice {index} is not task {task_id}'s")
        return self._first_rows[index], ledger.rows[index]

    def stored(self, event: m.ResultStored) -> list[JobEffect]:
        """A result lies at its destination. Raises `Refused` as `expects`."""
        _, rows = self.expects(event.task_id, event.index)
        assert self._ledger is not None
        span = Span(0, event.index, 0, rows)
        self._ledger.commit(event.task_id, [span])
        self._done.add(event.index)
        return [m.SaveResult(event.task_id, span, event.name, event.sha256, event.size_bytes)]

    def gone(self, task_id: str) -> list[JobEffect]:
        """The task is over: its slices go back."""
        self._pace.pop(task_id, None)
        self._last.pop(task_id, None)
        if self._ledger is None or not self._ledger.lost(task_id):
            return []
        return [m.SaveGranted(task_id, ())]

    def tried(self, task_id: str) -> tuple[int, int] | None:
        """A task has failed: the slice that it was at, and how often that one has been failed at."""
        held = self._ledger.granted_to(task_id) if self._ledger is not None else []
        if not held:
            return None
        self._tries[held[0].index] += 1
        return held[0].index, self._tries[held[0].index]

    def progressed(self, now: float, report: Progress) -> None:
        """A task has answered more rows."""
        before = self._pace.get(report.task_id)
        if before is None or report.samples < before[1]:
            self._pace[report.task_id] = (now, report.samples, 0.0)
        elif now > before[0]:
            at, samples, speed = before
            newest = (report.samples - samples) / (now - at)
            blended = newest if speed == 0.0 else (1 - FORGET) * speed + FORGET * newest
            self._pace[report.task_id] = (now, report.samples, blended)

    def samples_per_s(self) -> float | None:
        """Rows a second of all tasks together, while any are known to move."""
        return sum(speed for _, _, speed in self._pace.values()) or None

    def counts(self) -> dict[str, int]:
        """How many slices are in each state."""
        if self._ledger is None:
            return {}
        held = sum(len(self._ledger.granted_to(task_id)) for task_id in self._last)
        done = len(self._done)
        return {"available": self._wanted - done - held, "assigned": held, "used": done}

    def validate(self) -> None:
        """Raise AssertionError where the state contradicts itself."""
        if self._ledger is None:
            return
        self._ledger.validate()
        assert min(self.counts().values()) >= 0
        for task_id in self._last:
            for span in self._ledger.granted_to(task_id):
                assert span.pass_ == 0 and (span.start, span.end) == (0, self._ledger.rows[span.index])
                assert span.index not in self._done

    @property
    def _wanted(self) -> int:
        """Slices that are to have a result: one without rows has none."""
        assert self._ledger is not None
        return sum(1 for rows in self._ledger.rows if rows)
