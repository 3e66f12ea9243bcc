"""The real `hypha-tui` in a pseudo-terminal: keys in, bytes out, and what its process costs."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Sequence
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")


class Pty:
    """A terminal of `columns` x `rows` with `hypha-tui` in it. Answers no queries, as a plain terminal does not.

    `by_option`: it is told the node by `--node`, not by its environment."""

    def __init__(self, node: str, home: Path, columns: int, rows: int, *, by_option: bool = False) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        environment = {**os.environ, "TERM": "xterm-256color", "LANG": "C.UTF-8", "HOME": str(home)}
        environment.pop("NO_COLOR", None)
        self.began = time.perf_counter()
        if not by_option:
            environment["HYPHA_TUI_NODE"] = node
        environment.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed program has its bytecode
        command = [sys.executable, "-m", "hypha_tui", *(("--node", node) if by_option else ())]
        self.process = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, env=environment, start_new_session=True
        )
        os.close(slave)
        self.bytes_read = 0

    def read(self, timeout_s: float) -> bytes:
        """What it writes within a time; empty if nothing."""
        if not select.select([self._master], [], [], max(timeout_s, 0))[0]:
            return b""
        try:
            data = os.read(self._master, 1 << 16)
        except OSError:
            return b""
        self.bytes_read += len(data)
        return data

    def read_for(self, seconds: float) -> bytes:
        """Everything that it writes in this time."""
        until = time.perf_counter() + seconds
        parts = []
        while (left := until - time.perf_counter()) > 0:
            parts.append(self.read(left))
        return b"".join(parts)

    def wait_for(self, what: bytes, timeout_s: float) -> float:
        """Until it wrote this; when that was. Fails after the timeout."""
        return self.wait_for_each((what,), timeout_s)[0]

    def wait_for_each(self, wanted: Sequence[bytes], timeout_s: float) -> list[float]:
        """Until it wrote all of these; when it wrote each of them first. Fails after the timeout."""
        until = time.perf_counter() + timeout_s
        seen, found = b"", dict[bytes, float]()
        while (left := until - time.perf_counter()) > 0:
            seen = seen[-4_096:] + self.read(left)
            for what in wanted:
                if what in seen:
                    found.setdefault(what, time.perf_counter())
            if len(found) == len(wanted):
                return [found[what] for what in wanted]
        raise SystemExit(f"{wanted!r} did not appear within {timeout_s:.0f} s; last: {seen[-300:]!r}")

    def send(self, keys: bytes) -> None:
        """Press keys."""
        os.write(self._master, keys)

    @property
    def cpu_s(self) -> float:
        """Processor time so far."""
        return cpu_s(self.process.pid)

    @property
    def exact_cpu_s(self) -> float:
        """The same without rounding, of the threads that are still there."""
        threads = Path(f"/proc/{self.process.pid}/task").glob("*/schedstat")
        return sum(int(thread.read_text().split()[0]) for thread in threads) / 1e9

    @property
    def wake_ups(self) -> int:
        """How often a thread of the process waited and was woken: voluntary context switches of all of them."""
        total = 0
        for status in Path(f"/proc/{self.process.pid}/task").glob("*/status"):
            for line in status.read_text().splitlines():
                if line.startswith("voluntary_ctxt_switches"):
                    total += int(line.split()[1])
        return total

    @property
    def resident_mb(self) -> float:
        """Memory that it holds."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6

    def end(self) -> None:
        """Quit."""
        if self.process.poll() is None:
            self.send(b"\x11")
            until = time.perf_counter() + 5
            while self.process.poll() is None and time.perf_counter() < until:
                self.read(0.05)
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._master)


def cpu_s(pid: int) -> float:
    """Processor time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS
