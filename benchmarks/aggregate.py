"""A parameter server's arithmetic: four updates in, the next version out; and its node meanwhile.

    python -m benchmarks.aggregate [--mb 500] [--runs 5] [--codec none] [--rule mean] [--rounds 300]

`arithmetic` is everything but the files of the new version: reading the updates, weights and momentum, the mean, the
outer step, the encoding; in GB of float32 updates a second. `commit` is all of it, digests included, asked of the
program as a node does it; `resident_mb` is the most it had. The floor, in the same run and in turns, is NumPy adding
up the updates, mapped, in two threads, and nothing else.

Then whole exchanges as in `benchmarks.exchange`: two of `--mb` in each direction and `--rounds` of 8 MB, while the
parameter server's node is asked for its `/healthz` twenty times a second: how late it answers, and what the node and
its program together have in memory, mapped files included, and on the disk.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import msgspec
import numpy as np

from benchmarks.exchange import codec_runs
from benchmarks.watched import Watched
from hypha_tui.local_cluster import LocalNode
from node.training import aggregate
from node.training.aggregate import Update, commit
from node.training.codec import codec_named
from node.training.files import FLOAT32, TensorWriter, pieces, write_tensors
from node.training.folder import FileMade, Stream, path_of
from node.training.traits import Traits
from node.training.versions import Outer
from node.wire import Aggregation, Sync

UPDATES = 4
TENSORS = 25
SMALL_MB = 8
OUTER = Outer(0.7, 0.9)


def prepare(folder: Path, megabytes: int, codec: str) -> list[Update]:
    """A version 1 with momentum, and the updates."""
    shape = (megabytes * 1_000_000 // 4 // TENSORS // 1000, 1000)
    layout = {f"layer.{number:02}": (FLOAT32, shape) for number in range(TENSORS)}
    noise = np.random.default_rng(0).standard_normal(shape[0] * shape[1], np.float32)
    tensors = {name: noise.reshape(shape) for name in layout}
    write_tensors(path_of(folder, "weights", 1), tensors, Traits().metadata)
    write_tensors(path_of(folder, "momentum", 1), tensors)
    made = []
    for number in range(UPDATES):
        encoder = codec_named(codec)
        path = folder / f"update-{number}.safetensors"
        writer = TensorWriter(path, encoder.layout(layout, frozenset()), encoder.metadata)
        values = noise * np.float32(0.001 * (number + 1))
        for name in layout:
            for start, length in pieces(len(values)):
                encoder.write(writer, name, start, encoder.encode(values[start : start + length]))
        writer.publish()
        made.append(Update(path, 100.0 + number, str(number), 1.0))
    return made


@contextlib.contextmanager
def without_output() -> Iterator[None]:
    """Nothing is written or hashed."""
    digest = aggregate.sha256_of
    kept = TensorWriter.write, TensorWriter.publish, Stream.write, Stream.publish
    TensorWriter.write = lambda *values: None  # type: ignore[method-assign, assignment]
    TensorWriter.publish = lambda self: None  # type: ignore[method-assign]
    Stream.write = lambda *values: None  # type: ignore[method-assign, assignment]
    Stream.publish = lambda self: FileMade("", 0)  # type: ignore[method-assign]
    aggregate.sha256_of = lambda path: ""
    try:
        yield
    finally:
        TensorWriter.write, TensorWriter.publish, Stream.write, Stream.publish = kept  # type: ignore[method-assign]
        aggregate.sha256_of = digest


def floor(updates: list[Update]) -> None:
    """The sum of mapped float32 files, in two threads."""
    maps = [np.memmap(update.path, np.uint8, "r") for update in updates]
    size = min(len(one) for one in maps) // 8 * 4
    chunk = 1 << 20

    def half(begin: int) -> None:
        total: Any = np.empty(chunk // 4, np.float32)
        for start in range(begin, begin + size, chunk):
            parts = [one[start : min(start + chunk, begin + size)].view(np.float32) for one in maps]
            out = total[: len(parts[0])]
            np.add(parts[0], parts[1], out=out)
            for part in parts[2:]:
                np.add(out, part, out=out)

    np.seterr(all="ignore")  # encoded updates are any numbers
    threads = [threading.Thread(target=half, args=(begin,)) for begin in (0, size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def timed(call: Callable[[], object]) -> float:
    """Seconds that a call takes."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


