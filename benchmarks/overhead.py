"""What the cluster costs a worker.

    python -m benchmarks.overhead [--runs 3]

First: tokens a second of one worker (the demo's Llama, 8 rows of 128 bytes in a batch, one thread, about 50 batches a
round, the exchange included), between two commits of a real cluster; beside it a plain loop of the same model,
optimizer and batches in a process alone, in turns.

Second: four workers, a model of 12.9 MB, 20 batches a round, as torchft was measured: the share of a round in which a
worker is in no batch.
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
from pathlib import Path

from benchmarks.jobs import cluster, utilisation, watch
from benchmarks.recovery import WORKERS, the_job
from hypha_tui.demo import DATASET_FLAGS
from hypha_tui.local_cluster import LocalCluster, command
from tests.chaos.site import read_rows
from tests.integration.support import job_at, small_cluster, submit, until

DEMO = Path("hypha_tui/demo_job")
BATCH = 8
TOKENS = 128
STEPS = 50
WATCHED = 3


def in_cluster(folder: Path, dataset: Path) -> float:
    """Tokens a second of one worker in a cluster."""
    job = folder / "job"
    shutil.copytree(DEMO, job)
    text = (job / "job.toml").read_text().replace('validation_dataset = "stdlib-validation"', "")
    text = text.replace("update_rounds = 8", "update_rounds = 1000").replace("num_workers = 2", "num_workers = 1")
    text = text.replace("avg_samples_between_updates = 960", f"avg_samples_between_updates = {STEPS * BATCH}")
    (job / "job.toml").write_text(text)
    with LocalCluster(folder / "cluster") as made:
        small_cluster(made, workers=1, data=[dataset])
        scheduler = made.nodes["scheduler"]
        job_id = submit(scheduler, job)

        def reached() -> bool:
            found = job_at(scheduler, job_id)
            if found.get("state") in ("failed", "cancelled"):
                raise RuntimeError(found["reason"])
            time.sleep(2.0)  # looking costs the worker its time
            return int(found.get("round", 0)) >= 2 + WATCHED

        until(reached, within_s=240, what=f"round {2 + WATCHED}")
        rows = read_rows(
            scheduler.state_dir / "state.db",
            "SELECT committed_unix, samples FROM rounds WHERE job_id = ? ORDER BY round",
            (job_id,),
        )
    seconds = rows[1 + WATCHED][0] - rows[1][0]
    return float(sum(row[1] for row in rows[2 : 2 + WATCHED]) * TOKENS / seconds)


def alone(dataset: Path) -> float:
    """Tokens a second of the plain loop, in a process of its own."""
    arguments = [sys.executable, "-m", "benchmarks.overhead", "--alone", str(dataset)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    done = subprocess.run(arguments, capture_output=True, text=True, check=True, env=environment)
    return float(json.loads(done.stdout))


def plain_loop(dataset: Path) -> float:
    """The demo's model, trained by the shortest loop there is."""
    import torch
    from safetensors.torch import load_file
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(42)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(DEMO / "model"))
    model.config.use_cache = False
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=8e-3, betas=(0.9, 0.95), weight_decay=0.01)
    began, done = 0.0, 0
    steps = 0
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
                began = time.perf_counter()
            elif steps > 20:
                done += batch.numel()
            if steps == 20 + WATCHED * STEPS:
                return done / (time.perf_counter() - began)
    raise RuntimeError("the dataset is too short")


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.overhead", description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--alone", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.alone:
        print(json.dumps(plain_loop(chosen.alone)))
        return
    ours, plain = [], []
    with tempfile.TemporaryDirectory(prefix="hypha-bench-") as name:
        dataset = Path(name) / "stdlib"
        command("dataset", "build", sysconfig.get_paths()["stdlib"], "--out", str(dataset), *DATASET_FLAGS)
        for run in range(chosen.runs):
            plain.append(alone(dataset))
            ours.append(in_cluster(Path(name) / f"run-{run}", dataset))
            print(f"  alone {plain[-1]:,.0f} tokens/s, in the cluster {ours[-1]:,.0f}", flush=True)
    ratio = statistics.median(mine / other for mine, other in zip(ours, plain, strict=True))
    print(f"one worker: alone {statistics.median(plain):,.0f} tokens/s, in the cluster {statistics.median(ours):,.0f}")
    print(f"kept: {ratio:.1%} (median of {chosen.runs} pairs)")
    with cluster(WORKERS) as site:
        window = watch(site, the_job(100_000), skip=3, rounds=6)
        shares = [utilisation(site, window, worker) for worker in site.trainers()]
    text = ", ".join(f"{1 - share:.1%}" for share, _ in shares)
    step_ms = statistics.median(step for _, step in shares) * 1000
    print(f"12.9 MB, 20 batches of {step_ms:.0f} ms, round {window.seconds / window.rounds:.2f} s: in no batch {text}")


if __name__ == "__main__":
    main()
