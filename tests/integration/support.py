"""Real clusters for the tests: tiny model, tiny dataset, every node a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from hypha_tui.local_cluster import LocalCluster, LocalNode, command

T = TypeVar("T")

WORKER = """
work_dir = "{work}"
[resources]
cpu = {cpu}
memory = 8
storage = 10
gpu = 0
"""

JOB = """
name = "{name}"
dataset = "{dataset}"
{validation}
[model]
type = "causal-lm"
path = "model"
seed = 7
[rounds]
update_rounds = {rounds}
avg_samples_between_updates = {samples}
max_batch_size = 4
[inner_optimizer]
learning_rate = 1e-2
[outer_optimizer]
learning_rate = {outer}
momentum = {momentum}
[resources]
num_workers = {workers}
min_workers = 1
worker = {{ cpu = 1, memory = 1, gpu = {gpu} }}
parameter_server = {{ cpu = 0.5, memory = 1 }}
worker_price = {{ bid = 1.0, max = 2.0 }}
parameter_server_price = {{ bid = 1.0, max = 2.0 }}
"""

MODEL = {
    "architectures": ["GPT2LMHeadModel"],
    "model_type": "gpt2",
    "vocab_size": 256,
    "n_positions": 32,
    "n_embd": 16,
    "n_layer": 1,
    "n_head": 2,
    "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
    "resid_pdrop": 0.0,
}


def job_folder(folder: Path, **settings: Any) -> Path:
    """A job's folder with a tiny GPT-2; `settings` change the defaults below."""
    values = {"name": "tiny", "dataset": "tiny", "validation": "", "rounds": 3, "samples": 64, "outer": 0.7}
    values |= {"momentum": 0.9, "workers": 2, "gpu": 0} | settings
    (folder / "model").mkdir(parents=True)
    (folder / "model" / "config.json").write_text(json.dumps(MODEL))
    (folder / "job.toml").write_text(JOB.format(**values))
    return folder


def dataset(folder: Path, *, name: str = "tiny", rows: int = 256, rows_per_slice: int = 32) -> Path:
    """A dataset of text as bytes, 32 tokens a row; built by the command a user would use."""
    source = folder / f"{name}-source"
    source.mkdir(parents=True)
    words = "the quick brown fox jumps over a lazy dog and runs away "
    (source / "text.txt").write_text((words * (rows * 32 // len(words) + 1))[: rows * 32])
    out = folder / name
    arguments = ["--format", "text", "--sequence-length", "32", "--rows-per-slice", str(rows_per_slice)]
    command("dataset", "build", str(source), "--out", str(out), *arguments)
    return out


def small_cluster(
    cluster: LocalCluster, *, workers: int = 2, data: Sequence[Path | str] = (), cpu: float = 2, more: str = ""
) -> list[LocalNode]:
    """Gateway, scheduler, data node and workers, all up; the workers are returned."""
    names = [f"worker-{number}" for number in range(1, workers + 1)]
    cluster.make_authority(["gateway", "scheduler", "data", *names])
    gateway = cluster.start("gateway", "gateway")
    paths = ", ".join(f'"{path}"' for path in data)
    started = [cluster.launch("scheduler", "scheduler", gateways=[gateway.address])]
    started.append(cluster.launch("data", "data", config=f"dataset_path = [{paths}]", gateways=[gateway.address]))
    hosts = [launch_worker(cluster, name, cpu=cpu, more=more) for name in names]
    cluster.wait_ready(*started, *hosts)
    return hosts


def launch_worker(cluster: LocalCluster, name: str, *, cpu: float = 2, more: str = "") -> LocalNode:
    """A worker that joins through the cluster's gateway."""
    config = more + WORKER.format(work=cluster.folder / name / "work", cpu=cpu)
    return cluster.launch(name, "worker", config=config, gateways=[cluster.nodes["gateway"].address])


def tui(node: LocalNode, *arguments: str, check: bool = True) -> Any:
    """The JSON that a `hypha-tui` command prints: asked over the node's local socket, commands as the operator."""
    where = ["--node", f"unix:{node.socket}"]
    if arguments[0] in ("submit", "cancel"):
        base = node.folder.parent / "certificates" / "operator"
        where = ["--node", node.address]
        where += [word for part in ("cert", "key", "trust") for word in (f"--{part}", f"{base}-{part}.pem")]
    done = run_tui(*arguments, *where, "--json")
    if check:
        assert done.returncode == 0, done.stderr
    return json.loads(done.stdout) if done.stdout.strip() else None


def run_tui(*arguments: str) -> subprocess.CompletedProcess[str]:
    """`hypha-tui` as a script runs it."""
    return subprocess.run(
        [sys.executable, "-m", "hypha_tui.cli", *arguments], capture_output=True, text=True, check=False, timeout=120
    )


def run_node(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """`hypha-node` until it ends by itself."""
    return subprocess.run(
        [sys.executable, "-m", "node.cli", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, **(env or {})},
    )


def until(look: Callable[[], T | None], *, within_s: float, what: str) -> T:
    """Look again and again until there is something to see; fails with what was awaited."""
    deadline = time.monotonic() + within_s
    while True:
        seen = look()
        if seen:
            return seen
        assert time.monotonic() < deadline, f"{what}: not within {within_s} s"
        time.sleep(0.1)


def submit(node: LocalNode, folder: Path, *more: str) -> str:
    """Submit a job at this node as the operator; its id, once the node shows the job."""
    job_id = str(tui(node, "submit", str(folder), *more)["job_id"])
    until(lambda: job_at(node, job_id), within_s=10, what="the job is shown")
    return job_id


def live_leases(node: LocalNode) -> list[dict[str, Any]]:
    """Leases that hold something; those that have ended stay on screens for a moment."""
    return [lease for lease in tui(node, "leases") if lease["state"] in ("offered", "held")]


def job_at(node: LocalNode, job_id: str) -> dict[str, Any]:
    """The job as this node shows it; empty while it does not know it."""
    found = [job for job in tui(node, "jobs") if job["id"] == job_id]
    return found[0] if found else {}


def processes_naming(text: str) -> list[int]:
    """Pids of processes whose command line holds `text`."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if text in line:
                found.append(int(entry.name))
    return found