class Program:
    """The parameter server's program."""

    def __init__(self, folder: Path) -> None:
        command = [sys.executable, "-m", "node.executors.aggregate", "--work-dir", str(folder)]
        began = time.perf_counter()
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.ask(do="check", path="/nowhere", round=0)
        self.start_s = time.perf_counter() - began

    def ask(self, **request: Any) -> Any:
        """The answer."""
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(json.dumps({"id": 1, **request}).encode() + b"\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def resident_mb(self) -> int:
        """The most it has had in memory."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) // 1024

    def close(self) -> None:
        """Ends it."""
        self._process.communicate()


def measure(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """All figures, in turns."""
    updates = prepare(folder, options.mb, options.codec)
    sync, rules = Sync(codec=options.codec), Aggregation(rule=options.rule)
    program = Program(folder)
    request = {
        "round": 1,
        "updates": [{"path": str(u.path), "weight": u.weight, "task_id": u.task_id, "norm": u.norm} for u in updates],
        "learning_rate": OUTER.learning_rate,
        "momentum": OUTER.momentum,
        "sync": msgspec.to_builtins(sync),
        "aggregation": msgspec.to_builtins(rules),
    }

    def bare() -> None:
        with without_output():
            commit(folder, 1, updates, outer=OUTER, sync=sync, rules=rules)

    def whole() -> None:
        answer = program.ask(do="commit", **request)
        assert answer["ok"] and not answer["left_out"], answer

    def check() -> None:
        assert program.ask(do="check", path=str(updates[0].path), round=1, sync=request["sync"])["ok"]

    calls = {"arithmetic": bare, "commit": whole, "check": check, "floor": lambda: floor(updates)}
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(options.runs):
        for name, call in calls.items():
            times[name].append(timed(call))
            for kind in ("weights", "momentum", "delta", "residual"):
                path_of(folder, kind, 2).unlink(missing_ok=True)
    resident_mb = program.resident_mb()
    program.close()
    medians = {name: statistics.median(taken) for name, taken in times.items()}
    input_gb = sum(update.path.stat().st_size for update in updates) / 1e9
    return {
        "updates": f"{UPDATES} x {options.mb} MB, {options.codec}, {options.rule}",
        "arithmetic_gb_s": round(UPDATES * options.mb / 1000 / medians["arithmetic"], 2),
        "floor_gb_s": round(input_gb / medians["floor"], 2),
        **{f"{name}_s": round(taken, 3) for name, taken in medians.items()},
        "all_s": {name: [round(one, 3) for one in taken] for name, taken in times.items()},
        "resident_mb": resident_mb,
        "start_s": round(program.start_s, 3),
        "cores": len(os.sched_getaffinity(0)),
        "load": round(os.getloadavg()[0], 2),
    }


def served(folder: Path, megabytes: int, rounds: int, codec: str) -> dict[str, Any]:
    """Exchanges through a real node, watched."""
    made: list[Watched] = []

    def watch(node: LocalNode) -> Watched:
        made.append(Watched(node, folder / "work"))
        return made[-1]

    began = time.perf_counter()
    found = asyncio.run(codec_runs(folder, codec, megabytes, rounds, watch))
    (watched,) = made
    answers_ms = sorted(1000 * answer for answer in watched.answers_s)
    fifth = len(watched.resident_mb) // 5
    return {
        "exchanges": f"{len(found[codec])} x {UPDATES} x {megabytes} MB, {codec}",
        "healthz_ms": {
            "median": round(statistics.median(answers_ms), 1),
            "p99": round(answers_ms[int(0.99 * len(answers_ms))], 1),
            "worst": round(answers_ms[-1], 1),
            "asked": len(answers_ms),
        },
        "resident_mb": {
            "most": round(max(watched.resident_mb)),
            "second_fifth": round(statistics.mean(watched.resident_mb[fifth : 2 * fifth]), 1),
            "last_fifth": round(statistics.mean(watched.resident_mb[-fifth:]), 1),
        },
        "disk_mb": {"most": round(max(watched.disk_mb)), "last": round(watched.disk_mb[-1])},
        "took_s": round(time.perf_counter() - began),
        "load": round(os.getloadavg()[0], 2),
    }


def main() -> None:
    """The program."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--mb", type=int, default=500)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--codec", default="none")
    parser.add_argument("--rule", default="mean")
    parser.add_argument("--rounds", type=int, default=300, help="of 8 MB, watched; 0: nothing is watched")
    parser.add_argument("--folder", type=Path, default=None)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(dir=options.folder))
    try:
        print(json.dumps(measure(folder, options), indent=2), flush=True)
        if options.rounds:
            for megabytes, rounds in ((options.mb, 1), (SMALL_MB, options.rounds)):
                print(json.dumps(served(folder / f"of-{megabytes}", megabytes, rounds, options.codec), indent=2))
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
