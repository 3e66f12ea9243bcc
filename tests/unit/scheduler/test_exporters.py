"""Exports of metrics: what arrives in the files, and that a sink which hangs, dies or is full costs only values."""

from __future__ import annotations

import asyncio
import contextlib
import csv
import errno
import math
import os
import resource
import signal
import struct
import sys
import textwrap
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec
import pytest

from node.config import ExportsConfig, NodeConfig
from node.scheduler import exporters_feed
from node.scheduler.exporters import Exports
from node.scheduler.exporters_feed import Feed
from node.scheduler.exporters_sinks import CsvSink, TensorBoardSink, Value
from node.views import Point

PEER = "12D3KooWworker4Fg2Qa"


def point(round_: int, value: float = 1.0, worker: str = "", name: str = "loss", t_s: float | None = None) -> Point:
    return Point(job_id="j-1", name=name, round=round_, value=value, t_s=round_ if t_s is None else t_s, worker=worker)


def value(round_: int, metric: str = "loss") -> Value:
    return Value("j-1", metric, round_, 1.0, 1e9 + round_, float(round_))


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


class Told(list[tuple[str, str, str]]):
    """The events of a feed."""

    def __call__(self, name: str, text: str, level: str) -> None:
        self.append((name, text, level))


@contextlib.asynccontextmanager
async def running(*parts: Exports | Feed) -> AsyncIterator[None]:
    async with asyncio.TaskGroup() as tasks:
        started = [tasks.create_task(part.run()) for part in parts]
        yield
        for task in started:
            task.cancel()


async def until(claim: Callable[[], object], within_s: float = 8.0) -> None:
    async with asyncio.timeout(within_s):
        while not claim():
            await asyncio.sleep(0.01)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporters_feed, "GATHER_S", 0.01)
    monkeypatch.setattr(exporters_feed, "PAUSE_FIRST_S", 0.02)


def library(folder: Path, monkeypatch: pytest.MonkeyPatch, write: str) -> None:
    """A package `mlflow` for the sink's process, whose runs do `write` with what they are given."""
    (folder / "mlflow").mkdir(parents=True)
    text = """
        import os, sys, time
        from types import SimpleNamespace as New
        from mlflow import entities
        print("a library that talks")
        class MlflowClient:
            def __init__(self, tracking_uri): pass
            def get_experiment_by_name(self, name): return New(experiment_id="1")
            def search_runs(self, ids, query, max_results): return []
            def create_run(self, experiment, run_name, tags): return New(info=New(run_id=run_name))
            def set_terminated(self, run_id, status): self.log_batch(run_id, [status])
            def log_batch(self, run_id, metrics):
                WRITE
    """
    (folder / "mlflow" / "__init__.py").write_text(textwrap.dedent(text).replace("WRITE", write))
    (folder / "mlflow" / "entities.py").write_text("def Metric(*content): return content\n")
    monkeypatch.setenv("PYTHONPATH", str(folder))


# ---- what is written ------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_every_value_is_in_the_table_with_its_round_its_worker_and_its_time(tmp_path: Path, quick: None) -> None:
    config = NodeConfig(state_dir=tmp_path / "state", exports=ExportsConfig(csv=tmp_path / "csv"))
    exports = Exports(config, lambda peer_id: "w1", Told())
    async with running(exports):
        exports.put(point(0, 2.5))
        exports.put(point(1, 0.125, PEER, "update_norm"))
        exports.ended("j-1", "done")
        await until((tmp_path / "csv" / "j-1.csv").exists)
    first, second = rows(tmp_path / "csv" / "j-1.csv")
    assert (first["round"], first["metric"], first["worker"], first["value"]) == ("0", "loss", "", "2.5")
    assert (second["worker"], second["peer_id"], second["value"]) == ("w1-4Fg2Qa", PEER, "0.125")
    told = time.mktime(time.strptime(first["time_utc"] + " UTC", "%Y-%m-%d %H:%M:%S %Z")) - time.timezone
    assert abs(told - time.time()) < 60


@pytest.mark.asyncio
async def test_what_is_queued_when_the_node_stops_is_still_written(tmp_path: Path) -> None:
    feed = Feed("csv", str(tmp_path), tmp_path / "work", Told())
    async with running(feed):
        await until(lambda: (tmp_path / "work" / "csv").exists())
        await asyncio.sleep(0.2)
        for number in range(1200):
            feed.put(value(number))
    assert [row["round"] for row in rows(tmp_path / "j-1.csv")] == [str(number) for number in range(1200)]


def test_a_table_is_complete_and_without_doubles_after_a_crash(tmp_path: Path) -> None:
    """A half line is cut off, values that come again are recognised, those that were lost are filled in."""
    sink = CsvSink(str(tmp_path))
    sink.write([value(0), value(1), value(1)])
    path = tmp_path / "j-1.csv"
    path.write_bytes(path.read_bytes() + b"2001-09-09 01:46:42,2.000,2,lo")
    CsvSink(str(tmp_path)).write([value(0), value(1), value(2), value(3)])
    assert [row["round"] for row in rows(path)] == ["0", "1", "2", "3"]


