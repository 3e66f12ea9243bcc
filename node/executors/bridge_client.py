"""The executor's end of the job bridge: HTTP over a Unix socket, one connection for each request.

Every wait is bounded. A request that found no connection, or a source that failed for now (5xx), is tried again with
growing pauses; the executor itself is ended by its node, so it need not guess whether that still lives.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import logging
import queue
import random
import socket
import threading
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from node.errors import HyphaError

log = logging.getLogger(__name__)

CONNECT_TRIES_S = 30.0
SOURCE_TRIES_S = 600.0
FETCH_DEADLINE_S = 3600.0
SEND_DEADLINE_S = 3600.0
STATUS_DEADLINE_S = 60.0
STREAM_QUIET_S = 120.0
RESULT_DEADLINE_S = 3600.0
PAUSE_LIMIT_S = 10.0


class BridgeError(HyphaError):
    """The bridge declined a request, or cannot be reached any more."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """A file that lies in the work directory."""

    path: Path
    version: int | None


@dataclass(frozen=True, slots=True)
class Arrival:
    """A file of new weights, or of a step towards them."""

    path: Path
    version: int | None
    is_weights: bool


class _Connection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__("bridge", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class Bridge:
    """The requests an executor makes. Thread-safe: nothing is shared between requests."""

    def __init__(self, socket_path: str, work_dir: Path) -> None:
        self._socket = socket_path
        self._work_dir = work_dir

    def fetch(self, reference: dict[str, Any]) -> list[Fetched]:
        """The files a reference stands for, once they are here."""
        answer = self._post("/resources/fetch", reference, FETCH_DEADLINE_S, repeat=True)
        if not isinstance(answer, list) or not all(isinstance(entry, dict) and "path" in entry for entry in answer):
            raise BridgeError("the bridge answered a fetch without a list of files")
        return [Fetched(self._work_dir / entry["path"], _version(entry.get("metadata") or {})) for entry in answer]

    def send(self, peers: dict[str, Any], path: Path) -> None:
        """Hands a file of the work directory over for delivery."""
        body = {"resource": peers, "path": str(path.relative_to(self._work_dir))}
        self._post("/resources/send", body, SEND_DEADLINE_S, repeat=True)

    def status(self, body: object) -> dict[str, Any]:
        """Reports progress; answers what the bridge wants. `Error` is raised."""
        answer = self._post("/status/send", body, STATUS_DEADLINE_S, repeat=False)
        if not isinstance(answer, dict) or answer.get("type") == "Error":
            what = body if isinstance(body, str) else ", ".join(body) if isinstance(body, dict) else "status"
            detail = answer.get("detail", "") if isinstance(answer, dict) else ""
            raise BridgeError(f"the bridge refused {what}: {detail or 'not now'}")
        return answer

    def arrivals(self, peers: dict[str, Any], folder: str) -> Arrivals:
        """Starts to listen for files from the parameter server."""
        return Arrivals(self, {"resource": peers, "path": folder}, self._work_dir)

    def stream(self, body: object, opened: Callable[[socket.socket], None]) -> Generator[str, None, None]:
        """The `data:` lines of one receive stream, until it ends. `opened` is given its socket."""
        connection = _Connection(self._socket, STREAM_QUIET_S)
        try:
            connection.connect()
            opened(connection.sock)
            with self._request(connection, "/resources/receive", body) as response:
                if response.status != 200:
                    raise _declined("/resources/receive", response.status, response.read(4096))
                while line := response.readline(1 << 16):
                    if line.startswith(b"data:"):
                        yield line[5:].strip().decode()
        finally:
            connection.close()

    def _request(self, connection: _Connection, path: str, body: object) -> http.client.HTTPResponse:
        data = json.dumps(body).encode()
        connection.request("POST", path, data, {"Content-Type": "application/json", "Connection": "close"})
        return connection.getresponse()

    def _post(self, path: str, body: object, deadline_s: float, *, repeat: bool) -> Any:
        """`repeat`: the request may be made again after it reached the bridge."""
        began = time.monotonic()
        for pause in _pauses():
            waited = time.monotonic() - began
            connection = _Connection(self._socket, deadline_s)
            try:
                connection.connect()
            except OSError as error:
                connection.close()
                if waited > CONNECT_TRIES_S:
                    raise BridgeError(f"the bridge cannot be reached: {error.strerror or error}") from error
                time.sleep(pause)
                continue
            try:
                with self._request(connection, path, body) as response:
                    status, data = response.status, response.read()
            except (OSError, http.client.HTTPException) as error:
                if not repeat or waited > SOURCE_TRIES_S:
                    raise BridgeError(f"{path}: the bridge gave no answer: {error or type(error).__name__}") from error
            else:
                if status < 400:
                    return _decoded(path, data)
                refusal = _declined(path, status, data)
                if status < 500 or status == 507 or waited > SOURCE_TRIES_S:
                    raise refusal
                log.warning("bridge.retry path=%s reason=%s", path, refusal)
            finally:
                connection.close()
            time.sleep(pause)
        raise AssertionError("pauses never end")


class Arrivals:
    """Files from the parameter server, in order, each version once. A thread reads the stream and opens it again."""

    def __init__(self, bridge: Bridge, body: object, work_dir: Path) -> None:
        self._bridge = bridge
        self._body = body
        self._work_dir = work_dir
        self._queue: queue.Queue[Arrival | BridgeError] = queue.Queue(maxsize=64)
        self._socket: socket.socket | None = None
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="receive", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stops listening."""
        self._closed.set()
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(5.0)

    def take(self, timeout_s: float = RESULT_DEADLINE_S) -> Arrival:
        """The next file."""
        try:
            item = self._queue.get(timeout=timeout_s)
        except queue.Empty:
            raise BridgeError(f"no new weights within {timeout_s:.0f} s") from None
        if isinstance(item, BridgeError):
            raise item
        return item

    def _listen(self) -> None:
        """Ends when nothing came for as long as a result may take, or after `close`."""
        quiet_since = time.monotonic()
        pauses = _pauses()
        while not self._closed.is_set():
            reason = "it ended"
            try:
                with contextlib.closing(self._bridge.stream(self._body, self._opened)) as stream:
                    for data in stream:
                        quiet_since, pauses = time.monotonic(), _pauses()
                        self._queue.put(self._arrival(data))
            except BridgeError as error:
                self._queue.put(error)
                return
            except (OSError, http.client.HTTPException) as error:
                reason = str(error) or type(error).__name__
            if self._closed.is_set():
                return
            if time.monotonic() - quiet_since > RESULT_DEADLINE_S:
                self._queue.put(BridgeError(f"the receive stream was lost: {reason}"))
                return
            log.warning("receive.reopened reason=%s", reason)
            self._closed.wait(next(pauses))

    def _opened(self, opened: socket.socket) -> None:
        self._socket = opened

    def _arrival(self, data: str) -> Arrival:
        try:
            event = json.loads(data)
            return Arrival(self._work_dir / event["path"], _version(event), event.get("content") == "weights")
        except (ValueError, KeyError, TypeError) as error:
            raise BridgeError(f"the receive stream sent something else than a file: {data[:200]}") from error


def _pauses() -> Iterator[float]:
    pause = 0.05
    while True:
        yield pause * random.uniform(0.5, 1.0)
        pause = min(PAUSE_LIMIT_S, pause * 2)


def _version(table: dict[str, Any]) -> int | None:
    value = table.get("version")
    return int(value) if isinstance(value, int | str) and str(value).isdigit() else None


def _decoded(path: str, data: bytes) -> Any:
    try:
        return json.loads(data) if data.strip() else {}
    except ValueError as error:
        raise BridgeError(f"{path}: the bridge answered something else than JSON") from error


def _declined(path: str, status: int, data: bytes) -> BridgeError:
    try:
        table = json.loads(data)
        detail = f"{table['error']}: {table['detail']}"
    except (ValueError, KeyError, TypeError):
        detail = data[:200].decode(errors="replace")
    return BridgeError(f"{path}: {status} {detail}")
