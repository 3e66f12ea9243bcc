"""The operator terminal: the real `hypha-tui` in a pseudo-terminal, against a process that serves the operator API.

    python -m benchmarks.terminal [busy] [held] [idle] [start] [far]

Without words, all of them. `busy`: 1,000 peers and leases, 500 changes a second at 120x40. `held`: 5,000 leases at
200x60, `j` held for ten seconds. `idle`: connected, nothing happens. `start`: from the command to the first
picture and the first rows. `far`: `busy` through a proxy that adds 150 ms each way. Prints the load of the machine
first: it decides what the figures are worth.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.terminal_pty import Pty, cpu_s

CURSOR = "▌".encode()
RUNS = 5


@contextmanager
def process(*words: str, socket: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that serves on a socket, ended with the block."""
    with subprocess.Popen([sys.executable, "-m", *words]) as running:
        try:
            until = time.perf_counter() + 20
            while not socket.exists() and time.perf_counter() < until:
                time.sleep(0.02)
            yield running
        finally:
            running.terminate()


@contextmanager
def terminal(folder: Path, workers: int, events_per_s: float, size: tuple[int, int], *, far: bool = False):  # type: ignore[no-untyped-def]
    """A terminal that shows the leases, and the node it looks at."""
    socket, proxy = folder / "node.sock", folder / "far.sock"
    for old in (socket, proxy):
        old.unlink(missing_ok=True)
    with process("benchmarks.terminal_node", str(socket), str(workers), str(events_per_s), socket=socket) as node:
        shown = None
        try:
            if far:
                with process("benchmarks.terminal_proxy", str(socket), str(proxy), "0.15", socket=proxy):
                    shown = Pty(f"unix:{proxy}", folder, *size)
                    yield shown, node
            else:
                shown = Pty(f"unix:{socket}", folder, *size)
                yield shown, node
        finally:
            if shown is not None:
                shown.end()


def to_leases(shown: Pty, workers: int) -> None:
    """Show the leases, with every row in them."""
    shown.wait_for(b"diloco-7", 20)
    shown.send(b"3")
    shown.wait_for(f"{workers:,} leases".encode(), 20)
    shown.read_for(2.5)


def key_to_frame(shown: Pty, seconds: float, per_s: float) -> list[float]:
    """Press `j` so often; for each the time until the cursor was painted at another row."""
    times: list[float] = []
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        while shown.read(0):
            pass
        began = time.perf_counter()
        shown.send(b"j")
        shown.wait_for(CURSOR, 5)
        times.append(time.perf_counter() - began)
        left = 1 / per_s - (time.perf_counter() - began)
        if left > 0:
            shown.read_for(left)
    return times


def p95(values: list[float]) -> float:
    """The 95th percentile, in ms."""
    return sorted(values)[int(len(values) * 0.95)] * 1_000


def busy(folder: Path, *, far: bool = False) -> None:
    """The first row of the table, or the fifth."""
    with terminal(folder, 1_000, 500, (120, 40), far=far) as (shown, _node):
        to_leases(shown, 1_000)
        before, bytes_before, began = shown.cpu_s, shown.bytes_read, time.perf_counter()
        shown.read_for(10)
        took = time.perf_counter() - began
        share = (shown.cpu_s - before) / took
        written = (shown.bytes_read - bytes_before) / took
        times = key_to_frame(shown, 8, 10)
        name = "150 ms away, 500 changes/s" if far else "1,000 peers + 1,000 leases, 500 changes/s, 120x40"
        print(f"{name}: {share:.1%} of a core, {written / 1e3:.1f} kB/s written, {shown.resident_mb:.0f} MB resident")
        print(
            f"  key to frame: median {statistics.median(times) * 1e3:.0f} ms, p95 {p95(times):.0f} ms of {len(times)}"
        )


def held(folder: Path) -> None:
    """`j` held."""
    with terminal(folder, 5_000, 100, (200, 60)) as (shown, _node):
        to_leases(shown, 5_000)
        before, began = shown.cpu_s, time.perf_counter()
        times = key_to_frame(shown, 10, 30)
        share = (shown.cpu_s - before) / (time.perf_counter() - began)
        print(
            f"5,000 leases, 200x60, j held 10 s at 30/s: median {statistics.median(times) * 1e3:.0f} ms, "
            f"p95 {p95(times):.0f} ms of {len(times)}; {share:.0%} of a core, {shown.resident_mb:.0f} MB resident"
        )


def idle(folder: Path) -> None:
    """Nothing happens."""
    with terminal(folder, 40, 0, (120, 40)) as (shown, node):
        to_leases(shown, 40)
        shown.send(b"1")
        shown.read_for(20)
        before = (shown.cpu_s, shown.wake_ups, shown.bytes_read, cpu_s(node.pid))
        shown.read_for(30)
        cpu, wakes, written, other = shown.cpu_s, shown.wake_ups, shown.bytes_read, cpu_s(node.pid)
        print(
            f"idle for 30 s on Overview: {(cpu - before[0]) / 30:.2%} of a core, "
            f"{(wakes - before[1]) / 30:.1f} wake-ups/s, {(written - before[2]) / 30:.0f} B/s written, "
            f"{shown.resident_mb:.0f} MB resident; the node: {(other - before[3]) / 30:.2%} of a core"
        )


def start(folder: Path) -> None:
    """From the command to a picture, and to rows in it. Processor time tells what is ours on a busy machine."""
    socket = folder / "node.sock"
    socket.unlink(missing_ok=True)
    with process("benchmarks.terminal_node", str(socket), "40", "0", socket=socket):
        for by_option in (False, True):
            found = []
            for _ in range(RUNS + 1):
                shown = Pty(f"unix:{socket}", folder, 120, 40, by_option=by_option)
                try:
                    painted, rows = shown.wait_for_each((b"1 Over", b"diloco-7"), 20)
                    cpu_s = shown.exact_cpu_s
                    found.append(tuple(1e3 * value for value in (painted - shown.began, rows - shown.began, cpu_s)))
                finally:
                    shown.end()
            painted, rows, cpu = (statistics.median(column) for column in zip(*found[1:], strict=True))
            least, name = min(run[2] for run in found), "with --node" if by_option else "without options"
            print(
                f"{name}: first picture {painted:.0f} ms, rows {rows:.0f} ms, "
                f"after {cpu:.0f} ms of processor time (least {least:.0f}); medians of {RUNS}"
            )
    versions = []
    for _ in range(RUNS + 1):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-m", "hypha_tui", "--version"], check=True, stdout=subprocess.DEVNULL)
        versions.append((time.perf_counter() - began) * 1e3)
    print(f"--version: {statistics.median(versions[1:]):.0f} ms, median of {RUNS}")


def main() -> None:
    """Measure and print."""
    parts = {"busy": busy, "held": held, "idle": idle, "start": start, "far": lambda folder: busy(folder, far=True)}
    chosen = sys.argv[1:] or list(parts)
    print(f"load of the machine: {os.getloadavg()[0]:.2f} on {os.cpu_count()} cores")
    with tempfile.TemporaryDirectory(prefix="hypha-bench-") as folder:
        for name in chosen:
            parts[name](Path(folder))


if __name__ == "__main__":
    main()
