"""TLS over a socket as a transport of asyncio: for a protocol, and for large bodies that pass it by.

asyncio's own decrypts through two buffers in memory and hands out a new object for each record. This one uses the
socket as OpenSSL does, on the loop's turns and without waiting, which costs half the CPU time.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections import deque
from collections.abc import Callable, Iterable

from node.network.readiness import ENDED, Side

log = logging.getLogger(__name__)

SCRATCH_BYTES = 256 << 10
RECORD_BYTES = 16 << 10
"""The most that a TLS record holds."""
PUSH_BYTES = 256 << 10
"""So much is given to OpenSSL at once. It takes all of it, or says that it took nothing: then it wants it once more."""
HIGH_WATER_BYTES = 64 << 10
FLUSH_S = 30.0
GOODBYE_S = 1.0


def _told(error: OSError) -> str:
    return f"the connection broke: {error.strerror or error}"


class TlsTransport(asyncio.Transport):
    """A connection after its handshake. Make it on the loop that it belongs to, then `start` it.

    Who wants to read a body himself calls `borrow_reading`, then `receive` and `readable`; who wants to write one, once
    the protocol has written what goes before it, `send` and `writable`. These raise ConnectionResetError where the
    connection has ended or is being closed.

    `scratch` is memory that all connections of a loop share: what is in it lasts until the next await.
    """

    def __init__(self, connection: ssl.SSLSocket, scratch: memoryview, on_lost: Callable[[TlsTransport], None]) -> None:
        super().__init__(
            {
                "socket": connection,
                "ssl_object": connection,
                "sslcontext": connection.context,
                "peername": connection.getpeername(),
                "sockname": connection.getsockname(),
            }
        )
        self.scratch = scratch
        self.leaf = connection.getpeercert(True)
        self._connection = connection
        self._on_lost = on_lost
        self._loop = loop = asyncio.get_running_loop()
        self._reading = Side(loop.add_reader, loop.remove_reader, connection.fileno())
        self._writing = Side(loop.add_writer, loop.remove_writer, connection.fileno())
        self._protocol = asyncio.Protocol()
        self._buffer: deque[memoryview] = deque()
        self._buffered = 0
        self._low_bytes, self._high_bytes = HIGH_WATER_BYTES // 4, HIGH_WATER_BYTES
        self._flushed: asyncio.Future[None] | None = None
        self._holds_writer = False
        self._is_paused = False
        self._is_borrowed = False
        self._is_torn = False
        self._is_closing = False
        self._is_lost = False
        self._deadline: asyncio.TimerHandle | None = None

    def start(self, protocol: asyncio.Protocol) -> None:
        """Give the connection to a protocol, and begin to read."""
        self._protocol = protocol
        protocol.connection_made(self)
        self._watch_reading()

    # ---- what asyncio asks for ----------------------------------------------------------------------

    def get_protocol(self) -> asyncio.BaseProtocol:
        """Who is told what happens."""
        return self._protocol

    def is_closing(self) -> bool:
        """Whether nothing can be written any more."""
        return self._is_closing

    def is_reading(self) -> bool:
        """Whether the protocol gets what comes."""
        return not (self._is_paused or self._is_borrowed or self._is_closing)

    def pause_reading(self) -> None:
        """Leave what comes in the socket."""
        self._is_paused = True
        self._watch_reading()

    def resume_reading(self) -> None:
        """Go on reading, unless somebody has borrowed it."""
        self._is_paused = False
        self._watch_reading()

    def get_write_buffer_size(self) -> int:
        """How many bytes are not in the socket yet."""
        return self._buffered

    def get_write_buffer_limits(self) -> tuple[int, int]:
        """Up to which size the protocol goes on writing, and above which it waits."""
        return self._low_bytes, self._high_bytes

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Change when the protocol is asked to wait."""
        self._high_bytes = high if high is not None else 4 * low if low is not None else HIGH_WATER_BYTES
        self._low_bytes = low if low is not None else self._high_bytes // 4
        self._steer()

    def can_write_eof(self) -> bool:
        """No: TLS connections end as a whole."""
        return False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send it after all that was written before it."""
        if self._is_closing or not data:
            return
        if self._is_torn:
            self._fail(ConnectionResetError("a body broke off"))
            return
        view = memoryview(data)
        try:
            sent = 0 if self._buffer else self._push(view)
        except OSError as error:
            self._fail(error)
            return
        if sent < len(view):
            # whoever wrote it may use the memory again
            self._buffer.append(memoryview(bytes(view[sent:])))
            self._buffered += len(view) - sent
            self._writing.watch(self._flush)
            self._steer()

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        """Send these after all that was written before."""
        self.write(b"".join(list_of_data))

    def close(self) -> None:
        """Send what is written, say goodbye, and close when the other end has heard it, or at a deadline."""
        if self._is_closing:
            return
        self._is_closing = True
        self._reading.unwatch()
        if self._is_torn:
            self._fail(None)
            return
        self._wake()
        if self._buffer:
            self._deadline = self._loop.call_later(FLUSH_S, self.abort)
        else:
            self._say_goodbye()

    def abort(self) -> None:
        """Close at once."""
        self._fail(None)

    # ---- bodies -------------------------------------------------------------------------------------

    def borrow_reading(self) -> None:
        """Until `return_reading` the protocol gets nothing that comes: it is for `receive`."""
        self._is_borrowed = True
        self._watch_reading()

    def return_reading(self) -> None:
        """What comes is for the protocol again."""
        self._is_borrowed = False
        self._watch_reading()

    def receive(self, view: memoryview) -> int:
        """Fill `view` with what is there; how many bytes that was, 0 for none yet. Raises ConnectionResetError."""
        if self._is_closing:
            raise ConnectionResetError(ENDED)
        try:
            count, has_ended = self._pull(view)
        except OSError as error:
            self._fail(error)
            raise ConnectionResetError(_told(error)) from error
        if has_ended and not count:
            raise ConnectionResetError("the peer has closed the connection")
        return count

    async def readable(self) -> None:
        """Wait for something to `receive`. Raises ConnectionResetError."""
        if self._is_closing:
            raise ConnectionResetError(ENDED)
        if self._connection.pending():
            await asyncio.sleep(0)
        else:
            await self._reading.ready()

    def send(self, view: memoryview) -> int:
        """How much of `view` went into the socket at once, 0 for nothing now. Raises ConnectionResetError.

        Offered next must be what follows, at least `PUSH_BYTES` of it where there is as much.
        """
        if self._is_closing:
            raise ConnectionResetError(ENDED)
        if self._buffer:
            return 0
        try:
            sent = self._push(view)
        except OSError as error:
            self._fail(error)
            raise ConnectionResetError(_told(error)) from error
        self._is_torn = sent < len(view)
        return sent

    async def writable(self) -> None:
        """Wait until all is sent that was written, and there is room for more. Raises ConnectionResetError."""
        if self._is_closing:
            raise ConnectionResetError(ENDED)
        if self._buffer:
            self._flushed = self._loop.create_future()
            await self._flushed
            if self._is_closing:  # it may have ended in the same turn, and nobody would end this wait
                raise ConnectionResetError(ENDED)
        await self._writing.ready()

    # ---- the socket ---------------------------------------------------------------------------------

    def _watch_reading(self) -> None:
        if not self.is_reading():
            if not self._is_closing:
                self._reading.unwatch()
            return
        self._reading.watch(self._take)
        if self._connection.pending():
            self._loop.call_soon(self._take)

    def _take(self) -> None:
        """Give the protocol what has come."""
        if not self.is_reading():
            return
        try:
            count, has_ended = self._pull(self.scratch)
        except OSError as error:
            self._fail(error)
            return
        try:
            if count:
                self._protocol.data_received(bytes(self.scratch[:count]))
            if has_ended:
                self._protocol.eof_received()
        except Exception as error:
            log.exception("protocol.failed from=%s", self.get_extra_info("peername"))
            self._fail(error)
            return
        if has_ended:
            self.close()
        elif not self._is_closing and self._connection.pending():
            self._loop.call_soon(self._take)

    def _pull(self, view: memoryview) -> tuple[int, bool]:
        """Fill `view` with what is there: how many bytes, and whether nothing follows."""
        count = 0
        while count < len(view):
            try:
                got = self._connection.recv_into(view[count:])
            except ssl.SSLWantReadError:
                break
            except OSError:
                if count:
                    break
                raise
            if not got:
                return count, True
            count += got
            if got < RECORD_BYTES and not self._connection.pending():
                break
        return count, False

    def _push(self, view: memoryview) -> int:
        sent = 0
        with contextlib.suppress(ssl.SSLWantWriteError):
            while sent < len(view):
                sent += self._connection.send(view[sent : sent + PUSH_BYTES])
        return sent

    def _flush(self) -> None:
        try:
            while self._buffer:
                sent = self._push(self._buffer[0])
                self._buffered -= sent
                if sent < len(self._buffer[0]):
                    self._buffer[0] = self._buffer[0][sent:]
                    return
                self._buffer.popleft()
        except OSError as error:
            self._fail(error)
            return
        finally:
            self._steer()
        if self._buffer:
            return
        self._writing.unwatch()
        if self._flushed is not None and not self._flushed.done():
            self._flushed.set_result(None)
        if self._is_closing:
            self._say_goodbye()

    def _steer(self) -> None:
        """Have the protocol wait, or go on writing."""
        if not self._holds_writer and self._buffered > self._high_bytes:
            self._holds_writer = True
            self._protocol.pause_writing()
        elif self._holds_writer and self._buffered <= self._low_bytes:
            self._holds_writer = False
            self._protocol.resume_writing()

    # ---- its end ------------------------------------------------------------------------------------

    def _say_goodbye(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = self._loop.call_later(GOODBYE_S, self.abort)
        try:
            # the other end's own goodbye is still to come, and bytes of a body may come before it
            with contextlib.suppress(ssl.SSLError):
                self._connection.unwrap()
            socket.socket.shutdown(self._connection, socket.SHUT_WR)
        except (OSError, ValueError):
            self._fail(None)
            return
        # closing with bytes unread would reset the connection, and what was sent last might never arrive
        self._reading.watch(self._drain)

    def _drain(self) -> None:
        try:
            if socket.socket.recv_into(self._connection, self.scratch):
                return
        except BlockingIOError:
            return
        except OSError:
            pass
        self._fail(None)

    def _fail(self, error: Exception | None) -> None:
        if self._is_lost:
            return
        self._is_lost = self._is_closing = True
        if self._deadline is not None:
            self._deadline.cancel()
        self._reading.unwatch()
        self._writing.unwatch()
        self._buffer.clear()
        self._buffered = 0
        self._wake()
        self._loop.call_soon(self._finish, error)

    def _wake(self) -> None:
        """Let who waits for the connection know that it is over."""
        self._reading.fail()
        self._writing.fail()
        if self._flushed is not None and not self._flushed.done():
            self._flushed.set_exception(ConnectionResetError(ENDED))

    def _finish(self, error: Exception | None) -> None:
        try:
            self._protocol.connection_lost(error)
        finally:
            self._connection.close()
            self._on_lost(self)
