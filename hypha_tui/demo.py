"""`hypha-tui demo`: a whole cluster on this machine trains a small language model on Python's own source.

Every part is the real one: an authority, a gateway, a data node, a scheduler and workers, each a `hypha-node` process
with mutual TLS on a port of its own. Only the trained model stays when it ends.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import sys
import sysconfig
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from hypha_tui.client.api import ApiClient, Client, connected
from hypha_tui.client.endpoint import Connection, Endpoint, resolve
from hypha_tui.client.jobfields import JobFields, with_fields
from hypha_tui.client.jobfile import pack, read_job
from hypha_tui.client.recording import RecordingClient
from hypha_tui.local_cluster import LocalCluster, command
from node.errors import ConfigError, HyphaError, JobError, PeerUnreachable
from node.views import Delta, JobView, Point

JOB = Path(__file__).with_name("demo_job")
DATASET_FLAGS = ["--format", "text", "--glob", "*.py", "--sequence-length", "128", "--rows-per-slice", "256"]
DATASET_FLAGS += ["--max-bytes", "3000000", "--validation-fraction", "0.01", "--seed", "1"]
JOB_WITHIN_S = 600.0
WORKER = """
work_dir = "{work}"
[resources]
cpu = 2
memory = 4
storage = 10
gpu = 0
[offer]
price = {price}
floor = 0.5
"""

ENDINGS = (signal.SIGTERM, signal.SIGHUP)

Tell = Callable[[str], None]


def run(
    *,
    headless: bool = False,
    as_json: bool = False,
    workers: int = 2,
    rounds: int = 0,
    out: Path | None = None,
    record: Path | None = None,
) -> int:
    """Run the demo; the exit code. `rounds` 0 takes what the job file says. `out`: where the model goes.

    `record`: a new file for all that the cluster tells.
    """
    _need_torch()
    if record is not None and record.exists():
        raise ConfigError(f"{record} is there already", hint="name a file that does not exist")
    headless = headless or as_json or not (sys.stdin.isatty() and sys.stdout.isatty())
    tell: Tell = (lambda text: None) if as_json else (lambda text: print(text, flush=True))  # noqa: T201 - the output
    folder = Path(tempfile.mkdtemp(prefix="hypha-demo-"))
    began = time.monotonic()
    cluster = LocalCluster(folder)
    with _terminated_as_interrupted():
        try:
            start(cluster, workers, tell)
            if headless:
                summary = asyncio.run(_follow(cluster, workers, rounds, out or Path(".demo"), tell, record))
                tell("stopping the cluster")
            else:
                summary = _open_terminal(cluster, workers, rounds, out or Path(".demo"), record)
        finally:
            _end_undisturbed()
            codes = cluster.stop()
            cluster.remove()
    late = [name for name, code in codes.items() if code != 0]
    if late:
        raise HyphaError(f"did not end cleanly: {', '.join(late)}")
    if summary:
        summary["seconds"] = round(time.monotonic() - began, 1)
        _print_summary(summary, as_json)
    return 0


def start(cluster: LocalCluster, workers: int, tell: Tell) -> None:
    """Make the authority and the dataset, and start every node."""
    names = [f"worker-{number}" for number in range(1, workers + 1)]
    tell(f"making an authority and {len(names) + 3} certificates")
    cluster.make_authority(["gateway", "scheduler", "data", *names])
    tell("building the dataset from Python's standard library")
    dataset = cluster.folder / "datasets" / "stdlib"
    source = sysconfig.get_paths()["stdlib"]
    command("dataset", "build", source, "--out", str(dataset), *DATASET_FLAGS)
    tell(f"starting a gateway, a scheduler, a data node and {workers} workers")
    gateway = cluster.start("gateway", "gateway").address
    data = f'dataset_path = ["{dataset}", "{dataset}-validation"]'
    nodes = [
        cluster.launch("scheduler", "scheduler", gateways=[gateway]),
        cluster.launch("data", "data", config=data, gateways=[gateway]),
    ]
    for number, name in enumerate(names):
        config = WORKER.format(work=cluster.folder / name / "work", price=0.8 + 0.1 * number)
        nodes.append(cluster.launch(name, "worker", config=config, gateways=[gateway]))
    cluster.wait_ready(*nodes)


async def submit(client: Client, workers: int, rounds: int) -> str:
    """Submit the demo's job; its id. `rounds` 0: as its file says."""
    draft = read_job(JOB)
    changed = with_fields(draft.text, JobFields(workers=workers, rounds=rounds or None))
    body = pack(type(draft)(changed, draft.folder))
    async with asyncio.timeout(20):
        while True:
            try:
                return (await client.submit(body)).job_id
            except PeerUnreachable:  # the gateway has not met the scheduler yet
                await asyncio.sleep(0.2)


async def _follow(
    cluster: LocalCluster, workers: int, rounds: int, out: Path, tell: Tell, record: Path | None
) -> dict[str, Any]:
    """Submit the job at the gateway, tell each round, and fetch what is left of it when it is done."""
    async with _watching(cluster, record) as client:
        job_id = await submit(client, workers, rounds)
        tell(f"job {job_id} accepted")
        told = _Rounds(tell)
        async with asyncio.timeout(JOB_WITHIN_S):
            job = await _ended(client, job_id, told)
        if job.state != "done":
            raise JobError(f"the job {job.state}: {job.reason}", hint=_last_words(job))
    return _keep(job, workers, out)


