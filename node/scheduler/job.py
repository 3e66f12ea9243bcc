"""A job, from its submission to its model: events in, effects out. It never awaits and never reads a clock.

    waiting -> starting -> running -> exporting -> done
       ^                      |           |
       +------ a new epoch, when the parameter server is lost (from round 0)

Every state but the last can end in `failed` or `cancelled`. A group is one parameter server and up to `workers`
training tasks; it begins when `min_workers` leases are held, the rest join when they are found. Nothing of an earlier
epoch counts.
"""

from __future__ import annotations

from collections.abc import Callable

from node.errors import Refused
from node.scheduler import messages as m
from node.scheduler.group import Group, Task
from node.scheduler.messages import AGGREGATE, TRAIN, JobEffect, JobEvent, Order
from node.scheduler.plan import RoundPlan
from node.scheduler.score import Score
from node.scheduler.slices import Grant, SliceTracker
from node.scheduler.texts import failure_text, short_of_workers_text, waiting_text
from node.views import JobView
from node.wire import Plan, Progress, RoundCommitted, TaskStatus

FAILURES_ALLOWED = 2
"""One more failed task than this, and the job has failed."""
LAST_EVALUATION_S = 60.0
"""How long a finished job waits for the validation loss of its last version."""
ENDED = frozenset({"done", "failed", "cancelled"})


