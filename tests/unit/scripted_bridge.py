"""A job bridge and a parameter server as small as they can be, around the real aggregate program, for tests."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import queue
import random
import socketserver
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


class AggregateProgram:
    """The real program in a process of its own."""

    def __init__(self, work_dir: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "node.executors.aggregate", "--work-dir", str(work_dir)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment(),
            cwd=work_dir,
        )
        self._ids = iter(range(1 << 30))

    def ask(self, do: str, **fields: Any) -> dict[str, Any]:
        return self.tell({"id": next(self._ids), "do": do, **fields})

    def tell(self, request: object) -> dict[str, Any]:
        assert self.process.stdin is not None and self.process.stdout is not None
        line = request if isinstance(request, bytes) else json.dumps(request).encode()
        self.process.stdin.write(line + b"\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def close(self) -> int:
        assert self.process.stdin is not None and self.process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        code = self.process.wait(20)
        self.process.stdout.close()
        return code


@dataclass
class Worker:
    """One training task: its bridge, its slices, and how many batches it is to do in each round."""

    folder: Path
    slices: list[Path]
    targets: list[int]
    evaluate: bool = False
    says_once: bool = False
    validation: list[Path] = field(default_factory=list)
    model_files: list[Path] = field(default_factory=list)
    spoil: Callable[[Path], None] | None = None
    fails_in: int | None = None
    wrong_digests: set[int] = field(default_factory=set)
    round: int = 0
    """The version it holds."""
    trained: int = 0
    """The round it trains."""
    exchanging: int = 0
    sent_samples: int = 0
    batches: int = 0
    samples: int = 0
    said: bool = False
    reported: list[tuple[int, int, int]] = field(default_factory=list)
    metrics: list[dict[str, Any]] = field(default_factory=list)
    log: list[str] = field(default_factory=list)
    events: queue.Queue[dict[str, Any]] = field(default_factory=queue.Queue)
    server: Any = None

    def __post_init__(self) -> None:
        (self.folder / "artifacts").mkdir(parents=True)
        (self.folder / "incoming").mkdir()
        self._next = iter(self.slices)

    @property
    def socket(self) -> str:
        return str(self.folder / "s")

    def place(self, source: Path, name: str | None = None) -> dict[str, Any]:
        target = self.folder / "artifacts" / (name or source.name)
        target.unlink(missing_ok=True)
        os.link(source, target)
        return {"path": f"artifacts/{target.name}", "size": target.stat().st_size}


class Group:
    """Workers and their parameter server. The round closes when every update is in."""

    def __init__(
        self,
        folder: Path,
        workers: list[Worker],
        rounds: int,
        outer_lr: float,
        momentum: float,
        seed: int = 0,
        sync: dict[str, Any] | None = None,
    ) -> None:
        self.folder = folder
        self.workers = workers
        self.rounds = rounds
        self.outer = {"learning_rate": outer_lr, "momentum": momentum}
        self.sync = sync or {}
        self.not_counted: set[tuple[int, int]] = set()
        """(round, worker): updates that are left out."""
        self.aggregate = AggregateProgram(folder)
        self.lock = threading.Lock()
        self.updates: list[dict[str, Any]] = []
        self.random = random.Random(seed)
        self.failure: str | None = None

    def deliver(self, worker: Worker, path: Path) -> None:
        with self.lock:
            number = self.workers.index(worker)
            round_number = worker.exchanging
            kept = self.folder / f"update-{round_number}-{number}.safetensors"
            os.link(path, kept)
            checked = self.aggregate.ask("check", path=str(kept), round=round_number, sync=self.sync)
            if not checked["ok"]:
                self.failure = checked["detail"]
            update = {"path": str(kept), "weight": worker.sent_samples, "task_id": f"t{number}"}
            self.updates.append({**update, "norm": checked.get("norm", 0.0)})
            if len(self.updates) == len(self.workers):
                self.random.shuffle(self.updates)
                self._commit(round_number)

    def _commit(self, round_number: int) -> None:
        counted = [
            update for update in self.updates if (round_number, int(update["task_id"][1:])) not in self.not_counted
        ]
        answer = self.aggregate.ask(
            "commit", round=round_number, updates=counted, sync=self.sync, aggregation={}, **self.outer
        )
        assert answer["ok"], answer
        self.updates.clear()
        version = answer["version"]
        name = f"delta-{version}.safetensors"
        content = "step" if self.sync.get("codec", "none") == "none" else "gradient"
        for number, worker in enumerate(self.workers):
            delta = worker.folder / "incoming" / name
            delta.write_bytes((self.folder / name).read_bytes())
            if worker.spoil:
                worker.spoil(delta)
            sha256 = "0" * 64 if version in worker.wrong_digests else answer["weights"]["sha256"]
            event = {"path": f"incoming/{name}", "version": version, "content": content, "sequence": version}
            worker.events.put({**event, "sha256": sha256, "counted": (round_number, number) not in self.not_counted})

    def fetch(self, worker: Worker, reference: dict[str, Any]) -> list[dict[str, Any]]:
        kind = reference["type"]
        worker.log.append(f"fetch {kind}")
        if kind == "job":
            return [worker.place(path) for path in worker.model_files]
        if kind == "weights":
            return [self._place(worker, what) for what in ("weights", "momentum") if what == "weights" or worker.round]
        if kind == "validation":
            return [worker.place(path, f"validation-{path.name}") for path in worker.validation]
        return [worker.place(next(worker._next))]

    def _place(self, worker: Worker, kind: str) -> dict[str, Any]:
        entry = worker.place(self.folder / f"{kind}-{worker.round}.safetensors")
        return {**entry, "metadata": {"source": "peer", "version": str(worker.round), "kind": kind}}

    def status(self, worker: Worker, body: Any) -> dict[str, Any]:
        """As the worker's bridge counts: with overlap the next round begins with `update`."""
        if body == "update":
            worker.log.append("update")
            worker.exchanging, worker.sent_samples = worker.trained, worker.samples
            worker.trained += 1
            worker.batches = worker.samples = 0
            worker.said = False
            return {"type": "Ok", "last": worker.trained == self.rounds}
        if body == "update-received":
            worker.log.append(f"update-received after {worker.batches}")
            worker.round += 1
            kind = "Done" if worker.round == self.rounds else "Continue"
            return {"type": kind, "evaluate": worker.evaluate}
        if "metrics" in body:
            worker.log.append("metrics")
            worker.metrics.append(body["metrics"])
            return {"type": "Ok"}
        if worker.trained == worker.fails_in:
            return {"type": "Error", "detail": "not now"}
        worker.batches += body["status"].get("batches", 1)
        worker.samples += body["status"]["batch_size"]
        worker.reported.append((worker.trained, worker.batches, worker.samples))
        left = worker.targets[worker.trained] - worker.batches
        if worker.says_once and worker.said:
            return {"type": "Continue"}
        worker.said = True
        return {"type": "ScheduleUpdate", "counter": left}

    @contextlib.contextmanager
    def serving(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            stack.callback(self.aggregate.close)
            for worker in self.workers:
                server = _Server(worker.socket, _handler_of(self, worker))
                thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
                thread.start()
                stack.callback(server.server_close)
                stack.callback(thread.join)
                stack.callback(server.shutdown)
                stack.callback(worker.events.put, {"end": True})
            yield


class _Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that was killed is part of the tests."""


def _handler_of(group: Group, worker: Worker) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            """Quiet."""

        def address_string(self) -> str:
            return "executor"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.path == "/resources/receive":
                self.stream()
            elif self.path == "/resources/fetch":
                self.answer(group.fetch(worker, body))
            elif self.path == "/resources/send":
                worker.log.append("send")
                group.deliver(worker, worker.folder / body["path"])
                self.answer({})
            else:
                self.answer(group.status(worker, body))

        def answer(self, value: object) -> None:
            data = json.dumps(value).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def stream(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            self.wfile.write(b": hello\n\n")
            self.close_connection = True
            while not (event := worker.events.get()).get("end"):
                self.wfile.write(b"data: " + json.dumps(event).encode() + b"\n\n")

    return Handler


def job(worker: Worker, task: str, *, batch_size: int, inner: dict[str, Any], **more: Any) -> dict[str, Any]:
    """The job as a process executor gets it."""
    peers = {"type": "peers", "peers": ["server"], "strategy": {"type": "All"}, "resource": None}
    config: dict[str, Any] = {
        "model": {"task": task, "artifact": {"type": "job", "filenames": ["."]}, "input-names": [], "seed": 1},
        "data": {"type": "scheduler", "peer": "scheduler", "dataset": "d"},
        "updates": peers,
        "results": peers,
        "optimizer": inner,
        "batch_size": batch_size,
        "weights": {"type": "weights"},
        "evaluate": worker.evaluate,
        **more,
    }
    if worker.validation:
        config["validation"] = {"type": "validation"}
    return {"job_id": "job-1", "executor": {"class": "train", "name": "diloco-transformer", "config": config}}


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
