"""The executor's end of the job bridge: HTTP over a Unix socket. Statuses share one connection that stays open.

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
import select
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
KEPT_S = 20.0
"""A connection that was idle for longer is opened anew: the bridge closes those of more than a minute."""


class BridgeError(HyphaError):
    """The bridge declined a request, or cannot be reached any more."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """A file that lies in the work directory."""

    path: Path
    version: int | None
    kind: str = "weights"
    """Of a version's files: `weights` or `momentum`."""
    first_row: int = 0
    """Of a slice: the number in the dataset of its first row."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """A file that leads to new global weights.

    `content` is `step` (to be added), `gradient` (the outer step is the executor's own) or `weights` (with their
    `momentum`, if there is any). `sha256` is the digest of the weights file of that version. `counted` says whether the
    update sent last went into a version.
    """

    path: Path
    version: int | None
    content: str = "step"
    sha256: str = ""
    counted: bool = True
    momentum: Path | None = None

    @property
    def is_weights(self) -> bool:
        """Whether it is a whole version."""
        return self.content == "weights"


_CLOSING = {"Content-Type": "application/json", "Connection": "close"}


class _Connection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__("bridge", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class Bridge:
    """The requests an executor makes. Thread-safe; statuses reach the bridge in the order of the calls."""

    def __init__(self, socket_path: str, work_dir: Path) -> None:
        self._socket = socket_path
        self._work_dir = work_dir
        self._status_lock = threading.Lock()
        self._kept: _Connection | None = None
        self._kept_until = 0.0

    def close(self) -> None:
        """Closes the connection that statuses share."""
        with self._status_lock:
            self._drop()

    def fetch(self, reference: dict[str, Any]) -> list[Fetched]:
        """The files a reference stands for, once they are here."""
        answer = self._post("/resources/fetch", reference, FETCH_DEADLINE_S)
        if not isinstance(answer, list) or not all(isinstance(entry, dict) and "path" in entry for entry in answer):
            raise BridgeError("the bridge answered a fetch without a list of files")
        return [self._fetched(entry["path"], entry.get("metadata") or {}) for entry in answer]

    def send(self, peers: dict[str, Any], path: Path) -> None:
        """Hands a file of the work directory over for delivery."""
        body = {"resource": peers, "path": str(path.relative_to(self._work_dir))}
        self._post("/resources/send", body, SEND_DEADLINE_S)

    def status(self, body: object) -> dict[str, Any]:
        """Reports progress; answers what the bridge wants. `Error` is raised."""
        with self._status_lock:
            answer = self._post_kept(body)
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

    def _fetched(self, path: str, metadata: dict[str, Any]) -> Fetched:
        first_row = metadata.get("first_row")
        return Fetched(
            self._work_dir / path,
            _version(metadata),
            str(metadata.get("kind") or "weights"),
            first_row if isinstance(first_row, int) else 0,
        )

    def _request(
        self, connection: _Connection, path: str, body: object, *, keep: bool = False
    ) -> http.client.HTTPResponse:
        data = json.dumps(body).encode()
        headers = {"Content-Type": "application/json"} if keep else _CLOSING
        connection.request("POST", path, data, headers)
        return connection.getresponse()

    def _post_kept(self, body: object) -> Any:
        """A status over the connection that stays open. It is sent once: sent twice it would count twice."""
        path = "/status/send"
        try:
            connection = self._status_connection()
            response = self._request(connection, path, body, keep=True)
            status, data = response.status, response.read()
        except (OSError, http.client.HTTPException) as error:
            self._drop()
            raise BridgeError(f"{path}: the bridge gave no answer: {error or type(error).__name__}") from error
        if response.will_close:
            self._drop()
        self._kept_until = time.monotonic() + KEPT_S
        if status < 400:
            return _decoded(path, data)
        raise _declined(path, status, data)

    def _status_connection(self) -> _Connection:
        kept = self._kept
        if kept is not None and kept.sock is not None:
            poll = select.poll()
            poll.register(kept.sock, select.POLLIN)
            # Readable without a request under way: the other end has closed it.
            if time.monotonic() < self._kept_until and not poll.poll(0):
                return kept
            self._drop()
        self._kept = self._connect(STATUS_DEADLINE_S)
        return self._kept

    def _drop(self) -> None:
        if self._kept is not None:
            self._kept.close()
            self._kept = None

    def _connect(self, deadline_s: float) -> _Connection:
        """A connection whose answers may take `deadline_s`. A bridge that is not there yet is waited for."""
        began = time.monotonic()
        for pause in _pauses():
            connection = _Connection(self._socket, deadline_s)
            try:
                connection.connect()
            except OSError as error:
                connection.close()
                if time.monotonic() - began > CONNECT_TRIES_S:
                    raise BridgeError(f"the bridge cannot be reached: {error.strerror or error}") from error
            else:
                return connection
            time.sleep(pause)
        raise AssertionError("pauses never end")

    def _post(self, path: str, body: object, deadline_s: float) -> Any:
        """A request that may be made again after it reached the bridge."""
        began = time.monotonic()
        for pause in _pauses():
            connection = self._connect(deadline_s)
            try:
                with self._request(connection, path, body) as response:
                    status, data = response.status, response.read()
            except (OSError, http.client.HTTPException) as error:
                if time.monotonic() - began > SOURCE_TRIES_S:
                    raise BridgeError(f"{path}: the bridge gave no answer: {error or type(error).__name__}") from error
            else:
                if status < 400:
                    return _decoded(path, data)
                refusal = _declined(path, status, data)
                if status < 500 or status == 507 or time.monotonic() - began > SOURCE_TRIES_S:
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
            momentum = event.get("momentum")
            return Arrival(
                self._work_dir / event["path"],
                _version(event),
                str(event.get("content") or "step"),
                str(event.get("sha256") or ""),
                event.get("counted") is not False,
                self._work_dir / momentum if momentum else None,
            )
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
