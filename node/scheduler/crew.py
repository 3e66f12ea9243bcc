"""Who works on a training job: leases, tasks, and what becomes of those that are lost. Pure; `job.py` drives it.

A group is one parameter server and up to `workers` training tasks; it begins when `min_workers` leases are held, the
rest join when they are found. Leases beyond that wait in reserve. While a task is to move, there is one more, in its
place. The epoch counts parameter servers.
"""

from __future__ import annotations

from collections.abc import Callable

from node.scheduler import messages as m
from node.scheduler.dispatches import aggregate_dispatch, train_dispatch
from node.scheduler.group import Group, Task
from node.scheduler.machine import Saved
from node.scheduler.messages import JobEffect
from node.scheduler.order import AGGREGATE, TRAIN, Order
from node.scheduler.rounds import Rounds
from node.scheduler.texts import server_lost_text


class Crew:
    """Leases and tasks of one job."""

    def __init__(
        self, order: Order, saved: Saved, rounds: Rounds, name_of: Callable[[str], str], sought_at: float
    ) -> None:
        self.group = Group(order.job_id, saved.next_number)
        self.epoch = saved.epoch
        self.idle: dict[str, str] = {}
        """Leases of workers without a task, and their peers."""
        self.next_server: tuple[str, str] | None = None
        """Lease and peer of the parameter server that takes over from one that is to move."""
        self.moving: set[str] = set()
        """Leases whose tasks are to move."""
        self.prices: dict[str, float] = {}
        self.leaving: dict[str, int | None] = {}
        """Tasks that are over, of which an update may still be counted: until this round is committed."""
        self.evaluator = ""
        self.has_lost = False
        self.server_lost = ""
        """Why there is no parameter server, while there is none."""
        self.is_model_here = False
        """Whether nobody is needed any more to export it."""
        self.name_of = name_of
        self._order = order
        self._rounds = rounds
        self._seen_leases: set[str] = set()
        self._asked: set[str] = set()
        """Parameter servers that were dispatched."""
        self._sought_at: float | None = sought_at
        self._restore(saved)

    def _restore(self, saved: Saved) -> None:
        """Go on with the tasks and leases of an earlier process."""
        held = {lease.lease_id: lease for lease in saved.leases}
        used: set[str] = set()
        for line in saved.tasks:
            task = Task.restored(line, saved.round)
            self.group.restore(task)
            if task.is_alive and task.lease_id in held:
                used.add(task.lease_id)
                if task.role == TRAIN:
                    task.state = "dispatched"
                    self._rounds.plan.join(task.task_id)
                else:
                    self._asked.add(task.task_id)
            elif task.is_alive:
                task.state = "lost"
        for lease in saved.leases:
            self.prices[lease.lease_id] = lease.price
            self._seen_leases.add(lease.lease_id)
            if lease.lease_id not in used and lease.role == AGGREGATE:
                self.next_server = lease.lease_id, lease.peer_id
            elif lease.lease_id not in used:
                self.idle[lease.lease_id] = lease.peer_id
        has_server = self.group.server is not None
        for task_id in dict.fromkeys(task_id for task_id, _ in saved.granted):
            if not self.group.tasks[task_id].is_alive and has_server:
                self.leaving[task_id] = None
        if saved.tasks:
            self._sought_at = None
        self._choose_evaluator()

    def searches(self) -> list[JobEffect]:
        """How many leases of each role are wanted now."""
        if self._rounds.is_over:
            needs_server = self.group.server is None and not self.is_model_here
            return [m.Search(AGGREGATE, 1 if needs_server else 0), m.Search(TRAIN, 0)]
        return [m.Search(AGGREGATE, 1 + self._servers_moving), m.Search(TRAIN, self.workers + self._order.spares)]

    @property
    def workers(self) -> int:
        """How many training tasks there are to be now: one more for each that is to move."""
        return self._order.workers + len(self.moving) - self._servers_moving

    @property
    def _servers_moving(self) -> int:
        server = self.group.server
        return 1 if server is not None and server.lease_id in self.moving else 0

    def lease_held(self, now: float, lease: m.LeaseHeld) -> list[JobEffect]:
        """An offer was accepted: the lease finds its use, or goes back."""
        role, lease_id, peer_id = lease.role, lease.lease_id, lease.peer_id
        if lease_id in self._seen_leases:
            return []
        self._seen_leases.add(lease_id)
        if role == AGGREGATE:
            is_wanted = self.group.server is None or (self._servers_moving and self.next_server is None)
            is_surplus = not is_wanted or self.is_model_here
        else:
            held = len(self.group.alive(TRAIN)) + len(self.idle)
            is_surplus = self._rounds.is_over or held >= self.workers + self._order.spares
        if is_surplus:
            return [m.ReleaseHeld(lease_id, peer_id)]
        self.prices[lease_id] = lease.price
        what = "parameter server" if role == AGGREGATE else "worker"
        effects: list[JobEffect] = [
            m.SaveLease(m.HeldLease(role, lease_id, peer_id, lease.price)),
            self.note("lease.held", f"{self.name_of(peer_id)} is held as {what}", lease=lease_id, peer=peer_id),
        ]
        if role == AGGREGATE:
            self.next_server = lease_id, peer_id
        else:
            self.idle[lease_id] = peer_id
        if len(self.prices) == 1 + self._order.workers + self._order.spares and self._sought_at is not None:
            seconds = f"{now - self._sought_at:.3f}"
            self._sought_at = None
            text = f"{self._order.name}: all {len(self.prices)} leases are held after {seconds} s"
            effects.append(self.note("job.placed", text, seconds=seconds))
        return effects

    def fill(self, now: float) -> list[JobEffect]:
        """Dispatch what can be: the parameter server at once, training tasks once enough leases are held. Somebody is
        always waited for in the open round."""
        effects: list[JobEffect] = []
        if self.group.server is None and self.next_server is not None:
            (lease_id, peer_id), self.next_server, round_ = self.next_server, None, self._rounds.round
            placed = self.group.add(AGGREGATE, lease_id, peer_id, epoch=self.epoch, since_round=round_, round_=round_)
            effects.append(m.SaveTask(placed.saved()))
        server = self.group.server
        if server is None:
            return []
        alive = self.group.alive(TRAIN)
        new: list[Task] = []
        if self.idle and not self._rounds.is_over and (alive or len(self.idle) >= self._order.min_workers):
            since = self._rounds.first_round_of_a_newcomer(now) if alive else self._rounds.round
            for lease_id, peer_id in list(self.idle.items())[: max(0, self.workers - len(alive))]:
                del self.idle[lease_id]
                new.append(
                    self.group.add(
                        TRAIN, lease_id, peer_id, epoch=self.epoch, since_round=since, round_=self._rounds.round
                    )
                )
                self._rounds.plan.join(new[-1].task_id)
            self._choose_evaluator()
        changed = list(new)
        if alive and all(task.since_round > self._rounds.round for task in alive):
            for task in alive:
                task.since_round = self._rounds.round
            changed += alive
        effects += [m.SaveTask(task.saved()) for task in changed]
        if server.task_id not in self._asked:
            self._asked.add(server.task_id)
            effects.append(self.start_task(server))
        elif changed:
            effects.append(self.set_group(server))
        return effects + [self.start_task(task) for task in new]

    def arrived(self, task: Task) -> list[JobEffect]:
        """A newcomer has trained a batch of the open round: it is waited for from now on."""
        task.since_round = self._rounds.round
        server = self.group.server
        return [m.SaveTask(task.saved()), *([self.set_group(server)] if server else [])]

    def start_task(self, task: Task) -> m.StartTask:
        """Dispatch a task."""
        if task.role == AGGREGATE:
            members, start = self.group.members(), self._rounds.chain.files()
            dispatch = aggregate_dispatch(self._order, task, members, start, self._rounds.contributors)
        else:
            server = self.group.server
            dispatch = train_dispatch(
                self._order, task, server.peer_id if server else "", evaluate=task.task_id == self.evaluator
            )
        return m.StartTask(task.peer_id, dispatch)

    def release(self, lease_id: str, refusal: str = "") -> list[JobEffect]:
        """Let a lease go."""
        task = next((task for task in self.group.tasks.values() if task.lease_id == lease_id), None)
        peer_id = self._no_longer_unused(lease_id) or (task.peer_id if task else "")
        self.moving.discard(lease_id)
        if self.prices.pop(lease_id, None) is None:
            return []
        return [m.SaveLeaseGone(lease_id), m.ReleaseHeld(lease_id, peer_id, refusal)]

    def unused(self) -> list[str]:
        """Leases under which nothing runs."""
        return [*self.idle, *([self.next_server[0]] if self.next_server is not None else [])]

    def _no_longer_unused(self, lease_id: str) -> str:
        """The peer of a lease that nothing runs under, and which is not kept for that any more."""
        if self.next_server is not None and self.next_server[0] == lease_id:
            peer_id, self.next_server = self.next_server[1], None
            return peer_id
        return self.idle.pop(lease_id, "")

    def drop(self, task: Task) -> list[JobEffect]:
        """A training task is over: the parameter server waits for it no more, and its place is filled."""
        self._rounds.plan.leave(task.task_id)
        self.has_lost = self.has_lost or task.state != "finished"
        self._choose_evaluator()
        server = self.group.server
        if server is None:
            return self._rounds.gone(task.task_id)
        self.leaving[task.task_id] = None
        return [] if self._rounds.is_over else [self.set_group(server)]

    def server_gone(self, why: str) -> list[JobEffect]:
        """Without its parameter server a group goes on computing; the next one starts from the last commit."""
        self.server_lost = why
        self.epoch += 1
        self._rounds.server_lost()
        effects: list[JobEffect] = []
        for task_id in list(self.leaving):
            del self.leaving[task_id]
            effects += self._rounds.gone(task_id)
        note = self.note("job.server_lost", why, level="warning", epoch=str(self.epoch))
        return [*effects, note, *self.searches()]

    def group_set(self, told: m.GroupSet) -> list[JobEffect]:
        """The parameter server takes nothing more of those who left. What it has of them may still count, in the round
        that was open then, or in the next where late updates are carried over."""
        server = self.group.server
        if server is None or told.task_id != server.task_id:
            return []
        last = told.round + (1 if self._order.aggregation.late == "carry" else 0)
        for task_id, until in self.leaving.items():
            if until is None and task_id not in told.members:
                self.leaving[task_id] = last
        return []

    def set_group(self, server: Task) -> m.SetGroup:
        """Tell the parameter server its members."""
        return m.SetGroup(server.task_id, server.peer_id, self.group.members())

    def _choose_evaluator(self) -> None:
        task = self.group.tasks.get(self.evaluator)
        if not self._order.validation_dataset or (task is not None and task.is_alive):
            return
        self.evaluator = next((task.task_id for task in self.group.alive(TRAIN)), "")

    def name_of_task(self, task_id: str) -> str:
        """The worker's name that an operator knows."""
        task = self.group.tasks.get(task_id)
        return self.name_of(task.peer_id) if task else task_id

    def note(self, name: str, text: str, *, level: str = "info", **fields: str) -> m.Happened:
        """An event of this job."""
        return m.Happened(name, text, level, {"job": self._order.job_id, **fields})

    def settled(self, round_: int) -> list[JobEffect]:
        """This round is committed: tasks that left long enough before it have nothing under way any more."""
        effects: list[JobEffect] = []
        for task_id, until in list(self.leaving.items()):
            if until is not None and round_ >= until:
                del self.leaving[task_id]
                effects += self._rounds.gone(task_id)
        return effects

    def lost(self, lease_id: str, reason: str) -> tuple[Task | None, list[JobEffect]]:
        """A lease is lost; answers with the task that ran under it."""
        if self.prices.pop(lease_id, None) is None:
            return None, []
        effects: list[JobEffect] = [m.SaveLeaseGone(lease_id)]
        task = self.group.under(lease_id)
        self.moving.discard(lease_id)
        if task is None:
            self._no_longer_unused(lease_id)
            return None, effects
        task.state, task.detail = "lost", reason
        return task, [*effects, m.SaveTask(task.saved())]

    def let_go(self, lease_id: str, why: str) -> list[JobEffect]:
        """A lease goes back by somebody's word: as if it were lost, but nobody is blamed. Another is preferred."""
        if lease_id not in self.prices:
            return []
        task = self.group.under(lease_id)
        where = self.name_of(task.peer_id if task else self.idle.get(lease_id, ""))
        note = self.note("lease.let_go", f"the lease of {where} goes back: {why}", lease=lease_id)
        if task is None:
            return [note, *self.release(lease_id)]
        task.state, task.detail = "cancelled", why
        return [
            note,
            m.SaveTask(task.saved()),
            m.Shun(task.role, task.peer_id),
            *self.release(lease_id),
            *(
                self.server_gone(server_lost_text(where, why, self._rounds.chain.version))
                if task.role == AGGREGATE
                else self.drop(task)
            ),
        ]

    def without_surplus(self) -> list[JobEffect]:
        """Let go what nobody needs any more, because who was to move stays after all: the newest first."""
        surplus = self.group.alive(TRAIN)[self.workers :]
        leases = [task.lease_id for task in surplus if task.lease_id not in self.moving]
        if self.next_server is not None and not self._servers_moving and self.group.server is not None:
            leases.append(self.next_server[0])
        return [effect for lease_id in leases for effect in self.let_go(lease_id, "who was to move stays")]

    def name_stragglers(self, now: float) -> list[JobEffect]:
        """Tell whom the open round waits for."""
        effects: list[JobEffect] = []
        for task_id, late_s in self._rounds.look_for_stragglers(now):
            late = f"will be done {late_s:.0f} s after the others" if late_s < 1e6 else "does not report any more"
            text = f"round {self._rounds.round + 1} waits for {self.name_of_task(task_id)}: it {late}"
            effects.append(self.note("worker.behind", text, level="warning", task=task_id))
        return effects

    def end(self, state: str) -> list[JobEffect]:
        """The job is over: every task ends like this, and every lease goes back."""
        effects: list[JobEffect] = []
        for task in self.group.tasks.values():
            if task.is_alive:
                task.state = state
                self._rounds.plan.leave(task.task_id)
                effects.append(m.SaveTask(task.saved()))
            effects += self._rounds.gone(task.task_id)
        self.leaving.clear()
        return effects + [effect for lease_id in list(self.prices) for effect in self.release(lease_id)]

    def validate(self) -> None:
        """Raise AssertionError where the state contradicts itself."""
        assert len(self.group.alive(AGGREGATE)) <= 1
        living = [task for task in self.group.tasks.values() if task.is_alive]
        assert {task.lease_id for task in living} | set(self.unused()) == set(self.prices), "a lease without a use"
        assert len({task.lease_id for task in living}) == len(living)
        assert all(task.epoch == self.epoch for task in living if task.role == AGGREGATE)
        ledger = self._rounds.ledger
        for task in self.group.tasks.values() if ledger is not None else ():
            is_settled = not task.is_alive and task.task_id not in self.leaving
            assert not is_settled or ledger is None or not ledger.granted_to(task.task_id)
