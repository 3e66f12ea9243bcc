"""Pausing, releasing and handing over, at the machine of a training job and at the scheduler."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from node.errors import Refused
from node.scheduler import messages as m
from node.scheduler.moves import START_WITHIN_S
from node.scheduler.order import AGGREGATE, TRAIN
from node.scheduler.steering import HAND_OVER_FOR_S, PAUSE_WITHIN_S
from node.wire import Cancel, HandOver, Pause, Release, Resume, RunCommand
from tests.unit.scheduler.fake_cluster import caller
from tests.unit.scheduler.test_job import ORDER, Play, group_of, names, only
from tests.unit.scheduler.test_service import JOB, rows_are_exact, signed, world


def running(play: Play) -> tuple[str, list[str]]:
    """A job whose two workers have trained a batch of the open round."""
    server, tasks = group_of(play)
    for task in tasks:
        play.slice(task)
        play.progress(task, 1)
    assert play.job.state == "running"
    return server, tasks


def test_a_pause_in_the_inner_steps_waits_for_the_commit_and_then_lets_every_lease_go() -> None:
    play = Play()
    server, tasks = running(play)
    assert "job.pausing" in names(play.tell(m.PauseAsked("ann")))
    assert (play.job.state, play.job.reason) == ("pausing", "pausing after the next commit, asked by ann")
    assert play.tell(m.PauseAsked("bob")) == [], "a second word changes nothing"
    effects = play.commit(server, 0, tasks)
    assert (play.job.state, play.job.round) == ("paused", 1)
    assert only(effects, m.SaveRound), "the round counts"
    assert {effect.peer_id for effect in only(effects, m.ReleaseHeld)} == {"P", "W0", "W1"}
    assert play.job.reason == "paused by ann; resume it to go on"


def test_a_pause_without_a_commit_in_time_gives_the_open_rounds_rows_back() -> None:
    play = Play()
    running(play)
    play.tell(m.PauseAsked("ann"))
    play.tell(m.Ticked(), after=PAUSE_WITHIN_S - 1)
    assert play.job.state == "pausing"
    play.tell(m.Ticked(), after=2)
    assert (play.job.state, play.job.round) == ("paused", 0)
    assert play.job.ledger is not None
    assert all(not play.job.ledger.granted_to(task) for task in play.job.group.tasks)


@pytest.mark.parametrize("ready", [False, True], ids=["waiting", "starting"])
def test_where_nobody_trains_a_pause_is_at_once(ready: bool) -> None:
    play = Play()
    if ready:
        play.ready(play.server())
        play.worker("A")
    play.tell(m.PauseAsked("ann"))
    assert play.job.state == "paused"
    assert not play.job.crew.prices


def test_a_pause_whose_parameter_server_is_lost_waits_for_no_commit() -> None:
    play = Play()
    running(play)
    play.tell(m.PauseAsked("ann"))
    play.tell(m.LeaseLost("lease-P", "gone"))
    assert play.job.state == "paused"


def test_a_job_whose_rounds_are_done_cannot_be_paused() -> None:
    play = Play(replace(ORDER, rounds=1))
    server, tasks = running(play)
    play.tell(m.PauseAsked("ann"))
    play.commit(server, 0, tasks)
    assert play.job.state == "exporting"
    with pytest.raises(Refused, match="its model is on its way"):
        play.tell(m.PauseAsked("ann"))


def test_a_released_worker_is_replaced_and_not_blamed() -> None:
    play = Play()
    _, tasks = running(play)
    effects = play.tell(m.ReleaseAsked("lease-W0", "ann"))
    assert [effect.lease_id for effect in only(effects, m.ReleaseHeld)] == ["lease-W0"]
    assert [(shun.peer_id, shun.never) for shun in only(effects, m.Shun)] == [("W0", False)]
    assert play.job.group.tasks[tasks[0]].detail == "released by ann"
    for peer in "CDE":
        started = play.worker(peer)
        play.tell(m.ReleaseAsked(f"lease-{peer}", "ann"))
        assert started, "more releases than failures are allowed, and the job goes on"
    assert play.job.state == "running"
    assert play.tell(m.ReleaseAsked("lease-W0", "ann")) == []


def test_a_released_parameter_server_is_placed_again_from_the_last_commit() -> None:
    play = Play()
    server, tasks = running(play)
    play.commit(server, 0, tasks)
    effects = play.tell(m.ReleaseAsked("lease-P", "ann"))
    assert play.job.epoch == 1
    assert m.Search(AGGREGATE, 1) in effects
    assert len(play.job.group.alive(TRAIN)) == 2, "its group lives on"
    play.ready(play.server("Q"))
    assert play.job.round == 1


def test_what_is_drained_moves_after_the_commit_and_the_parameter_server_with_it() -> None:
    play = Play()
    server, tasks = running(play)
    for lease in ("lease-W0", "lease-P"):
        assert "task.moving" in names(play.tell(m.HandOverAsked(lease, "w-1 is drained by ann")))
    assert play.tell(m.HandOverAsked("lease-W0", "w-1 is drained by ann")) == [], "told once"
    assert len(play.job.crew.prices) == 3, "nothing moves before the commit"
    for role in (TRAIN, AGGREGATE):
        play.tell(m.SearchAnswered(role, "no worker answered"))
    effects = play.commit(server, 0, tasks)
    assert {effect.lease_id for effect in only(effects, m.ReleaseHeld)} == {"lease-W0", "lease-P"}
    assert (play.job.round, play.job.epoch) == (1, 1)
    assert play.job.group.tasks[tasks[0]].detail == "w-1 is drained by ann"
    assert [task.peer_id for task in play.job.group.alive(TRAIN)] == ["W1"]


def test_what_is_drained_is_replaced_before_it_goes_and_loses_no_round() -> None:
    play = Play()
    server, tasks = running(play)
    effects = [effect for lease in ("lease-W0", "lease-P") for effect in play.tell(m.HandOverAsked(lease, "drained"))]
    assert only(effects, m.Search)[-2:] == [m.Search(AGGREGATE, 2), m.Search(TRAIN, 3)]
    play.commit(server, 0, tasks)
    assert len(play.job.crew.prices) == 3, "nobody is found yet, and nobody has said that nobody is free"
    (start,) = play.worker("C")
    newcomer = start.dispatch.task_id
    assert only(play.tell(m.LeaseHeld(AGGREGATE, "lease-Q", "Q", 0.5)), m.StartTask) == [], "it waits for its turn"
    effects = play.commit(server, 1, tasks)
    assert {effect.lease_id for effect in only(effects, m.ReleaseHeld)} == {"lease-P"}, "the newcomer is starting"
    second = next(task.task_id for task in play.job.group.alive(AGGREGATE))
    assert [start.dispatch.task_id for start in only(effects, m.StartTask)] == [second], "with the commit, not later"
    assert play.job.group.tasks[second].peer_id == "Q"
    play.ready(second)
    play.progress(newcomer, 1)
    assert m.Search(TRAIN, 2) not in play.effects[-3:]


def test_a_drained_worker_trains_until_its_replacement_does() -> None:
    play = Play(replace(ORDER, rounds=9))
    server, tasks = running(play)
    play.tell(m.HandOverAsked("lease-W0", "drained"))
    newcomer = play.worker("C")[0].dispatch.task_id
    for number in range(2):
        play.tell(m.HandOverAsked("lease-W0", "drained"))
        play.commit(server, number, tasks)
        assert play.job.group.tasks[tasks[0]].is_alive
    play.progress(newcomer, 1)
    effects = play.commit(server, 2, [*tasks, newcomer])
    assert [effect.lease_id for effect in only(effects, m.ReleaseHeld)] == ["lease-W0"]
    assert [effect.wanted for effect in only(effects, m.Search) if effect.role == TRAIN] == [2]
    assert [task.peer_id for task in play.job.group.alive(TRAIN)] == ["W1", "C"]


def test_a_replacement_that_never_trains_is_not_waited_for_for_ever() -> None:
    play = Play(replace(ORDER, rounds=99))
    server, tasks = running(play)
    play.tell(m.HandOverAsked("lease-W0", "drained"))
    play.worker("C")
    began = play.now
    while play.job.group.tasks[tasks[0]].is_alive:
        play.tell(m.HandOverAsked("lease-W0", "drained"), after=5.0)
        play.commit(server, play.job.round, tasks)
    assert START_WITHIN_S < play.now - began < START_WITHIN_S + 10


def test_a_worker_that_stays_after_all_sends_its_replacement_home() -> None:
    play = Play(replace(ORDER, rounds=9))
    server, tasks = running(play)
    for lease in ("lease-W0", "lease-P"):
        play.tell(m.HandOverAsked(lease, "drained"))
    play.worker("C")
    play.tell(m.LeaseHeld(AGGREGATE, "lease-Q", "Q", 0.5))
    play.now += HAND_OVER_FOR_S
    effects = play.commit(server, 0, tasks)
    assert {effect.lease_id for effect in only(effects, m.ReleaseHeld)} == {"lease-C", "lease-Q"}
    assert only(effects, m.Search)[-2:] == [m.Search(AGGREGATE, 1), m.Search(TRAIN, 2)]
    assert len(play.job.group.alive(TRAIN)) == 2
    assert play.job.epoch == 0


def test_a_move_that_its_scheduler_forgets_in_a_restart_goes_on_with_the_next_wish() -> None:
    order = replace(ORDER, rounds=9)
    play = Play(order)
    server, tasks = running(play)
    for lease in ("lease-W0", "lease-P"):
        play.tell(m.HandOverAsked(lease, "drained"))
    newcomer = play.worker("C")[0].dispatch.task_id
    play.tell(m.LeaseHeld(AGGREGATE, "lease-Q", "Q", 0.5))
    again = Play(order, disk=play.disk)
    again.now = play.now
    for lease in ("lease-W0", "lease-P"):
        again.tell(m.HandOverAsked(lease, "drained"))
    assert again.job.crew.next_server == ("lease-Q", "Q")
    for task in (*tasks, newcomer):
        again.progress(task, 1)
    again.commit(server, 0, [*tasks, newcomer])
    assert [task.peer_id for task in again.job.group.alive(TRAIN)] == ["W1", "C"]
    assert [task.peer_id for task in again.job.group.alive(AGGREGATE)] == ["Q"]


def test_a_drained_worker_moves_the_tasks_of_two_jobs_each_at_its_own_commit() -> None:
    plays = [Play(replace(ORDER, job_id=job_id)) for job_id in ("a", "b")]
    groups = [running(play) for play in plays]
    for play in plays:
        play.tell(m.HandOverAsked("lease-W0", "drained"))
        play.tell(m.SearchAnswered(TRAIN, "no worker answered"))
    first, second = plays
    effects = first.commit(groups[0][0], 0, groups[0][1])
    assert [effect.lease_id for effect in only(effects, m.ReleaseHeld)] == ["lease-W0"]
    assert len(second.job.group.alive(TRAIN)) == 2, "its round is not over"
    effects = second.commit(groups[1][0], 0, groups[1][1])
    assert [effect.lease_id for effect in only(effects, m.ReleaseHeld)] == ["lease-W0"]


def test_a_wish_to_move_lapses_when_it_is_not_repeated() -> None:
    play = Play()
    server, tasks = running(play)
    play.tell(m.HandOverAsked("lease-W0", "drained"))
    play.now += HAND_OVER_FOR_S
    play.commit(server, 0, tasks)
    assert len(play.job.group.alive(TRAIN)) == 2


def test_a_lease_in_reserve_moves_at_once() -> None:
    play = Play(replace(ORDER, spares=1))
    running(play)
    play.worker("C")
    effects = play.tell(m.HandOverAsked("lease-C", "drained"))
    assert [effect.lease_id for effect in only(effects, m.ReleaseHeld)] == ["lease-C"]


@pytest.mark.asyncio
async def test_a_paused_job_outlives_its_scheduler_and_goes_on_with_every_row_once(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        run = here.overlay.handlers[RunCommand]
        await here.submit(JOB.replace("update_rounds = 2", "update_rounds = 40"))
        await here.until_true(lambda: here.job().round >= 2)
        command = RunCommand(signed=signed(Pause(job_id="j1")))
        with pytest.raises(Refused, match="not an operator"):
            await run(caller("W1"), RunCommand(signed=signed(Pause(job_id="j1"), signer="node:W1")))
        await run(caller("X"), command)
        paused = await here.until("paused")
        assert paused.reason == "paused by ada; resume it to go on"
        await here.until_true(lambda: all(not worker.leases for worker in here.overlay.workers.values()))
        await here.until_true(lambda: not here.service._runners["j1"].is_running)
        await run(caller("X"), RunCommand(signed=signed(Pause(job_id="j1"))))
        assert await here.store.read("SELECT state, ended_unix FROM jobs") == [("paused", None)]
        await run(caller("X"), RunCommand(signed=signed(Resume(job_id="j1"))))
        await here.until("running")
        await run(caller("X"), command)
        held = next(iter(here.service._runners["j1"].job.group.alive(TRAIN)))
        assert here.job().state != "paused", "the pause was given again by somebody else: it is spent"
        handover = here.overlay.handlers[HandOver]
        await handover(caller("stranger"), HandOver(lease_id=held.lease_id, job_id="j1"))
        await run(caller("X"), RunCommand(signed=signed(Release(lease_id=held.lease_id))))
        with pytest.raises(Refused, match="no lease"):
            await run(caller("X"), RunCommand(signed=signed(Release(lease_id="nope"))))
        done = await here.until("done")
        assert done.round == 40
        await rows_are_exact(here)
        with pytest.raises(Refused, match="is done: there is nothing to pause"):
            await run(caller("X"), RunCommand(signed=signed(Pause(job_id="j1"))))


@pytest.mark.asyncio
@pytest.mark.parametrize("role", ["train", "aggregate"])
async def test_a_job_whose_worker_is_drained_loses_no_round_where_another_is_free(role: str, tmp_path: Path) -> None:
    async with world(tmp_path, workers=3) as here:
        await here.submit(JOB.replace("update_rounds = 2", "update_rounds = 60"))
        await here.until_true(lambda: here.job().round >= 2 and here.job().workers == 2)
        began = here.job().round
        drained = next(task for task in here.job().tasks if task.role == role)
        worker = here.overlay.workers[drained.peer_id]
        worker.refusal = "cordoned by ada"
        wish = HandOver(lease_id=drained.lease_id, job_id="j1", reason="w-1 is drained by ada")
        await here.overlay.handlers[HandOver](caller(drained.peer_id), wish)
        await here.until_true(lambda: drained.lease_id not in worker.leases)
        assert (await here.until("done")).round == 60
        by_round = "SELECT count(*) FROM contributions WHERE round > ? GROUP BY round"
        assert min(row[0] for row in await here.store.read(by_round, [began])) >= 2, "two workers trained all the time"
        tasks = [task for task in here.job().tasks if task.role == role]
        assert len(tasks) == (3 if role == "train" else 2), "one was replaced, once"
        assert "drained by ada" in next(task for task in tasks if task.task_id == drained.task_id).detail
        await rows_are_exact(here)


@pytest.mark.asyncio
async def test_a_paused_job_is_shown_after_a_restart_and_can_be_cancelled(tmp_path: Path) -> None:
    async with world(tmp_path, workers=0) as here:
        await here.submit(JOB)
        run = here.overlay.handlers[RunCommand]
        await here.until("waiting")
        await run(caller("X"), RunCommand(signed=signed(Pause(job_id="j1"))))
        await here.until("paused")
    async with world(tmp_path, workers=0) as again:
        assert (await again.until("paused")).reason == "paused by ada; resume it to go on"
        assert not again.service._runners
        run = again.overlay.handlers[RunCommand]
        await run(caller("X"), RunCommand(signed=signed(Cancel(job_id="j1"))))
        assert (await again.until("cancelled")).reason == "cancelled by ada"
        await run(caller("X"), RunCommand(signed=signed(Resume(job_id="j1"))))
        await again.until("waiting")
