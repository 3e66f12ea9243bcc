"""An executor without torch: speaks to its bridge exactly as upstream's does (`wire`), or as documented (`documented`).

Modes: `wire`, `documented`, `join` (asks for the weights), `crash`, `hang` (ignores TERM and leaves a child), `escape`,
`sleep`, `nan`.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import tiny_tensors


class Connection(http.client.HTTPConnection):
    """HTTP over the bridge's socket."""

    def __init__(self, path: str) -> None:
        super().__init__("hypha", timeout=30)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(30)
        self.sock.connect(self._path)


class Session:
    """The requests of upstream's `Session`."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._connection = Connection(path)

    def post(self, path: str, body: Any) -> tuple[int, Any]:
        """Status and JSON of an answer, over one kept connection."""
        self._connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        response = self._connection.getresponse()
        return response.status, json.loads(response.read())

    def good(self, path: str, body: Any) -> Any:
        """The answer to a request that must succeed."""
        status, answer = self.post(path, body)
        if status != 200:
            raise SystemExit(f"{path}: {status} {answer}")
        return answer

    def events(self, body: Any) -> Iterator[dict[str, Any]]:
        """Events of a receive stream."""
        connection = Connection(self._path)
        connection.request("POST", "/resources/receive", json.dumps(body), {"Accept": "text/event-stream"})
        response = connection.getresponse()
        assert response.status == 200, response.read()
        while line := response.readline():
            field, _, value = line.decode().rstrip("\n").partition(":")
            if field == "data":
                yield json.loads(value)


def train(session: Session, work_dir: Path, config: dict[str, Any], delta: float, mode: str) -> None:
    """Rounds until the bridge says Done."""
    peers = config["results"]["peers"]
    documented, join = mode == "documented", mode == "join"
    if documented:
        fetch: Any = {"fetch": {"type": "Scheduler", "dataset": config["data"]["dataset"]}, "out_dir": "artifacts"}
        receive: Any = {"receive": {"type": "Peers", "peers": [], "strategy": "All"}, "out_dir": "incoming"}
    else:
        fetch = config["data"]
        receive = {"resource": config["results"], "path": "incoming"}
    receiver, epoch, await_update = session.events(receive), 1, False
    first = session.good("/resources/fetch", config["model"]["artifact"])
    print("fetched", [entry["path"] for entry in first], flush=True)
    if join:
        (entry,) = session.good("/resources/fetch", config["weights"])
        print("weights", entry["metadata"]["version"], tiny_tensors.read(work_dir / entry["path"]), flush=True)
    while True:
        if await_update:
            pointer = next(receiver)
            step = tiny_tensors.read(work_dir / pointer["path"])
            print(pointer["content"], pointer["version"], step, flush=True)
            answer = session.good("/status/send", "update-received")
            if answer["type"] == "Done":
                return
        counter = -1
        (entry,) = session.good("/resources/fetch", fetch)
        assert (work_dir / entry["path"]).stat().st_size == entry["size"]
        while counter != 0:
            time.sleep(0.01)
            answer = session.good("/status/send", {"status": {"batch_size": 4, "round_time": -12}})
            counter = answer["counter"] if answer["type"] == "ScheduleUpdate" else counter - 1
        session.good("/status/send", "update")
        name = f"{epoch}_local_gradients.pt"
        tiny_tensors.write(work_dir / name, [delta] * 4)
        if documented:
            session.good(
                "/resources/send", {"send": {"type": "Peers", "peers": peers, "strategy": "One"}, "path": name}
            )
        else:
            session.good("/resources/send", {"resource": config["updates"], "path": name})
        session.good("/status/send", {"metrics": {"round": epoch, "metrics": {"loss": 2.5}}})
        epoch, await_update = epoch + 1, True


def escape(session: Session, work_dir: Path) -> None:
    """Try to leave the work directory, and print what the bridge says."""
    (work_dir / "link").symlink_to("/etc")
    (work_dir / "out").symlink_to(work_dir.parent)
    send = {"type": "peers", "peers": [], "strategy": {"type": "All"}, "resource": None}
    tries = [("/resources/send", {"resource": send, "path": path}) for path in ("/etc/hosts", "../x", "link/hosts")]
    tries += [
        ("/resources/receive", {"receive": {"type": "Peers", "peers": []}, "out_dir": "out/x"}),
        ("/resources/fetch", {"fetch": {"type": "Uri", "value": "http://example.org/x"}, "out_dir": "../up"}),
        ("/resources/fetch", {"type": "uri", "value": "file:///etc/hosts"}),
        ("/resources/fetch", {"type": "uri", "value": "http://127.0.0.1:1/x"}),
        ("/resources/fetch", {"type": "huggingface", "repository": "", "filenames": ["x"]}),
        ("/resources/fetch", {"type": "huggingface", "repository": "a/b", "filenames": []}),
        ("/resources/fetch", {"type": "huggingface", "repository": "a/b", "filenames": ["../x"]}),
        ("/resources/fetch", {"type": "nonsense"}),
        ("/resources/fetch", [1]),
    ]
    for path, body in tries:
        status, answer = session.post(path, body)
        print("answer", status, answer["error"], bool(answer["detail"]), flush=True)


def main() -> int:
    """Run one mode."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--mode", default="wire")
    parser.add_argument("--delta", type=float, default=1.0)
    parser.add_argument("--socket", required=True)
    parser.add_argument("--work-dir", required=True, type=Path)
    parser.add_argument("--job", required=True)
    args = parser.parse_args()
    config = json.loads(args.job)["executor"]["config"]
    print("environment", sorted(os.environ), flush=True)
    if args.mode == "crash":
        print("about to crash", flush=True)
        raise RuntimeError("boom")
    if args.mode in ("hang", "sleep"):
        if args.mode == "hang":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        child = subprocess.Popen(["sleep", "600"])
        print("pids", os.getpid(), child.pid, flush=True)
        time.sleep(600)
    session = Session(args.socket)
    if args.mode == "escape":
        escape(session, args.work_dir)
        return 0
    delta = float("nan") if args.mode == "nan" else args.delta
    train(session, args.work_dir, config, delta, args.mode)
    print("Training finished", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