def test_a_write_that_finds_the_disk_full_leaves_no_part_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = CsvSink(str(tmp_path))
    sink.write([value(0)])
    whole = (tmp_path / "j-1.csv").read_bytes()
    write, calls = os.write, iter([True, False])

    def full(handle: int, data: memoryview) -> int:
        if next(calls):
            return write(handle, data[:10])
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space"):
        patch.setattr(os, "write", full)
        sink.write([value(1), value(2)])
    assert (tmp_path / "j-1.csv").read_bytes() == whole
    sink.write([value(1), value(2)])
    assert len(rows(tmp_path / "j-1.csv")) == 3


def test_no_cell_is_a_formula_and_no_value_is_lost_for_being_odd(tmp_path: Path) -> None:
    sink = CsvSink(str(tmp_path))
    odd = Value("j-1", '=cmd|" /C\n', 1, math.nan, 0.0, 1.0, "a,b", "p")
    sink.write([odd])
    sink.write([odd])
    (row,) = rows(tmp_path / "j-1.csv")
    assert (row["metric"], row["worker"], row["value"]) == ("'=cmd|\" /C ", "a,b", "nan")


def test_tensorboard_gets_one_run_for_the_job_and_one_for_each_worker(tmp_path: Path) -> None:
    """Read back by the format's own rules: length and CRC frame each event."""
    pytest.importorskip("tensorboardX")
    sink = TensorBoardSink(str(tmp_path))
    sink.write([value(0), value(1), Value("j-1", "loss", 1, 0.5, 7.0, 1.0, "../w 1-4Fg2Qa", PEER)])
    sink.end("j-1", "done")
    sink.write([value(2)])
    sink.close()
    assert [one for file in sorted((tmp_path / "j-1").glob("events*")) for one in _scalars(file)] == [
        ("loss", 0, 1.0, 1e9),
        ("loss", 1, 1.0, 1e9 + 1),
        ("loss", 2, 1.0, 1e9 + 2),
    ]
    (worker,) = [path for path in (tmp_path / "j-1").iterdir() if path.is_dir()]
    assert worker.name == "_w_1-4Fg2Qa"
    assert [one for file in worker.iterdir() for one in _scalars(file)] == [("loss", 1, 0.5, 7.0)]


def _scalars(path: Path) -> list[tuple[str, int, float, float]]:
    from tensorboardX.crc32c import crc32c
    from tensorboardX.proto.event_pb2 import Event

    def masked(data: bytes) -> int:
        crc = crc32c(data)
        return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF

    data, found = path.read_bytes(), []
    while data:
        (size,) = struct.unpack("<Q", data[:8])
        body = data[12 : 12 + size]
        assert struct.unpack("<I", data[8:12])[0] == masked(data[:8])
        assert struct.unpack("<I", data[12 + size : 16 + size])[0] == masked(body)
        event = Event.FromString(body)
        found += [(one.tag, event.step, one.simple_value, event.wall_time) for one in event.summary.value]
        data = data[16 + size :]
    return found


@pytest.mark.asyncio
async def test_mlflow_gets_metrics_in_its_own_terms_and_the_jobs_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quick: None
) -> None:
    library(tmp_path / "lib", monkeypatch, "open('log', 'a').write(f'{run_id} {metrics}\\n')")
    exports = Exports(
        NodeConfig(state_dir=tmp_path, exports=ExportsConfig(mlflow="http://tracker")), lambda _: "w", Told()
    )
    log = tmp_path / "exports" / "mlflow" / "log"
    async with running(exports):
        exports.recall([point(9)], 0.0)
        exports.put(point(3, 0.5, PEER, "grad:norm"))
        exports.ended("j-1", "cancelled")
        await until(lambda: log.exists() and "KILLED" in log.read_text())
    first, last = log.read_text().splitlines()
    assert first.startswith("j-1 [('grad_norm/w-4Fg2Qa', 0.5, ")
    assert first.endswith(", 3)]")
    assert last == "j-1 ['KILLED']"


# ---- what must not matter ---------------------------------------------------------------------------------


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("write", "reason"),
    [
        ("time.sleep(3600)", "it did nothing for 0.6 s"),
        ("raise RuntimeError('no')", "RuntimeError: no"),
        ("os.kill(os.getpid(), 9)", "its process ended"),
    ],
)
async def test_a_sink_that_hangs_raises_or_dies_costs_the_rounds_and_the_other_sinks_nothing(
    write: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quick: None
) -> None:
    """H20, H21, U67."""
    monkeypatch.setattr(exporters_feed, "DEADLINE_S", 0.6)
    monkeypatch.setattr(exporters_feed, "QUEUE_LIMIT", 1000)
    library(tmp_path / "lib", monkeypatch, write)
    told = Told()
    config = NodeConfig(state_dir=tmp_path, exports=ExportsConfig(csv=tmp_path / "csv", mlflow="http://tracker"))
    exports = Exports(config, lambda _: "w", told)
    async with running(exports):
        late_s = 0.0
        for number in range(300):
            began = time.monotonic()
            exports.put(point(number))
            await asyncio.sleep(0.001)
            late_s = max(late_s, time.monotonic() - began)
        await until(lambda: ("exports.failed", f"metrics are not exported to mlflow: {reason}", "warning") in told)
        began = time.thread_time()
        for number in range(5000):
            exports.feeds["mlflow"].put(value(number))
        assert time.thread_time() - began < 0.5
        assert exports.feeds["mlflow"].dropped >= 4000, "the queue is bounded"
        path = tmp_path / "csv" / "j-1.csv"
        await until(lambda: path.exists() and len(rows(path)) == 300)
        before = time.process_time()
        await asyncio.sleep(0.2)
        assert time.process_time() - before < 0.15, "no busy loop"
        began = time.monotonic()
    assert time.monotonic() - began < 2.5, "and it does not keep the node from stopping"
    assert late_s < 0.25


