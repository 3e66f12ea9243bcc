from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

import msgspec
import pytest

from node.errors import Refused
from node.jobspec import parse_job
from node.scheduler import messages as m
from node.scheduler.allocation import Need
from node.scheduler.job import Job
from node.scheduler.journal import Chain
from node.scheduler.machine import Saved
from node.scheduler.messages import JobEffect, JobEvent
from node.scheduler.order import AGGREGATE, BATCH_SIZE, TRAIN, Order, order_of_spec
from node.wire import (
    AggregateTask,
    Aggregation,
    CommitRound,
    Contribution,
    ExecutorKind,
    ExportedFile,
    InnerOptimizer,
    ModelSource,
    OuterOptimizer,
    Plan,
    Progress,
    Resources,
    Span,
    TaskStatus,
    TrainTask,
    VersionFile,
)

E = TypeVar("E", bound=JobEffect)
S = TypeVar("S", bound=msgspec.Struct)

ORDER = Order(
    job_id="j",
    name="a job",
    dataset="d",
    validation_dataset="v",
    rounds=3,
    budget=64,
    batch_size=4,
    workers=2,
    min_workers=1,
    model=ModelSource(task="causal-lm", seed=1),
    inner=InnerOptimizer(learning_rate=1e-3),
    outer=OuterOptimizer(learning_rate=0.7, momentum=0.9),
    needs={role: Need("j", role, ExecutorKind(class_=role), Resources()) for role in (TRAIN, AGGREGATE)},
)


def version(kind: str, number: int, size: int = 100) -> VersionFile:
    return VersionFile(kind=kind, number=number, sha256=f"{kind}-{number}", size_bytes=size)


class Play:
    """A job and everything that it wanted so far; checks it after every event, and writes down what it is told to."""

    def __init__(self, order: Order = ORDER, slices: int = 4, disk: Disk | None = None) -> None:
        self.now = 0.0
        self.job = Job(order, now=0.0, saved=disk and disk.saved())
        self.leases = "lease-"
        self.disk = disk or Disk()
        self.numbers: Counter[str] = Counter()
        self.effects: list[JobEffect] = []
        self.note(self.job.begin(0.0))
        if slices:
            self.tell(m.DataFound((8,) * slices, "digest"))

    def note(self, effects: list[JobEffect]) -> list[JobEffect]:
        self.job.validate()
        self.effects += effects
        for effect in effects:
            self.disk.write(effect, self.job)
        return effects

    def tell(self, event: JobEvent, after: float = 0.1) -> list[JobEffect]:
        self.now += after
        return self.note(self.job.handle(self.now, event))

    def server(self, peer: str = "P") -> str:
        effects = self.tell(m.LeaseHeld(AGGREGATE, f"{self.leases}{peer}", peer, 0.5))
        return only(effects, m.StartTask)[0].dispatch.task_id

    def ready(self, server: str) -> list[JobEffect]:
        """The parameter server has its version; the first one is taken over into the journal."""
        number = self.job.round
        files = [version("weights", number), *([version("momentum", number)] if number else [])]
        effects = self.status(server, "ready", files=files)
        for pull in only(effects, m.PullBase):
            effects += self.tell(m.BaseKept(pull.epoch, pull.files))
        return effects

    def worker(self, peer: str) -> list[m.StartTask]:
        return only(self.tell(m.LeaseHeld(TRAIN, f"{self.leases}{peer}", peer, 1.0)), m.StartTask)

    def status(self, task_id: str, state: str, **more: Any) -> list[JobEffect]:
        lease_id = self.job.group.tasks[task_id].lease_id
        return self.tell(m.TaskReported(TaskStatus(task_id=task_id, lease_id=lease_id, state=state, **more)))

    def progress(
        self, task_id: str, batches: int, round_: int | None = None, loss: float | None = None, **more: Any
    ) -> Plan:
        self.now += 0.1
        round_ = self.job.round if round_ is None else round_
        report = Progress(
            task_id=task_id, round=round_, batches=batches, samples=4 * batches, batch_s=0.1, loss=loss, **more
        )
        plan, effects = self.job.progress(self.now, report)
        self.note(effects)
        return plan

    def slice(self, task_id: str) -> Span | None:
        """The task's next rows."""
        self.numbers[task_id] += 1
        span, effects = self.job.next_slice(self.now, task_id, self.numbers[task_id])
        self.note(effects)
        return span

    def some_rows(self, task_id: str, rng: random.Random) -> list[Span]:
        """The first rows that a task has, up to the middle of a slice."""
        ledger = self.job.rounds.ledger
        held = ledger.granted_to(task_id) if ledger else []
        if not held:
            return []
        spans = held[: rng.randrange(1, len(held) + 1)]
        last = spans[-1]
        return [*spans[:-1], Span(last.pass_, last.index, last.start, rng.randrange(last.start, last.end) + 1)]

    def report(self, server: str, round_: int, tasks: Sequence[str], samples: int = 32, **more: Any) -> CommitRound:
        spans = more.pop("spans", {})
        shares = [
            Contribution(
                task_id=task,
                peer_id=self.job.group.tasks[task].peer_id,
                samples=samples,
                sha256="0",
                norm=1.0,
                from_round=round_,
                spans=spans.get(task, []),
            )
            for task in tasks
        ]
        return commit_of(server, round_, shares, epoch=more.pop("epoch", self.job.epoch), **more)

    def commit(self, server: str, round_: int, tasks: Sequence[str], samples: int = 32, **more: Any) -> list[JobEffect]:
        return self.tell(m.Committing(self.report(server, round_, tasks, samples, **more)))


def commit_of(server: str, round_: int, shares: list[Contribution], **more: Any) -> CommitRound:
    return CommitRound(
        task_id=server,
        epoch=more.pop("epoch", 0),
        round=round_,
        weights=version("weights", round_ + 1),
        momentum=version("momentum", round_ + 1),
        delta=version("delta", round_ + 1, 10),
        contributions=shares,
        **more,
    )


def replace_struct(message: S, **changes: Any) -> S:
    return msgspec.structs.replace(message, **changes)


