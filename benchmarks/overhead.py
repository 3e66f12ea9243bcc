"""What the cluster costs a worker.

    python -m benchmarks.overhead [--runs 3] [--batches 50]

First: tokens a second of one worker (the demo's Llama, 8 rows of 128 bytes in a batch, one thread, about so many
batches a round, the exchange included), between two commits of a real cluster; in turns with a plain loop of the same
model, optimizer and batches in a process alone, while the cluster idles; as torch is by default, and with what
executors do to it (`node.executors.denormals`), which is what the cluster is held against. On a machine that has other
work only the figures of processor time mean something.

Second: four workers, a model of 12.9 MB, 20 batches a round, as torchft was measured: the share of a round in which a
worker is in no batch; and the same with overlap. One of them evaluates each version, too.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from benchmarks.jobs import cluster, utilisation, watch
from benchmarks.recovery import WORKERS, the_job
from hypha_tui.demo import DATASET_FLAGS
from hypha_tui.local_cluster import LocalCluster, LocalNode, command
from tests.chaos.site import TRAIN, read_rows
from tests.integration.support import job_at, live_leases, small_cluster, submit, tui, until

DEMO = Path("hypha_tui/demo_job")
BATCH = 8
TOKENS = 128
SKIPPED, WATCHED = 1, 3
WITHIN_S = 240.0


def job_of(folder: Path, batches: int) -> Path:
    """The demo's job for one worker, without an end."""
    shutil.copytree(DEMO, folder)
    text = (folder / "job.toml").read_text().replace('validation_dataset = "stdlib-validation"', "")
    text = text.replace("update_rounds = 8", "update_rounds = 1000").replace("num_workers = 2", "num_workers = 1")
    text = text.replace("avg_samples_between_updates = 960", f"avg_samples_between_updates = {batches * BATCH}")
    (folder / "job.toml").write_text(text)
    return folder


@dataclass
class Speed:
    """How fast tokens were trained on."""

    a_second: float
    a_cpu_second: float
    """Of the training process alone: as if nobody else wanted the processor and nothing was waited for."""


def in_cluster(made: LocalCluster, job: Path) -> Speed:
    """Of one worker between two commits. The job is cancelled afterwards, and nothing of it is left."""
    scheduler = made.nodes["scheduler"]
    job_id = submit(scheduler, job)
    state = scheduler.state_dir / "state.db"
    seen: dict[int, tuple[float, float]] = {}
    deadline = time.monotonic() + WITHIN_S
    sql = "SELECT committed_unix, samples FROM rounds WHERE job_id = ? ORDER BY round"
    while len(rows := read_rows(state, sql, (job_id,))) < SKIPPED + WATCHED or len(rows) not in seen:
        if rows and len(rows) not in seen:
            seen[len(rows)] = (float(rows[-1][0]), cpu_s(made.nodes["worker-1"]))
        if time.monotonic() > deadline:
            raise RuntimeError(f"{len(rows)} commits within {WITHIN_S:.0f} s: {job_at(scheduler, job_id)}")
        time.sleep(0.1)
    tui(scheduler, "cancel", job_id)
    until(lambda: not live_leases(scheduler), within_s=20, what="the worker is free again")
    (began, cpu_before), (ended, cpu_after) = seen[SKIPPED], seen[len(rows)]
    tokens = sum(int(samples) for _, samples in rows[SKIPPED:]) * TOKENS
    return Speed(tokens / (ended - began), tokens / (cpu_after - cpu_before))


def cpu_s(worker: LocalNode) -> float:
    """Processor time that the worker's training process has had."""
    for child in psutil.Process(worker.process.pid).children(recursive=True):
        if TRAIN in child.cmdline():
            times = child.cpu_times()
            return float(times.user + times.system)
    raise RuntimeError("nothing trains")


