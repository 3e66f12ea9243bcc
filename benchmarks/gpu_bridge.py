"""The smallest bridge that a whole job runs against: one worker, a slice that is given again and again, and the real
aggregate program as its parameter server. Ends when its standard input does."""

from __future__ import annotations

import argparse
import json
import os
import queue
import shutil
import socketserver
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

from benchmarks.gpu import OUTER, ROUNDS


class Group:
    """The job's state."""

    def __init__(self, folder: Path, batches: int, done_after: int) -> None:
        self.folder, self.batches, self.done_after = folder, batches, done_after
        self.round = self.done = self.samples = 0
        self.codec = "none"
        self.events: queue.Queue[dict[str, Any]] = queue.Queue()
        (folder / "incoming").mkdir()
        shutil.copy(folder.parent / "slice.safetensors", folder)
        self.program: subprocess.Popen[bytes] | None = None
        if not done_after:
            self.server = folder / "server"
            self.server.mkdir()
            command = [sys.executable, "-m", "node.executors.aggregate", "--work-dir", str(self.server)]
            self.program = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            model = {"task": "torch", "seed": 1}
            self.ask(do="prepare", artifacts=str(folder.parent / "model"), model=model, out=str(self.server))

    def ask(self, **request: Any) -> dict[str, Any]:
        """An answer of the aggregate program."""
        assert self.program is not None and self.program.stdin is not None and self.program.stdout is not None
        self.program.stdin.write(json.dumps({"id": 1, **request}).encode() + b"\n")
        self.program.stdin.flush()
        answer: dict[str, Any] = json.loads(self.program.stdout.readline())
        if not answer.get("ok"):
            print(f"aggregate: {answer}", file=sys.stderr, flush=True)
            os._exit(1)
        return answer

    def answer(self, path: str, body: Any) -> Any:
        """What a request gets."""
        if path == "/resources/fetch":
            return self.fetch(body)
        if path == "/resources/send":
            self.commit(self.folder / body["path"])
            return {}
        return self.status(body)

    def fetch(self, reference: dict[str, Any]) -> list[dict[str, Any]]:
        """The slice, or the weights of version 0."""
        if reference["type"] != "weights":
            return [{"path": "slice.safetensors", "size": 1}]
        os.link(self.server / "weights-0.safetensors", self.folder / "incoming" / "weights-0.safetensors")
        return [{"path": "incoming/weights-0.safetensors", "metadata": {"version": "0", "kind": "weights"}}]

    def status(self, body: Any) -> dict[str, Any]:
        """Progress; the round ends after `batches`, or the job after `done_after`."""
        if body == "update":
            return {"type": "Ok", "last": self.round + 1 == ROUNDS}
        if body == "update-received":
            self.round, self.done, self.samples = self.round + 1, 0, 0
            return {"type": "Done" if self.round == ROUNDS else "Continue"}
        if "metrics" in body:
            with (self.folder / "metrics").open("a") as file:
                file.write(json.dumps(body["metrics"]["metrics"]) + "\n")
            return {"type": "Ok"}
        self.done += body["status"].get("batches", 1)
        self.samples += body["status"]["batch_size"]
        if self.done_after and self.done >= self.done_after:
            return {"type": "Done"}
        return {"type": "ScheduleUpdate", "counter": (self.done_after or self.batches) - self.done}

    def commit(self, update: Path) -> None:
        """The round closes with this update."""
        sync = {"codec": self.codec}
        kept = self.server / f"update-{self.round}.safetensors"
        shutil.copy(update, kept)
        norm = self.ask(do="check", path=str(kept), round=self.round, sync=sync)["norm"]
        one = {"path": str(kept), "weight": self.samples, "task_id": "worker", "norm": norm}
        made = self.ask(do="commit", round=self.round, updates=[one], sync=sync, aggregation={}, **OUTER)
        version = made["version"]
        name = f"delta-{version}.safetensors"
        shutil.copy(self.server / name, self.folder / "incoming" / name)
        content = "step" if self.codec == "none" else "gradient"
        digest = made["weights"]["sha256"]
        self.events.put(
            {"path": f"incoming/{name}", "version": version, "content": content, "counted": True, "sha256": digest}
        )


def handler_of(group: Group) -> type[BaseHTTPRequestHandler]:
    """HTTP for it."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            """Quiet."""

        def address_string(self) -> str:
            return "executor"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            if self.path == "/resources/receive":
                self.close_connection = True
                self.end_headers()
                while event := group.events.get():
                    self.wfile.write(b"data: " + json.dumps(event).encode() + b"\n\n")
                return
            data = json.dumps(group.answer(self.path, body)).encode()
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    return Handler


class Server(socketserver.ThreadingUnixStreamServer):
    """One thread a connection; none of them keeps the process."""

    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """The executor has gone."""


def main() -> int:
    """The program."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--batches", type=int, default=1)
    parser.add_argument("--done-after", type=int, default=0)
    parser.add_argument("--codec", default="none")
    options = parser.parse_args()
    group = Group(options.folder, options.batches, options.done_after)
    group.codec = options.codec
    server = Server(str(options.folder / "s.part"), handler_of(group))
    (options.folder / "s.part").rename(options.folder / "s")
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdin.buffer.read()
    if group.program is not None and group.program.stdin is not None:
        group.program.stdin.close()
        group.program.wait(20)
    return 0


if __name__ == "__main__":
    sys.exit(main())