class Disk:
    """What the effects of a job leave behind for the next process."""

    def __init__(self) -> None:
        self.state: dict[str, Any] = {"epoch": 0, "data_digest": ""}
        self.leases: dict[str, m.HeldLease] = {}
        self.tasks: dict[str, m.SavedTask] = {}
        self.last: dict[str, tuple[int, Span]] = {}
        self.granted: list[tuple[str, Span]] = []
        self.committed: list[Span] = []
        self.rounds: list[m.SaveRound] = []
        self.files: list[VersionFile] = []

    def write(self, effect: JobEffect, job: Job) -> None:
        match effect:
            case m.SaveState():
                self.state = {"epoch": job.epoch, "data_digest": job.data_digest}
            case m.SaveLease(lease):
                self.leases[lease.lease_id] = lease
            case m.SaveLeaseGone(lease_id):
                self.leases.pop(lease_id, None)
            case m.SaveTask(task):
                self.tasks[task.task_id] = task
            case m.SaveGrant(task_id, number, span):
                self.granted.append((task_id, span))
                self.last[task_id] = (number, span)
            case m.SaveGranted(task_id, spans):
                self.granted = [line for line in self.granted if line[0] != task_id]
                self.granted += [(task_id, span) for span in spans]
            case m.SaveRound(report):
                assert report.round == len(self.rounds), "a round is committed twice, or one is left out"
                self.rounds.append(effect)
                self.committed += [span for share in report.contributions for span in share.spans]
                self.files.append(report.delta)
            case m.SaveBase(files):
                number = files[0].number
                self.files = [file for file in self.files if file.kind == "delta" and file.number > number]
                self.files += files

    def saved(self) -> Saved:
        tasks = [
            replace(task, slice_number=self.last[name][0], slice=self.last[name][1]) if name in self.last else task
            for name, task in self.tasks.items()
        ]
        last = self.rounds[-1] if self.rounds else None
        return Saved(
            **self.state,
            round=len(self.rounds),
            pass_=last.pass_ if last else 0,
            next_number=max((int(name.rpartition(".")[2]) + 1 for name in self.tasks), default=0),
            digest=last.report.weights.sha256 if last else "",
            leases=list(self.leases.values()),
            tasks=tasks,
            granted=list(self.granted),
            committed=list(self.committed),
            chain=Chain.of(self.files),
            samples=sum(line.samples for line in self.rounds),
            bytes_up=last.bytes_up if last else 0,
            bytes_down=last.bytes_down if last else 0,
        )


def only(effects: Sequence[JobEffect], kind: type[E]) -> list[E]:
    return [effect for effect in effects if isinstance(effect, kind)]


def names(effects: Sequence[JobEffect]) -> list[str]:
    return [effect.name for effect in only(effects, m.Happened)]


def group_of(play: Play, workers: int = 2) -> tuple[str, list[str]]:
    """A group in full swing."""
    server = play.server()
    tasks = [play.worker(f"W{number}")[0].dispatch.task_id for number in range(workers)]
    play.ready(server)
    for task in tasks:
        play.progress(task, 1)
    assert play.job.state == "running"
    return server, tasks


def run_rounds(play: Play, server: str, tasks: list[str]) -> None:
    for number in range(play.job.round, play.job.order.rounds):
        play.commit(server, number, tasks)


def test_a_job_goes_from_its_submission_to_its_model() -> None:
    play = Play()
    assert play.job.state == "waiting"
    server, tasks = group_of(play)
    run_rounds(play, server, tasks)
    assert play.job.state == "exporting"
    files = [ExportedFile(name="model.safetensors", size_bytes=1, sha256="0")]
    (pull,) = only(play.status(server, "exported", exported=files), m.PullExport)
    assert (pull.peer_id, pull.files) == ("P", tuple(files))
    for number in range(4):
        play.tell(m.Measured(tasks[0], number, {"eval_loss": 4.0 - number}))
    for task in tasks:
        (released,) = only(play.status(task, "finished", exit_code=0), m.ReleaseHeld)
        assert released.peer_id == play.job.group.tasks[task].peer_id
    effects = play.tell(m.ExportPulled("/models/j"))
    assert (play.job.state, play.job.reason) == ("done", "")
    assert [effect.peer_id for effect in only(effects, m.ReleaseHeld)] == ["P"]
    assert only(effects, m.SaveState)
    view = play.job.view(play.now, "S")
    assert (view.first_eval_loss, view.eval_loss, view.round, view.samples) == (4.0, 1.0, 3, 192)
    assert view.model_dir == "/models/j"


def test_nothing_is_asked_of_workers_before_the_dataset_is_found() -> None:
    play = Play(slices=0)
    assert [type(effect) for effect in play.effects] == [m.SaveState, m.FindData]
    play.tell(m.DataMissing('no node serves dataset "d"'))
    assert play.job.reason == 'waiting: no node serves dataset "d"'
    effects = play.tell(m.DataFound((8,) * 4))
    assert only(effects, m.Search) == [m.Search(AGGREGATE, 1), m.Search(TRAIN, 2)]
    assert play.job.reason == "waiting: 0 of 2"


def test_a_waiting_job_says_what_it_waits_for() -> None:
    play = Play()
    play.tell(m.SearchAnswered(TRAIN, "3 workers refused: gpu 0 < 10"))
    assert play.job.reason == "waiting: 0 of 2; 3 workers refused: gpu 0 < 10"
    play.worker("W0")
    play.tell(m.SearchAnswered(AGGREGATE, "no worker answered"))
    play.tell(m.SearchAnswered(TRAIN, ""))
    assert play.job.reason == "waiting: 1 of 2; no parameter server: no worker answered"
    play.tell(m.SearchAnswered(AGGREGATE, ""))
    play.worker("W1")
    assert play.job.reason == "waiting: for a parameter server"


