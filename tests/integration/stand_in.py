"""An executor in the place of upstream's: speaks the wire dialect of contracts/job-bridge.md and knows nothing of ours.

Standard library alone. "Training" adds `--delta` to every weight in each round. It looks at the keys that upstream's
executor reads and no other: of a fetched file `path` and `size`, of an event `path`, of an answer `type` and `counter`.
"""

from __future__ import annotations

import argparse
import array
import http.client
import json
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BATCHES_IN_SLICE = 4


class Connection(http.client.HTTPConnection):
    """HTTP over the bridge's socket."""

    def __init__(self, path: str) -> None:
        super().__init__("hypha", timeout=60)
        self._path = path

    def connect(self) -> None:
        """Connect."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(60)
        self.sock.connect(self._path)

    def post(self, path: str, body: Any) -> http.client.HTTPResponse:
        """The response to a JSON body; any but 200 ends the program."""
        self.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        response = self.getresponse()
        if response.status != 200:
            raise SystemExit(f"{path}: {response.status} {response.read()!r}")
        return response

    def ask(self, path: str, body: Any) -> Any:
        """The JSON of an answer."""
        return json.loads(self.post(path, body).read())


def tensors(path: Path) -> tuple[bytes, array.array[float]]:
    """The header of a float32 safetensors file, with its length, and all values."""
    raw = path.read_bytes()
    start = 8 + int.from_bytes(raw[:8], "little")
    return raw[:start], array.array("f", raw[start:])


def events(stream: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    """What comes out of a receive stream; comments are passed over."""
    while line := stream.readline():
        if line.startswith(b"data:"):
            yield json.loads(line[5:])


def main() -> int:
    """Rounds until the bridge says Done."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--socket", required=True)
    parser.add_argument("--work-dir", required=True, type=Path)
    parser.add_argument("--job", required=True)
    parser.add_argument("--delta", type=float, required=True)
    options = parser.parse_args()
    work_dir: Path = options.work_dir
    description = json.loads(options.job)
    assert description["executor"]["class"] == "train" and description["job_id"]
    config = description["executor"]["config"]
    bridge = Connection(options.socket)

    for entry in bridge.ask("/resources/fetch", config["model"]["artifact"]):
        assert (work_dir / entry["path"]).stat().st_size == entry["size"]
    header, weights = tensors(work_dir / "artifacts" / "model.safetensors")
    receive = {"resource": config["results"], "path": "incoming"}
    received = events(Connection(options.socket).post("/resources/receive", receive))
    left = 0
    epoch = 1
    while True:
        counter = -1
        while counter != 0:
            if left == 0:
                (entry,) = bridge.ask("/resources/fetch", config["data"])
                assert (work_dir / entry["path"]).stat().st_size == entry["size"]
                left = BATCHES_IN_SLICE
            time.sleep(0.02)
            left -= 1
            status = {"batch_size": config["batch_size"], "round_time": -12}
            answer = bridge.ask("/status/send", {"status": status})
            counter = answer["counter"] if answer["type"] == "ScheduleUpdate" else counter - 1
        assert bridge.ask("/status/send", "update")["type"] == "Ok"
        name = f"{epoch}_local_gradients.pt"
        change = array.array("f", [options.delta]) * len(weights)
        (work_dir / name).write_bytes(header + change.tobytes())
        bridge.post("/resources/send", {"resource": config["updates"], "path": name}).read()
        metrics = {"round": epoch, "metrics": {"loss": 1.0 / epoch}}
        assert bridge.ask("/status/send", {"metrics": metrics}) == {"type": "Ok"}
        _, step = tensors(work_dir / next(received)["path"])
        weights = array.array("f", map(sum, zip(weights, step, strict=True)))
        epoch += 1
        if bridge.ask("/status/send", "update-received")["type"] == "Done":
            print("weights", weights[0], flush=True)
            return 0


if __name__ == "__main__":
    sys.exit(main())
