"""A worker over real TLS: leases, tasks, bridges, a parameter server, and what is left when things end badly."""

from __future__ import annotations

import asyncio
import os
import stat
import time
from pathlib import Path

import msgspec
import pytest

from node.errors import Refused
from node.network import bulk
from node.network.overlay import Overlay
from node.store import Store
from node.views import LeaseHistory, LeaseView, TransferView
from node.wire import AnnounceUpdate, CancelTask, Member, SetMembers, Span
from node.worker import courier, intake, parameter_server
from node.worker.orphans import ExecutorRow, boot_id, remember, start_ticks
from node.worker.rows import count, merged
from tests.support import MakeIdentity
from tests.unit.network_loopback import eventually
from tests.unit.worker_cluster import AGGREGATE, TRAIN, cluster, scripted_aggregate, worker_for  # noqa: F401

pytestmark = pytest.mark.asyncio


def is_alive(pid: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def test_an_advertisement_becomes_an_offer_a_lease_and_free_resources_again(
    make_identity: MakeIdentity, tmp_path: Path
) -> None:
    async with cluster(make_identity, tmp_path) as (scheduler, worker):
        await scheduler.advertise(cpu=3)
        await eventually(lambda: scheduler.offers)
        (view,) = [item for item in worker.board.items() if isinstance(item, LeaseView)]
        assert (view.state, view.resources.cpu) == ("offered", 3)
        await scheduler.renew(worker.peer_id, view.id, duration_s=0.4)
        await scheduler.advertise(cpu=3)
        await eventually(lambda: scheduler.declines)
        assert scheduler.declines == ["busy: cpu 1 free < 3"]
        await scheduler.renew(worker.peer_id, view.id, duration_s=0.4)
        await eventually(lambda: "lease.expired" in [event.name for event in worker.board.events()])
        async with scheduler.overlay.open(worker.peer_id, "GET", f"/bulk/leases/{view.id}") as answer:
            life = msgspec.json.decode(await answer.content.read(), type=LeaseHistory)
        assert [mark.name for mark in life.marks] == ["offered", "accepted", "renewed", "expired"]
        await scheduler.advertise(cpu=4)
        await eventually(lambda: len(scheduler.offers) == 2)


async def test_two_jobs_and_their_parameter_servers_on_one_node_train_to_the_end(
    make_identity: MakeIdentity,
    tmp_path: Path,
    scripted_aggregate: None,  # noqa: F811
) -> None:
    """H36: nothing is shared between jobs of one node. H12: both members of the last round are told Done."""
    async with cluster(make_identity, tmp_path, "wire") as (scheduler, worker):
        for job in ("one", "two"):
            lease = await scheduler.lease(worker.peer_id, AGGREGATE, cpu=0.5, job=job)
            member = Member(task_id=f"train-{job}", peer_id=worker.peer_id, since_round=0)
            await scheduler.aggregate(worker.peer_id, lease, [member], task_id=f"ps-{job}", job=job)
            lease = await scheduler.lease(worker.peer_id, cpu=1, job=job)
            await scheduler.train(worker.peer_id, lease, f"train-{job}", job=job)
        for job in ("one", "two"):
            await eventually(lambda: "exported" in scheduler.states(f"ps-{job}"), 30)  # noqa: B023
            await eventually(lambda: "finished" in scheduler.states(f"train-{job}"))  # noqa: B023
            assert scheduler.states(f"train-{job}") == ["starting", "running", "finished"]
            assert scheduler.states(f"ps-{job}") == ["starting", "ready", "exported"]
        assert sorted((item.task_id, item.round) for item in scheduler.committed) == [
            ("ps-one", 0),
            ("ps-one", 1),
            ("ps-two", 0),
            ("ps-two", 1),
        ]
        first = scheduler.committed[0].contributions[0]
        assert first.samples == 4 * 3
        assert first.norm == pytest.approx(2.0)
        assert {(m.task_id, m.round) for m in scheduler.measures} >= {("train-one", 0), ("train-one", 1)}
        spans = [span for item in scheduler.committed for span in item.contributions[0].spans]
        assert len(merged(spans)) == len({span.index for span in spans})
        assert sum(span.end - span.start for span in spans) >= 4 * 3 * 4
        text = await worker.log(scheduler, "train-one")
        assert "step 1 [1.0, 1.0, 1.0, 1.0]" in text
        assert "Training finished" in text
        whats = {item.what for item in worker.board.items() if isinstance(item, TransferView)}
        assert whats >= {"slice", "update", "step", "folder"}
        (exported,) = scheduler.last("ps-one").exported
        async with scheduler.overlay.open(worker.peer_id, "GET", f"/bulk/jobs/one/export/{exported.name}") as answer:
            assert len(await answer.read()) == exported.size_bytes
        # Letting go of what is done is no cancellation.
        for lease in [item for item in worker.board.items() if isinstance(item, LeaseView)]:
            await scheduler.release(worker.peer_id, lease.id)
        await eventually(lambda: "finished" in scheduler.states("ps-one") and "finished" in scheduler.states("ps-two"))
        assert "task.cancelled" not in [event.name for event in worker.board.events()]


async def test_the_documented_dialect_trains_as_well(
    make_identity: MakeIdentity,
    tmp_path: Path,
    scripted_aggregate: None,  # noqa: F811
) -> None:
    async with cluster(make_identity, tmp_path, "documented") as (scheduler, worker):
        lease = await scheduler.lease(worker.peer_id, AGGREGATE)
        await scheduler.aggregate(worker.peer_id, lease, [Member(task_id="t1", peer_id=worker.peer_id, since_round=0)])
        lease = await scheduler.lease(worker.peer_id)
        await scheduler.train(worker.peer_id, lease, "t1")
        await eventually(lambda: "finished" in scheduler.states("t1"), 30)


async def test_a_crash_is_told_within_two_seconds_with_code_and_last_lines(
    make_identity: MakeIdentity, tmp_path: Path
) -> None:
    """H31. H35: its work directory is kept."""
    async with cluster(make_identity, tmp_path, "crash") as (scheduler, worker):
        lease = await scheduler.lease(worker.peer_id)
        began = time.monotonic()
        await scheduler.train(worker.peer_id, lease)
        await eventually(lambda: "failed" in scheduler.states("t1"))
        assert time.monotonic() - began < 2
        status = scheduler.last("t1")
        assert status.exit_code == 1
        assert status.tail[-1] == "RuntimeError: boom"
        assert (worker.jobs_dir / "failed-t1").is_dir()
        assert not (worker.jobs_dir / "hypha-t1").exists()
        async with asyncio.timeout(5):
            while await worker.store.read("SELECT * FROM executors"):
                await asyncio.sleep(0.01)


async def test_nothing_of_a_cancelled_task_lives_on_even_where_it_ignores_the_request(
    make_identity: MakeIdentity, tmp_path: Path
) -> None:
    """U29, H33: the whole group ends, children included."""
    async with cluster(make_identity, tmp_path, "hang") as (scheduler, worker):
        lease = await scheduler.lease(worker.peer_id)
        await scheduler.train(worker.peer_id, lease)
        await eventually(lambda: "running" in scheduler.states("t1"))
        pids = await _pids(worker.jobs_dir)
        assert all(map(is_alive, pids))
        with pytest.raises(Refused):
            await worker.overlay.call(worker.peer_id, CancelTask(task_id="t1"))
        await scheduler.overlay.call(worker.peer_id, CancelTask(task_id="t1"))
        await eventually(lambda: "cancelled" in scheduler.states("t1"))
        assert not any(map(is_alive, pids))


async def test_when_the_scheduler_falls_silent_the_lease_and_its_task_end(
    make_identity: MakeIdentity, tmp_path: Path
) -> None:
    async with cluster(make_identity, tmp_path, "sleep") as (scheduler, worker):
        lease = await scheduler.lease(worker.peer_id, duration_s=1.0)
        await scheduler.train(worker.peer_id, lease)
        pids = await _pids(worker.jobs_dir)
        await eventually(lambda: not any(map(is_alive, pids)))
        states = [event.name for event in worker.board.events()]
        assert "lease.expired" in states
        await eventually(lambda: scheduler.states("t1")[-1] == "cancelled")


async def test_a_clock_that_is_set_ten_minutes_off_ends_no_lease_and_prolongs_none(
    make_identity: MakeIdentity, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H27: leases carry durations and run on a monotonic clock."""
    right = time.time
    async with cluster(make_identity, tmp_path, "sleep") as (scheduler, worker):
        lease = await scheduler.lease(worker.peer_id)
        await scheduler.train(worker.peer_id, lease)
        pids = await _pids(worker.jobs_dir)
        for shift in (600, -600):
            monkeypatch.setattr(time, "time", lambda shift=shift: right() + shift)
            await scheduler.renew(worker.peer_id, lease)
            await asyncio.sleep(0.1)
            (view,) = [item for item in worker.board.items() if isinstance(item, LeaseView)]
            assert view.state == "held"
            assert all(map(is_alive, pids))
        await scheduler.renew(worker.peer_id, lease, duration_s=0.4)
        await eventually(lambda: not any(map(is_alive, pids)))
        assert "lease.expired" in [event.name for event in worker.board.events()]


async def test_a_stopping_worker_ends_its_executors_within_its_time(
    make_identity: MakeIdentity, tmp_path: Path
) -> None:
    """Stopping is bounded, with executors that ignore the request too."""
    async with cluster(make_identity, tmp_path, "hang") as (scheduler, worker):
        lease = await scheduler.lease(worker.peer_id)
        await scheduler.train(worker.peer_id, lease)
        pids = await _pids(worker.jobs_dir)
        began = time.monotonic()
    assert time.monotonic() - began < 4
    assert not any(map(is_alive, pids))
    assert not (worker.jobs_dir / "hypha-t1").exists()


async def test_an_executor_cannot_leave_its_work_directory(make_identity: MakeIdentity, tmp_path: Path) -> None:
    """H55 and the contract's errors: each a 400 with a code and a detail."""
    async with cluster(make_identity, tmp_path, "escape") as (scheduler, worker):
        lease = await scheduler.lease(worker.peer_id)
        await scheduler.train(worker.peer_id, lease)
        await eventually(lambda: "failed" in scheduler.states("t1"))
        answers = [line.split()[1:] for line in scheduler.last("t1").tail if line.startswith("answer")]
        assert len(answers) == 12
        assert {(status, detail) for status, _, detail in answers} == {("400", "True"), ("403", "True")}
        assert scheduler.last("t1").detail == "the executor ended in round 0, before the last"


async def test_a_task_sees_no_secret_and_private_files(
    make_identity: MakeIdentity, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H32: the token is in no argument, no variable, no log; H33, U65: modes and a short socket."""
    monkeypatch.setenv("HF_TOKEN", "hf_of_the_owner")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "aws")
    deep = tmp_path / ("x" * 100) / ("y" * 90)
    async with cluster(make_identity, tmp_path, "sleep", work_dir=deep) as (scheduler, worker):
        lease = await scheduler.lease(worker.peer_id, cpu=3)
        await scheduler.train(worker.peer_id, lease, token="hf_of_the_job")
        pids = await _pids(worker.jobs_dir)
        command = Path(f"/proc/{pids[0]}/cmdline").read_bytes().split(b"\0")
        variables = Path(f"/proc/{pids[0]}/environ").read_bytes()
        for secret in (b"hf_of_the_owner", b"hf_of_the_job", b"aws"):
            assert secret not in b"".join(command) + variables
        assert b"OMP_NUM_THREADS=3" in variables
        assert b"HF_HUB_OFFLINE=1" in variables
        socket_path = Path(command[command.index(b"--socket") + 1].decode())
        assert len(str(socket_path)) < 100
        assert stat.S_IMODE(socket_path.stat().st_mode) == 0o600
        assert stat.S_IMODE(socket_path.parent.stat().st_mode) == 0o700
        assert stat.S_IMODE((worker.jobs_dir / "hypha-t1").stat().st_mode) == 0o700
        assert "hf_of_the_job" not in await worker.log(scheduler, "t1")
    assert not socket_path.parent.exists()


async def test_a_task_needs_its_own_lease_and_starts_once(make_identity: MakeIdentity, tmp_path: Path) -> None:
    async with cluster(make_identity, tmp_path, "sleep") as (scheduler, worker):
        with pytest.raises(Refused) as told:
            await scheduler.train(worker.peer_id, "nothing")
        assert told.value.code == "unknown"
        lease = await scheduler.lease(worker.peer_id)
        for name in ("../../etc", "a/b", ""):
            with pytest.raises(Refused) as told:
                await scheduler.train(worker.peer_id, lease, name)
            assert told.value.code == "invalid"
        await scheduler.train(worker.peer_id, lease)
        await scheduler.train(worker.peer_id, lease)
        with pytest.raises(Refused) as told:
            await scheduler.train(worker.peer_id, lease, "t2")
        assert told.value.code == "conflict"
        assert len(await _pids(worker.jobs_dir)) == 2


async def test_job_code_that_is_not_run_here_is_refused_before_it_is_a_task(
    make_identity: MakeIdentity, tmp_path: Path
) -> None:
    """A failed task would count against the job, which another worker can do."""
    async with cluster(make_identity, tmp_path, "sleep", job_code="refuse") as (scheduler, worker):
        lease = await scheduler.lease(worker.peer_id)
        with pytest.raises(Refused, match="runs no code that comes with a job") as told:
            await scheduler.train(worker.peer_id, lease, runs_job_code=True)
        assert told.value.code == "denied"
        await scheduler.train(worker.peer_id, lease)
        assert len(await _pids(worker.jobs_dir)) == 2


async def test_an_update_that_is_not_finite_fails_its_task_and_not_the_job(
    make_identity: MakeIdentity,
    tmp_path: Path,
    scripted_aggregate: None,  # noqa: F811
) -> None:
    """H5, H9: refused at upload, left out with the reason; the round closes without it."""
    async with cluster(make_identity, tmp_path, "nan") as (scheduler, worker):
        lease = await scheduler.lease(worker.peer_id, AGGREGATE)
        await scheduler.aggregate(worker.peer_id, lease, [Member(task_id="t1", peer_id=worker.peer_id, since_round=0)])
        lease = await scheduler.lease(worker.peer_id)
        await scheduler.train(worker.peer_id, lease)
        await eventually(lambda: "failed" in scheduler.states("t1") and scheduler.committed, 20)
        assert "not finite" in "\n".join(scheduler.last("t1").tail)
        (committed,) = scheduler.committed
        assert committed.contributions == []
        assert "not finite" in committed.left_out["t1"]


async def test_strangers_get_nothing_of_a_job(
    make_identity: MakeIdentity,
    tmp_path: Path,
    scripted_aggregate: None,  # noqa: F811
) -> None:
    """H37: members and the scheduler alone."""
    async with cluster(make_identity, tmp_path) as (scheduler, worker):
        lease = await scheduler.lease(worker.peer_id, AGGREGATE)
        await scheduler.aggregate(worker.peer_id, lease, [])
        await eventually(lambda: "ready" in scheduler.states("ps"))
        async with scheduler.overlay.open(worker.peer_id, "GET", "/bulk/jobs/job/weights/0") as answer:
            assert answer.status == 200
        for path in ("weights/0", "delta/1", "versions/0", "export/x"):
            with pytest.raises(Refused) as told:
                async with worker.overlay.open(worker.peer_id, "GET", f"/bulk/jobs/job/{path}"):
                    pass
            assert told.value.code == "denied"


async def test_the_parameter_server_survives_the_death_of_its_arithmetic(
    make_identity: MakeIdentity,
    tmp_path: Path,
    scripted_aggregate: None,  # noqa: F811
) -> None:
    """H6: reported, and it goes on from its files."""
    async with cluster(make_identity, tmp_path) as (scheduler, worker):
        lease = await scheduler.lease(worker.peer_id, AGGREGATE)
        await scheduler.aggregate(worker.peer_id, lease, [Member(task_id="t1", peer_id=worker.peer_id, since_round=0)])
        await eventually(lambda: "ready" in scheduler.states("ps"))
        (worker.jobs_dir / "hypha-ps" / "versions" / "die").touch()
        lease = await scheduler.lease(worker.peer_id)
        await scheduler.train(worker.peer_id, lease)
        await eventually(lambda: "finished" in scheduler.states("t1"), 30)
        assert [item.round for item in scheduler.committed] == [0, 1]


async def test_a_full_disk_and_a_scheduler_that_does_not_listen_hold_a_round_up_and_lose_nothing(
    make_identity: MakeIdentity,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    scripted_aggregate: None,  # noqa: F811
) -> None:
    """H6: told, waited for, and then every round is reported once and in order."""
    monkeypatch.setattr(parameter_server, "RETRY_S", 0.05)
    async with cluster(make_identity, tmp_path) as (scheduler, worker):
        lease = await scheduler.lease(worker.peer_id, AGGREGATE)
        await scheduler.aggregate(worker.peer_id, lease, [Member(task_id="t1", peer_id=worker.peer_id, since_round=0)])
        await eventually(lambda: "ready" in scheduler.states("ps"))
        disk = worker.jobs_dir / "hypha-ps" / "versions" / "full"
        disk.touch()
        scheduler.deaf_for = 3
        lease = await scheduler.lease(worker.peer_id)
        await scheduler.train(worker.peer_id, lease)
        await eventually(lambda: any(event.name == "round.blocked" for event in worker.board.events()), 20)
        assert scheduler.committed == []
        disk.unlink()
        await eventually(lambda: "finished" in scheduler.states("t1"), 30)
        await eventually(lambda: len(scheduler.committed) == 2, 20)
        assert [item.round for item in scheduler.committed] == [0, 1]
        assert scheduler.deaf_for == 0


async def test_who_comes_late_begins_with_the_newest_weights(
    make_identity: MakeIdentity,
    tmp_path: Path,
    scripted_aggregate: None,  # noqa: F811
) -> None:
    """A new member needs no special path: it loads the committed version, and its round is that version's."""
    async with cluster(make_identity, tmp_path, "join") as (scheduler, worker):
        lease = await scheduler.lease(worker.peer_id, AGGREGATE)
        first = Member(task_id="t0", peer_id=worker.peer_id, since_round=0)
        late = Member(task_id="t1", peer_id=worker.peer_id, since_round=2)
        await scheduler.aggregate(worker.peer_id, lease, [first], rounds=4)
        lease = await scheduler.lease(worker.peer_id)
        await scheduler.train(worker.peer_id, lease, "t0", rounds=2)
        await eventually(lambda: "finished" in scheduler.states("t0"), 20)
        answer = await scheduler.overlay.call(worker.peer_id, SetMembers(task_id="ps", members=[late]))
        assert answer.round == 2
        lease = await scheduler.lease(worker.peer_id)
        await scheduler.train(worker.peer_id, lease, "t1", rounds=4)
        await eventually(lambda: "finished" in scheduler.states("t1"), 20)
        text = await worker.log(scheduler, "t1")
        assert "weights 2 [2.0, 2.0, 2.0, 2.0]" in text
        assert "step 3 [1.0, 1.0, 1.0, 1.0]" in text
        assert [len(item.contributions) for item in scheduler.committed] == [1, 1, 1, 1]


async def test_a_task_that_missed_rounds_goes_on_from_the_newest_weights(
    make_identity: MakeIdentity,
    tmp_path: Path,
    scripted_aggregate: None,  # noqa: F811
) -> None:
    """U40, H4: the late update is refused as stale; the task is back in step with one event."""
    async with cluster(make_identity, tmp_path, "join") as (scheduler, worker):
        lease = await scheduler.lease(worker.peer_id, AGGREGATE)
        members = [Member(task_id=name, peer_id=worker.peer_id, since_round=0) for name in ("t0", "t1")]
        await scheduler.aggregate(worker.peer_id, lease, members[:1], rounds=4)
        scheduler.hold_slices["t1"] = asyncio.Event()
        lease = await scheduler.lease(worker.peer_id)
        await scheduler.train(worker.peer_id, lease, "t1", rounds=4)
        await eventually(lambda: scheduler.waiting == {"t1"})
        lease = await scheduler.lease(worker.peer_id)
        await scheduler.train(worker.peer_id, lease, "t0", rounds=3)
        await eventually(lambda: "finished" in scheduler.states("t0"), 20)
        await scheduler.overlay.call(worker.peer_id, SetMembers(task_id="ps", members=members[1:]))
        scheduler.hold_slices["t1"].set()
        await eventually(lambda: "finished" in scheduler.states("t1"), 20)
        assert "weights 3 [3.0, 3.0, 3.0, 3.0]" in await worker.log(scheduler, "t1")
        assert [item.contributions[0].task_id for item in scheduler.committed] == ["t0", "t0", "t0", "t1"]


async def test_a_new_life_of_a_killed_node_clears_what_the_old_one_left(
    make_identity: MakeIdentity, tmp_path: Path
) -> None:
    """H33, U41: executor, socket and work directory, before the first offer."""
    left = await asyncio.create_subprocess_exec("sleep", "600", start_new_session=True)
    jobs_dir = tmp_path / "jobs"
    (jobs_dir / "hypha-t1").mkdir(parents=True)
    row = ExecutorRow("t1", left.pid, start_ticks(left.pid), boot_id(), str(jobs_dir / "hypha-t1"), "")
    (tmp_path / "worker").mkdir()
    async with Store.open(tmp_path / "worker" / "state.db") as store:
        await store.write(lambda db: remember(row, db))
    async with cluster(make_identity, tmp_path, work_dir=jobs_dir) as (_, worker):
        assert await left.wait() == -9
        assert not (jobs_dir / "hypha-t1").exists()
        assert await worker.store.read("SELECT * FROM executors") == []
        assert "executor.swept" in [event.name for event in worker.board.events()]


async def _pids(jobs_dir: Path) -> list[int]:
    """The executor and its child, as its log tells."""
    found: list[int] = []

    def look() -> bool:
        log = jobs_dir / "hypha-logs" / "t1.log"
        lines = log.read_text().splitlines() if log.exists() else []
        found[:] = [int(word) for line in lines if line.startswith("pids") for word in line.split()[1:]]
        return bool(found)

    await eventually(look)
    await asyncio.sleep(0)
    assert os.getpid() not in found
    return found


async def test_a_parameter_server_that_fails_by_its_own_fault_ends_the_task_with_the_reason(
    make_identity: MakeIdentity,
    tmp_path: Path,
    scripted_aggregate: None,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """U40: a job must not look busy for ever while each of its updates meets the same fault."""

    async def broken(*_: object) -> None:
        raise ZeroDivisionError("a fault of ours")

    monkeypatch.setattr(intake.Intake, "take", broken)
    monkeypatch.setattr(courier, "BROKEN_ALLOWED", 2)
    async with cluster(make_identity, tmp_path, "wire") as (scheduler, worker):
        lease = await scheduler.lease(worker.peer_id, AGGREGATE, cpu=0.5)
        await scheduler.aggregate(worker.peer_id, lease, [Member(task_id="t1", peer_id=worker.peer_id, since_round=0)])
        lease = await scheduler.lease(worker.peer_id)
        await scheduler.train(worker.peer_id, lease)
        await eventually(lambda: "failed" in scheduler.states("t1"), 20)
        assert "failed inside the peer (ZeroDivisionError)" in "\n".join(scheduler.last("t1").tail)


async def test_an_update_of_a_stranger_is_refused_before_a_byte_and_leaves_no_trace(
    make_identity: MakeIdentity,
    tmp_path: Path,
    scripted_aggregate: None,  # noqa: F811
) -> None:
    """H18: only a member's own task; and a digest cannot be a path."""
    async with cluster(make_identity, tmp_path) as (scheduler, worker):
        lease = await scheduler.lease(worker.peer_id, AGGREGATE)
        await scheduler.aggregate(worker.peer_id, lease, [Member(task_id="t1", peer_id=worker.peer_id, since_round=0)])
        await eventually(lambda: "ready" in scheduler.states("ps"))

        update = tmp_path / "update"
        update.write_bytes(b"abc")

        async def upload(overlay: Overlay, **changes: object) -> str:
            values: dict[str, object] = {
                "job_id": "job",
                "epoch": 0,
                "task_id": "t1",
                "round": 0,
                "samples": 1,
                "size_bytes": 3,
            }
            values |= {"spans": [Span(0, 0, 0, 1)], "sha256": "0" * 64, **changes}
            path = f"/bulk/jobs/job/updates/{values['task_id']}/{values['sha256']}"
            with pytest.raises(Refused) as told:
                await overlay.call(worker.peer_id, AnnounceUpdate(**values), timeout_s=5)  # type: ignore[arg-type]
                await bulk.upload(overlay, worker.peer_id, path, update)
            return told.value.code

        server = worker.service._jobs.parameter_server("job")
        assert await upload(scheduler.overlay) == "denied"
        assert await upload(worker.overlay, task_id="t2") == "denied"
        assert server._intake._locks == {}
        assert await upload(worker.overlay, sha256="../../../outside") == "invalid"
        assert await upload(worker.overlay) == "invalid"
        assert list((worker.jobs_dir / "hypha-ps" / "updates").iterdir()) == []


async def test_a_task_outlives_its_parameter_server_and_every_row_counts_once(
    make_identity: MakeIdentity,
    tmp_path: Path,
    scripted_aggregate: None,  # noqa: F811
) -> None:
    """H11, U28: an executor written for upstream, which knows of one parameter server, never hears of it."""
    async with cluster(make_identity, tmp_path, "wire") as (scheduler, worker):
        scheduler.keeps = True
        member = Member(task_id="t1", peer_id=worker.peer_id, since_round=0)
        lease = await scheduler.lease(worker.peer_id, AGGREGATE, cpu=0.5)
        await scheduler.aggregate(worker.peer_id, lease, [member], rounds=6)
        await eventually(lambda: "ready" in scheduler.states("ps"))
        (base,) = next(status.files for status in scheduler.statuses if status.state == "ready")
        await scheduler.keep(worker.peer_id, base)
        lease = await scheduler.lease(worker.peer_id, cpu=0.5)
        await scheduler.train(worker.peer_id, lease, rounds=6)
        await eventually(lambda: len(scheduler.committed) >= 2, 20)
        # From here on nothing of the old epoch is committed.
        scheduler.refusal = Refused("stale", "the epoch is over")
        scheduler.destinations["t1"] = (1, "")
        await scheduler.overlay.call(worker.peer_id, CancelTask(task_id="ps"))
        done = len(scheduler.committed)
        batches = len(scheduler.progress)
        await eventually(lambda: "cancelled" in scheduler.states("ps") and len(scheduler.progress) > batches + 1)
        scheduler.refusal = None
        start = [base, *(item.delta for item in scheduler.committed)]
        lease = await scheduler.lease(worker.peer_id, AGGREGATE, cpu=0.5)
        terms = {"start": start}
        await scheduler.aggregate(worker.peer_id, lease, [member], "ps2", rounds=6, epoch=1, terms=terms)
        await eventually(lambda: "ready" in scheduler.states("ps2"), 20)
        scheduler.destinations["t1"] = (1, worker.peer_id)
        await eventually(lambda: "finished" in scheduler.states("t1"), 30)
        assert [item.round for item in scheduler.committed] == list(range(6))
        assert [item.epoch for item in scheduler.committed] == [0] * done + [1] * (6 - done)
        spans = [span for item in scheduler.committed for update in item.contributions for span in update.spans]
        assert count(spans) == count(merged(spans)) > 0
        text = await worker.log(scheduler, "t1")
        assert "step 6 [1.0, 1.0, 1.0, 1.0]" in text