@pytest.mark.asyncio
async def test_values_that_a_full_disk_or_a_kill_refused_are_written_when_it_is_over(
    tmp_path: Path, quick: None
) -> None:
    """U67: the batch in hand is sent again to the new process; the table has each value once."""
    told = Told()
    feed = Feed("csv", str(tmp_path), tmp_path / "work", told)
    pids: list[int] = []
    path = tmp_path / "j-1.csv"
    async with running(feed):
        for number, end in enumerate(("full", "kill", "")):
            feed.put(value(2 * number))
            await until(lambda wanted=2 * number + 1: path.exists() and len(rows(path)) == wanted)
            pids.append(_child_of_this_process())
            if end == "full":
                resource.prlimit(pids[-1], resource.RLIMIT_FSIZE, (path.stat().st_size, resource.RLIM_INFINITY))
            if end == "kill":
                os.kill(pids[-1], signal.SIGKILL)
            feed.put(value(2 * number + 1))
            await until(lambda wanted=2 * number + 2: len(rows(path)) == wanted)
    assert [row["round"] for row in rows(path)] == ["0", "1", "2", "3", "4", "5"]
    assert len(set(pids)) == 3
    assert [name for name, _, _ in told] == ["exports.failed", "exports.recovered"] * 2
    assert "File too large" in told[0][1]
    assert feed.dropped == 0


def _child_of_this_process() -> int:
    found = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    return int(found[-1])


@pytest.mark.asyncio
async def test_a_batch_that_never_can_be_written_does_not_stop_those_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quick: None
) -> None:
    monkeypatch.setattr(exporters_feed, "TRIES", 2)
    monkeypatch.setattr(exporters_feed, "BATCH", 1)
    library(
        tmp_path / "lib",
        monkeypatch,
        "assert 'bad' not in metrics[0][0], 'bad'; open('log', 'a').write(metrics[0][0])",
    )
    feed = Feed("mlflow", "http://tracker", tmp_path / "work", Told())
    async with running(feed):
        for metric in ("bad", "good"):
            feed.put(value(0, metric))
        await until(lambda: (tmp_path / "work" / "mlflow" / "log").exists())
    assert feed.dropped == 1


@pytest.mark.asyncio
async def test_a_library_that_is_not_installed_is_told_once_with_the_way_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "wandb.py").write_text("raise ModuleNotFoundError('no', name='wandb')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    told = Told()
    feed = Feed("wandb", "project", tmp_path / "work", told)
    feed.put(value(0))
    async with asyncio.timeout(8):
        await feed.run()
    feed.put(value(1))
    assert told == [
        (
            "exports.failed",
            "metrics are not exported to wandb: wandb is not installed: pip install 'hypha-tui[wandb]'",
            "warning",
        )
    ]
    assert not feed._queue


@pytest.mark.asyncio
async def test_no_secret_of_the_environment_is_in_what_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quick: None
) -> None:
    """H32: API keys come from the environment, and go nowhere else."""
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "s3cr3t-value")
    library(tmp_path / "lib", monkeypatch, "raise OSError('401 for ' + os.environ['MLFLOW_TRACKING_TOKEN'])")
    told = Told()
    feed = Feed("mlflow", "http://tracker", tmp_path / "work", told)
    async with running(feed):
        feed.put(value(0))
        await until(lambda: told)
    assert told[0][1].endswith("OSError: 401 for ***")
    assert "s3cr3t-value" not in " ".join(feed._command)


@pytest.mark.asyncio
async def test_the_sinks_process_ends_with_its_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that is killed leaves nothing behind, even where the sink hangs."""
    library(tmp_path / "lib", monkeypatch, "time.sleep(3600)")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'lib'}{os.pathsep}{Path(__file__).parents[3]}")
    program = "import node.scheduler.exporters_program as p; p.END_WITHIN_S = 0.1; p.main(['mlflow', 'x'])"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    async with asyncio.timeout(8):
        assert msgspec.json.decode(await process.stdout.readline()) == {}
        process.stdin.write(exporters_feed._framed([value(0)]))
        process.stdin.close()
        assert await process.wait() == 1