def alone(dataset: Path, batches: int, *flags: str) -> Speed:
    """Of the plain loop, in a process of its own."""
    arguments = [sys.executable, "-m", "benchmarks.overhead", "--alone", str(dataset)]
    arguments += ["--batches", str(batches), *flags]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    done = subprocess.run(arguments, capture_output=True, text=True, check=True, env=environment)
    return Speed(*json.loads(done.stdout))


def plain_loop(dataset: Path, batches: int, *, is_flushed: bool) -> tuple[float, float]:
    """The demo's model, trained by the shortest loop there is."""
    import torch

    torch.set_flush_denormal(is_flushed)
    from safetensors.torch import load_file
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(42)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(DEMO / "model"))
    model.config.use_cache = False
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=8e-3, betas=(0.9, 0.95), weight_decay=0.01)
    began = cpu_began = 0.0
    done = steps = 0
    for path in sorted(dataset.glob("*.safetensors")):
        rows = load_file(path)["input_ids"]
        for start in range(0, len(rows) - BATCH + 1, BATCH):
            batch = rows[start : start + BATCH].to(torch.int64)
            loss = model(input_ids=batch, labels=batch).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            loss.item()
            steps += 1
            if steps == 20:
                began, cpu_began = time.perf_counter(), time.process_time()
            elif steps > 20:
                done += batch.numel()
            if steps == 20 + WATCHED * batches:
                return done / (time.perf_counter() - began), done / (time.process_time() - cpu_began)
    raise RuntimeError("the dataset is too short")


def speed(runs: int, batches: int) -> None:
    """The first part."""
    ours, plain, default = [], [], []
    with tempfile.TemporaryDirectory(prefix="hypha-bench-") as name:
        dataset = Path(name) / "stdlib"
        command("dataset", "build", sysconfig.get_paths()["stdlib"], "--out", str(dataset), *DATASET_FLAGS)
        job = job_of(Path(name) / "job", batches)
        with LocalCluster(Path(name) / "cluster") as made:
            small_cluster(made, workers=1, data=[dataset])
            for _ in range(runs):
                default.append(alone(dataset, batches))
                plain.append(alone(dataset, batches, "--flushed"))
                ours.append(in_cluster(made, job))
                speeds = default[-1], plain[-1], ours[-1]
                told = ", ".join(f"{speed.a_second:,.0f} ({speed.a_cpu_second:,.0f})" for speed in speeds)
                print(f"  tokens/s (of processor time) alone, alone and flushed, in the cluster: {told}", flush=True)
    pairs = list(zip(ours, plain, strict=True))
    kept = statistics.median(mine.a_second / other.a_second for mine, other in pairs)
    kept_cpu = statistics.median(mine.a_cpu_second / other.a_cpu_second for mine, other in pairs)
    print(f"kept: {kept:.1%} of the tokens a second, {kept_cpu:.1%} of those a second of processor time", flush=True)


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.overhead", description=__doc__)
    parser.add_argument("--runs", type=int, default=3, help="0: the second part alone")
    parser.add_argument("--batches", type=int, default=50, help="of a round in the first part")
    parser.add_argument("--alone", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--flushed", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.alone:
        print(json.dumps(plain_loop(chosen.alone, chosen.batches, is_flushed=chosen.flushed)))
        return
    if chosen.runs:
        speed(chosen.runs, chosen.batches)
    for sections in ("", "[sync]\noverlap = true\n"):
        job = replace(the_job(100_000), sections=sections)
        with cluster(WORKERS, is_linked=False) as site:
            window = watch(site, job, skip=3, rounds=6)
            shares = [utilisation(site, window, worker) for worker in site.trainers()]
        text = ", ".join(f"{1 - share:.1%}" for share, _ in shares)
        step_ms = statistics.median(step for _, step in shares) * 1000
        length = f"20 batches of {step_ms:.0f} ms, round {window.seconds / window.rounds:.2f} s"
        print(f"12.9 MB, {'overlap, ' if sections else ''}{length}: in no batch {text}", flush=True)


if __name__ == "__main__":
    main()