def test_the_parameter_server_starts_as_soon_as_it_is_held_and_workers_follow() -> None:
    play = Play()
    assert play.worker("W0") == []
    effects = play.tell(m.LeaseHeld(AGGREGATE, "lease-P", "P", 0.5))
    server, worker = (effect.dispatch for effect in only(effects, m.StartTask))
    assert isinstance(server.task, AggregateTask)
    assert isinstance(worker.task, TrainTask)
    assert [member.task_id for member in server.task.members] == [worker.task_id]
    assert worker.task.parameter_server == "P"
    assert worker.task.evaluate
    assert only(effects, m.SetGroup) == []
    effects = play.tell(m.LeaseHeld(TRAIN, "lease-P2", "P", 1.0))
    (second,) = only(effects, m.StartTask)
    assert isinstance(second.dispatch.task, TrainTask)
    assert not second.dispatch.task.evaluate
    assert [member.peer_id for member in only(effects, m.SetGroup)[0].members] == ["W0", "P"]


def test_a_group_begins_with_the_least_number_of_workers_it_was_given() -> None:
    play = Play(replace(ORDER, min_workers=2))
    play.server()
    assert play.worker("W0") == []
    assert len(play.worker("W1")) == 2
    assert play.job.state == "starting"


def test_more_leases_than_wanted_are_let_go() -> None:
    """U32."""
    play = Play()
    group_of(play)
    assert only(play.tell(m.LeaseHeld(TRAIN, "extra", "X", 1.0)), m.ReleaseHeld) == [m.ReleaseHeld("extra", "X")]
    assert only(play.tell(m.LeaseHeld(AGGREGATE, "extra2", "X", 1.0)), m.ReleaseHeld) == [m.ReleaseHeld("extra2", "X")]


def test_a_lost_worker_gives_its_rows_back_once_no_update_of_it_can_count_and_is_replaced() -> None:
    """H43, H45: the job goes on with the rest, says so, and the replacement joins."""
    play = Play()
    server, (first, second) = group_of(play)
    play.commit(server, 0, [first, second])
    grants = [play.slice(second), play.slice(second)]
    effects = play.tell(m.LeaseLost("lease-W1", "not renewed in 10 s"))
    assert "worker.lost" in names(effects)
    (change,) = only(effects, m.SetGroup)
    assert [member.task_id for member in change.members] == [first]
    assert play.job.state == "running"
    assert play.job.reason == "running with 1 of 2; looking for a replacement"
    assert play.slice(first) not in grants, "its update may have arrived before it was lost"
    effects = play.tell(m.LeaseHeld(TRAIN, "lease-W2", "W2", 1.0))
    (change,) = only(effects, m.SetGroup)
    assert [member.peer_id for member in change.members] == ["W0", "W2"]
    assert play.job.reason == ""
    told = frozenset(member.task_id for member in change.members)
    play.tell(m.GroupSet(server, told, 1))
    play.commit(server, 1, [first])
    assert [play.slice(first), play.slice(first)] == grants


def test_an_update_that_came_before_its_worker_was_lost_counts_with_its_rows() -> None:
    play = Play()
    server, (first, second) = group_of(play)
    span = play.slice(second)
    assert span is not None
    effects = play.tell(m.LeaseLost("lease-W1", "gone"))
    told = frozenset(member.task_id for member in only(effects, m.SetGroup)[0].members)
    play.tell(m.GroupSet(server, told, 0))
    play.commit(server, 0, [first, second], spans={second: [span]})
    assert play.job.round == 1
    assert [play.slice(first) for _ in range(4)].count(span) == 0


def test_where_late_updates_are_carried_over_the_rows_wait_one_round_longer() -> None:
    play = Play(replace(ORDER, aggregation=Aggregation(late="carry")))
    server, (first, second) = group_of(play)
    span = play.slice(second)
    assert span is not None
    play.tell(m.LeaseLost("lease-W1", "gone"))
    play.tell(m.GroupSet(server, frozenset([first]), 0))
    play.commit(server, 0, [first])
    play.commit(server, 1, [first, second], spans={second: [span]})
    assert play.disk.committed == [span]


def test_a_job_waits_when_all_workers_are_lost() -> None:
    play = Play()
    _, _ = group_of(play)
    play.tell(m.LeaseLost("lease-W0", "gone"))
    play.tell(m.LeaseLost("lease-W1", "gone"))
    assert play.job.state == "waiting"
    assert play.job.reason == "waiting: 0 of 2; looking for a replacement"
    assert len(play.worker("W9")) == 1


def test_a_lost_parameter_server_is_placed_again_from_the_last_commit_and_its_group_goes_on() -> None:
    """U28: workers keep their tasks, their leases and their rows; the job says what happened."""
    play = Play()
    server, tasks = group_of(play)
    play.commit(server, 0, tasks)
    grant = play.slice(tasks[0])
    effects = play.tell(m.LeaseLost("lease-P", "not renewed in 10 s"))
    assert only(effects, m.ReleaseHeld) == []
    assert (play.job.epoch, play.job.round, play.job.state) == (1, 1, "waiting")
    assert (
        "the parameter server on P was lost (not renewed in 10 s); placing it again from version 1" in play.job.reason
    )
    assert only(effects, m.SaveState)
    assert only(effects, m.Search) == [m.Search(AGGREGATE, 1), m.Search(TRAIN, 2)]
    plan = play.progress(tasks[0], 3)
    assert (plan.epoch, plan.parameter_server) == (1, "")
    with pytest.raises(Refused, match="epoch 0 is over") as caught:
        play.commit(server, 1, tasks, epoch=0)
    assert caught.value.code == "stale"
    effects = play.tell(m.LeaseHeld(AGGREGATE, "lease-Q", "Q", 0.5))
    (start,) = only(effects, m.StartTask)
    assert isinstance(start.dispatch.task, AggregateTask)
    assert start.dispatch.epoch == 1
    assert start.dispatch.task_id.startswith("j.1.")
    assert [file.kind for file in start.dispatch.task.start] == ["weights", "delta"]
    assert [member.task_id for member in start.dispatch.task.members] == tasks
    assert play.progress(tasks[0], 4).parameter_server == "", "it has not replayed the journal yet"
    play.ready(start.dispatch.task_id)
    assert (play.job.state, play.job.reason) == ("running", "")
    assert play.progress(tasks[0], 5).parameter_server == "Q"
    play.commit(start.dispatch.task_id, 1, tasks, spans={tasks[0]: [grant]})
    assert play.job.round == 2
    assert play.disk.committed == [grant]


