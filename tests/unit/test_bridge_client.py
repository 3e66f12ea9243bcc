"""The executor's end of the bridge, and what it makes of the job it is given."""

from __future__ import annotations

import json
import socketserver
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from node.errors import JobError
from node.executors import bridge_client
from node.executors.bridge_client import Bridge, BridgeError
from node.executors.job import parse
from node.training.schedules import factor_of

Answer = tuple[int, object]


class _Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that go away are part of the tests."""


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[[list[Answer | str]], tuple[Bridge, list[Any]]]]:
    """A bridge that gives these answers in turn; a text is sent as an event stream."""
    servers: list[tuple[_Server, threading.Thread]] = []

    def start(answers: list[Answer | str]) -> tuple[Bridge, list[Any]]:
        seen: list[Any] = []
        left = iter(answers)

        class Handler(BaseHTTPRequestHandler):
            def address_string(self) -> str:
                return "executor"

            def log_message(self, *_: Any) -> None:
                """Quiet."""

            def do_POST(self) -> None:
                seen.append((self.path, json.loads(self.rfile.read(int(self.headers["Content-Length"])))))
                answer = next(left, "")
                status, body = (200, answer) if isinstance(answer, str) else (answer[0], json.dumps(answer[1]))
                self.send_response(status)
                self.end_headers()
                self.wfile.write(body.encode())

        server = _Server(str(tmp_path / "s"), Handler)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        servers.append((server, thread))
        return Bridge(str(tmp_path / "s"), tmp_path), seen

    yield start
    for server, thread in servers:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_source_that_fails_for_now_is_asked_again(serve: Any, tmp_path: Path) -> None:
    """H52."""
    entry = {"path": "artifacts/w", "size": 1, "metadata": {"version": "12"}}
    bridge, seen = serve([(502, {"error": "failed", "detail": "gone"}), (504, {}), (200, [entry])])
    (fetched,) = bridge.fetch({"type": "weights"})
    assert (fetched.path, fetched.version) == (tmp_path / "artifacts/w", 12)
    assert seen == [("/resources/fetch", {"type": "weights"})] * 3


@pytest.mark.parametrize("status", [400, 404, 413, 507])
def test_a_request_that_is_wrong_is_not_repeated(serve: Any, status: int) -> None:
    bridge, seen = serve([(status, {"error": "invalid", "detail": "no such thing"})])
    with pytest.raises(BridgeError, match=f"{status} invalid: no such thing"):
        bridge.fetch({"type": "job", "filenames": ["x"]})
    assert len(seen) == 1


def test_an_error_in_this_state_ends_the_executor_instead_of_counting_on(serve: Any) -> None:
    """H50."""
    bridge, _ = serve([(200, {"type": "Error"})])
    with pytest.raises(BridgeError, match="refused update"):
        bridge.status("update")


def test_a_bridge_that_is_not_there_is_waited_for_only_so_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """H52."""
    monkeypatch.setattr(bridge_client, "CONNECT_TRIES_S", 0.1)
    with pytest.raises(BridgeError, match="cannot be reached"):
        Bridge(str(tmp_path / "none"), tmp_path).status("update")


def test_the_receive_stream_is_opened_again_and_what_is_not_a_file_is_an_error(serve: Any, tmp_path: Path) -> None:
    step = ': keep-alive\n\ndata: {"path": "incoming/a", "version": 3, "content": "step"}\n\n'
    bridge, seen = serve(
        [step, ": nothing\n\n", 'data: {"path": "incoming/b", "content": "weights"}\n\n', "data: x\n\n"]
    )
    arrivals = bridge.arrivals({"type": "peers"}, "incoming")
    try:
        first, second = arrivals.take(5), arrivals.take(5)
        assert (first.path, first.version, first.is_weights) == (tmp_path / "incoming/a", 3, False)
        assert (second.path, second.version, second.is_weights) == (tmp_path / "incoming/b", None, True)
        with pytest.raises(BridgeError, match="something else than a file"):
            arrivals.take(5)
    finally:
        arrivals.close()
    assert seen[0] == ("/resources/receive", {"resource": {"type": "peers"}, "path": "incoming"})


def test_a_stream_that_is_closed_leaves_no_thread(serve: Any) -> None:
    bridge, _ = serve([])
    arrivals = bridge.arrivals({}, "incoming")
    with pytest.raises(BridgeError, match="no new weights"):
        arrivals.take(0.05)
    arrivals.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "receive"]


JOB: dict[str, Any] = {
    "job_id": "j",
    "executor": {
        "class": "train",
        "name": "n",
        "config": {
            "model": {"task": "causal-lm", "artifact": {"type": "job", "file-names": 1}, "input-names": ["input_ids"]},
            "data": {"type": "scheduler", "peer": "p", "dataset": "d"},
            "updates": {"type": "peers"},
            "results": {"type": "peers"},
            "optimizer": {"learning-rate": 0.1},
            "batch_size": 4,
            "scheduler": {"type": "wsd", "warmup_steps": 1, "decay_steps": 2, "training-steps": 9},
            "a-key-of-a-newer-bridge": True,
        },
    },
}


def test_a_job_is_read_in_both_spellings_and_references_stay_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "job.json"
    path.write_text(json.dumps(JOB))
    job = parse(f"@{path}")
    assert job == parse(json.dumps(JOB))
    assert job.config.model.input_names == ["input_ids"]
    assert job.config.model.artifact == {"type": "job", "file-names": 1}
    assert job.config.optimizer.learning_rate == 0.1
    assert job.config.scheduler is not None and job.config.scheduler.training_steps == 9


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"executor": {"config": {}}}', "@/nowhere/at/all"])
def test_a_job_that_is_not_valid_is_one_clear_line(text: str) -> None:
    with pytest.raises(JobError, match="job") as caught:
        parse(text)
    assert "\n" not in str(caught.value)


def test_a_schedule_warms_up_and_comes_down() -> None:
    """H25: the same curves as Transformers'."""
    cosine = factor_of("cosine-with-warmup", warmup_steps=4, total_steps=12, decay_steps=0)
    assert [cosine(step) for step in (0, 2, 4, 8, 12, 99)] == pytest.approx([0, 0.5, 1, 0.5, 0, 0], abs=1e-12)
    linear = factor_of("linear-with-warmup", warmup_steps=4, total_steps=12, decay_steps=0)
    assert [linear(step) for step in (1, 4, 6, 12, 20)] == pytest.approx([0.25, 1, 0.75, 0, 0])
    stable = factor_of("wsd", warmup_steps=2, total_steps=10, decay_steps=4)
    assert [stable(step) for step in (1, 2, 6, 8, 10, 30)] == pytest.approx([0.5, 1, 1, 0.5, 0, 0], abs=1e-12)
    assert factor_of("", warmup_steps=0, total_steps=0, decay_steps=0)(7) == 1.0
    assert factor_of("wsd", warmup_steps=2, total_steps=0, decay_steps=4)(10**6) == 1.0


def test_a_schedule_that_cannot_be_is_refused() -> None:
    with pytest.raises(JobError, match="one of cosine-with-warmup"):
        factor_of("cosine", warmup_steps=0, total_steps=9, decay_steps=0)
    with pytest.raises(JobError, match="more total steps"):
        factor_of("linear-with-warmup", warmup_steps=9, total_steps=9, decay_steps=0)