class Job:
    """One job's state machine."""

    def __init__(
        self, order: Order, *, now: float, age_s: float = 0.0, epoch: int = 0, name_of: Callable[[str], str] = str
    ) -> None:
        self.order = order
        self.state = "waiting"
        self.reason = ""
        self.epoch = epoch
        self.round = 0
        self.model_dir = ""
        self.group = Group(order)
        self.score = Score(order.job_id, began_at=now - age_s)
        self._name_of = name_of
        self._slices: SliceTracker | None = None
        self._plan = RoundPlan(order.budget, order.batch_size)
        self._idle: dict[str, str] = {}
        self._prices: dict[str, float] = {}
        self._seen_leases: set[str] = set()
        self._answers: dict[str, str] = {}
        self._used: list[m.UsedSlice] = []
        self._kept: list[m.UsedSlice] = []
        self._evaluator: str = ""
        self._failures = 0
        self._has_lost = False
        self._data_missing = ""
        self._restart_reason = f"started again from round 0 (epoch {epoch})" if epoch else ""
        self._sought_at: float | None = now - age_s
        self._round_began_at = now
        self._exported: TaskStatus | None = None
        self._pull_asked = False
        self._pulled_at: float | None = None

    @property
    def is_over(self) -> bool:
        """Whether the job has ended, in whatever way."""
        return self.state in ENDED

    def begin(self, now: float) -> list[JobEffect]:
        """The first thing to do."""
        return [m.SaveState(), m.FindData(), *self._settle(now)]

    def handle(self, now: float, event: JobEvent) -> list[JobEffect]:
        """Take an event; answers with what is to be done, in this order.

        Raises `Refused` (`busy`) for a round's report that comes before its predecessor's.
        """
        if self.is_over:
            return [m.ReleaseHeld(event.lease_id, event.peer_id)] if isinstance(event, m.LeaseHeld) else []
        before = (self.state, self.epoch)
        effects = self._take(now, event)
        effects += self._settle(now)
        if (self.state, self.epoch) != before:
            effects.append(m.SaveState())
        return effects

    def _take(self, now: float, event: JobEvent) -> list[JobEffect]:
        match event:
            case m.DataFound(slices):
                return self._data_found(slices)
            case m.DataMissing(reason):
                self._data_missing = reason
            case m.LeaseHeld(role, lease_id, peer_id, price):
                return self._lease_held(now, role, lease_id, peer_id, price)
            case m.LeaseLost(lease_id, reason):
                return self._lease_lost(now, lease_id, reason)
            case m.SearchAnswered(role, text):
                self._answers[role] = text
            case m.DispatchRefused(task_id, reason):
                return self._dispatch_refused(now, task_id, reason)
            case m.TaskReported(status):
                return self._task_reported(now, status)
            case m.Measured(task_id, round_, metrics):
                task = self.group.tasks.get(task_id)
                return list(self.score.measured(now, task.peer_id, task_id, round_, metrics)) if task else []
            case m.Committed(report):
                return self._committed(now, report)
            case m.ExportPulled(model_dir):
                self.model_dir = model_dir
                self._pulled_at = now
            case m.ExportFailed(reason):
                return self._end("failed", f"the model could not be stored: {reason}")
            case m.CancelAsked(by):
                return self._end("cancelled", f"cancelled by {by}")
            case m.Ticked():
                pass
        return []

    # ---- what tasks ask -------------------------------------------------------------------------

    def progress(self, now: float, report: Progress) -> tuple[Plan, list[JobEffect]]:
        """A training task reports; the plan says when to send its update. The round number makes late ones harmless."""
        task = self.group.tasks[report.task_id]
        evaluate = task.task_id == self._evaluator
        if not task.is_alive or self.is_over or report.round < self.round:
            return Plan(round=report.round, target_batches=max(1, report.batches), evaluate=evaluate), []
        if self.round == 0 and not self.score.has_progress:
            self._round_began_at = now
        task.state = "running"
        task.round = report.round
        task.batches, task.samples, task.batch_s = report.batches, report.samples, report.batch_s
        effects: list[JobEffect] = list(self.score.progressed(now, task, report))
        if report.round > self.round:
            return Plan(round=report.round, evaluate=evaluate), effects
        target = self._plan.report(
            now, task.task_id, batches=report.batches, samples=report.samples, batch_s=report.batch_s
        )
        if self.state == "starting":
            effects += self._settle(now)
            if self.state != "starting":
                effects.append(m.SaveState())
        return Plan(round=report.round, target_batches=target, evaluate=evaluate), effects

    def next_slice(self, task_id: str, used: list[tuple[int, int]]) -> Grant | None:
        """Note what a task has used, and give it its next slice; None when there is no more to do."""
        task = self.group.tasks[task_id]
        if self._slices is None or not task.is_alive:
            return None
        for pass_, index in used:
            grant = Grant(pass_, index)
            if self._slices.used(task_id, grant):
                self._used.append(m.UsedSlice(pass_, index, task_id, self.round))
        return None if self.round >= self.order.rounds else self._slices.give(task_id)

    def view(self, now: float, scheduler: str) -> JobView:
        """As an operator sees it."""
        return JobView(
            id=self.order.job_id,
            name=self.order.name,
            scheduler=scheduler,
            state=self.state,
            reason=self.reason,
            dataset=self.order.dataset,
            round=self.round,
            rounds=self.order.rounds,
            workers=len(self.group.alive(TRAIN)),
            workers_wanted=self.order.workers,
            epoch=self._slices.pass_ if self._slices else 0,
            slices=self._slices.counts() if self._slices else {},
            price=sum(self._prices.values()),
            tasks=self.group.views(),
            model_dir=self.model_dir,
            **self.score.summary(now),
        )

    def abandon(self, reason: str) -> None:
        """The shell cannot go on with this job."""
        self._end("failed", reason)

    def validate(self) -> None:
        """Raise AssertionError where the state contradicts itself."""
        assert 0 <= self.round <= self.order.rounds
        assert len(self.group.alive(AGGREGATE)) <= 1
        living = [task for task in self.group.tasks.values() if task.is_alive]
        assert {task.lease_id for task in living} | set(self._idle) == set(self._prices), "a lease without a use"
        assert len({task.lease_id for task in living}) == len(living)
        assert all(task.epoch == self.epoch for task in living)
        if self._slices is not None:
            self._slices.validate()
            for task in self.group.tasks.values():
                assert task.is_alive or not self._slices.given_to(task.task_id)
        self._plan.validate()
        if self.is_over:
            assert not living and not self._prices

    # ---- events -----------------------------------------------------------------------------------

    def _data_found(self, slices: int) -> list[JobEffect]:
        self._data_missing = ""
        if self._slices is None:
            self._slices = SliceTracker(slices, self.order.model.seed)
        elif self._slices.count != slices:
            return self._end("failed", "the dataset has changed since the job began")
        return [m.Search(AGGREGATE, 1), m.Search(TRAIN, self.order.workers)]

    def _lease_held(self, now: float, role: str, lease_id: str, peer_id: str, price: float) -> list[JobEffect]:
        if lease_id in self._seen_leases:
            return []
        self._seen_leases.add(lease_id)
        needed = 1 if role == AGGREGATE else self.order.workers
        held = self.group.alive(role) if role == AGGREGATE else [*self.group.alive(TRAIN), *self._idle]
        if len(held) >= needed or self.round >= self.order.rounds:
            return [m.ReleaseHeld(lease_id, peer_id)]
        self._prices[lease_id] = price
        where = self._name_of(peer_id)
        what = "parameter server" if role == AGGREGATE else "worker"
        effects: list[JobEffect] = [
            self._note("lease.held", f"{where} is held as {what}", lease=lease_id, peer=peer_id)
        ]
        if role == AGGREGATE:
            self.group.add(AGGREGATE, lease_id, peer_id, epoch=self.epoch, round_=0)
        else:
            self._idle[lease_id] = peer_id
        if len(self._prices) == 1 + self.order.workers and self._sought_at is not None:
            seconds = f"{now - self._sought_at:.3f}"
            self._sought_at = None
            text = f"{self.order.name}: all {len(self._prices)} leases are held after {seconds} s"
            effects.append(self._note("job.placed", text, seconds=seconds))
        return effects + self._start(now, server_is_new=role == AGGREGATE)

    def _start(self, now: float, *, server_is_new: bool = False) -> list[JobEffect]:
        """Dispatch what can be: the parameter server at once, training tasks once enough leases are held."""
        server = self.group.server
        if server is None:
            return []
        new: list[Task] = []
        if self.group.alive(TRAIN) or len(self._idle) >= self.order.min_workers:
            for lease_id, peer_id in self._idle.items():
                new.append(self.group.add(TRAIN, lease_id, peer_id, epoch=self.epoch, round_=self.round))
                self._plan.join(new[-1].task_id)
            self._idle.clear()
        self._choose_evaluator()
        started = [server, *new] if server_is_new else new
        effects: list[JobEffect] = [
            m.StartTask(task.peer_id, self.group.dispatch_of(task, evaluate=task.task_id == self._evaluator))
            for task in started
        ]
        if new and not server_is_new:
            effects.append(self._set_group(server))
        return effects

    def _lease_lost(self, now: float, lease_id: str, reason: str) -> list[JobEffect]:
        self._prices.pop(lease_id, None)
        self._idle.pop(lease_id, None)
        task = self.group.under(lease_id)
        if task is None:
            return []
        task.state = "lost"
        task.detail = reason
        where = self._name_of(task.peer_id)
        if task.role == AGGREGATE:
            return self._restart(now, f"the parameter server on {where} was lost ({reason})")
        effects = self._drop(task)
        text = f"{where} was lost ({reason}); its slices went back"
        return [*effects, self._note("worker.lost", text, level="warning", peer=task.peer_id, task=task.task_id)]

    def _dispatch_refused(self, now: float, task_id: str, reason: str) -> list[JobEffect]:
        task = self.group.tasks.get(task_id)
        if task is None or not task.is_alive:
            return []
        task.state, task.detail = "failed", reason
        effects: list[JobEffect] = [m.Shun(task.role, task.peer_id, never=True), *self._release(task.lease_id, reason)]
        text = f"{self._name_of(task.peer_id)} refused the {task.role} task: {reason}"
        effects.append(self._note("task.refused", text, level="warning", peer=task.peer_id, task=task_id))
        if task.role == AGGREGATE:
            return effects + self._restart(now, text)
        return effects + self._drop(task)

    def _task_reported(self, now: float, status: TaskStatus) -> list[JobEffect]:
        task = self.group.tasks.get(status.task_id)
        if task is None or not task.is_alive:
            return []
        is_early = task.role == AGGREGATE or self.round < self.order.rounds - 1
        if status.state == "failed" or (status.state == "finished" and is_early and self._exported is None):
            return self._task_failed(now, task, status)
        if status.state == "cancelled":
            released = self._release(task.lease_id)
            return [*released, *self._lease_lost(now, task.lease_id, status.detail or "ended by its worker")]
        if status.state == "finished":
            # A parameter server that is done still serves its export until its lease is released. The report of the
            # last round may still be on its way when its workers are already done.
            if task.role == AGGREGATE:
                return []
            task.state = "finished"
            return [*self._drop(task), *self._release(task.lease_id)]
        task.detail = status.detail
        if status.state == "exported" and task.role == AGGREGATE:
            task.state = "exported"
            self._exported = status
        elif status.state in ("starting", "running", "ready") and task.state != "exported":
            task.state = "running" if task.state == "running" and status.state == "starting" else status.state
        return []

    def _task_failed(self, now: float, task: Task, status: TaskStatus) -> list[JobEffect]:
        task.state = "failed" if status.state == "finished" else status.state
        task.exit_code, task.tail = status.exit_code, list(status.tail)
        task.detail = status.detail or ("ended before its rounds were done" if status.state != "failed" else "")
        text = failure_text(task.role, self._name_of(task.peer_id), status, task.detail)
        self._failures += 1
        effects: list[JobEffect] = [
            self._note("task.failed", text, level="error", peer=task.peer_id, task=task.task_id),
            m.Shun(task.role, task.peer_id),
            *self._release(task.lease_id),
        ]
        if self._failures > FAILURES_ALLOWED:
            effects += self._drop(task) if task.role == TRAIN else []
            return effects + self._end("failed", f"{self._failures} tasks failed, the last one was the {text}")
        return effects + (self._drop(task) if task.role == TRAIN else self._restart(now, f"the {text}"))

    def _committed(self, now: float, report: RoundCommitted) -> list[JobEffect]:
        server = self.group.server
        if server is None or report.task_id != server.task_id or report.round < self.round:
            return []
        if report.round > self.round:
            raise Refused("busy", f"round {report.round} is reported before round {self.round}")
        samples = sum(contribution.samples for contribution in report.contributions)
        seconds = max(0.0, now - self._round_began_at)
        effects: list[JobEffect] = list(self.score.committed(now, report, samples, seconds))
        in_hand = [*self._kept, *(line for task in self.group.alive(TRAIN) for line in self._in_hand(task))]
        effects.append(m.SaveRound(self.epoch, report, samples, seconds, tuple(self._used), tuple(in_hand)))
        self._used.clear()
        number = report.round + 1
        text = f"round {number} of {self.order.rounds}: {len(report.contributions)} updates, {samples} samples"
        left_out = "".join(f"; {task}: {why}" for task, why in sorted(report.left_out.items()))
        level = "warning" if report.left_out else "info"
        effects.append(self._note("round.committed", text + left_out, level=level, round=str(number)))
        self.round = number
        self._round_began_at = now
        self._plan.open(number, now)
        for task in self.group.alive(TRAIN):
            if task.round < number:
                task.round, task.batches, task.samples = number, 0, 0
        if number >= self.order.rounds:
            effects += [m.Search(TRAIN, 0), m.Search(AGGREGATE, 0)]
            effects += [effect for lease_id in list(self._idle) for effect in self._release(lease_id)]
        return effects

    # ---- parts of them ------------------------------------------------------------------------------

    def _drop(self, task: Task) -> list[JobEffect]:
        """A training task is over: its slices go back, and the parameter server waits for it no more."""
        if self._slices is not None:
            self._kept += self._in_hand(task)
            self._slices.lost(task.task_id)
        self._plan.leave(task.task_id)
        self._has_lost = self._has_lost or task.state != "finished"
        self._choose_evaluator()
        server = self.group.server
        return [] if server is None or self.round >= self.order.rounds else [self._set_group(server)]

    def _in_hand(self, task: Task) -> list[m.UsedSlice]:
        grants = self._slices.given_to(task.task_id) if self._slices else []
        return [m.UsedSlice(grant.pass_, grant.index, task.task_id, self.round) for grant in grants]

    def _set_group(self, server: Task) -> m.SetGroup:
        return m.SetGroup(server.task_id, server.peer_id, self.group.members())

    def _release(self, lease_id: str, refusal: str = "") -> list[JobEffect]:
        task = next((task for task in self.group.tasks.values() if task.lease_id == lease_id), None)
        peer_id = self._idle.pop(lease_id, "") or (task.peer_id if task else "")
        return [] if self._prices.pop(lease_id, None) is None else [m.ReleaseHeld(lease_id, peer_id, refusal)]

    def _release_all(self, state: str) -> list[JobEffect]:
        for task in self.group.tasks.values():
            if task.is_alive:
                task.state = state
                if self._slices is not None:
                    self._slices.lost(task.task_id)
                self._plan.leave(task.task_id)
        return [effect for lease_id in list(self._prices) for effect in self._release(lease_id)]

    def _restart(self, now: float, why: str) -> list[JobEffect]:
        """Without its parameter server a group has no weights: it begins again from round 0, in a new epoch."""
        self._restart_reason = f"started again from round 0: {why}"
        effects = self._release_all("cancelled")
        self.epoch += 1
        self.round = 0
        self._plan = RoundPlan(self.order.budget, self.order.batch_size)
        if self._slices is not None:
            self._slices = SliceTracker(self._slices.count, self.order.model.seed)
        self._used.clear()
        self._kept.clear()
        self.score.reset()
        self._sought_at = now
        self._round_began_at = now
        self._exported, self._pull_asked, self._pulled_at, self._evaluator = None, False, None, ""
        self._has_lost = False
        return [
            *effects,
            self._note("job.restarted", self._restart_reason, level="warning"),
            m.Search(AGGREGATE, 1),
            m.Search(TRAIN, self.order.workers),
        ]

    def _end(self, state: str, reason: str) -> list[JobEffect]:
        self.state, self.reason = state, reason
        ended = "cancelled" if state == "cancelled" else "finished"
        level = "error" if state == "failed" else "info"
        return [
            m.Search(TRAIN, 0),
            m.Search(AGGREGATE, 0),
            *self._release_all(ended),
            self._note(f"job.{state}", f"{self.order.name}: {reason or state}", level=level),
        ]

    def _choose_evaluator(self) -> None:
        task = self.group.tasks.get(self._evaluator)
        if not self.order.validation_dataset or (task is not None and task.is_alive):
            return
        self._evaluator = next((task.task_id for task in self.group.alive(TRAIN)), "")

    def _note(self, name: str, text: str, *, level: str = "info", **fields: str) -> m.Happened:
        return m.Happened(name, text, level, {"job": self.order.job_id, **fields})

    # ---- where the job stands ---------------------------------------------------------------------

    def _settle(self, now: float) -> list[JobEffect]:
        """Bring state and reason in line with everything above, and end the job when nothing is left to do."""
        if self.is_over:
            return []
        state_before, waiting_before = self.state, self.reason if self.state == "waiting" else ""
        workers = self.group.alive(TRAIN)
        server = self.group.server
        if self.round >= self.order.rounds:
            self.state, self.reason = "exporting", ""
            return self._settle_export(now)
        if server is None or not workers:
            self.state, self.reason = "waiting", self._waiting_text(server is not None)
        elif not any(task.state == "running" for task in workers) or server.state in ("dispatched", "starting"):
            self.state, self.reason = "starting", self._restart_reason
        else:
            self.state, self.reason = "running", self._running_text(len(workers))
        has_cause = bool(self._data_missing) or "; " in self.reason
        if self.state == "waiting" and has_cause and self.reason != waiting_before:
            return [self._note("job.waiting", f"{self.order.name}: {self.reason}")]
        if self.state == "running" and state_before != "running":
            return [self._note("job.running", f"{self.order.name}: {len(workers)} of {self.order.workers} workers")]
        return []

    def _settle_export(self, now: float) -> list[JobEffect]:
        if self._pulled_at is not None:
            waited = now - self._pulled_at >= LAST_EVALUATION_S
            evaluator = self.group.tasks.get(self._evaluator)
            nobody = evaluator is None or not evaluator.is_alive
            if self.score.has_evaluation(self.order.rounds) or nobody or waited:
                return [*self.score.closing(now), *self._end("done", ""), m.SaveState()]
            self.reason = "waiting for the last validation loss"
            return []
        server = self.group.server
        if self._exported is None or server is None:
            return []
        self.reason = "fetching the model"
        if self._pull_asked:
            return []
        self._pull_asked = True
        return [m.PullExport(server.peer_id, tuple(self._exported.exported))]

    def _waiting_text(self, has_server: bool) -> str:
        if self._data_missing:
            return f"waiting: {self._data_missing}"
        if self._slices is None:
            return "waiting: looking for the dataset"
        return waiting_text(
            len(self._idle) + len(self.group.alive(TRAIN)),
            self.order.workers,
            has_server=has_server,
            workers_answer=self._answers.get(TRAIN, ""),
            server_answer=self._answers.get(AGGREGATE, ""),
            has_lost=self._has_lost,
            restarted=self._restart_reason,
        )

    def _running_text(self, workers: int) -> str:
        if workers >= self.order.workers:
            return self._restart_reason if self.round == 0 else ""
        answer = self._answers.get(TRAIN, "")
        return short_of_workers_text(workers, self.order.workers, answer=answer, has_lost=self._has_lost)