def test_a_parameter_server_whose_replay_gives_other_weights_is_not_used() -> None:
    play = Play()
    server, tasks = group_of(play)
    play.commit(server, 0, tasks)
    play.tell(m.LeaseLost("lease-P", "gone"))
    new = play.server("Q")
    wrong = VersionFile(kind="weights", number=1, sha256="other", size_bytes=1)
    effects = play.status(new, "ready", files=[wrong])
    assert "task.failed" in names(effects)
    assert "not the committed ones" in play.job.group.tasks[new].detail
    assert play.job.epoch == 2
    assert only(effects, m.ReleaseHeld) == [m.ReleaseHeld("lease-Q", "Q")]


def test_a_round_is_not_committed_before_the_version_it_began_with_is_kept() -> None:
    play = Play()
    server = play.server()
    (start,) = play.worker("W0")
    task = start.dispatch.task_id
    effects = play.status(server, "ready", files=[version("weights", 0)])
    (pull,) = only(effects, m.PullBase)
    assert (pull.peer_id, pull.files) == ("P", (version("weights", 0),))
    with pytest.raises(Refused, match="does not hold the version yet") as caught:
        play.commit(server, 0, [task])
    assert caught.value.code == "busy"
    again = Play(slices=0, disk=play.disk)
    assert only(again.effects, m.PullBase) == [pull], "a scheduler that starts again meanwhile fetches it again"
    play.tell(m.BaseKept(0, pull.files))
    play.commit(server, 0, [task])
    assert play.job.round == 1


def test_a_parameter_server_that_is_lost_before_its_first_version_is_kept_makes_it_again() -> None:
    play = Play()
    play.server()
    play.worker("W0")
    play.tell(m.LeaseLost("lease-P", "gone"))
    effects = play.tell(m.LeaseHeld(AGGREGATE, "lease-Q", "Q", 0.5))
    (start,) = only(effects, m.StartTask)
    assert isinstance(start.dispatch.task, AggregateTask)
    assert start.dispatch.task.start == []


def test_a_burdened_journal_gets_a_new_base_and_forgets_what_came_before() -> None:
    play = Play(replace(ORDER, rounds=40))
    server, tasks = group_of(play)
    pulls: list[m.PullBase] = []
    for number in range(13):
        pulls = only(play.commit(server, number, tasks), m.PullBase)
    assert pulls[0].files == (version("weights", 11), version("momentum", 11)) or pulls
    play.tell(m.BaseKept(0, pulls[0].files))
    number = pulls[0].files[0].number
    assert play.job.chain.base == list(pulls[0].files)
    assert play.disk.saved().chain == play.job.chain
    play.tell(m.BaseKept(0, (version("weights", number - 2), version("momentum", number - 2))))
    assert play.job.chain.base == list(pulls[0].files), "an older base came late"


def test_every_nth_commit_is_kept_as_a_whole_copy() -> None:
    play = Play(replace(ORDER, checkpoint_every=2))
    server, tasks = group_of(play)
    span = play.slice(tasks[0])
    assert only(play.commit(server, 0, tasks, spans={tasks[0]: [span]}), m.KeepCheckpoint) == []
    (keep,) = only(play.commit(server, 1, tasks), m.KeepCheckpoint)
    assert (keep.version, keep.peer_id, keep.committed) == (2, "P", (span,))
    assert [file.kind for file in keep.files] == ["weights", "momentum"]


def test_workers_in_reserve_come_in_at_once_when_one_is_lost() -> None:
    """U32: they are held at the job's price and do nothing until then."""
    play = Play(replace(ORDER, spares=1))
    group_of(play)
    assert play.worker("W2") == []
    assert play.job.view(play.now, "S").workers == 2
    effects = play.tell(m.LeaseLost("lease-W0", "gone"))
    (start,) = only(effects, m.StartTask)
    assert start.peer_id == "W2"
    assert play.job.reason == ""
    assert play.worker("W3") == [], "the reserve is filled up again"
    assert only(play.tell(m.LeaseHeld(TRAIN, "lease-W4", "W4", 1.0)), m.ReleaseHeld) == [
        m.ReleaseHeld("lease-W4", "W4")
    ]


def test_a_newcomer_is_waited_for_from_the_round_in_which_it_has_trained_its_first_batch() -> None:
    """No round is held up while its executor loads the model."""
    play = Play(replace(ORDER, workers=3))
    _, tasks = group_of(play)
    for task in tasks:
        play.progress(task, 3)
    effects = play.tell(m.LeaseHeld(TRAIN, "lease-W9", "W9", 1.0))
    (change,) = only(effects, m.SetGroup)
    assert [member.since_round for member in change.members] == [0, 0, 3]
    newcomer = change.members[-1].task_id
    play.effects.clear()
    play.progress(newcomer, 0)
    assert only(play.effects, m.SetGroup) == []
    play.progress(newcomer, 1)
    (change,) = only(play.effects, m.SetGroup)
    assert [member.since_round for member in change.members] == [0, 0, 0]
    assert play.disk.tasks[newcomer].since_round == 0


def test_a_newcomer_that_is_left_alone_is_waited_for() -> None:
    play = Play(replace(ORDER, workers=3))
    group_of(play)
    play.tell(m.LeaseHeld(TRAIN, "lease-W9", "W9", 1.0))
    for name in ("lease-W0", "lease-W1"):
        effects = play.tell(m.LeaseLost(name, "gone"))
    assert [member.since_round for member in only(effects, m.SetGroup)[-1].members] == [0]


def test_with_fragments_each_has_its_round_and_evaluations_come_after_whole_cycles() -> None:
    spec = parse_job(
        """
dataset = "d"
model = { type = "causal-lm", path = "model" }
rounds = { update_rounds = 3, avg_samples_between_updates = 64 }
inner_optimizer = { learning_rate = 0.1 }
outer_optimizer = { learning_rate = 0.1, momentum = 0.0 }
resources = { num_workers = 2, worker = { cpu = 1 }, parameter_server = { cpu = 1 } }
sync = { fragments = 4 }
"""
    )
    order = order_of_spec("j", spec, "")
    assert (order.rounds, order.budget, order.batch_size) == (12, 16, 8)
    play = Play(replace(order, validation_dataset="v"))
    server, tasks = group_of(play)
    asked = []
    for number in range(8):
        asked.append(play.progress(tasks[0], 1).evaluate)
        play.commit(server, number, tasks)
    assert asked == [False, False, False, True, False, False, False, True]


