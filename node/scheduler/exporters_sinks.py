"""Where metrics are written: CSV, TensorBoard, MLflow, Weights & Biases. They may block, raise and need what they like:
each runs in a process of its own (`exporters_program`), never in the node's.

API keys come from the environment, under the names that MLflow and W&B give them.
"""

from __future__ import annotations

import csv
import importlib
import io
import os
import re
import time
from collections import OrderedDict, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec

FILES_OPEN = 4_000
CSV_OPEN = 64
MLFLOW_BATCH = 1_000
HEAD = ("time_utc", "after_s", "round", "metric", "worker", "peer_id", "value")
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
_UNSAFE_KEY = re.compile(r"[^A-Za-z0-9._ /-]+")


class Value(msgspec.Struct, frozen=True, array_like=True):
    """One value of a job's metric. `worker` names the one it is of, and is empty for a value of the whole job;
    `round` is the step. `ended` is set, instead of all else, where the job is over: done, failed or cancelled."""

    job_id: str
    metric: str = ""
    round: int = 0
    value: float = 0.0
    wall_s: float = 0.0
    after_s: float = 0.0
    worker: str = ""
    peer_id: str = ""
    ended: str = ""


class Sink(Protocol):
    """A place for values. What was written when `write` returns survives the process."""

    def write(self, values: Sequence[Value]) -> None:
        """Write them all; or raise, and then they come again."""
        ...

    def end(self, job_id: str, state: str) -> None:
        """The job is over; it may be resumed some day."""
        ...

    def close(self) -> None:
        """Nothing more comes."""
        ...


class CsvSink:
    """`<folder>/<job>.csv`, appended and synced; a value that the file has already is not written again."""

    def __init__(self, target: str) -> None:
        self._folder = _made(target)
        self._known: OrderedDict[str, set[int]] = OrderedDict()

    def write(self, values: Sequence[Value]) -> None:
        """All values of a job by one write; a part of it is taken back."""
        for job_id, of_job in _by_job(values).items():
            known = self._opened(job_id)
            fresh = {_key(value): value for value in of_job}
            lines = [_line(value) for key, value in fresh.items() if key not in known]
            if lines:
                _append(self._path(job_id), "".join(lines).encode())
                known.update(fresh)

    def end(self, job_id: str, state: str) -> None:
        """Forget what the file has."""
        self._known.pop(job_id, None)

    def close(self) -> None:
        """Every write is on the disk already."""

    def _path(self, job_id: str) -> Path:
        return self._folder / f"{job_id}.csv"

    def _opened(self, job_id: str) -> set[int]:
        """What the file has. A line that a killed process left half written is cut off."""
        known = self._known.get(job_id)
        if known is None:
            path = self._path(job_id)
            content = path.read_bytes() if path.exists() else b""
            whole = content[: content.rfind(b"\n") + 1]
            if len(whole) < len(content):
                os.truncate(path, len(whole))
            if not whole:
                _append(path, (",".join(HEAD) + "\n").encode())
            rows = csv.reader(io.StringIO(whole.decode(errors="replace"), newline=""))
            known = {hash((row[1], row[2], row[3], row[5])) for row in rows if len(row) == len(HEAD)}
            self._known[job_id] = known
            while len(self._known) > CSV_OPEN:
                self._known.popitem(last=False)
        self._known.move_to_end(job_id)
        return known


class TensorBoardSink:
    """`<folder>/<job>`: a run with the values of the whole job; below it one for each worker. The step is the round."""

    def __init__(self, target: str) -> None:
        self._folder = _made(target)
        self._files = importlib.import_module("tensorboardX.event_file_writer")
        self._events = importlib.import_module("tensorboardX.proto.event_pb2")
        self._open: OrderedDict[tuple[str, str], Any] = OrderedDict()
        self._number = 0
        self._limit = max(1, min(FILES_OPEN, _files_allowed() - 50))

    def write(self, values: Sequence[Value]) -> None:
        """Append to the event files; flushed when it returns."""
        written = []
        for value in values:
            file = self._file(value)
            event = self._events.Event(wall_time=value.wall_s, step=value.round)
            event.summary.value.add(tag=value.metric, simple_value=value.value)
            file.write_event(event)
            written.append(file)
        for file in dict.fromkeys(written):
            file.flush()

    def end(self, job_id: str, state: str) -> None:
        """Close the job's files."""
        for key in [key for key in self._open if key[0] == job_id]:
            self._open.pop(key).close()

    def close(self) -> None:
        """Close all files."""
        while self._open:
            self._open.popitem()[1].close()

    def _file(self, value: Value) -> Any:
        key = (value.job_id, _UNSAFE.sub("_", value.worker).lstrip("."))
        if key not in self._open:
            folder = self._folder.joinpath(*(part for part in key if part))
            folder.mkdir(parents=True, exist_ok=True)
            self._number += 1
            suffix = f".{os.getpid()}.{self._number}"
            while len(self._open) >= self._limit:
                self._open.popitem(last=False)[1].close()
            self._open[key] = self._files.EventsWriter(str(folder / "events"), suffix)
        self._open.move_to_end(key)
        return self._open[key]


