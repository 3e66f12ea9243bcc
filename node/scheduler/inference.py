"""An inference job, from its submission to its last result: events in, effects out. It never awaits, reads no clock.

    waiting -> starting -> running -> exporting -> done

Every state but the last can end in `failed` or `cancelled`. Each worker works for itself: one that is lost takes
nothing along but the slices it had, and these go back. A slice counts once its result is stored, and once only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Never

from node.errors import Refused
from node.scheduler import messages as m
from node.scheduler.allocation import Need
from node.scheduler.answers import Answers
from node.scheduler.group import Group, Task
from node.scheduler.inference_order import InferenceOrder, infer_dispatch
from node.scheduler.journal import Chain
from node.scheduler.ledger import Ledger
from node.scheduler.machine import Saved
from node.scheduler.messages import JobEffect, JobEvent
from node.scheduler.order import INFER
from node.scheduler.steering import Moving, paused_text
from node.scheduler.texts import failure_text
from node.views import JobView, Point
from node.wire import CommitRound, Plan, Progress, Span, TaskStatus

TRIES = 3
"""So many failed tasks at one slice, or in a row without a result, and the job has failed."""
PLOT_EVERY_S = 1.0
ENDED = frozenset({"done", "failed", "cancelled", "paused"})


class InferenceJob:
    """One inference job's state machine."""

    validation_dataset = ""
    round = 0

    def __init__(
        self,
        order: InferenceOrder,
        *,
        now: float,
        age_s: float = 0.0,
        saved: Saved | None = None,
        name_of: Callable[[str], str] = str,
    ) -> None:
        saved = saved or Saved()
        self.order = order
        self.state = "waiting"
        self.reason = ""
        self.epoch = saved.epoch
        self.model_dir = ""
        self.chain = Chain()
        self.group = Group(order.job_id, saved.next_number)
        self.answers = Answers(saved, order.model.seed)
        self._name_of = name_of
        self._began_at = now - age_s
        self._leases = {lease.lease_id: lease for lease in saved.leases}
        self._seen_leases = set(self._leases)
        self._answer = ""
        self._data_missing = ""
        self._failures = 0
        self._has_lost = False
        self._moving = Moving()
        self._plotted_at = now
        for line in saved.tasks:
            self._restore(Task.restored(line, 0))

    # ---- what the shell looks at ----------------------------------------------------------------

    @property
    def job_id(self) -> str:
        """Its id."""
        return self.order.job_id

    @property
    def name(self) -> str:
        """What its operator calls it."""
        return self.order.name

    @property
    def dataset(self) -> str:
        """What it answers."""
        return self.order.dataset

    @property
    def data_digest(self) -> str:
        """Of the dataset's manifest, once it is found."""
        return self.answers.data_digest

    @property
    def needs(self) -> dict[str, Need]:
        """Leases for the workers."""
        return {INFER: self.order.need}

    @property
    def ledger(self) -> Ledger | None:
        """Whose which slices are."""
        return self.answers.ledger

    @property
    def is_over(self) -> bool:
        """Whether the job has ended, in whatever way."""
        return self.state in ENDED

    # ---- events ---------------------------------------------------------------------------------

    def begin(self, now: float) -> list[JobEffect]:
        """The first thing to do, in this process: tasks of an earlier one are told again what they may not know."""
        starts = [m.StartTask(task.peer_id, infer_dispatch(self.order, task)) for task in self.group.alive(INFER)]
        used = {task.lease_id for task in self.group.alive(INFER)}
        released = [effect for lease_id in set(self._leases) - used for effect in self._release(lease_id)]
        return [m.SaveState(), m.FindData(), *released, *starts, *self._settle()]

    def handle(self, now: float, event: JobEvent) -> list[JobEffect]:
        """Take an event; answers with what is to be done, in this order. Raises `Refused`, having changed nothing."""
        if self.is_over:
            return [m.ReleaseHeld(event.lease_id, event.peer_id)] if isinstance(event, m.LeaseHeld) else []
        before = self.state
        effects = self._take(now, event)
        effects += self._settle()
        return effects if self.state == before else [*effects, m.SaveState()]

    def _take(self, now: float, event: JobEvent) -> list[JobEffect]:
        match event:
            case m.DataFound():
                return self._data_found(event)
            case m.DataMissing(reason):
                self._data_missing = reason
            case m.LeaseHeld():
                return self._lease_held(event)
            case m.LeaseLost(lease_id, reason):
                return self._lease_lost(lease_id, reason)
            case m.SearchAnswered(_, text):
                self._answer = text
            case m.DispatchRefused(task_id, reason):
                return self._dispatch_refused(task_id, reason)
            case m.TaskReported(status):
                return self._task_reported(status)
            case m.ResultStored():
                return self._stored(now, event)
            case m.ExportPulled(place):
                self.model_dir = place
                return self._end("done", "")
            case m.ExportFailed(reason):
                return self._end("failed", reason)
            case m.CancelAsked(by):
                return self._end("cancelled", f"cancelled by {by}")
            case m.PauseAsked(by):
                if self.state == "exporting":
                    raise Refused("conflict", f"job {self.job_id} has all its results: their list is being written")
                return self._end("paused", paused_text(by))
            case m.ReleaseAsked(lease_id, by):
                return self._let_go(lease_id, f"released by {by}")
            case m.HandOverAsked(lease_id, reason):
                return self._hand_over_asked(now, lease_id, reason)
        return []

    # ---- what tasks ask -------------------------------------------------------------------------

    def asks_to_commit(self, report: CommitRound) -> Never:
        """An inference job has no rounds."""
        raise Refused("denied", f"job {self.job_id} has no rounds")

    def progress(self, now: float, report: Progress) -> tuple[Plan, list[JobEffect]]:
        """A task reports on its way. Raises `Refused` (`stale`) for one that is over."""
        task = self._living(report.task_id)
        task.state = "running"
        task.batches, task.samples, task.batch_s = report.batches, report.samples, report.batch_s
        self.answers.progressed(now, report)
        before = self.state
        effects = self._settle()
        if self.state != before:
            effects.append(m.SaveState())
        speed = self.answers.samples_per_s()
        if speed is not None and now - self._plotted_at >= PLOT_EVERY_S:
            self._plotted_at = now
            effects.append(m.Plotted(self._point(now, "samples_per_s", speed)))
        return Plan(round=report.round, epoch=self.epoch), effects

    def next_slice(self, now: float, task_id: str, number: int) -> tuple[Span | None, list[JobEffect]]:
        """The slice for request `number` of a task, the same for the same number; None when there is none now."""
        self._living(task_id)
        others = len(self.group.alive(INFER)) - 1
        return self.answers.next_slice(task_id, number, others)

    def expects(self, task_id: str, index: int) -> tuple[str, int]:
        """Name and rows of the result that a task is about to send. Raises `Refused` where it is not welcome."""
        self._living(task_id)
        first_row, rows = self.answers.expects(task_id, index)
        return self.order.result_name(index, first_row, rows), rows

    def view(self, now: float, scheduler: str) -> JobView:
        """As an operator sees it."""
        return JobView(
            id=self.job_id,
            name=self.name,
            scheduler=scheduler,
            state=self.state,
            reason=self.reason,
            dataset=self.dataset,
            round=0,
            rounds=0,
            workers=len(self.group.alive(INFER)),
            workers_wanted=self.order.workers,
            samples=self.answers.rows_done,
            slices=self.answers.counts(),
            samples_per_s=None if self.is_over else self.answers.samples_per_s(),
            age_s=max(0.0, now - self._began_at),
            price=sum(lease.price for lease in self._leases.values()),
            tasks=self.group.views(),
            model_dir=self.model_dir,
        )

    def abandon(self, reason: str) -> None:
        """The shell cannot go on with this job: it has failed."""
        self._end("failed", reason)

    def validate(self) -> None:
        """Raise AssertionError where the state contradicts itself."""
        self.answers.validate()
        alive = self.group.alive(INFER)
        assert len({task.lease_id for task in alive}) == len(alive)
        assert {task.lease_id for task in alive} <= set(self._leases), "a task without a lease"
        if self.is_over:
            assert not alive and not self._leases
        if self.state == "done":
            assert self.answers.is_complete

    # ---- leases -----------------------------------------------------------------------------------

    def _restore(self, task: Task) -> None:
        self.group.restore(task)
        if task.is_alive:
            task.state = "dispatched" if task.lease_id in self._leases else "lost"

    def _data_found(self, found: m.DataFound) -> list[JobEffect]:
        self._data_missing = ""
        is_first = not self.answers.data_digest
        problem = self.answers.data_found(found)
        if problem:
            return self._end("failed", problem)
        effects: list[JobEffect] = [m.SaveState()] if is_first else []
        for task in self.group.tasks.values():
            if not task.is_alive:
                effects += self.answers.gone(task.task_id)
        return [*effects, m.Search(INFER, 0 if self.answers.is_complete else self.order.workers), *self._finish()]

    def _lease_held(self, lease: m.LeaseHeld) -> list[JobEffect]:
        lease_id, peer_id = lease.lease_id, lease.peer_id
        if lease_id in self._seen_leases:
            return []
        self._seen_leases.add(lease_id)
        if self.state == "exporting" or len(self.group.alive(INFER)) >= self.order.workers:
            return [m.ReleaseHeld(lease_id, peer_id)]
        held = m.HeldLease(INFER, lease_id, peer_id, lease.price)
        self._leases[lease_id] = held
        task = self.group.add(INFER, lease_id, peer_id, epoch=self.epoch, since_round=0, round_=0)
        text = f"{self._name_of(peer_id)} is held as worker"
        return [
            m.SaveLease(held),
            m.SaveTask(task.saved()),
            self._note("lease.held", text, lease=lease_id, peer=peer_id),
            m.StartTask(peer_id, infer_dispatch(self.order, task)),
        ]

    def _lease_lost(self, lease_id: str, reason: str) -> list[JobEffect]:
        if self._leases.pop(lease_id, None) is None:
            return []
        task = self.group.under(lease_id)
        effects: list[JobEffect] = [m.SaveLeaseGone(lease_id)]
        if task is None:
            return effects
        self._has_lost = True
        text = f"{self._name_of(task.peer_id)} was lost ({reason}); its slices go back"
        note = self._note("worker.lost", text, level="warning", peer=task.peer_id, task=task.task_id)
        return [*effects, *self._over(task, "lost", reason), note]

    # ---- tasks ------------------------------------------------------------------------------------

    def _dispatch_refused(self, task_id: str, reason: str) -> list[JobEffect]:
        task = self.group.tasks.get(task_id)
        if task is None or not task.is_alive:
            return []
        text = f"{self._name_of(task.peer_id)} refused the task: {reason}"
        return [
            *self._over(task, "failed", reason),
            m.Shun(INFER, task.peer_id, never=True),
            *self._release(task.lease_id, reason),
            self._note("task.refused", text, level="warning", peer=task.peer_id, task=task_id),
        ]

    def _task_reported(self, status: TaskStatus) -> list[JobEffect]:
        task = self.group.tasks.get(status.task_id)
        if task is None or not task.is_alive:
            return []
        if status.state in ("failed", "finished"):
            return self._task_failed(task, status)
        if status.state == "cancelled":
            lost = self._lease_lost(task.lease_id, status.detail or "ended by its worker")
            return [m.ReleaseHeld(task.lease_id, task.peer_id), *lost]
        if task.state != "running":
            task.state = status.state
        return []

    def _task_failed(self, task: Task, status: TaskStatus) -> list[JobEffect]:
        """Also one that ended well while there was work: it was given no leave to."""
        task.exit_code, task.tail = status.exit_code, list(status.tail)
        detail = status.detail or "ended before the job was done"
        text = failure_text("inference", self._name_of(task.peer_id), status, detail)
        self._failures += 1
        tried = self.answers.tried(task.task_id)
        effects: list[JobEffect] = [
            *self._over(task, "failed", detail),
            self._note("task.failed", text, level="error", peer=task.peer_id, task=task.task_id),
            m.Shun(INFER, task.peer_id),
            *self._release(task.lease_id),
        ]
        if tried is not None and tried[1] >= TRIES:
            return effects + self._end("failed", f"slice {tried[0]} failed {tried[1]} times, at last as {text}")
        if self._failures >= TRIES:
            return effects + self._end("failed", f"{self._failures} tasks failed, the last one was the {text}")
        return effects

    def _stored(self, now: float, event: m.ResultStored) -> list[JobEffect]:
        task = self._living(event.task_id)
        effects = self.answers.stored(event)
        self._failures = 0
        wish = self._moving.forget(task.lease_id)
        if wish is not None and now <= wish.until and not self.answers.is_complete:
            effects += self._let_go(task.lease_id, wish.reason)
        return [*effects, *self._finish()]

    def _finish(self) -> list[JobEffect]:
        """Once every slice has its result, only the list of them is missing; nobody is needed for that."""
        if not self.answers.is_complete or self.state == "exporting":
            return []
        self.state = "exporting"
        return [m.Search(INFER, 0), *self._let_all_go("finished"), m.StoreIndex()]

    # ---- steering -----------------------------------------------------------------------------------

    def _hand_over_asked(self, now: float, lease_id: str, reason: str) -> list[JobEffect]:
        """At the task's next result; at once where it has no slice."""
        task, ledger = self.group.under(lease_id), self.answers.ledger
        if task is not None and ledger is not None and ledger.granted_to(task.task_id):
            self._moving.wish(now, lease_id, reason)
            return []
        return self._let_go(lease_id, reason)

    def _let_go(self, lease_id: str, why: str) -> list[JobEffect]:
        """A lease goes back as if it were lost, but nobody is blamed; another worker is preferred."""
        task = self.group.under(lease_id)
        if task is None:
            return self._release(lease_id)
        text = f"the lease of {self._name_of(task.peer_id)} goes back: {why}"
        return [
            self._note("lease.let_go", text, lease=lease_id),
            *self._over(task, "cancelled", why),
            m.Shun(INFER, task.peer_id),
            *self._release(lease_id),
        ]

    # ---- small ones -------------------------------------------------------------------------------

    def _living(self, task_id: str) -> Task:
        task = self.group.tasks.get(task_id)
        if task is None or not task.is_alive or self.is_over:
            raise Refused("stale", f"task {task_id[:80]} is over")
        return task

    def _over(self, task: Task, state: str, detail: str) -> list[JobEffect]:
        task.state, task.detail = state, detail
        return [m.SaveTask(task.saved()), *self.answers.gone(task.task_id)]

    def _release(self, lease_id: str, refusal: str = "") -> list[JobEffect]:
        lease = self._leases.pop(lease_id, None)
        if lease is None:
            return []
        return [m.SaveLeaseGone(lease_id), m.ReleaseHeld(lease_id, lease.peer_id, refusal)]

    def _let_all_go(self, state: str) -> list[JobEffect]:
        effects: list[JobEffect] = []
        for task in self.group.alive(INFER):
            effects += self._over(task, state, "")
        return effects + [effect for lease_id in list(self._leases) for effect in self._release(lease_id)]

    def _end(self, state: str, reason: str) -> list[JobEffect]:
        effects: list[JobEffect] = [m.Search(INFER, 0), *self._let_all_go("cancelled")]
        self.state, self.reason = state, reason
        done = f"{self.name}: {self.answers.rows_done:,} rows answered"
        text = f"{done}; the results are in {self.model_dir}" if state == "done" else f"{self.name}: {reason}"
        return [*effects, self._note(f"job.{state}", text, level="error" if state == "failed" else "info")]

    def _settle(self) -> list[JobEffect]:
        """State and reason follow from the tasks."""
        if self.is_over:
            return []
        if self.state == "exporting":
            self.reason = "writing the list of results"
            return []
        alive = self.group.alive(INFER)
        before = self.state
        running = any(task.state == "running" and task.batches for task in alive)
        self.state = "running" if running else "starting" if alive else "waiting"
        self.reason = self._text(len(alive))
        return [] if self.state == before else [self._note(f"job.{self.state}", f"{self.name} is {self.state}")]

    def _text(self, workers: int) -> str:
        if self._data_missing:
            return self._data_missing
        wanted = self.order.workers
        if workers >= wanted:
            return ""
        what = "a replacement" if self._has_lost else f"{wanted - workers} more"
        text = f"running with {workers} of {wanted}; looking for {what}" if workers else f"waiting: 0 of {wanted}"
        return "; ".join(filter(None, (text, self._answer)))

    def _point(self, now: float, name: str, value: float) -> Point:
        return Point(job_id=self.job_id, name=name, round=0, value=value, t_s=max(0.0, now - self._began_at))

    def _note(self, name: str, text: str, level: str = "info", **fields: str) -> m.Happened:
        return m.Happened(name, text, level, {"job": self.job_id, **fields})