def test_a_worker_that_falls_behind_is_named_once_and_shown() -> None:
    """U40."""
    play = Play()
    server, (first, second) = group_of(play)
    for batches in range(2, 8):
        for task in (first, second):
            play.progress(task, batches)
    play.progress(first, 20)
    named = [name for _ in range(40) for name in names(play.tell(m.Ticked(), after=0.5))]
    assert named.count("worker.behind") == 1
    assert play.job.reason == "waiting for W1"
    play.commit(server, 0, [first], left_out={second: "no update came"})
    assert play.job.reason == ""
    assert play.job.group.tasks[second].detail == "left out of round 0: no update came"


def test_rows_that_a_worker_returns_are_served_again_once() -> None:
    play = Play()
    _, (first, second) = group_of(play)
    span = play.slice(first)
    assert span is not None
    play.progress(first, 2, returned=[span], return_number=1)
    assert play.slice(second) == span
    play.progress(first, 2, returned=[span], return_number=1)
    assert play.disk.saved().granted == [(second, span)]
    assert play.slice(first) != span


def test_a_round_that_counts_rows_of_another_task_is_refused_and_changes_nothing() -> None:
    play = Play()
    server, (first, second) = group_of(play)
    span = play.slice(first)
    with pytest.raises(Refused, match="not its own") as caught:
        play.commit(server, 0, [first, second], spans={first: [span], second: [span]})
    assert caught.value.code == "conflict"
    assert caught.value.parts.keys() == {1}, "only one of the updates is at fault"
    assert play.job.round == 0
    left_out = {second: caught.value.parts[1]}
    (told,) = only(play.commit(server, 0, [first], spans={first: [span]}, left_out=left_out), m.Happened)
    assert (play.job.round, told.name, told.level) == (1, "round.committed", "warning")
    assert "not its own" in play.job.group.tasks[second].detail


def test_an_update_of_a_task_that_runs_elsewhere_is_refused_and_no_other() -> None:
    play = Play()
    server, (first, second) = group_of(play)
    report = play.report(server, 0, [first, second])
    shares = [replace_struct(report.contributions[0], peer_id="W9"), report.contributions[1]]
    with pytest.raises(Refused, match="runs at W9") as caught:
        play.tell(m.Committing(replace_struct(report, contributions=shares)))
    assert caught.value.parts.keys() == {0}


def test_a_crashed_executor_shows_its_exit_code_and_last_lines_and_is_replaced() -> None:
    """H31."""
    play = Play()
    _, (first, _) = group_of(play)
    effects = play.status(first, "failed", exit_code=3, tail=["Traceback", "ValueError: no", ""])
    task = next(task for task in play.job.view(play.now, "S").tasks if task.task_id == first)
    assert (task.state, task.exit_code, task.tail[1]) == ("failed", 3, "ValueError: no")
    assert only(effects, m.ReleaseHeld) == [m.ReleaseHeld("lease-W0", "W0")]
    assert only(effects, m.Shun) == [m.Shun(TRAIN, "W0")]
    assert play.job.reason == "running with 1 of 2; looking for a replacement"


def test_after_three_failed_tasks_the_job_has_failed_and_says_why() -> None:
    play = Play()
    play.server()
    for number in range(3):
        (start,) = play.worker(f"W{number}")
        effects = play.status(start.dispatch.task_id, "failed", exit_code=3, tail=["ValueError: no"])
    assert play.job.state == "failed"
    assert play.job.reason == "3 tasks failed, the last one was the train task on W2: exit code 3: ValueError: no"
    assert [effect.peer_id for effect in only(effects, m.ReleaseHeld)] == ["W2", "P"]
    assert "job.failed" in names(effects)


def test_a_worker_that_ends_before_its_rounds_are_done_has_failed() -> None:
    play = Play()
    _, (first, _) = group_of(play)
    play.status(first, "finished", exit_code=0)
    assert play.job.group.tasks[first].state == "failed"


def test_a_worker_that_stops_on_its_own_is_lost_and_not_failed() -> None:
    play = Play()
    _, (first, _) = group_of(play)
    effects = play.status(first, "cancelled", detail="the node stops")
    assert play.job.group.tasks[first].state == "lost"
    assert only(effects, m.ReleaseHeld) == [m.ReleaseHeld("lease-W0", "W0")]


def test_a_worker_that_refuses_the_task_is_not_asked_again() -> None:
    play = Play()
    play.server()
    (start,) = play.worker("W0")
    effects = play.tell(m.DispatchRefused(start.dispatch.task_id, "job code is refused here"))
    assert only(effects, m.Shun) == [m.Shun(TRAIN, "W0", never=True)]
    assert only(effects, m.ReleaseHeld) == [m.ReleaseHeld("lease-W0", "W0", "job code is refused here")]
    assert play.job.state == "waiting"


def test_a_round_is_committed_once_however_often_it_is_reported() -> None:
    play = Play()
    server, tasks = group_of(play)
    assert len(only(play.commit(server, 0, tasks), m.SaveRound)) == 1
    assert play.commit(server, 0, tasks) == []
    with pytest.raises(Refused, match="with other weights"):
        other = replace_struct(play.report(server, 0, tasks), weights=version("weights", 99))
        play.tell(m.Committing(other))
    assert play.job.round == 1
    assert play.job.view(play.now, "S").samples == 64


def test_a_round_that_is_reported_before_its_predecessor_has_to_come_again() -> None:
    play = Play()
    server, tasks = group_of(play)
    with pytest.raises(Refused, match="before round 0"):
        play.commit(server, 1, tasks)
    assert play.job.round == 0