class MlflowSink:
    """A run for each job in the experiment `hypha`, or the one that MLFLOW_EXPERIMENT_NAME names."""

    def __init__(self, target: str) -> None:
        self._mlflow = importlib.import_module("mlflow")
        self._metric = importlib.import_module("mlflow.entities").Metric
        self._client = self._mlflow.MlflowClient(tracking_uri=target)
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "hypha")
        found = self._client.get_experiment_by_name(name)
        self._experiment = found.experiment_id if found else self._client.create_experiment(name)
        self._runs: dict[str, str] = {}

    def write(self, values: Sequence[Value]) -> None:
        """Log them, at most as many at once as the server takes."""
        for job_id, of_job in _by_job(values).items():
            run = self._run(job_id)
            metrics = [
                self._metric(_UNSAFE_KEY.sub("_", tag_of(value)), value.value, round(value.wall_s * 1e3), value.round)
                for value in of_job
            ]
            for start in range(0, len(metrics), MLFLOW_BATCH):
                self._client.log_batch(run, metrics=metrics[start : start + MLFLOW_BATCH])

    def end(self, job_id: str, state: str) -> None:
        """Mark its run."""
        self._client.set_terminated(
            self._run(job_id), status={"done": "FINISHED", "cancelled": "KILLED"}.get(state, "FAILED")
        )
        del self._runs[job_id]

    def close(self) -> None:
        """Runs stay open: their jobs go on."""

    def _run(self, job_id: str) -> str:
        if job_id not in self._runs:
            query = f"tags.`hypha.job` = '{job_id}'"
            found = self._client.search_runs([self._experiment], query, max_results=1)
            if found:
                self._client.update_run(found[0].info.run_id, status="RUNNING")
            run = (
                found[0]
                if found
                else self._client.create_run(self._experiment, run_name=job_id, tags={"hypha.job": job_id})
            )
            self._runs[job_id] = run.info.run_id
        return self._runs[job_id]


class WandbSink:
    """A run for each job, with the job's id; `round` is its step."""

    def __init__(self, target: str) -> None:
        self._wandb = importlib.import_module("wandb")
        self._project = target
        self._runs: dict[str, Any] = {}

    def write(self, values: Sequence[Value]) -> None:
        """Log the values of one round, as far as they came together, at once."""
        together: dict[tuple[str, int], dict[str, float]] = defaultdict(dict)
        for value in values:
            together[(value.job_id, value.round)][tag_of(value)] = value.value
        for (job_id, round_), content in together.items():
            self._run(job_id).log({"round": round_, **content})

    def end(self, job_id: str, state: str) -> None:
        """Finish its run."""
        self._run(job_id).finish(exit_code=0 if state == "done" else 1)
        del self._runs[job_id]

    def close(self) -> None:
        """Hand over what is left."""
        while self._runs:
            self._runs.popitem()[1].finish()

    def _run(self, job_id: str) -> Any:
        if job_id not in self._runs:
            settings = self._wandb.Settings(silent=True, console="off", disable_git=True, save_code=False)
            run = self._wandb.init(
                project=self._project, id=job_id, name=job_id, resume="allow", reinit="create_new", settings=settings
            )
            run.define_metric("round")
            run.define_metric("*", step_metric="round")
            self._runs[job_id] = run
        return self._runs[job_id]


SINKS: dict[str, type[CsvSink] | type[TensorBoardSink] | type[MlflowSink] | type[WandbSink]] = {
    "csv": CsvSink,
    "tensorboard": TensorBoardSink,
    "mlflow": MlflowSink,
    "wandb": WandbSink,
}


def tag_of(value: Value) -> str:
    """`loss`, or `loss/w1-4Fg2Qa` for one worker's."""
    return f"{value.metric}/{value.worker}" if value.worker else value.metric


def _by_job(values: Sequence[Value]) -> dict[str, list[Value]]:
    jobs: dict[str, list[Value]] = defaultdict(list)
    for value in values:
        jobs[value.job_id].append(value)
    return jobs


def _made(target: str) -> Path:
    folder = Path(target)
    folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(f"{folder} cannot be written")
    return folder


def _key(value: Value) -> int:
    return hash((f"{value.after_s:.3f}", str(value.round), _cell(value.metric), _cell(value.peer_id)))


def _line(value: Value) -> str:
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(value.wall_s))
    cells = (_cell(value.metric), _cell(value.worker), _cell(value.peer_id))
    row = io.StringIO()
    csv.writer(row, lineterminator="\n").writerow(
        [when, f"{value.after_s:.3f}", value.round, *cells, repr(value.value)]
    )
    return row.getvalue()


def _cell(text: str) -> str:
    """Text that no spreadsheet takes for a formula: an executor chooses the names of its metrics."""
    text = "".join(character if character.isprintable() else " " for character in text)
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) else text


def _append(path: Path, data: bytes) -> None:
    """All of it, or nothing."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    try:
        before = os.fstat(handle).st_size
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(handle, view) :]
            os.fsync(handle)
        except OSError:
            os.ftruncate(handle, before)
            raise
    finally:
        os.close(handle)


def _files_allowed() -> int:
    """How many files this process may have open, once it has asked for as many as it can get."""
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES_OPEN + 100 if hard == resource.RLIM_INFINITY else min(hard, FILES_OPEN + 100)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted
