from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

import pytest

from node.errors import Refused
from node.jobspec import parse_job
from node.scheduler import messages as m
from node.scheduler.allocation import Need
from node.scheduler.job import Job
from node.scheduler.messages import AGGREGATE, TRAIN, JobEffect, JobEvent, Order
from node.wire import (
    AggregateTask,
    Contribution,
    ExecutorKind,
    ExportedFile,
    InnerOptimizer,
    ModelSource,
    OuterOptimizer,
    Plan,
    Progress,
    Resources,
    RoundCommitted,
    TaskStatus,
    TrainTask,
)

E = TypeVar("E", bound=JobEffect)

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


class Play:
    """A job and everything that it wanted so far; checks it after every event."""

    def __init__(self, order: Order = ORDER, slices: int = 4, epoch: int = 0) -> None:
        self.now = 0.0
        self.job = Job(order, now=0.0, epoch=epoch)
        self.leases = "lease-"
        self.effects: list[JobEffect] = list(self.job.begin(0.0))
        if slices:
            self.tell(m.DataFound(slices))

    def tell(self, event: JobEvent, after: float = 0.1) -> list[JobEffect]:
        self.now += after
        effects = self.job.handle(self.now, event)
        self.job.validate()
        self.effects += effects
        return effects

    def server(self, peer: str = "P") -> str:
        return only(self.tell(m.LeaseHeld(AGGREGATE, f"{self.leases}{peer}", peer, 0.5)), m.StartTask)[
            0
        ].dispatch.task_id

    def worker(self, peer: str) -> list[m.StartTask]:
        return only(self.tell(m.LeaseHeld(TRAIN, f"{self.leases}{peer}", peer, 1.0)), m.StartTask)

    def status(self, task_id: str, state: str, **more: Any) -> list[JobEffect]:
        lease_id = self.job.group.tasks[task_id].lease_id
        return self.tell(m.TaskReported(TaskStatus(task_id=task_id, lease_id=lease_id, state=state, **more)))

    def progress(self, task_id: str, batches: int, round_: int | None = None, loss: float | None = None) -> Plan:
        self.now += 0.1
        round_ = self.job.round if round_ is None else round_
        report = Progress(task_id=task_id, round=round_, batches=batches, samples=4 * batches, batch_s=0.1, loss=loss)
        plan, effects = self.job.progress(self.now, report)
        self.job.validate()
        self.effects += effects
        return plan

    def commit(self, server: str, round_: int, tasks: Sequence[str], samples: int = 32, **more: Any) -> list[JobEffect]:
        shares = [
            Contribution(
                task_id=task, peer_id=self.job.group.tasks[task].peer_id, samples=samples, sha256="0", norm=1.0
            )
            for task in tasks
        ]
        return self.tell(
            m.Committed(RoundCommitted(task_id=server, round=round_, digest=f"d{round_}", contributions=shares, **more))
        )


def only(effects: Sequence[JobEffect], kind: type[E]) -> list[E]:
    return [effect for effect in effects if isinstance(effect, kind)]


def names(effects: Sequence[JobEffect]) -> list[str]:
    return [effect.name for effect in only(effects, m.Happened)]


def group_of(play: Play, workers: int = 2) -> tuple[str, list[str]]:
    """A group in full swing."""
    server = play.server()
    tasks = [play.worker(f"W{number}")[0].dispatch.task_id for number in range(workers)]
    play.status(server, "ready")
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
    for version in range(4):
        play.tell(m.Measured(tasks[0], version, {"eval_loss": 4.0 - version}))
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
    effects = play.tell(m.DataFound(4))
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


def test_a_lost_worker_gives_its_slices_back_and_is_replaced() -> None:
    """H43, H45: the job goes on with the rest, says so, and the replacement joins in the open round."""
    play = Play()
    server, (first, second) = group_of(play)
    play.commit(server, 0, [first, second])
    grants = [play.job.next_slice(second, []), play.job.next_slice(second, [])]
    effects = play.tell(m.LeaseLost("lease-W1", "not renewed in 10 s"))
    assert "worker.lost" in names(effects)
    (change,) = only(effects, m.SetGroup)
    assert [member.task_id for member in change.members] == [first]
    assert play.job.state == "running"
    assert play.job.reason == "running with 1 of 2; looking for a replacement"
    assert [play.job.next_slice(first, []), play.job.next_slice(first, [])] == grants
    effects = play.tell(m.LeaseHeld(TRAIN, "lease-W2", "W2", 1.0))
    (change,) = only(effects, m.SetGroup)
    assert [(member.peer_id, member.since_round) for member in change.members] == [("W0", 0), ("W2", 1)]
    assert play.job.reason == ""