def test_a_committed_round_and_its_rows_are_written_together() -> None:
    play = Play()
    server, tasks = group_of(play)
    span = play.slice(tasks[0])
    assert span is not None
    half = Span(span.pass_, span.index, 0, 3)
    effects = play.commit(server, 0, tasks, spans={tasks[0]: [half]})
    (save,) = only(effects, m.SaveRound)
    assert save.report.contributions[0].spans == [half]
    assert m.SaveGranted(tasks[0], (Span(span.pass_, span.index, 3, 8),)) in effects
    assert play.job.view(play.now, "S").slices == {"available": 24, "assigned": 5, "used": 3}


def test_a_job_without_a_gpu_has_a_batch_like_any_other() -> None:
    """H24: nothing is divided by the GPU that nobody asked for."""
    text = """
dataset = "d"
model = {{ type = "causal-lm", path = "model" }}
rounds = {{ update_rounds = 1, avg_samples_between_updates = {samples}{limit} }}
inner_optimizer = {{ learning_rate = 0.1 }}
outer_optimizer = {{ learning_rate = 0.1, momentum = 0.0 }}
resources = {{ num_workers = 2, worker = {{ cpu = 1, gpu = 0 }}, parameter_server = {{ cpu = 1 }} }}
"""
    cases = ((64, "", BATCH_SIZE), (64, ", max_batch_size = 4", 4), (6, "", 3), (1, ", max_batch_size = 9", 1))
    for samples, limit, expected in cases:
        spec = parse_job(text.format(samples=samples, limit=limit))
        assert order_of_spec("j", spec, "").batch_size == expected


def test_a_round_without_weight_changes_nothing_and_is_told() -> None:
    """U35."""
    play = Play()
    server, tasks = group_of(play)
    effects = play.commit(server, 0, [], left_out={tasks[0]: "nothing finite"})
    event = next(effect for effect in only(effects, m.Happened) if effect.name == "round.committed")
    assert event.level == "warning"
    assert "nothing finite" in event.text
    assert play.job.view(play.now, "S").samples_per_s is None


def test_a_report_about_an_older_round_is_told_to_send_at_once() -> None:
    """H12: the round's number is in every message, so a fast worker is never judged against the old round."""
    play = Play()
    server, (first, second) = group_of(play)
    play.commit(server, 0, [first, second])
    assert play.progress(first, 5, round_=0) == Plan(round=0, target_batches=5, evaluate=True, parameter_server="P")
    assert play.progress(first, 1, round_=1).target_batches is None
    assert play.progress(second, 3, round_=2) == Plan(round=2, parameter_server="P")
    assert play.job.round == 1


def test_members_are_told_to_send_when_the_group_reaches_its_budget() -> None:
    play = Play()
    _, (first, second) = group_of(play)
    for batches in range(2, 9):
        plans = [play.progress(task, batches) for task in (first, second)]
    assert all(plan.target_batches is not None for plan in plans)
    assert 16 <= sum(plan.target_batches or 0 for plan in plans) <= 18


def test_the_loss_of_a_round_is_weighted_by_samples() -> None:
    play = Play()
    server, (first, second) = group_of(play)
    play.tell(m.Measured(first, 0, {"loss": 1.0, "bad": float("nan")}))
    play.progress(second, 2, loss=9.0)
    shares = [
        Contribution(task_id=task, peer_id="W", samples=samples, sha256="0", norm=1.0)
        for task, samples in ((first, 30), (second, 10))
    ]
    shares = [replace_struct(share, peer_id=play.job.group.tasks[share.task_id].peer_id) for share in shares]
    report = commit_of(server, 0, shares, bytes_up=7, bytes_down=9)

    def of_the_job(event: m.JobEvent) -> dict[str, float]:
        plotted = only(play.tell(event), m.Plotted)
        return {effect.point.name: effect.point.value for effect in plotted if not effect.point.worker}

    points = of_the_job(m.Committing(report))
    assert (points["bytes_up"], points["bytes_down"]) == (7, 9)
    assert "loss" not in points, "the second worker has not told its own yet: its last batch is not the round"
    assert of_the_job(m.Measured(second, 0, {"loss": 4.0}))["loss"] == pytest.approx(1.75)
    assert play.job.view(play.now, "S").loss == pytest.approx(1.75)


def test_a_worker_that_never_tells_its_loss_counts_with_its_last_batch() -> None:
    play = Play()
    server, (first, second) = group_of(play)
    for task, loss in ((first, 1.0), (second, 4.0)):
        play.progress(task, 2, loss=loss)
    for number in (0, 1):
        play.commit(server, number, [first, second], samples=8)
    assert play.job.view(play.now, "S").loss == pytest.approx(2.5)


def test_a_metric_that_is_reported_twice_is_plotted_once() -> None:
    play = Play()
    _, (first, second) = group_of(play)
    assert len(play.tell(m.Measured(first, 0, {"eval_loss": 4.0, "loss": 5.0}))) == 2
    assert play.tell(m.Measured(first, 0, {"eval_loss": 4.0, "loss": 5.0})) == []
    assert play.tell(m.Measured(second, 0, {"eval_loss": 4.1})) == []


def test_another_member_evaluates_when_the_evaluator_is_lost() -> None:
    play = Play()
    _, (first, second) = group_of(play)
    assert play.progress(first, 2).evaluate
    assert not play.progress(second, 2).evaluate
    play.tell(m.LeaseLost("lease-W0", "gone"))
    assert play.progress(second, 3).evaluate


def finished(play: Play) -> tuple[str, list[str]]:
    server, tasks = group_of(play)
    run_rounds(play, server, tasks)
    play.status(server, "exported", exported=[ExportedFile(name="m", size_bytes=1, sha256="0")])
    return server, tasks


def test_a_job_waits_for_the_last_validation_loss_but_not_for_ever() -> None:
    play = Play()
    finished(play)
    play.tell(m.ExportPulled("/m"))
    assert play.job.reason == "waiting for the last validation loss"
    play.tell(m.Ticked(), after=59)
    assert play.job.state == "exporting"
    play.tell(m.Ticked(), after=2)
    assert play.job.state == "done"


def test_a_job_is_done_when_nobody_can_give_the_last_validation_loss_any_more() -> None:
    play = Play()
    _, tasks = finished(play)
    play.tell(m.ExportPulled("/m"))
    for task in tasks:
        play.status(task, "finished", exit_code=0)
    assert play.job.state == "done"


