"""Links in user space: a TCP port in front of each node, which counts, slows, delays, cuts and heals.

A node tells others the port of its link (`external_addresses`) instead of its own, so all that is said to it passes
here. Who is calling is found out from `/proc` (Linux), which is what makes a cut between two sides, and a slow line of
one node, possible without root. `python -m benchmarks.links` checks the shaping itself with a plain copy.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

T = TypeVar("T")

PIECE = 64 << 10
LEAST_BUFFER = 256 << 10
CALL_S = 10.0
BIN_S = 0.05
CREDIT_S = 0.02
"""A line that was idle for a moment may catch up on this much: sleeps end late."""
PORTS = range(20_000, 30_000)
"""Below the ports that outgoing connections take."""


class Bucket:
    """So many bytes a second, taken in turn; None is without limit."""

    def __init__(self, bytes_per_s: float | None = None) -> None:
        self.bytes_per_s = bytes_per_s
        self._free_at = 0.0

    async def take(self, size: int) -> None:
        """Wait until `size` bytes have gone through."""
        if self.bytes_per_s is None:
            return
        now = time.monotonic()
        self._free_at = max(self._free_at, now - CREDIT_S) + size / self.bytes_per_s
        if self._free_at > now:
            await asyncio.sleep(self._free_at - now)

    def piece(self) -> int:
        """Bytes to handle at once: 5 ms of the line."""
        return PIECE if self.bytes_per_s is None else max(1024, min(PIECE, int(self.bytes_per_s * 0.005)))


@dataclass
class Line:
    """What joins one node to the rest: one bucket each way, a delay, and what has passed."""

    up: Bucket = field(default_factory=Bucket)
    down: Bucket = field(default_factory=Bucket)
    delay_s: float = 0.0
    sent: int = 0
    received: int = 0
    sent_at: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    """Bytes sent by time, in bins of `BIN_S`."""
    received_at: dict[int, int] = field(default_factory=lambda: defaultdict(int))


class _Port:
    """The listening end of one node's link."""

    def __init__(self, name: str, port: int, target: int) -> None:
        self.name = name
        self.port = port
        self.target = target
        self.task: asyncio.Task[None] | None = None