def test_a_job_waits_when_all_workers_are_lost() -> None:
    play = Play()
    _, _ = group_of(play)
    play.tell(m.LeaseLost("lease-W0", "gone"))
    play.tell(m.LeaseLost("lease-W1", "gone"))
    assert play.job.state == "waiting"
    assert play.job.reason == "waiting: 0 of 2; looking for a replacement"
    assert len(play.worker("W9")) == 1


def test_a_lost_parameter_server_starts_the_group_again_in_a_new_epoch() -> None:
    play = Play()
    server, tasks = group_of(play)
    play.commit(server, 0, tasks)
    effects = play.tell(m.LeaseLost("lease-P", "not renewed in 10 s"))
    assert sorted(effect.peer_id for effect in only(effects, m.ReleaseHeld)) == ["W0", "W1"]
    assert (play.job.epoch, play.job.round, play.job.state) == (1, 0, "waiting")
    assert "started again from round 0: the parameter server on P was lost" in play.job.reason
    assert only(effects, m.SaveState)
    assert play.job.next_slice(tasks[0], []) is None
    play.commit(server, 1, tasks)
    assert play.job.round == 0, "a report of an earlier epoch counts"
    play.leases = "new-"
    new_server, new_tasks = group_of(play)
    assert new_server.startswith("j.1.")
    play.commit(new_server, 0, new_tasks)
    assert (play.job.round, play.job.reason) == (1, "")


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
    assert play.job.round == 1
    assert play.job.view(play.now, "S").samples == 64


def test_a_round_that_is_reported_before_its_predecessor_has_to_come_again() -> None:
    play = Play()
    server, tasks = group_of(play)
    with pytest.raises(Refused, match="before round 0"):
        play.commit(server, 1, tasks)
    assert play.job.round == 0


def test_a_committed_round_carries_the_slices_used_for_it() -> None:
    play = Play()
    server, tasks = group_of(play)
    grant = play.job.next_slice(tasks[0], [])
    assert grant is not None
    play.job.next_slice(tasks[0], [(grant.pass_, grant.index)])
    play.job.next_slice(tasks[0], [(grant.pass_, grant.index)])
    (save,) = only(play.commit(server, 0, tasks), m.SaveRound)
    assert save.used == (m.UsedSlice(0, grant.index, tasks[0], 0),)
    (save,) = only(play.commit(server, 1, tasks), m.SaveRound)
    assert save.used == ()


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
    cases = ((64, "", m.BATCH_SIZE), (64, ", max_batch_size = 4", 4), (6, "", 3), (1, ", max_batch_size = 9", 1))
    for samples, limit, expected in cases:
        spec = parse_job(text.format(samples=samples, limit=limit))
        assert m.order_of_spec("j", spec, "").batch_size == expected


def test_a_committed_round_tells_what_its_tasks_had_and_had_not_used() -> None:
    """So that a run can be done again from its record: the lists are in the order of training, lost tasks included."""
    play = Play()
    server, tasks = group_of(play)
    first, second, third = (play.job.next_slice(tasks[0], []) for _ in range(3))
    other = play.job.next_slice(tasks[1], [])
    assert first and second and third and other
    play.job.next_slice(tasks[0], [(first.pass_, first.index)])
    (save,) = only(play.commit(server, 0, tasks), m.SaveRound)
    held = [(line.pass_, line.index) for line in save.in_hand if line.task_id == tasks[0]]
    assert held[:2] == [(second.pass_, second.index), (third.pass_, third.index)]
    play.tell(m.LeaseLost(play.job.group.tasks[tasks[1]].lease_id, "silent"))
    (save,) = only(play.commit(server, 1, tasks[:1]), m.SaveRound)
    assert m.UsedSlice(other.pass_, other.index, tasks[1], 1) in save.in_hand


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
    assert play.progress(first, 5, round_=0) == Plan(round=0, target_batches=5, evaluate=True)
    assert play.progress(first, 1, round_=1).target_batches is None
    assert play.progress(second, 3, round_=2) == Plan(round=2)
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
    report = RoundCommitted(task_id=server, round=0, digest="d", contributions=shares, bytes_up=7, bytes_down=9)

    def of_the_job(event: m.JobEvent) -> dict[str, float]:
        plotted = only(play.tell(event), m.Plotted)
        return {effect.point.name: effect.point.value for effect in plotted if not effect.point.worker}

    points = of_the_job(m.Committed(report))
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
        shares = [Contribution(task_id=task, peer_id="W", samples=8, sha256="0", norm=1.0) for task in (first, second)]
        play.tell(m.Committed(RoundCommitted(task_id=server, round=number, digest="d", contributions=shares)))
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
    held = set(play.job._prices)
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
    assert play.commit("j.0.99", 0, []) == []
    assert play.job.group.tasks[server].is_alive


