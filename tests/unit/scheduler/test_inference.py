"""Inference jobs as a state machine: every slice once, whatever happens to workers, answers and the scheduler."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import pytest

from node.errors import Refused
from node.jobspec import parse_job
from node.scheduler import messages as m
from node.scheduler.inference import TRIES, InferenceJob
from node.scheduler.inference_order import InferenceOrder, inference_order
from node.scheduler.machine import Machine, Saved
from node.scheduler.messages import JobEffect
from node.scheduler.order import INFER
from node.wire import InferTask, Progress, Span, TaskStatus

JOB = """
type = "inference"
name = "label"
dataset = "photos"
batch_size = 4
[model]
type = "image-classification"
repository = "acme/vit"
filenames = ["config.json", "model.safetensors"]
token = "hush"
[output]
kind = "classes"
[resources]
num_workers = 2
worker = { cpu = 1 }
worker_price = { bid = 1.0, max = 2.0 }
"""
ROWS = (4, 0, 3, 5)


def order(workers: int = 2) -> InferenceOrder:
    return inference_order("job-1", parse_job(JOB.replace("num_workers = 2", f"num_workers = {workers}")), "")


@dataclass
class Shell:
    """What the shell and the store keep, of the effects of one machine after another."""

    rows: tuple[int, ...] = ROWS
    workers: int = 2
    now: float = 0.0
    epoch: int = 0
    effects: list[JobEffect] = field(default_factory=list)
    stored: list[int] = field(default_factory=list)
    granted: dict[str, list[Span]] = field(default_factory=dict)
    last: dict[str, tuple[int, Span]] = field(default_factory=dict)
    tasks: dict[str, m.SavedTask] = field(default_factory=dict)
    leases: dict[str, m.HeldLease] = field(default_factory=dict)
    committed: list[Span] = field(default_factory=list)
    job: InferenceJob = field(init=False)

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        """A process begins: all that it knows is what was written down."""
        lines = [
            m.SavedTask(**{**as_dict(task), "slice_number": number, "slice": span})
            for task in self.tasks.values()
            for number, span in [self.last.get(task.task_id, (0, None))]
        ]
        saved = Saved(
            epoch=self.epoch,
            next_number=len(self.tasks),
            leases=list(self.leases.values()),
            tasks=lines,
            granted=[(task_id, span) for task_id, spans in self.granted.items() for span in spans],
            committed=list(self.committed),
        )
        self.job = InferenceJob(order(self.workers), now=self.now, saved=saved)
        machine: Machine = self.job
        self.apply(machine.begin(self.now))
        self.tell(m.DataFound(self.rows, "d1"))

    def tell(self, event: m.JobEvent) -> list[JobEffect]:
        self.now += 0.1
        return self.apply(self.job.handle(self.now, event))

    def apply(self, effects: list[JobEffect]) -> list[JobEffect]:
        for effect in effects:
            match effect:
                case m.SaveTask(task):
                    self.tasks[task.task_id] = task
                case m.SaveLease(lease):
                    self.leases[lease.lease_id] = lease
                case m.SaveLeaseGone(lease_id):
                    self.leases.pop(lease_id, None)
                case m.SaveGrant(task_id, number, span):
                    self.granted.setdefault(task_id, []).append(span)
                    self.last[task_id] = (number, span)
                case m.SaveGranted(task_id, spans):
                    self.granted[task_id] = list(spans)
                case m.SaveResult(task_id, span):
                    self.stored.append(span.index)
                    self.committed.append(span)
                    self.granted[task_id].remove(span)
        self.effects += effects
        self.job.validate()
        return effects

    def hold(self, peer: str, lease: str = "") -> str:
        """A lease is held; the id of the task that starts under it."""
        for effect in self.tell(m.LeaseHeld(INFER, lease or f"l-{peer}", peer, 1.0)):
            if isinstance(effect, m.StartTask):
                return effect.dispatch.task_id
        return ""

    def next(self, task_id: str, number: int) -> Span | None:
        span, effects = self.job.next_slice(self.now, task_id, number)
        self.apply(effects)
        return span

    def answer(self, task_id: str, index: int) -> list[JobEffect]:
        name, _ = self.job.expects(task_id, index)
        return self.tell(m.ResultStored(task_id, index, name, "00", 1))

    def report(self, task_id: str, state: str, **more: Any) -> list[JobEffect]:
        lease = self.job.group.tasks[task_id].lease_id
        return self.tell(m.TaskReported(TaskStatus(task_id=task_id, lease_id=lease, state=state, **more)))

    def has(self, kind: type[Any]) -> bool:
        return any(isinstance(effect, kind) for effect in self.effects)


def as_dict(task: m.SavedTask) -> dict[str, Any]:
    return {name: getattr(task, name) for name in m.SavedTask.__dataclass_fields__}


def test_slices_are_given_once_answered_once_and_then_the_list_is_written_and_all_leases_go() -> None:
    shell = Shell()
    task = shell.hold("a")
    (dispatch,) = [effect.dispatch for effect in shell.effects if isinstance(effect, m.StartTask)]
    assert isinstance(dispatch.task, InferTask)
    assert (dispatch.task.output.kind, dispatch.task.output.format, dispatch.token) == ("classes", "jsonl", "")
    seen = []
    for number in (1, 2, 3):
        span = shell.next(task, number)
        assert span is not None and shell.next(task, number) == span
        assert (span.start, span.end) == (0, ROWS[span.index])
        seen.append(span.index)
        shell.answer(task, span.index)
    assert sorted(seen) == [0, 2, 3], "a slice without rows has no result"
    assert shell.job.state == "exporting" and shell.has(m.StoreIndex) and not shell.leases
    with pytest.raises(Refused, match="over"):
        shell.next(task, 4)
    shell.tell(m.ExportPulled("/data/out"))
    view = shell.job.view(shell.now, "s")
    assert (view.state, view.samples, view.model_dir, view.rounds) == ("done", 12, "/data/out", 0)
    assert view.slices == {"available": 0, "assigned": 0, "used": 3}


def test_names_of_results_come_from_dataset_slice_and_rows() -> None:
    assert order().result_name(3, 7, 5) == "photos-000003-rows-7-12.jsonl"
    shell = Shell()
    task = shell.hold("a")
    names = {}
    for number in (1, 2, 3):
        span = shell.next(task, number)
        assert span is not None
        names[span.index] = shell.job.expects(task, span.index)
        shell.answer(task, span.index)
    assert names == {
        0: ("photos-000000-rows-0-4.jsonl", 4),
        2: ("photos-000002-rows-4-7.jsonl", 3),
        3: ("photos-000003-rows-7-12.jsonl", 5),
    }


def test_what_a_lost_worker_had_is_done_by_another_and_its_late_result_is_refused() -> None:
    shell = Shell(rows=(1, 1))
    lost = shell.hold("a")
    span = shell.next(lost, 1)
    assert span is not None
    shell.tell(m.LeaseLost("l-a", "silent"))
    with pytest.raises(Refused) as refused:
        shell.job.expects(lost, span.index)
    assert refused.value.code == "stale"
    other = shell.hold("b")
    first = shell.next(other, 1)
    assert first == span, "what came back is served first"
    shell.answer(other, span.index)
    with pytest.raises(Refused, match="has its result"):
        shell.job.expects(other, span.index)
    assert "looking for a replacement" in shell.job.reason


def test_a_worker_fetches_ahead_only_while_enough_is_left_for_the_others() -> None:
    shell = Shell(rows=(1,) * 4)
    one, two = shell.hold("a"), shell.hold("b")
    assert shell.next(one, 1) and shell.next(one, 2)
    assert shell.next(two, 1)
    assert shell.next(two, 2) is None, "the last one is for whoever is done first"
    shell.answer(one, shell.granted[one][0].index)
    shell.answer(one, shell.granted[one][0].index)
    assert shell.next(one, 3) is not None


def test_a_slice_that_fails_again_and_again_fails_the_job_with_the_last_lines() -> None:
    shell = Shell(rows=(1,) * 9)
    for number in range(TRIES):
        task = shell.hold(f"w{number}")
        assert shell.next(task, 1)
        shell.report(task, "failed", exit_code=1, detail="exit code 1", tail=["infer.failed no such layer"])
    assert shell.job.state == "failed"
    assert "no such layer" in shell.job.reason and "slice" in shell.job.reason
    assert not shell.leases
    assert sum(isinstance(effect, m.Shun) for effect in shell.effects) == TRIES


def test_failures_between_results_do_not_add_up() -> None:
    shell = Shell(rows=(1,) * 20)
    good = shell.hold("good")
    for number in range(1, 2 * TRIES):
        task = shell.hold(f"w{number}")
        shell.report(task, "failed", detail="exit code 1")
        span = shell.next(good, number)
        assert span is not None
        shell.answer(good, span.index)
    assert shell.job.state != "failed"


def test_another_dataset_under_the_same_name_fails_the_job() -> None:
    shell = Shell()
    shell.tell(m.DataFound(ROWS, "d2"))
    assert shell.job.state == "failed" and "changed" in shell.job.reason


def test_cancelling_lets_everything_go() -> None:
    shell = Shell()
    task = shell.hold("a")
    shell.next(task, 1)
    shell.tell(m.CancelAsked("ada"))
    assert shell.job.state == "cancelled" and not shell.leases
    assert shell.tell(m.LeaseHeld(INFER, "late", "b", 1.0)) == [m.ReleaseHeld("late", "b")]


def test_a_pause_lets_everything_go_at_once_and_gives_open_slices_back() -> None:
    shell = Shell()
    task = shell.hold("a")
    shell.next(task, 1)
    shell.tell(m.PauseAsked("ada"))
    assert (shell.job.state, shell.job.reason) == ("paused", "paused by ada; resume it to go on")
    assert not shell.leases and not shell.granted[task]


def test_a_job_whose_list_is_being_written_cannot_be_paused() -> None:
    shell = Shell(rows=(1,))
    task = shell.hold("a")
    shell.next(task, 1)
    shell.answer(task, 0)
    with pytest.raises(Refused, match="has all its results"):
        shell.tell(m.PauseAsked("ada"))


def test_a_released_worker_s_slice_goes_to_another_and_nobody_is_blamed() -> None:
    shell = Shell(rows=(1,))
    task = shell.hold("a")
    shell.next(task, 1)
    effects = shell.tell(m.ReleaseAsked("l-a", "ada"))
    assert [effect.lease_id for effect in effects if isinstance(effect, m.ReleaseHeld)] == ["l-a"]
    assert shell.job.group.tasks[task].detail == "released by ada"
    other = shell.hold("b")
    assert shell.next(other, 1) is not None


def test_a_drained_worker_goes_with_its_next_result_and_an_idle_one_at_once() -> None:
    shell = Shell(rows=(1,) * 4)
    busy, idle = shell.hold("a"), shell.hold("b")
    span = shell.next(busy, 1)
    assert span is not None
    for lease in ("l-a", "l-b"):
        shell.tell(m.HandOverAsked(lease, "w-1 is drained by ada"))
    assert not shell.job.group.tasks[idle].is_alive
    assert shell.job.group.tasks[busy].is_alive, "its slice is seen through"
    shell.answer(busy, span.index)
    assert not shell.job.group.tasks[busy].is_alive
    assert shell.stored == [span.index]
    assert not shell.leases


def test_a_job_that_is_resumed_does_only_what_has_no_result_yet() -> None:
    shell = Shell(rows=(1,) * 3)
    old = shell.hold("a")
    first = shell.next(old, 1)
    assert first is not None
    shell.answer(old, first.index)
    shell.next(old, 2)
    shell.tell(m.CancelAsked("ada"))
    shell.epoch, shell.granted = 1, {}
    shell.start()
    with pytest.raises(Refused, match="over"):
        shell.job.expects(old, first.index)
    task = shell.hold("a", "another lease")
    assert task == "job-1.1.1"
    rest = [shell.next(task, number) for number in (1, 2)]
    assert {span.index for span in rest if span} == {0, 1, 2} - {first.index}
    for span in rest:
        assert span is not None
        shell.answer(task, span.index)
    assert shell.job.state == "exporting" and sorted(shell.stored) == [0, 1, 2]


def test_progress_shows_rows_a_second_of_all_workers_together() -> None:
    shell = Shell(rows=(1000,))
    tasks = [shell.hold("a"), shell.hold("b")]
    for at in (1.0, 2.0, 3.0):
        for task in tasks:
            report = Progress(task_id=task, round=0, batches=int(at), samples=int(at * 50), batch_s=0.1)
            shell.apply(shell.job.progress(at, report)[1])
    assert shell.job.view(3.0, "s").samples_per_s == pytest.approx(100)
    points = [effect.point for effect in shell.effects if isinstance(effect, m.Plotted)]
    assert points and all(point.name == "samples_per_s" for point in points)
    assert shell.job.state == "running"


@pytest.mark.parametrize("seed", range(40))
def test_every_slice_has_exactly_one_result_whatever_is_lost_repeated_or_started_again(seed: int) -> None:
    """H43, U34, U50: workers die at any instant, answers are lost, the scheduler starts again from what it wrote."""
    rng = random.Random(seed)
    shell = Shell(rows=(*tuple(rng.choice((0, 1, 3, 8)) for _ in range(12)), 2), workers=3)
    numbers: dict[str, int] = {}
    made = 0
    for _ in range(2000):
        if shell.job.state == "exporting":
            break
        alive = shell.job.group.alive(INFER)
        act = rng.random()
        if act < 0.08 or not alive:
            made += 1
            task_id = shell.hold(f"p{made}")
            numbers[task_id] = 0
        elif act < 0.13:
            shell.tell(m.LeaseLost(rng.choice(alive).lease_id, "silent"))
        elif act < 0.16:
            shell.start()
        elif act < 0.5:
            task_id = rng.choice(alive).task_id
            # The answer may be lost: then the same number is asked for again.
            span = shell.next(task_id, numbers[task_id] + 1)
            again = shell.next(task_id, numbers[task_id] + 1) if rng.random() < 0.3 else span
            assert span == again
            if span is not None and rng.random() < 0.8:
                numbers[task_id] += 1
        else:
            task_id = rng.choice(alive).task_id
            held = shell.granted.get(task_id, [])
            if held:
                index = held[0].index
                shell.answer(task_id, index)
                with pytest.raises(Refused):
                    shell.job.expects(task_id, index)
    assert shell.job.state == "exporting"
    assert sorted(shell.stored) == [index for index, rows in enumerate(shell.rows) if rows]
    shell.start()
    assert shell.job.state == "exporting", "an earlier process had it all but the list"
