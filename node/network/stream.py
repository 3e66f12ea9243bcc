"""One answer of a peer, read by a thread: the head, then the body into large buffers that are used again and again."""

from __future__ import annotations

import http.client
import io
import itertools
import ssl
import time
from collections.abc import Mapping

from node.errors import PeerUnreachable
from node.network.connecting import translated
from node.network.partfile import PartFile
from node.network.rpc import decode_refusal
from node.telemetry import metrics
from node.wire import MAX_MESSAGE_BYTES

BUFFER_BYTES = 1 << 20
BUFFERS = 2
"""One is filled while the other is written and hashed."""
FIRST_BYTES = max(64 << 10, io.DEFAULT_BUFFER_SIZE)
STALL_BYTES = 32 << 10
"""A transfer that moves less than this in `stall_s` counts as stalled."""


class Stream:
    """A request on a connection of its own. All methods block: they are for a thread."""

    def __init__(self, connection: ssl.SSLSocket, peer_id: str, stall_s: float) -> None:
        self._connection = connection
        self._peer_id = peer_id
        self._stall_s = stall_s
        self._answer: http.client.HTTPResponse | None = None
        connection.settimeout(stall_s)

    def close(self) -> None:
        """End the connection. Only when no thread uses it."""
        if self._answer is not None:
            self._answer.close()
        self._connection.close()

    def ask(self, path: str, headers: Mapping[str, str]) -> http.client.HTTPResponse:
        """The head of the answer to a GET. Raises `Refused` for any but 2xx, or as `Connector.connect`."""
        with translated(self._peer_id):
            asked = http.client.HTTPConnection(self._peer_id)
            asked.sock = self._connection
            # the connection closes after the answer, which holds it open until then
            asked.request("GET", path, headers={**headers, "Connection": "close"})
            self._answer = answer = asked.getresponse()
            if 200 <= answer.status < 300:
                return answer
            body = answer.read(MAX_MESSAGE_BYTES)
        raise decode_refusal(answer.status, answer.headers.get_content_type(), body)

    def take(self, answer: http.client.HTTPResponse, part: PartFile) -> None:
        """Append the answer's body to `part`. PeerUnreachable where it breaks off; `part` has what came before that."""
        left = answer.length or 0
        size = min(BUFFER_BYTES, max(left, FIRST_BYTES))
        buffers = itertools.cycle([memoryview(bytearray(size)) for _ in range(BUFFERS)])
        with translated(self._peer_id):
            # the head's reader has read on; after this there is nothing left in it
            first = answer.read1(min(FIRST_BYTES, size))
        buffer, count = next(buffers), len(first)
        buffer[:count] = first
        while left:
            count, problem = self._fill(buffer[: min(size, left)], count)
            part.put(buffer[:count])
            metrics().bytes_received(count)
            left -= count
            if problem is not None:
                with translated(self._peer_id):
                    raise problem
            buffer, count = next(buffers), 0

    def _fill(self, buffer: memoryview, count: int) -> tuple[int, Exception | None]:
        """Fill a buffer that holds `count` bytes already; how many it holds now, and why not all."""
        moved, deadline = 0, time.monotonic() + self._stall_s
        receive = self._connection.recv_into
        size = len(buffer)
        try:
            while count < size:
                got = receive(buffer[count:])
                if not got:
                    return count, PeerUnreachable(f"peer {self._peer_id} broke off")
                count += got
                moved += got
                if moved >= STALL_BYTES:
                    moved, deadline = 0, time.monotonic() + self._stall_s
                elif time.monotonic() > deadline:
                    return count, TimeoutError()
        except OSError as error:
            return count, error
        return count, None