class Links:
    """All links of a cluster, on a thread of their own. Every method may be called from any thread."""

    def __init__(self) -> None:
        self.lines: dict[str, Line] = defaultdict(Line)
        self.bytes_between: dict[tuple[str, str], int] = defaultdict(int)
        self.pid_of: Callable[[], dict[int, str]] = dict
        """Who is who: process ids of the nodes. Others count as nobody, whom nothing holds up."""
        self._ports: dict[str, _Port] = {}
        self._sides: list[tuple[frozenset[str], frozenset[str]]] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="links", daemon=True)
        self._healed = asyncio.Event()

    def __enter__(self) -> Links:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name in list(self._ports):
            self.close(name)
        self._call(asyncio.sleep(0.01))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CALL_S)
        self._loop.close()

    def add(self, name: str, target: int) -> int:
        """A link in front of the port `target` of this host; its own port."""
        port = free_port()
        self._ports[name] = _Port(name, port, target)
        self.open(name)
        return port

    def open(self, name: str) -> None:
        """Listen again, as a machine that is back does."""
        self._call(self._listen(self._ports[name]))

    def close(self, name: str) -> None:
        """Refuse connections and break those that are open, as a machine without that program does."""
        self._call(self._shut(self._ports[name]))

    def cut(self, some: set[str], others: set[str]) -> None:
        """Nothing passes between the two sides any more, in neither direction; nobody is told."""
        side = (frozenset(some), frozenset(others))
        self._loop.call_soon_threadsafe(self._sides.append, side)

    def heal(self) -> None:
        """Everything passes again, also what was held up."""

        def mend() -> None:
            self._sides.clear()
            self._healed.set()
            self._healed = asyncio.Event()

        self._loop.call_soon_threadsafe(mend)

    def shape(self, name: str, *, mbit_s: float | None = None, delay_s: float = 0.0) -> None:
        """Limit what a node sends and what it receives, and delay both."""
        line = self.lines[name]
        rate = None if mbit_s is None else mbit_s * 1e6 / 8
        line.up.bytes_per_s = line.down.bytes_per_s = rate
        line.delay_s = delay_s

    # ---- on the loop ----------------------------------------------------------------------------------

    def _call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(CALL_S)

    async def _listen(self, port: _Port) -> None:
        if port.task is None:
            listening = socket.create_server(("127.0.0.1", port.port), backlog=512)
            listening.setblocking(False)
            port.task = self._loop.create_task(self._accept(port, listening))

    async def _shut(self, port: _Port) -> None:
        if port.task is not None:
            port.task.cancel()
            await asyncio.gather(port.task, return_exceptions=True)
            port.task = None
            await asyncio.sleep(0)  # sockets are closed a turn of the loop after they were told to be

    async def _accept(self, port: _Port, listening: socket.socket) -> None:
        """Carry connections until cancelled; then they all break."""
        accepted: set[socket.socket] = set()
        try:
            async with asyncio.TaskGroup() as tasks:

                def accept() -> None:
                    with contextlib.suppress(OSError):
                        connection, _ = listening.accept()
                        accepted.add(connection)
                        tasks.create_task(self._serve(port, connection, accepted))

                self._loop.add_reader(listening, accept)
                try:
                    await asyncio.Event().wait()
                finally:
                    self._loop.remove_reader(listening)
        finally:
            listening.close()
            for connection in accepted:  # those whose task never began
                connection.close()

    async def _serve(self, port: _Port, connection: socket.socket, accepted: set[socket.socket]) -> None:
        with contextlib.suppress(OSError, ExceptionGroup):
            connection.setblocking(False)
            accepted.discard(connection)
            reader, writer = await asyncio.open_connection(sock=connection, limit=PIECE)
            await self._carry(port, reader, writer)

    async def _carry(self, port: _Port, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        caller = self._caller(writer.get_extra_info("peername")[1], port.port)
        ends = [writer]
        try:
            await self._passable(caller, port.name)
            there, onward = await asyncio.open_connection("127.0.0.1", port.target, limit=PIECE)
            ends.append(onward)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._pass(caller, port.name, reader, onward))
                tasks.create_task(self._pass(port.name, caller, there, writer))
        finally:
            for end in ends:
                end.transport.abort()

    async def _pass(self, source: str, sink: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Copy one direction until its end. Raises when the connection broke, so that the other direction ends too."""
        here, there = self.lines[source], self.lines[sink]
        late: deque[tuple[float, bytes]] = deque()
        held = 0
        more, less = asyncio.Event(), asyncio.Event()

        async def receive() -> None:
            nonlocal held
            while data := await reader.read(min(here.up.piece(), there.down.piece())):
                await self._passable(source, sink)
                await here.up.take(len(data))
                await there.down.take(len(data))
                self._count(source, sink, len(data))
                late.append((time.monotonic() + here.delay_s + there.delay_s, data))
                held += len(data)
                more.set()
                rate = min(here.up.bytes_per_s or 1e12, there.down.bytes_per_s or 1e12)
                room = max(LEAST_BUFFER, 2 * min(1e8, rate * (here.delay_s + there.delay_s)))
                while held > room:
                    less.clear()
                    await less.wait()
            late.append((0.0, b""))
            more.set()

        async def deliver() -> None:
            nonlocal held
            while True:
                while not late:
                    more.clear()
                    await more.wait()
                due, data = late.popleft()
                if not data:
                    if writer.can_write_eof():
                        writer.write_eof()
                    return
                if (wait := due - time.monotonic()) > 0:
                    await asyncio.sleep(wait)
                await self._passable(source, sink)
                writer.write(data)
                await writer.drain()
                held -= len(data)
                less.set()

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(receive())
            tasks.create_task(deliver())

    def _count(self, source: str, sink: str, size: int) -> None:
        when = int(time.monotonic() / BIN_S)
        self.bytes_between[source, sink] += size
        self.lines[source].sent += size
        self.lines[source].sent_at[when] += size
        self.lines[sink].received += size
        self.lines[sink].received_at[when] += size

    async def _passable(self, source: str, sink: str) -> None:
        while any(
            (source in some and sink in others) or (source in others and sink in some) for some, others in self._sides
        ):
            await self._healed.wait()

    def _caller(self, its_port: int, our_port: int) -> str:
        inode = inode_of(its_port, our_port)
        if inode:
            for pid, name in self.pid_of().items():
                if holds(pid, inode):
                    return name
        return ""


def inode_of(local: int, remote: int) -> str:
    """The inode of the socket of this host that goes from one port to another on loopback."""
    wanted = (f"0100007F:{local:04X}", f"0100007F:{remote:04X}")
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        words = line.split()
        if (words[1], words[2]) == wanted:
            return words[9]
    return ""


def holds(pid: int, inode: str) -> bool:
    """Whether a process has this socket open."""
    wanted = f"socket:[{inode}]"
    try:
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                if str(entry.readlink()) == wanted:
                    return True
    except OSError:
        pass
    return False


_taken: set[int] = set()


def free_port() -> int:
    """A port of `PORTS` that nobody listens on, and that this process has not given away yet."""
    start = os.getpid() * 37 % len(PORTS)
    for step in range(len(PORTS)):
        port = PORTS[(start + step) % len(PORTS)]
        if port in _taken:
            continue
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        _taken.add(port)
        return port
    raise OSError("no port is free")


# ---- the check ------------------------------------------------------------------------------------------


def copy_s(size: int, *, mbit_s: float | None, delay_s: float) -> tuple[float, float]:
    """(seconds to the first byte, seconds to the last) of a plain copy through a link."""
    with socket.create_server(("127.0.0.1", 0)) as server, Links() as links:
        port = links.add("there", server.getsockname()[1])
        links.shape("there", mbit_s=mbit_s, delay_s=delay_s)

        def send() -> None:
            with socket.create_connection(("127.0.0.1", port)) as client:
                client.sendall(b"x" * size)

        sender = threading.Thread(target=send)
        began = time.perf_counter()
        sender.start()
        connection, _ = server.accept()
        with connection:
            got = len(connection.recv(PIECE))
            first = time.perf_counter() - began
            while got < size:
                got += len(connection.recv(PIECE))
        took = time.perf_counter() - began
        sender.join()
    return first, took


def main() -> None:
    """Run and print."""
    print(f"{'asked':<28}{'size':>10}{'first byte':>14}{'all':>10}{'rate':>16}{'of asked':>10}")
    for mbit_s, delay_s, size in ((None, 0.0, 64 << 20), (50.0, 0.05, 4 << 20), (10.0, 0.05, 1 << 20)):
        first, took = copy_s(size, mbit_s=mbit_s, delay_s=delay_s)
        rate = size * 8 / 1e6 / (took - delay_s)
        asked = "no limit" if mbit_s is None else f"{mbit_s:g} Mbit/s, {delay_s * 1000:g} ms"
        share = "" if mbit_s is None else f"{rate / mbit_s:.3f}"
        print(f"{asked:<28}{size / 1e6:>7.1f} MB{first * 1000:>11.1f} ms{took:>8.2f} s{rate:>9,.1f} Mbit/s{share:>10}")


if __name__ == "__main__":
    main()
