"""What a training job has achieved and is about: its rounds, rows, versions and numbers. Pure; `job.py` drives it.

A round is committed here and nowhere else: the model, the rows it was trained on and the journal move together, from
one report, once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from node.errors import JobError, Refused
from node.scheduler import messages as m
from node.scheduler.group import Task
from node.scheduler.journal import DELTA, MOMENTUM, WEIGHTS, Chain
from node.scheduler.ledger import Ledger
from node.scheduler.machine import Saved
from node.scheduler.messages import JobEffect
from node.scheduler.order import TRAIN, Order
from node.scheduler.partition import Partition
from node.scheduler.plan import RoundPlan
from node.scheduler.score import Score
from node.scheduler.stragglers import Stragglers
from node.wire import CommitRound, Span, VersionFile

LOOK_EVERY_S = 1.0
"""Pause between two looks for stragglers."""


class Rounds:
    """The rounds of one job."""

    def __init__(self, order: Order, saved: Saved, *, now: float, age_s: float) -> None:
        self.round = saved.round
        """The open one; so many are committed."""
        self.chain: Chain = saved.chain
        self.ledger: Ledger | None = None
        self.plan = RoundPlan(order.budget, order.batch_size)
        self.plan.open(self.round, now)
        self.score = Score(order.job_id, began_at=now - age_s)
        self.score.restore(saved.points, saved.samples, saved.bytes_up, saved.bytes_down)
        self.stragglers = Stragglers()
        self.data_digest = saved.data_digest
        self.digest = saved.digest
        """SHA-256 of the committed weights; empty before the first commit."""
        self.contributors = list(saved.contributors)
        """Whose updates the newest version holds, and of which round."""
        self.began_at = now
        self._order = order
        self._saved = saved
        self._bytes_before = (saved.bytes_before_up, saved.bytes_before_down)
        self._bytes = (saved.bytes_up, saved.bytes_down)
        self._looked_at = now
        self._partition: Partition | None = None

    @property
    def is_over(self) -> bool:
        """Whether all rounds are committed."""
        return self.round >= self._order.rounds

    # ---- rows ---------------------------------------------------------------------------------------

    def data_found(self, found: m.DataFound) -> str:
        """The dataset is known: its ledger opens, or goes on. Answers with what is wrong, if anything is."""
        if self.data_digest and found.digest and found.digest != self.data_digest:
            return "the dataset has changed since the job began"
        if self.ledger is None:
            order = self._order
            try:
                self._partition = Partition(order.partition, found.rows, found.classes, order.batch_size)
            except JobError as error:
                return str(error)
            saved, self._saved = self._saved, Saved()
            last = {t.task_id: (t.slice_number, t.slice) for t in saved.tasks if t.slice is not None}
            self.ledger = Ledger.restored(
                found.rows,
                order.model.seed,
                pass_=saved.pass_,
                committed=saved.committed,
                granted=saved.granted,
                last=last,
            )
        elif self.ledger.rows != found.rows:
            return "the dataset has changed since the job began"
        self.data_digest = found.digest or self.data_digest
        return ""

    def next_slice(self, task_id: str, number: int, crew: Sequence[str]) -> tuple[Span | None, list[JobEffect]]:
        """The rows for request `number` of a task, one of the `crew`; None when there is no more to do, or nothing is
        known yet."""
        partition = self._partition
        if self.ledger is None or partition is None or self.is_over:
            return None, []
        speeds = self.plan.speeds(crew)
        span, is_new = self.ledger.give(
            task_id,
            number,
            crew.index(task_id),
            lambda pass_, order: partition.shares(pass_, order, speeds),
        )
        return span, [m.SaveGrant(task_id, number, span)] if is_new else []

    def returned(self, task: Task, number: int, spans: list[Span]) -> list[JobEffect]:
        """A task gives back the rows of an update that did not count, once for each `number`."""
        if self.ledger is None or number <= task.return_number:
            return []
        task.return_number = number
        self.ledger.returned(task.task_id, spans)
        return [m.SaveTask(task.saved()), self._granted(task.task_id)]

    def gone(self, task_id: str) -> list[JobEffect]:
        """No update of this task can count any more: what it had goes back."""
        if self.ledger is None or not self.ledger.lost(task_id):
            return []
        return [self._granted(task_id)]

    def _granted(self, task_id: str) -> m.SaveGranted:
        return m.SaveGranted(task_id, tuple(self.ledger.granted_to(task_id)) if self.ledger else ())

    # ---- versions -----------------------------------------------------------------------------------

    def check(self, report: CommitRound, tasks: Mapping[str, Task]) -> None:
        """Raise `Refused` unless this round can be committed as it is; of updates that cannot count, which."""
        if report.round > self.round:
            raise Refused("busy", f"round {report.round} is reported before round {self.round}")
        if self.ledger is None or self.chain.version is None:
            raise Refused("busy", "this scheduler does not hold the version yet that the round began with")
        expected = [(WEIGHTS, report.weights), (MOMENTUM, report.momentum), (DELTA, report.delta)]
        if any(file.kind != kind or file.number != report.round + 1 for kind, file in expected):
            raise Refused("invalid", f"round {report.round} makes version {report.round + 1}, with a file of each kind")
        strangers = {
            number: f"no training task {share.task_id} runs at {share.peer_id}"
            for number, share in enumerate(report.contributions)
            if not _is_of(tasks.get(share.task_id), share.peer_id)
        }
        shares = [
            (share.task_id, share.spans if number not in strangers else [])
            for number, share in enumerate(report.contributions)
        ]
        parts = self.ledger.conflicts(shares) | strangers
        if parts:
            raise Refused("conflict", "; ".join(parts.values())[:500], parts=parts)

    def commit(self, now: float, epoch: int, peer_id: str, report: CommitRound) -> list[JobEffect]:
        """Take a round that has passed `check`."""
        assert self.ledger is not None
        samples = sum(share.samples for share in report.contributions)
        seconds = max(0.0, now - self.began_at)
        self._bytes = (self._bytes_before[0] + report.bytes_up, self._bytes_before[1] + report.bytes_down)
        for share in report.contributions:
            self.ledger.commit(share.task_id, share.spans)
        self.chain.add(report.delta)
        self.round = report.round + 1
        self.digest = report.weights.sha256
        self.contributors = [(share.task_id, share.from_round) for share in report.contributions]
        fragments = self._order.sync.fragments
        effects: list[JobEffect] = list(self.score.committed(now, report, samples, seconds, *self._bytes, fragments))
        effects.append(m.SaveRound(report, samples, seconds, *self._bytes, self.ledger.pass_))
        effects += [self._granted(task_id) for task_id in dict.fromkeys(s.task_id for s in report.contributions)]
        files = (report.weights, report.momentum)
        every = self._order.checkpoint_every
        if every and self.round % every == 0:
            committed = tuple(self.ledger.committed())
            effects.append(m.KeepCheckpoint(self.round, peer_id, files, self.ledger.pass_, committed))
        if self.chain.is_base_due() and not self.is_over:
            effects.append(m.PullBase(epoch, peer_id, files))
        self.began_at = now
        self.plan.open(self.round, now)
        self.stragglers.open()
        return effects

    def ready(self, epoch: int, peer_id: str, files: list[VersionFile]) -> list[JobEffect] | str:
        """A parameter server holds this version. Its first one is taken over; any other must be the committed one.

        Answers with what is wrong as text.
        """
        weights = next((file for file in files if file.kind == WEIGHTS), None)
        if weights is None:
            return "it does not say what it starts from"
        if self.chain.version is None:
            return [m.PullBase(epoch, peer_id, tuple(files))]
        digest = self.digest or self.chain.base[0].sha256
        if weights.number != self.chain.version:
            return f"it starts from version {weights.number}, version {self.chain.version} is committed"
        return [] if weights.sha256 == digest else f"its weights of version {weights.number} are not the committed ones"

    def base_kept(self, files: tuple[VersionFile, ...]) -> list[JobEffect]:
        """A version lies in our journal whole: the chain begins there."""
        number = files[0].number
        if self.chain.version is not None and not self.chain.base[0].number < number <= self.chain.version:
            return []
        self.chain.rebase(files)
        return [m.SaveBase(files)]

    def server_lost(self) -> None:
        """The next parameter server counts its bytes from nought."""
        self._bytes_before = self._bytes

    # ---- pace ---------------------------------------------------------------------------------------

    def first_round_of_a_newcomer(self, now: float) -> int:
        """The round from which a task that starts now is waited for. Where others train already, none is held up for
        it: it is waited for once it has reported its first batch."""
        return self.round if self.plan.seconds_left(now) is None else self._order.rounds

    def look_for_stragglers(self, now: float) -> Iterator[tuple[str, float]]:
        """Members that are newly seen to be behind, and by how much."""
        if now - self._looked_at >= LOOK_EVERY_S:
            self._looked_at = now
            yield from self.stragglers.look(self.plan.finishes(now), now - self.began_at)

    def validate(self) -> None:
        """Raise AssertionError where the state contradicts itself."""
        assert 0 <= self.round <= self._order.rounds
        self.plan.validate()
        self.chain.validate()
        assert self.chain.version is None or self.chain.version == self.round
        if self.ledger is not None:
            self.ledger.validate()


def _is_of(task: Task | None, peer_id: str) -> bool:
    """Whether this is a training task of this peer."""
    return task is not None and task.role == TRAIN and task.peer_id == peer_id
