"""One request to a peer by a thread: large bodies go through buffers that are used again and again."""

from __future__ import annotations

import http.client
import io
import os
import select
import ssl
import time
from collections.abc import Mapping

from node.errors import PeerProtocol, PeerUnreachable
from node.network.connecting import translated
from node.network.filesource import FileSource
from node.network.partfile import PartFile
from node.network.rpc import decode_refusal
from node.telemetry import metrics
from node.wire import MAX_MESSAGE_BYTES

PIECE_BYTES = 256 << 10
"""Small enough to stay in a processor's cache between receiving, hashing and writing (or reading and sending)."""
ANSWER_S = 60.0
"""So long may the answer to a file take that is through: the peer reads it over."""
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
        self.sent = 0
        connection.settimeout(stall_s)

    def release(self) -> None:
        """Leave the connection to others, after an answer that was read to its end."""
        if self._answer is not None:
            self._answer.close()
            self._answer = None

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
            asked.request("GET", path, headers=dict(headers))
            self._answer = answer = asked.getresponse()
            if 200 <= answer.status < 300:
                return answer
            body = answer.read(MAX_MESSAGE_BYTES)
        raise decode_refusal(answer.status, answer.headers.get_content_type(), body)

    def take(self, answer: http.client.HTTPResponse, part: PartFile) -> None:
        """Append the answer's body to `part`. PeerUnreachable where it breaks off; `part` has what came before that."""
        left = answer.length or 0
        size = min(PIECE_BYTES, max(left, FIRST_BYTES))
        buffer = memoryview(bytearray(size))
        with translated(self._peer_id):
            # the head's reader has read on; after this there is nothing left in it
            first = answer.read1(min(FIRST_BYTES, size))
        count = len(first)
        buffer[:count] = first
        while left:
            count, problem = self._fill(buffer[: min(size, left)], count)
            part.put(buffer[:count])
            metrics().bytes_received(count)
            left -= count
            if problem is not None:
                with translated(self._peer_id):
                    raise problem
            count = 0

    def put(self, path: str, headers: Mapping[str, str], source: FileSource) -> bytes:
        """The answer to a PUT of a file, which may come before the file is through; `sent` grows meanwhile.

        Raises `Refused` for any answer but 2xx, or as `Connector.connect`.
        """
        with translated(self._peer_id):
            asked = http.client.HTTPConnection(self._peer_id)
            asked.sock = self._connection
            asked.putrequest("PUT", path, skip_accept_encoding=True)
            for name, value in {**headers, "Content-Length": str(source.size), "Connection": "close"}.items():
                asked.putheader(name, value)
            asked.endheaders()
            problem = self._pour(source)
            if isinstance(problem, TimeoutError):
                raise problem
            try:
                self._connection.settimeout(max(self._stall_s, ANSWER_S))
                self._answer = answer = asked.getresponse()
                body = answer.read(MAX_MESSAGE_BYTES + 1)
            except (OSError, http.client.HTTPException) as error:
                raise problem or error from error
        if len(body) > MAX_MESSAGE_BYTES:
            raise PeerProtocol(f"an answer of more than {MAX_MESSAGE_BYTES} bytes")
        if 200 <= answer.status < 300:
            return body
        raise decode_refusal(answer.status, answer.headers.get_content_type(), body)

    def _pour(self, source: FileSource) -> OSError | None:
        """Send a file until it is through or an answer is there. What broke off: the peer may have said why before."""
        buffer = memoryview(bytearray(min(PIECE_BYTES, source.size)))
        watched = select.poll()
        self._connection.setblocking(False)
        try:
            while self.sent < source.size:
                piece = buffer[: os.preadv(source.fd, [buffer], self.sent)]
                if not piece:
                    raise ConnectionResetError("the file became shorter while it was sent")
                while piece:
                    done = self._push(piece)
                    piece = piece[done:]
                    watched.register(self._connection, select.POLLIN | (select.POLLOUT if piece else 0))
                    found = watched.poll(self._stall_s * 1e3 if piece else 0)
                    if any(event & ~select.POLLOUT for _, event in found):
                        return None
                    if piece and not found:
                        raise TimeoutError
        except OSError as error:
            return error
        return None

    def _push(self, piece: memoryview) -> int:
        """How much goes into the socket at once: all, or nothing as far as OpenSSL says, and it must be tried again."""
        try:
            done = self._connection.send(piece)
        except ssl.SSLWantWriteError:
            return 0
        self.sent += done
        metrics().bytes_sent(done)
        return done

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