def _keep(job: JobView, workers: int, out: Path) -> dict[str, Any]:
    """Copy the model of a job that is done out of the cluster's folder; the summary."""
    job_id = job.id
    model_dir = (out / job_id).resolve()
    shutil.copytree(job.model_dir, model_dir, dirs_exist_ok=True)
    return {
        "job_id": job_id,
        "rounds": job.round,
        "workers": workers,
        "samples": job.samples,
        "first_eval_loss": job.first_eval_loss,
        "last_eval_loss": job.eval_loss,
        "bytes_sent": job.bytes_up + job.bytes_down,
        "model_dir": str(model_dir),
    }


@asynccontextmanager
async def _watching(cluster: LocalCluster, record: Path | None) -> AsyncIterator[Client]:
    """A client at the gateway, which records where that is asked for."""
    async with connected(endpoint(cluster)) as client:
        if record is None:
            yield client
            return
        recording = RecordingClient(client, record)
        try:
            yield recording
        finally:
            await recording.stop()


async def _ended(client: Client, job_id: str, told: _Rounds) -> JobView:
    while True:
        try:
            async for frame in client.frames():
                for point in frame.points if isinstance(frame, Delta) else []:
                    if point.job_id == job_id:
                        told.measured(point)
                for item in frame.items:
                    if isinstance(item, JobView) and item.id == job_id:
                        told.see(item)
                        if item.state in ("done", "failed", "cancelled"):
                            return item
        except PeerUnreachable:
            await asyncio.sleep(0.2)


class _Rounds:
    """Prints each state once, and each round when its version's validation loss is known."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._state = ""
        self._loss: dict[int, float] = {}
        self._sent = 0
        self._samples = 0

    def measured(self, point: Point) -> None:
        if point.name == "loss" and not point.worker:
            self._loss[point.round] = point.value
        if point.name == "eval_loss":
            loss = self._loss.get(point.round - 1)
            trained = f"  training loss {loss:.3f}" if loss is not None else ""
            sent = f"{self._samples} samples, {self._sent / 1e6:.1f} MB sent"
            self._tell(f"version {point.round}  validation loss {point.value:.3f}{trained}  ({sent})")

    def see(self, job: JobView) -> None:
        self._samples, self._sent = job.samples, job.bytes_up + job.bytes_down
        state = job.reason or job.state
        if state != self._state:
            self._state = state
            self._tell(state)


def _open_terminal(cluster: LocalCluster, workers: int, rounds: int, out: Path, record: Path | None) -> dict[str, Any]:
    """The terminal on the cluster, until the user leaves it; the summary, if the job is done by then."""
    from hypha_tui.screens.app import HyphaApp  # Textual costs start-up time

    async def run_job() -> str:
        async with connected(endpoint(cluster)) as client:
            return await submit(client, workers, rounds)

    async def look(job_id: str) -> JobView:
        async with connected(endpoint(cluster)) as client:
            return await client.job(job_id)

    job_id = asyncio.run(run_job())
    client = ApiClient(endpoint(cluster))
    app = HyphaApp(client if record is None else RecordingClient(client, record), label=str(endpoint(cluster)))
    app.run()
    _end_undisturbed()
    if app.crash:
        raise HyphaError(app.crash)
    job = asyncio.run(look(job_id))
    return _keep(job, workers, out) if job.state == "done" else {}


def endpoint(cluster: LocalCluster) -> Endpoint:
    """The cluster's gateway, as the operator."""
    base = cluster.certificates / "operator"
    paths = [Path(f"{base}-{part}.pem") for part in ("cert", "key", "trust")]
    return resolve(Connection(cluster.nodes["gateway"].address, *paths), {})


def _last_words(job: JobView) -> str:
    lines = [line for task in job.tasks if task.state == "failed" for line in task.tail[-3:]]
    return " | ".join(lines)


def _print_summary(summary: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(summary))  # noqa: T201 - the output
        return
    first, last = summary["first_eval_loss"], summary["last_eval_loss"]
    fell = f" ({100 * (1 - last / first):.0f} % lower)" if first and last else ""
    print(  # noqa: T201 - the output
        f"\n{summary['rounds']} rounds by {summary['workers']} workers, {summary['samples']} samples,"
        f" {summary['seconds']} s, {summary['bytes_sent'] / 1e6:.1f} MB of updates sent\n"
        f"validation loss {first:.3f} -> {last:.3f}{fell}\nmodel: {summary['model_dir']}"
    )


def _need_torch() -> None:
    from importlib.util import find_spec

    missing = [name for name in ("torch", "transformers", "accelerate") if find_spec(name) is None]
    if missing:
        raise HyphaError(f"the demo trains: {', '.join(missing)} missing", hint="pip install 'hypha-tui[train]'")


@contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """SIGTERM and SIGHUP take the way of Ctrl-C, so that the cluster ends with us."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in ENDINGS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end_undisturbed() -> None:
    """What is left to do is short: one more signal, or the limit on a terminal's end, must not leave the cluster's
    folder behind."""
    signal.alarm(0)
    for number in ENDINGS:
        signal.signal(number, signal.SIG_IGN)