def test_an_export_that_is_reported_before_its_last_round_waits_for_it() -> None:
    play = Play()
    server, tasks = group_of(play)
    files = [ExportedFile(name="m", size_bytes=1, sha256="0")]
    play.commit(server, 0, tasks)
    play.commit(server, 1, tasks)
    assert only(play.status(server, "exported", exported=files), m.PullExport) == []
    assert play.status(tasks[0], "finished", exit_code=0)
    assert len(only(play.commit(server, 2, tasks), m.PullExport)) == 1


def test_a_parameter_server_that_says_it_is_done_after_its_export_keeps_its_lease_until_the_model_is_here() -> None:
    play = Play()
    server, _ = finished(play)
    assert play.status(server, "finished", exit_code=0) == []
    assert (play.job.state, play.job.epoch) == ("exporting", 0)


def test_a_model_that_cannot_be_stored_fails_the_job() -> None:
    play = Play()
    finished(play)
    play.tell(m.ExportFailed("No space left on device"))
    assert (play.job.state, play.job.reason) == ("failed", "the model could not be stored: No space left on device")


@pytest.mark.parametrize("stage", range(4))
def test_a_job_can_be_cancelled_at_any_time(stage: int) -> None:
    play = Play(slices=0 if stage == 0 else 4)
    if stage == 1:
        play.worker("W0")
    elif stage == 2:
        group_of(play)
    elif stage == 3:
        finished(play)
    held = set(play.job.crew.prices)
    effects = play.tell(m.CancelAsked("ada"))
    assert {effect.lease_id for effect in only(effects, m.ReleaseHeld)} == held
    assert (play.job.state, play.job.reason) == ("cancelled", "cancelled by ada")
    assert only(play.tell(m.LeaseHeld(TRAIN, "late", "X", 1.0)), m.ReleaseHeld) == [m.ReleaseHeld("late", "X")]
    assert play.tell(m.CancelAsked("ada")) == []


def test_reports_of_tasks_that_are_over_or_unknown_change_nothing() -> None:
    """H19."""
    play = Play()
    server, (first, _) = group_of(play)
    play.tell(m.LeaseLost("lease-W0", "gone"))
    assert play.status(first, "running") == []
    assert play.status(first, "failed", exit_code=1) == []
    assert play.tell(m.TaskReported(TaskStatus(task_id="j.0.99", lease_id="x", state="failed"))) == []
    assert play.tell(m.LeaseLost("never heard of", "gone")) == []
    assert play.tell(m.Measured("j.0.99", 0, {"loss": 1.0})) == []
    with pytest.raises(Refused, match="is over"):
        play.commit("j.0.99", 0, [])
    with pytest.raises(Refused, match=r"j\.0\.1 is over"):
        play.progress(first, 1)
    assert play.job.group.tasks[server].is_alive


def test_a_job_of_an_earlier_process_goes_on_with_its_tasks_leases_and_rows() -> None:
    """U34, H34: nothing is started twice, and nothing that was committed is lost."""
    play = Play()
    server, tasks = group_of(play)
    spans = [play.slice(task) for task in tasks]
    play.commit(server, 0, tasks, spans={tasks[0]: [spans[0]]}, bytes_up=5)
    again = Play(slices=0, disk=play.disk)
    assert only(again.effects, m.Search) == []
    assert [start.dispatch.task_id for start in only(again.effects, m.StartTask)] == tasks, "told again, in case"
    assert [member.task_id for member in only(again.effects, m.SetGroup)[0].members] == tasks
    with pytest.raises(Refused, match="does not hold") as caught:
        again.commit(server, 1, tasks)
    assert caught.value.code == "busy", "the rows are not known before the dataset is"
    again.tell(m.DataFound((8,) * 4, "digest"))
    plan = again.progress(tasks[0], 2)
    assert (again.job.state, again.job.round, again.job.epoch) == ("running", 1, 0)
    assert (plan.round, plan.parameter_server) == (1, "P")
    again.numbers[tasks[1]] = 0
    assert again.slice(tasks[1]) == spans[1], "the same request gets the same rows"
    again.commit(server, 1, tasks, spans={tasks[1]: [spans[1]]}, bytes_up=9)
    view = again.job.view(again.now, "S")
    assert (view.round, view.samples, view.bytes_up) == (2, 128, 9)
    third = again.worker("W9")
    assert third == [], "all places are taken"


def test_a_dataset_that_is_another_one_after_a_restart_ends_the_job() -> None:
    play = Play()
    group_of(play)
    again = Play(slices=0, disk=play.disk)
    again.tell(m.DataFound((8,) * 4, "another"))
    assert (again.job.state, again.job.reason) == ("failed", "the dataset has changed since the job began")


def test_a_lost_export_begins_again_with_the_next_parameter_server() -> None:
    play = Play()
    _, tasks = finished(play)
    effects = play.tell(m.LeaseLost("lease-P", "gone"))
    assert m.Search(AGGREGATE, 1) in effects
    assert play.job.state == "exporting"
    assert "placing it again from version 3" in play.job.reason
    new = play.server("Q")
    play.ready(new)
    files = [ExportedFile(name="m", size_bytes=1, sha256="0")]
    (pull,) = only(play.status(new, "exported", exported=files), m.PullExport)
    assert pull.peer_id == "Q"
    play.tell(m.Measured(tasks[0], 3, {"eval_loss": 1.0}))
    play.tell(m.ExportPulled("/models/j"))
    assert play.job.state == "done"


def without_conflicts(play: Play, server: str, spans: dict[str, list[Span]]) -> dict[str, list[Span]]:
    """What a parameter server asks to commit once it has heard which updates do not count."""
    try:
        play.job.asks_to_commit(play.report(server, play.job.round, list(spans), spans=spans))
    except Refused as error:
        names = list(spans)
        assert error.parts.keys() <= set(range(len(names)))
        at_fault = {names[number] for number in error.parts}
        return {name: rows for name, rows in spans.items() if name not in at_fault}
    return spans


