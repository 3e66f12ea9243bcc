"""Jobs that start from a checkpoint of an earlier one."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from node.errors import JobError
from node.scheduler import starting
from node.scheduler.places import FolderSource, versions_at
from node.scheduler.starting import Spot, Start
from node.wire import AggregateTask, Cancel, Resume, RunCommand
from tests.unit.scheduler.fake_cluster import caller
from tests.unit.scheduler.test_service import JOB, signed, world

pytestmark = pytest.mark.asyncio

LONG = JOB.replace("update_rounds = 2", "update_rounds = {rounds}")


async def trained(tmp_path: Path, rounds: int = 3) -> Path:
    """The checkpoints that another scheduler left."""
    async with world(tmp_path / "lost") as here:
        kept = f'[checkpoint]\nevery = 1\nkeep = 9\nto = "{tmp_path / "kept"}"\n'
        await here.submit(LONG.format(rounds=rounds) + kept)
        await here.until("done")
        await here.until_true(lambda: (tmp_path / "kept" / "j1" / f"version-{rounds}").exists())
    shutil.rmtree(tmp_path / "lost")
    return tmp_path / "kept" / "j1"


def job(place: object, rounds: int = 6, more: str = "") -> str:
    return LONG.format(rounds=rounds) + f'[checkpoint]\nstart_from = "{place}"\n{more}'


async def test_a_job_goes_on_from_a_checkpoint_at_a_scheduler_that_has_never_seen_it(tmp_path: Path) -> None:
    folder = await trained(tmp_path)
    before = json.loads((folder / "version-2" / "checkpoint.json").read_text())
    async with world(tmp_path / "new") as here:
        status, _ = await here.submit(job(folder / "version-2"))
        assert status == 200
        view = await here.until("done")
        assert (view.round, view.rounds) == (6, 6)
        servers = [
            dispatch.task
            for worker in here.overlay.workers.values()
            for dispatch in worker.dispatched
            if isinstance(dispatch.task, AggregateTask)
        ]
        assert [[(f.kind, f.number) for f in task.start] for task in servers] == [[("weights", 2), ("momentum", 2)]]
        record = json.loads((tmp_path / "new" / "models" / "j1" / "training.json").read_text())
        assert [line["round"] for line in record["rounds"]] == list(range(6))
        assert record["rounds"][:2] == before["rounds"]
        assert {point["job_id"] for point in record["curve"]} == {"j1"}
        assert len([p for p in record["curve"] if p["name"] == "eval_loss"]) == 7
        assert view.samples == sum(line["samples"] for line in record["rounds"])
        times = [point["t_s"] for point in record["curve"] if point["name"] == "eval_loss"]
        assert times == sorted(times), "its time goes on, too"
        check_rows_are_counted_once(record)


def check_rows_are_counted_once(record: dict[str, Any]) -> None:
    """Each pass that is over holds each row once, those before the checkpoint among them."""
    rows: dict[int, list[tuple[int, int]]] = {}
    for line in record["rounds"]:
        for share in line["contributions"]:
            for pass_, index, start, end in share["spans"]:
                rows.setdefault(pass_, []).extend((index, row) for row in range(start, end))
    assert all(len(found) == len(set(found)) for found in rows.values())
    assert all(len(rows[pass_]) == 40 for pass_ in range(max(rows)))
    assert max(rows) > 0


async def test_of_a_folder_the_newest_checkpoint_counts_and_the_job_outlives_its_scheduler(tmp_path: Path) -> None:
    folder = await trained(tmp_path)
    async with world(tmp_path / "new", workers=0) as here:
        assert (await here.submit(job(folder)))[0] == 200
        journal = tmp_path / "new" / "scheduler" / "jobs" / "j1" / "journal"
        await here.until_true(lambda: len(list(journal.glob("*-3.safetensors"))) == 2)
    shutil.rmtree(folder)
    async with world(tmp_path / "new") as here:
        assert (await here.until("done")).round == 6


async def test_other_data_begins_with_all_its_rows(tmp_path: Path) -> None:
    folder = await trained(tmp_path)
    async with world(tmp_path / "new", workers=0) as here:
        here.overlay.serve_dataset("other-data", 5)
        await here.submit(job(folder / "version-2").replace('"train-data"', '"other-data"'))
        await here.until_true(lambda: here.job().slices)
        assert (here.job().epoch, here.job().slices["used"]) == (0, 0)


def _spoil(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    path = folder / "version-3" / "checkpoint.json"
    record = json.loads(path.read_text())
    change(record)
    path.write_text(json.dumps(record))


async def test_what_cannot_be_started_from_is_told_to_who_submits_the_job(tmp_path: Path) -> None:
    folder = await trained(tmp_path)
    async with world(tmp_path / "new", workers=0) as here:

        async def refusal(body: str) -> str:
            status, answer = await here.submit(body)
            assert (status, answer["code"]) == (400, "invalid")
            return str(answer["detail"])

        assert "no whole checkpoint" in await refusal(job(tmp_path / "kept" / "j9"))
        assert "names no checkpoints" in await refusal(job("s3://bucket"))
        assert "not an absolute path" in await refusal(job("kept/j1"))
        assert "No such file" in await refusal(job(folder / "version-77"))
        assert "version 3, and the job ends with round 3" in await refusal(job(folder, rounds=3))
        _spoil(folder, lambda record: record["ledger"]["committed"].append(record["ledger"]["committed"][0]))
        assert "counts rows twice" in await refusal(job(folder))
        _spoil(folder, lambda record: record["rounds"].pop())
        _spoil(folder, lambda record: record["ledger"].update(committed=[]))
        assert "lacks rounds" in await refusal(job(folder))
        _spoil(folder, lambda record: record["files"].pop("momentum"))
        assert "does not name weights and momentum" in await refusal(job(folder))
        (folder / "version-3" / "checkpoint.json").write_text('{"version": 3, "files": {}}')
        assert "unreadable" in await refusal(job(folder))
        (folder / "version-3" / "checkpoint.json").unlink()
        (folder / "version-3" / "checkpoint.json").symlink_to("/etc/passwd")
        assert "levels of symbolic links" in await refusal(job(folder / "version-3"))
        assert await here.store.read("SELECT * FROM jobs") == []


async def test_content_that_is_not_what_the_checkpoint_says_fails_the_job_in_words(tmp_path: Path) -> None:
    folder = await trained(tmp_path)
    (folder / "version-3" / "momentum.safetensors").write_bytes(b"other")
    async with world(tmp_path / "new") as here:
        await here.submit(job(folder))
        assert "momentum.safetensors is not what its checkpoint says" in (await here.until("failed")).reason


async def test_while_its_checkpoint_is_on_its_way_a_job_says_so_and_can_be_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = await trained(tmp_path)

    async def unreachable(*_: object, **__: object) -> None:
        raise TimeoutError

    async with world(tmp_path / "new") as here:
        with monkeypatch.context() as patched:
            patched.setattr(FolderSource, "fetch", unreachable)
            patched.setattr(starting, "BACKOFF_FIRST_S", 0.01)
            await here.submit(job(folder))
            view = await here.until("waiting")
            assert view.reason == f"version 3 is on its way here from {folder}"
            run = here.overlay.handlers[RunCommand]
            await run(caller("X"), RunCommand(signed=signed(Cancel(job_id="j1"))))
            assert (await here.until("cancelled")).reason == "cancelled by ada"
            await here.until_true(lambda: not here.service._runners["j1"].is_running)
        await run(caller("X"), RunCommand(signed=signed(Resume(job_id="j1"))))
        assert (await here.until("done")).round == 6


async def test_a_place_is_taken_apart_at_its_version_and_its_job() -> None:
    assert Spot.of("/kept/j1/version-12") == Spot("/kept", "j1", 12)
    assert Spot.of("peer:data-1/j1/") == Spot("peer:data-1", "j1", None)
    assert Spot.of("peer:data-1/runs/j1/version-0") == Spot("peer:data-1/runs", "j1", 0)
    for wrong in ("", "j1", "/j1", "peer:data-1", "s3://j1", "version-3", "peer:/j1"):
        with pytest.raises(JobError):
            Spot.of(wrong)


async def test_the_first_version_has_no_momentum() -> None:
    record: dict[str, Any] = {
        "version": 0,
        "dataset": {"name": "d", "digest": ""},
        "ledger": {"pass": 0, "committed": []},
        "rounds": [],
        "curve": [],
        "files": {"weights": {"sha256": "0" * 64, "size_bytes": 9}},
    }
    assert [file.kind for file in Start.read(json.dumps(record).encode()).files] == ["weights"]


async def test_only_whole_checkpoints_are_found(tmp_path: Path) -> None:
    for name in ("version-3", "version-12", ".version-4.abc", "version-5"):
        (tmp_path / "j1" / name).mkdir(parents=True)
        (tmp_path / "j1" / name / "weights.safetensors").write_bytes(b"w")
    for number in (3, 12):
        (tmp_path / "j1" / f"version-{number}" / "checkpoint.json").write_text("{}")
    assert await versions_at(FolderSource(tmp_path), "j1") == [3, 12]
    assert await versions_at(FolderSource(tmp_path), "j2") == []
