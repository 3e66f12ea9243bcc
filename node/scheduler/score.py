"""A job's numbers: losses, throughput, bytes. Pure; turns reports into points of curves."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TypedDict

from node.scheduler.group import Task
from node.scheduler.messages import Plotted
from node.views import Point
from node.wire import CommitRound, Progress

LOSS_EVERY_S = 1.0
"""A worker's loss is plotted at most this often while a round is under way."""
METRICS_ALLOWED = 32
"""Metrics of one report that are kept."""
NAME_LENGTH = 64


class Summary(TypedDict):
    """The part of a job's view that is kept here."""

    samples: int
    loss: float | None
    eval_loss: float | None
    first_eval_loss: float | None
    samples_per_s: float | None
    bytes_up: int
    bytes_down: int
    age_s: float


class Score:
    """What a job has measured."""

    def __init__(self, job_id: str, *, began_at: float) -> None:
        self._job_id = job_id
        self._began_at = began_at
        self.has_progress = False
        self._samples = 0
        self._bytes_up = 0
        self._bytes_down = 0
        self._samples_per_s: float | None = None
        self._loss: float | None = None
        self._evaluations: dict[int, float] = {}
        self._losses: dict[tuple[int, str], float] = {}
        """The last batch's loss, until the round's own comes."""
        self._round_losses: dict[tuple[int, str], float] = {}
        self._open: CommitRound | None = None
        """The newest round, while workers that it averaged have not told their loss yet."""
        self._seen: set[tuple[str, int, str]] = set()

    def restore(self, points: Sequence[Point], samples: int, bytes_up: int, bytes_down: int) -> None:
        """Go on from what an earlier process wrote down."""
        self._samples, self._bytes_up, self._bytes_down = samples, bytes_up, bytes_down
        for point in points:
            if point.worker:
                continue
            if point.name == "eval_loss":
                self._evaluations.setdefault(point.round, point.value)
            elif point.name == "loss":
                self._loss = point.value
            elif point.name == "samples_per_s":
                self._samples_per_s = point.value

    def has_evaluation(self, version: int) -> bool:
        """Whether the validation loss of this version is known."""
        return version in self._evaluations

    def progressed(self, now: float, task: Task, report: Progress) -> Iterator[Plotted]:
        """A training task reports in the middle of a round."""
        self.has_progress = True
        if report.loss is None or not math.isfinite(report.loss):
            return
        task.loss = report.loss
        self._losses[(report.round, task.task_id)] = report.loss
        if now - task.loss_plotted_at >= LOSS_EVERY_S:
            task.loss_plotted_at = now
            yield self._point(now, "loss", report.round, report.loss, task.peer_id)

    def measured(
        self, now: float, peer_id: str, task_id: str, round_: int, metrics: dict[str, float]
    ) -> Iterator[Plotted]:
        """A training task's metrics of a round; one that was told before is ignored."""
        for name, value in list(metrics.items())[:METRICS_ALLOWED]:
            key = (task_id, round_, name)
            if not math.isfinite(value) or key in self._seen or not 0 < len(name) <= NAME_LENGTH:
                continue
            self._seen.add(key)
            if name == "eval_loss":
                if round_ not in self._evaluations:
                    self._evaluations[round_] = value
                    yield self._point(now, name, round_, value)
                continue
            yield self._point(now, name, round_, value, peer_id)
            if name == "loss":
                self._round_losses[(round_, task_id)] = value
                yield from self._loss_of_round(now)

    def committed(
        self,
        now: float,
        report: CommitRound,
        samples: int,
        seconds: float,
        bytes_up: int,
        bytes_down: int,
        fragments: int = 1,
    ) -> Iterator[Plotted]:
        """A round is committed; byte counts are the job's so far. With fragments, an update is one part of so many."""
        self._samples += samples
        sent_up, sent_down = bytes_up - self._bytes_up, bytes_down - self._bytes_down
        self._bytes_up, self._bytes_down = bytes_up, bytes_down
        yield from self.closing(now)
        self._losses = {key: loss for key, loss in self._losses.items() if key[0] >= report.round}
        self._round_losses = {key: loss for key, loss in self._round_losses.items() if key[0] >= report.round}
        self._seen = {key for key in self._seen if key[1] >= report.round - 1}
        self._open = report
        yield from self._loss_of_round(now)
        if samples and seconds > 0:
            self._samples_per_s = samples / seconds
            yield self._point(now, "samples_per_s", report.round, self._samples_per_s)
        yield self._point(now, "bytes_up", report.round, float(bytes_up))
        yield self._point(now, "bytes_down", report.round, float(bytes_down))
        yield self._point(now, "bytes_round", report.round, float(sent_up + sent_down))
        yield self._point(now, "samples_total", report.round, float(self._samples))
        if sent_up > 0 and report.contributions:
            whole = len(report.contributions) * report.weights.size_bytes / fragments
            yield self._point(now, "compression", report.round, whole / sent_up)

    def closing(self, now: float) -> Iterator[Plotted]:
        """The job ends: what is known of its last round is all that will be."""
        yield from self._loss_of_round(now, at_last=True)

    def _loss_of_round(self, now: float, *, at_last: bool = False) -> Iterator[Plotted]:
        """The newest round's loss, once each worker told its own; `at_last` with what there is."""
        report = self._open
        if report is None:
            return
        keys = [(report.round, contribution.task_id) for contribution in report.contributions]
        if not at_last and any(key not in self._round_losses for key in keys):
            return
        self._open = None
        known = {**self._losses, **self._round_losses}
        weighted = [
            (contribution.samples, known[key])
            for key, contribution in zip(keys, report.contributions, strict=True)
            if key in known
        ]
        weight = sum(count for count, _ in weighted)
        if weight:
            self._loss = sum(count * loss for count, loss in weighted) / weight
            yield self._point(now, "loss", report.round, self._loss)

    def summary(self, now: float) -> Summary:
        """The numbers of a job's view."""
        versions = sorted(self._evaluations)
        return Summary(
            samples=self._samples,
            loss=self._loss,
            eval_loss=self._evaluations[versions[-1]] if versions else None,
            first_eval_loss=self._evaluations[versions[0]] if versions else None,
            samples_per_s=self._samples_per_s,
            bytes_up=self._bytes_up,
            bytes_down=self._bytes_down,
            age_s=max(0.0, now - self._began_at),
        )

    def _point(self, now: float, name: str, round_: int, value: float, worker: str = "") -> Plotted:
        t_s = max(0.0, now - self._began_at)
        return Plotted(Point(job_id=self._job_id, name=name, round=round_, value=value, t_s=t_s, worker=worker))