def disturb(play: Play, rng: random.Random, seen: list[JobEvent]) -> None:
    """One random thing that may happen to a job."""
    job = play.job
    alive = [task for task in job.group.tasks.values() if task.is_alive]
    trains = [task for task in alive if task.role == TRAIN]
    server = job.group.server
    kind = rng.choices(
        [
            "lease",
            "lost",
            "failed",
            "commit",
            "progress",
            "slice",
            "return",
            "status",
            "ready",
            "set",
            "again",
            "export",
            "move",
            "answer",
        ],
        [6, 1, 0.1, 6, 6, 9, 1, 4, 4, 2, 3, 1, 1, 1],
    )[0]
    event: JobEvent | None = None
    if kind == "lease":
        number = rng.randrange(10**6)
        event = m.LeaseHeld(rng.choice([TRAIN, AGGREGATE]), f"l{number}", f"p{rng.randrange(5)}", 1.0)
    elif kind == "lost" and job.crew.prices:
        event = m.LeaseLost(rng.choice(sorted(job.crew.prices)), "gone")
    elif kind == "commit" and server is not None and job.round < job.order.rounds:
        spans = {task.task_id: play.some_rows(task.task_id, rng) for task in trains if rng.random() < 0.7}
        if spans and rng.random() < 0.2:
            # One of them claims what another task has; the parameter server asks again without it.
            others = [span for task in trains for span in play.some_rows(task.task_id, rng)]
            spans[rng.choice(list(spans))] += others
            spans = without_conflicts(play, server.task_id, spans)
        event = m.Committing(play.report(server.task_id, job.round, list(spans), spans=spans))
    elif kind == "progress" and trains:
        play.progress(rng.choice(trains).task_id, rng.randrange(20), round_=max(0, job.round + rng.randrange(-1, 2)))
    elif kind == "slice" and trains:
        task_id = rng.choice(trains).task_id
        play.slice(task_id)
    elif kind == "return" and trains:
        task = rng.choice(trains)
        spans = play.some_rows(task.task_id, rng)
        play.progress(task.task_id, 1, returned=spans, return_number=task.return_number + rng.randrange(2))
    elif kind == "ready" and server is not None and server.state != "exported":
        play.ready(server.task_id)
    elif kind == "set" and server is not None:
        members = frozenset(task.task_id for task in trains)
        event = m.GroupSet(server.task_id, members, job.round)
    elif kind in ("status", "failed") and alive:
        task = rng.choice(alive)
        state = "failed" if kind == "failed" else rng.choice(["starting", "running", "ready", "cancelled"])
        event = m.TaskReported(TaskStatus(task_id=task.task_id, lease_id=task.lease_id, state=state, exit_code=1))
    elif kind == "move" and job.crew.prices:
        event = m.HandOverAsked(rng.choice(sorted(job.crew.prices)), "drained")
    elif kind == "answer":
        event = m.SearchAnswered(rng.choice([TRAIN, AGGREGATE]), rng.choice(["", "no worker answered"]))
    elif kind == "again" and seen:
        event = rng.choice(seen)
    elif kind == "export" and server is not None and job.round == job.order.rounds:
        files = [ExportedFile(name="m", size_bytes=1, sha256="0")]
        event = m.TaskReported(
            TaskStatus(task_id=server.task_id, lease_id=server.lease_id, state="exported", exported=files)
        )
    if event is not None:
        seen.append(event)
        try:
            play.tell(event)
        except Refused as error:
            assert error.code in ("busy", "stale", "conflict")
        if any(isinstance(effect, m.PullExport) for effect in play.effects[-8:]) and rng.random() < 0.5:
            play.tell(m.ExportPulled("/m"))


@pytest.mark.parametrize("seed", range(25))
def test_no_order_of_losses_restarts_repeats_and_late_messages_breaks_a_job(seed: int) -> None:
    """Each row of a pass is committed once, each round once, under whatever disturbance."""
    rng = random.Random(seed)
    order = replace(ORDER, rounds=30, min_workers=rng.choice([1, 2]), spares=rng.choice([0, 1]))
    play = Play(order)
    seen: list[JobEvent] = []
    started: Counter[str] = Counter()
    for _ in range(250):
        if play.job.is_over:
            break
        disturb(play, rng, seen)
        if rng.random() < 0.02 and not play.job.is_over:
            started.update(effect.dispatch.task_id for effect in only(play.effects, m.StartTask))
            before, play = play, Play(order, disk=play.disk)
            play.numbers, play.now = before.numbers, before.now
            assert play.job.round == before.job.round
            assert play.job.rounds.ledger is not None
            assert before.job.rounds.ledger is not None
            before_rows, rows = before.job.rounds.ledger, play.job.rounds.ledger
            for task in before.job.group.tasks.values():
                settled = not task.is_alive and task.task_id not in play.job.crew.leaving
                assert settled or rows.granted_to(task.task_id) == before_rows.granted_to(task.task_id)
    counted = Counter((s.pass_, s.index, row) for s in play.disk.committed for row in range(s.start, s.end))
    assert not counted or max(counted.values()) == 1, "a row counts twice"
    ledger = play.job.rounds.ledger
    assert ledger is not None
    assert sum(1 for pass_, _, _ in counted if pass_ < ledger.pass_) == ledger.pass_ * sum(ledger.rows)
    if not play.job.is_over:
        play.tell(m.CancelAsked("the test"))
    held = Counter(effect.dispatch.lease_id for effect in only(play.effects, m.StartTask))
    assert not held or max(held.values()) == 1, "two tasks under one lease"
    assert play.job.crew.prices == {}


def test_a_job_that_starts_is_written_down_once_and_not_at_every_report() -> None:
    play = Play()
    server = play.server()
    task = play.worker("W0")[0].dispatch.task_id
    play.effects.clear()
    for _ in range(5):
        play.progress(task, 0)
    assert only(play.effects, m.SaveState) == []
    play.ready(server)
    assert play.job.state == "running"
    assert len(only(play.effects, m.SaveState)) == 1


def test_a_job_tells_once_how_long_its_placement_took() -> None:
    play = Play()
    group_of(play)
    placed = [effect for effect in only(play.effects, m.Happened) if effect.name == "job.placed"]
    assert len(placed) == 1
    assert 0 < float(placed[0].fields["seconds"]) <= play.now
    assert "all 3 leases are held" in placed[0].text