def test_a_job_of_an_earlier_process_begins_in_its_new_epoch() -> None:
    """U34: what earlier workers did is not known any more."""
    play = Play(epoch=2)
    assert "started again from round 0 (epoch 2)" in play.job.reason
    assert play.server() == "j.2.0"


def disturb(play: Play, rng: random.Random, seen: list[JobEvent]) -> None:
    """One random thing that may happen to a job."""
    job = play.job
    alive = [task for task in job.group.tasks.values() if task.is_alive]
    trains = [task for task in alive if task.role == TRAIN]
    server = job.group.server
    kind = rng.choices(
        ["lease", "lost", "failed", "commit", "progress", "slice", "status", "again", "measure", "export"],
        [6, 1, 0.2, 6, 6, 6, 4, 3, 3, 2],
    )[0]
    event: JobEvent | None = None
    if kind == "lease":
        number = rng.randrange(10**6)
        event = m.LeaseHeld(rng.choice([TRAIN, AGGREGATE]), f"l{number}", f"p{rng.randrange(5)}", 1.0)
    elif kind == "lost" and job._prices:
        event = m.LeaseLost(rng.choice(sorted(job._prices)), "gone")
    elif kind == "commit" and server is not None and job.round < job.order.rounds:
        event = m.Committed(RoundCommitted(task_id=server.task_id, round=job.round, digest="d", contributions=[]))
    elif kind == "progress" and trains:
        play.progress(rng.choice(trains).task_id, rng.randrange(20), round_=max(0, job.round + rng.randrange(-1, 2)))
    elif kind == "slice" and trains:
        task_id = rng.choice(trains).task_id
        given = job._slices.given_to(task_id) if job._slices else []
        used = [(grant.pass_, grant.index) for grant in given[:1]] if rng.random() < 0.7 else []
        job.next_slice(task_id, used)
        job.validate()
    elif kind in ("status", "failed") and alive:
        task = rng.choice(alive)
        state = "failed" if kind == "failed" else rng.choice(["starting", "running", "ready", "cancelled"])
        event = m.TaskReported(TaskStatus(task_id=task.task_id, lease_id=task.lease_id, state=state, exit_code=1))
    elif kind == "again" and seen:
        event = rng.choice(seen)
    elif kind == "measure" and trains:
        event = m.Measured(rng.choice(trains).task_id, job.round, {"eval_loss": 1.0})
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
            assert error.code == "busy"
        if any(isinstance(effect, m.PullExport) for effect in play.effects[-8:]) and rng.random() < 0.5:
            play.tell(m.ExportPulled("/m"))


@pytest.mark.parametrize("seed", range(60))
def test_no_order_of_losses_repeats_and_late_messages_breaks_a_job(seed: int) -> None:
    rng = random.Random(seed)
    play = Play(replace(ORDER, min_workers=rng.choice([1, 2])))
    seen: list[JobEvent] = []
    for _ in range(400):
        if play.job.is_over:
            break
        disturb(play, rng, seen)
    if not play.job.is_over:
        play.tell(m.CancelAsked("the test"))
    held = Counter(effect.dispatch.lease_id for effect in only(play.effects, m.StartTask))
    assert not held or max(held.values()) == 1, "two tasks under one lease"
    assert play.job._prices == {}


def test_a_job_that_starts_is_written_down_once_and_not_at_every_report() -> None:
    play = Play()
    server = play.server()
    task = play.worker("W0")[0].dispatch.task_id
    play.effects.clear()
    for _ in range(5):
        play.progress(task, 0)
    assert only(play.effects, m.SaveState) == []
    play.status(server, "ready")
    assert play.job.state == "running"
    assert len(only(play.effects, m.SaveState)) == 1


def test_a_job_tells_once_how_long_its_placement_took() -> None:
    play = Play()
    group_of(play)
    placed = [effect for effect in only(play.effects, m.Happened) if effect.name == "job.placed"]
    assert len(placed) == 1
    assert 0 < float(placed[0].fields["seconds"]) <= play.now
    assert "all 3 leases are held" in placed[0].text
