"""A training job, from its submission to its model: events in, effects out. It never awaits and never reads a clock.

    waiting -> starting -> running -> exporting -> done
       ^                      |           |
       +-- a new epoch, when the parameter server is lost: it is placed again, from the last committed version

Every state but the last can end in `failed`, `cancelled` or, by way of `pausing`, in `paused`. Who works on it is in
`crew.py`. The epoch counts parameter servers: training tasks outlive theirs, and nothing of an earlier one counts.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from node.errors import Refused
from node.scheduler import messages as m
from node.scheduler.allocation import Need
from node.scheduler.crew import Crew
from node.scheduler.exporting import Exporting
from node.scheduler.group import Group, Task
from node.scheduler.journal import Chain
from node.scheduler.ledger import Ledger
from node.scheduler.machine import Saved
from node.scheduler.messages import JobEffect, JobEvent
from node.scheduler.moves import Moves
from node.scheduler.order import AGGREGATE, TRAIN, Order
from node.scheduler.rounds import Rounds
from node.scheduler.standing import SERVING, standing
from node.scheduler.steering import PAUSE_WITHIN_S, Pausing, paused_text
from node.scheduler.texts import failure_text, round_text, server_lost_text
from node.views import JobView
from node.wire import CommitRound, Plan, Progress, Span, TaskStatus

FAILURES_ALLOWED = 2
"""One more failed task than this since the last committed round, and the job has failed."""
ENDED = frozenset({"done", "failed", "cancelled", "paused"})
TRAINING = frozenset({"running", "pausing"})


class Job:
    """One training job's state machine."""

    def __init__(
        self,
        order: Order,
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
        self.model_dir = ""
        self.rounds = Rounds(order, saved, now=now, age_s=age_s)
        self.crew = Crew(order, saved, self.rounds, name_of, now if saved.tasks else now - age_s)
        self._answers: dict[str, str] = {}
        self._failures = 0
        self._data_missing = ""
        self._export = Exporting(order, self.rounds, self.crew)
        self._pausing: Pausing | None = None
        self._moves = Moves(self.crew, self.rounds)

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
        """What it trains on."""
        return self.order.dataset

    @property
    def validation_dataset(self) -> str:
        """What its versions are judged by, if anything."""
        return self.order.validation_dataset

    @property
    def data_digest(self) -> str:
        """Of the dataset's manifest, once it is found."""
        return self.rounds.data_digest

    @property
    def needs(self) -> dict[str, Need]:
        """Leases for the parameter server and for the workers."""
        return self.order.needs

    @property
    def group(self) -> Group:
        """All tasks."""
        return self.crew.group

    @property
    def epoch(self) -> int:
        """How many parameter servers were lost."""
        return self.crew.epoch

    @property
    def round(self) -> int:
        """The open one; so many are committed."""
        return self.rounds.round

    @property
    def chain(self) -> Chain:
        """The journal's files."""
        return self.rounds.chain

    @property
    def ledger(self) -> Ledger | None:
        """Whose which rows are."""
        return self.rounds.ledger

    @property
    def is_over(self) -> bool:
        """Whether this machine does nothing more. A paused job goes on as another one."""
        return self.state in ENDED

    # ---- events ---------------------------------------------------------------------------------

    def begin(self, now: float) -> list[JobEffect]:
        """The first thing to do, in this process: tasks of an earlier one are told again what they may not know."""
        effects: list[JobEffect] = [m.SaveState(), m.FindData()]
        server = self.group.server
        for task in [*self.group.alive(AGGREGATE), *self.group.alive(TRAIN)]:
            if task.state == "dispatched" and (server is not None or task.role == AGGREGATE):
                effects.append(self.crew.start_task(task))
        if server is not None:
            effects.append(self.crew.set_group(server))
            if self.chain.version is None and server.files:
                effects.append(m.PullBase(self.epoch, server.peer_id, server.files))
        return [*effects, *self._settle(now)]

    def handle(self, now: float, event: JobEvent) -> list[JobEffect]:
        """Take an event; answers with what is to be done, in this order.

        Raises `Refused` for a round that cannot be committed, having changed nothing.
        """
        if self.is_over:
            return [m.ReleaseHeld(event.lease_id, event.peer_id)] if isinstance(event, m.LeaseHeld) else []
        before = (self.state, self.epoch)
        effects = self._take(now, event)
        effects += [] if self.is_over else self.crew.fill(now)
        effects += self._settle(now)
        if (self.state, self.epoch) != before:
            effects.append(m.SaveState())
        return effects

    def _take(self, now: float, event: JobEvent) -> list[JobEffect]:
        match event:
            case m.DataFound():
                return self._data_found(event)
            case m.DataMissing(reason):
                self._data_missing = reason
            case m.LeaseHeld():
                return self.crew.lease_held(now, event)
            case m.LeaseLost(lease_id, reason):
                return self._lease_lost(lease_id, reason)
            case m.SearchAnswered(role, text):
                self._answers[role] = text
            case m.DispatchRefused(task_id, reason):
                return self._dispatch_refused(task_id, reason)
            case m.TaskReported(status):
                return self._task_reported(status)
            case m.GroupSet():
                return self.crew.group_set(event)
            case m.Measured(task_id, round_, metrics):
                task = self.group.tasks.get(task_id)
                return list(self.rounds.score.measured(now, task.peer_id, task_id, round_, metrics)) if task else []
            case m.Committing(report):
                return self._commit(now, report) if self.asks_to_commit(report) else []
            case m.BaseKept(_, files):
                return self.rounds.base_kept(files)
            case m.BaseFailed(_, reason):
                return [self.crew.note("journal.late", f"a new base of the journal: {reason}", level="warning")]
            case m.ExportPulled(model_dir):
                self.model_dir = model_dir
                self._export.pulled(now)
            case m.ExportFailed(reason):
                return self._end("failed", f"the model could not be stored: {reason}")
            case m.StartFailed(reason):
                return self._end("failed", reason)
            case m.CancelAsked(by):
                return self._end("cancelled", f"cancelled by {by}")
            case m.PauseAsked(by):
                return self._pause_asked(now, by)
            case m.ReleaseAsked(lease_id, by):
                return self.crew.let_go(lease_id, f"released by {by}")
            case m.HandOverAsked(lease_id, reason):
                return self._hand_over_asked(now, lease_id, reason)
            case m.Ticked():
                if self._pausing is not None and now >= self._pausing.until:
                    return self._end("paused", paused_text(self._pausing.by))
                return self.crew.name_stragglers(now) if self.state in TRAINING else []
        return []

    # ---- what tasks ask -------------------------------------------------------------------------

    def asks_to_commit(self, report: CommitRound) -> bool:
        """Whether this round is to be committed; False where it is already. Raises `Refused` otherwise."""
        if report.round == self.round - 1 and report.weights.sha256 == self.rounds.digest:
            return False
        server = self.group.server
        if server is None or report.task_id != server.task_id or report.epoch != self.epoch:
            raise Refused("stale", f"epoch {report.epoch} is over: the job is in epoch {self.epoch}")
        if report.round < self.round:
            raise Refused("stale", f"round {report.round} is committed, with other weights")
        self.rounds.check(report, self.group.tasks)
        return True

    def progress(self, now: float, report: Progress) -> tuple[Plan, list[JobEffect]]:
        """A training task reports; the plan says when and where to send its update. The round number makes late ones
        harmless. Raises `Refused` (`stale`) for a task that is over."""
        task = self.group.tasks[report.task_id]
        if not task.is_alive or self.is_over:
            raise Refused("stale", f"task {task.task_id} is over")
        effects = self.rounds.returned(task, report.return_number, report.returned)
        plan = self._plan_for(task, report.round)
        if report.round < self.round:
            return replace(plan, target_batches=max(1, report.batches)), effects
        if self.round == 0 and not self.rounds.score.has_progress:
            self.rounds.began_at = now
        task.state = "running"
        task.round = report.round
        task.batches, task.samples, task.batch_s = report.batches, report.samples, report.batch_s
        effects += self.rounds.score.progressed(now, task, report)
        if report.round == self.round and task.since_round > self.round and report.batches:
            effects += self.crew.arrived(task)
        target = self.rounds.plan.report(
            now, task.task_id, report.round, batches=report.batches, samples=report.samples, batch_s=report.batch_s
        )
        plan = replace(plan, target_batches=target)
        if self.state == "starting":
            effects += self._settle(now)
            if self.state != "starting":
                effects.append(m.SaveState())
        return plan, effects

    def _plan_for(self, task: Task, round_: int) -> Plan:
        server = self.group.server
        is_whole_cycle = (round_ + 1) % self.order.sync.fragments == 0
        return Plan(
            round=round_,
            evaluate=is_whole_cycle and task.task_id == self.crew.evaluator,
            epoch=self.epoch,
            parameter_server=server.peer_id if server is not None and server.state in SERVING else "",
        )

    def next_slice(self, now: float, task_id: str, number: int) -> tuple[Span | None, list[JobEffect]]:
        """The rows for request `number` of a task; None when there are none now, or never any more."""
        if self.is_over or not self.group.tasks[task_id].is_alive:
            return None, []
        return self.rounds.next_slice(task_id, number, [task.task_id for task in self.group.alive(TRAIN)])

    def view(self, now: float, scheduler: str) -> JobView:
        """As an operator sees it."""
        ledger = self.rounds.ledger
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
            epoch=ledger.pass_ if ledger else 0,
            slices=ledger.counts() if ledger else {},
            price=sum(self.crew.prices.values()),
            tasks=self.group.views(),
            model_dir=self.model_dir,
            **self.rounds.score.summary(now),
        )

    def abandon(self, reason: str) -> None:
        """The shell cannot go on with this job."""
        self._end("failed", reason)

    def validate(self) -> None:
        """Raise AssertionError where the state contradicts itself."""
        self.rounds.validate()
        self.crew.validate()
        assert not self.is_over or not self.crew.prices

    # ---- leases -----------------------------------------------------------------------------------

    def _data_found(self, found: m.DataFound) -> list[JobEffect]:
        self._data_missing = ""
        is_first = not self.rounds.data_digest
        problem = self.rounds.data_found(found)
        if problem:
            return self._end("failed", problem)
        effects: list[JobEffect] = [m.SaveState()] if is_first else []
        for task in self.group.tasks.values():
            if not task.is_alive and task.task_id not in self.crew.leaving:
                effects += self.rounds.gone(task.task_id)
        return effects + self.crew.searches()

    def _lease_lost(self, lease_id: str, reason: str) -> list[JobEffect]:
        task, effects = self.crew.lost(lease_id, reason)
        if task is None:
            return effects
        where = self.crew.name_of(task.peer_id)
        if task.role == AGGREGATE:
            return effects + self.crew.server_gone(server_lost_text(where, reason, self.chain.version))
        text = f"{where} was lost ({reason}); what it had not contributed goes back"
        note = self.crew.note("worker.lost", text, level="warning", peer=task.peer_id, task=task.task_id)
        return [*effects, *self.crew.drop(task), note]

    # ---- tasks ------------------------------------------------------------------------------------

    def _dispatch_refused(self, task_id: str, reason: str) -> list[JobEffect]:
        task = self.group.tasks.get(task_id)
        if task is None or not task.is_alive:
            return []
        task.state, task.detail = "failed", reason
        text = f"{self.crew.name_of(task.peer_id)} refused the {task.role} task: {reason}"
        return [
            m.SaveTask(task.saved()),
            m.Shun(task.role, task.peer_id, never=True),
            *self.crew.release(task.lease_id, reason),
            self.crew.note("task.refused", text, level="warning", peer=task.peer_id, task=task_id),
            *(self.crew.server_gone(text) if task.role == AGGREGATE else self.crew.drop(task)),
        ]

    def _task_reported(self, status: TaskStatus) -> list[JobEffect]:
        task = self.group.tasks.get(status.task_id)
        if task is None or not task.is_alive:
            return []
        is_server = task.role == AGGREGATE
        is_early = is_server or self.round < self.order.rounds - 1
        if status.state == "failed" or (status.state == "finished" and is_early and task.state != "exported"):
            return self._task_failed(task, status)
        if status.state == "cancelled":
            lost = self._lease_lost(task.lease_id, status.detail or "ended by its worker")
            return [m.ReleaseHeld(task.lease_id, task.peer_id), *lost]
        if status.state == "finished":
            # A parameter server that is done still serves its export until its lease is released. The report of the
            # last round may still be on its way when its workers are already done.
            if is_server:
                return []
            task.state = "finished"
            return [m.SaveTask(task.saved()), *self.crew.drop(task), *self.crew.release(task.lease_id)]
        task.detail = status.detail
        if status.state == "exported" and is_server:
            task.state, task.exported = "exported", tuple(status.exported)
            return [m.SaveTask(task.saved())]
        if status.state in ("starting", "running", "ready") and task.state != "exported":
            is_ready = is_server and status.state == "ready"
            keeps = task.state == "ready" or (task.state == "running" and status.state == "starting")
            task.state = task.state if keeps else status.state
            return self._server_ready(task, status) if is_ready else []
        return []

    def _server_ready(self, server: Task, status: TaskStatus) -> list[JobEffect]:
        problem = self.rounds.ready(self.epoch, server.peer_id, status.files)
        if isinstance(problem, str):
            return self._task_failed(
                server, TaskStatus(task_id=server.task_id, lease_id=server.lease_id, state="failed", detail=problem)
            )
        server.files = tuple(status.files)
        effects: list[JobEffect] = [m.SaveTask(server.saved()), *problem]
        if self.crew.server_lost:
            self.crew.server_lost = ""
            text = f"the parameter server is on {self.crew.name_of(server.peer_id)} now, at version {self.round}"
            effects.append(self.crew.note("job.server_placed", text, peer=server.peer_id))
        return effects

    def _task_failed(self, task: Task, status: TaskStatus) -> list[JobEffect]:
        task.state = "failed" if status.state == "finished" else status.state
        task.exit_code, task.tail = status.exit_code, list(status.tail)
        task.detail = status.detail or ("ended before its rounds were done" if status.state != "failed" else "")
        text = failure_text(task.role, self.crew.name_of(task.peer_id), status, task.detail)
        self._failures += 1
        effects: list[JobEffect] = [
            m.SaveTask(task.saved()),
            self.crew.note("task.failed", text, level="error", peer=task.peer_id, task=task.task_id),
            m.Shun(task.role, task.peer_id),
            *self.crew.release(task.lease_id),
            *(self.crew.server_gone(f"the {text}") if task.role == AGGREGATE else self.crew.drop(task)),
        ]
        if self._failures > FAILURES_ALLOWED:
            effects += self._end("failed", f"{self._failures} tasks failed, the last one was the {text}")
        return effects

    # ---- rounds -------------------------------------------------------------------------------------

    def _commit(self, now: float, report: CommitRound) -> list[JobEffect]:
        server = self.group.server
        assert server is not None
        effects = self.rounds.commit(now, self.epoch, server.peer_id, report)
        self._failures = 0
        level = "warning" if report.left_out else "info"
        text = round_text(report, self.order.rounds, self.crew.name_of_task)
        effects.append(self.crew.note("round.committed", text, level=level, round=str(self.round)))
        for task_id, why in report.left_out.items():
            if task_id in self.group.tasks:
                self.group.tasks[task_id].detail = f"left out of round {report.round}: {why}"
        effects += self.crew.settled(report.round)
        for task in self.group.alive(TRAIN):
            if task.round < self.round:
                task.round, task.batches, task.samples = self.round, 0, 0
        if self.rounds.is_over:
            self.crew.moving.clear()
            effects += self.crew.searches()
            return effects + [effect for lease_id in self.crew.unused() for effect in self.crew.release(lease_id)]
        if self._pausing is not None:
            return effects + self._end("paused", paused_text(self._pausing.by))
        return effects + self._moves.at_commit(now, self._answers)

    # ---- steering -----------------------------------------------------------------------------------

    def _pause_asked(self, now: float, by: str) -> list[JobEffect]:
        """Stop at the next commit; at once where nobody trains."""
        if self.rounds.is_over:
            raise Refused("conflict", f"the rounds of job {self.job_id} are done: its model is on its way")
        if self.state not in TRAINING:
            return self._end("paused", paused_text(by))
        if self._pausing is not None:
            return []
        self._pausing = Pausing(by, now + PAUSE_WITHIN_S)
        return [self.crew.note("job.pausing", f"{self.order.name}: {self._pausing.text}")]

    def _hand_over_asked(self, now: float, lease_id: str, reason: str) -> list[JobEffect]:
        """At a commit; at once where nothing is done under the lease. An export is seen through."""
        if self.rounds.is_over or lease_id not in self.crew.prices:
            return []
        ledger = self.rounds.ledger
        # between two slices nobody has rows, and after a restart nobody has told yet that he trains
        has_rows = ledger is not None and any(ledger.granted_to(task.task_id) for task in self.group.alive(TRAIN))
        if self.state == "waiting" or not (self.state in TRAINING or has_rows) or lease_id in self.crew.unused():
            return self.crew.let_go(lease_id, reason)
        return self._moves.wish(now, lease_id, reason)

    def _end(self, state: str, reason: str) -> list[JobEffect]:
        self.state, self.reason = state, reason
        effects: list[JobEffect] = [m.Search(TRAIN, 0), m.Search(AGGREGATE, 0)]
        effects += self.crew.end("cancelled" if state in ("cancelled", "paused") else "finished")
        level = "error" if state == "failed" else "info"
        return [*effects, self.crew.note(f"job.{state}", f"{self.order.name}: {reason or state}", level=level)]

    # ---- where the job stands ---------------------------------------------------------------------

    def _settle(self, now: float) -> list[JobEffect]:
        """Bring state and reason in line with everything above, and end the job when nothing is left to do."""
        if self.is_over:
            return []
        state_before, waiting_before = self.state, self.reason if self.state == "waiting" else ""
        if self.rounds.is_over:
            self.state = "exporting"
            self.reason, effects, is_done = self._export.settle(now)
            return [*effects, *self._end("done", ""), m.SaveState()] if is_done else effects
        self.state, self.reason = standing(
            self.crew, self.rounds, self.order.workers, answers=self._answers, data_missing=self._data_missing
        )
        if self._pausing is not None:
            if self.state != "running":
                return self._end("paused", paused_text(self._pausing.by))
            self.state, self.reason = "pausing", self._pausing.text
            return []
        has_cause = bool(self._data_missing or self.crew.server_lost) or "; " in self.reason
        if self.state == "waiting" and has_cause and self.reason != waiting_before:
            return [self.crew.note("job.waiting", f"{self.order.name}: {self.reason}")]
        if self.state == "running" and state_before != "running":
            workers = len(self.group.alive(TRAIN))
            return [self.crew.note("job.running", f"{self.order.name}: {workers} of {self.order.workers} workers")]
        return []
