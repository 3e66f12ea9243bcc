"""Eight workers that fetch a slice at once, beside eight times curl from nginx: mutual TLS 1.3, loopback, in turns.

    python -m benchmarks.crowd [--mb 256] [--workers 8] [--runs 5]

Ours is a data node and as many fetchers, each a process with a certificate of its own, which verify by SHA-256 while
they write. The same node to curl compares the two servers. Speeds are all bytes over the time until the last one is
through; what one has written is removed and the disk left to settle before the next one starts. The data node's memory
is its peak.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from benchmarks.slices import NAME, ROW_BYTES, SLICE, curl_command, nginx
from hypha_tui.local_cluster import LocalCluster
from node.addresses import parse
from node.tensorfile import write_tensors


class Fetchers:
    """Fetchers that start at the same moment."""

    def __init__(self, cluster: LocalCluster, address: str, peer: str, names: list[str]) -> None:
        self._processes = []
        for name in names:
            command = [sys.executable, "-m", "benchmarks.slices", "--fetch", address, peer, "--as", name]
            command += ["--certificates", str(cluster.certificates), "--folder", str(cluster.folder / name)]
            self._processes.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))

    def fetch(self) -> float:
        """Seconds until all are through."""
        began = time.perf_counter()
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write("quick\n")
            process.stdin.flush()
        for process in self._processes:
            assert process.stdout is not None
            process.stdout.readline()
        return time.perf_counter() - began

    def close(self) -> None:
        """End them."""
        for process in self._processes:
            assert process.stdin is not None and process.stdout is not None
            process.stdin.close()
            process.wait(10)
            process.stdout.close()


def curl_from(address: str, cluster: LocalCluster) -> list[str]:
    """The curl command that fetches the slice from our data node."""
    where = parse(address)
    return [*curl_command(cluster.certificates), f"https://{where.netloc}/bulk/datasets/{NAME}/slices/0", "-o"]


def by_curl(commands: list[list[str]]) -> float:
    """Seconds until all commands are through."""
    began = time.perf_counter()
    running = [subprocess.Popen(["sh", "-c", " ".join(command)], stdout=subprocess.DEVNULL) for command in commands]
    for process in running:
        if process.wait():
            sys.exit("curl failed")
    return time.perf_counter() - began


def main() -> None:
    """Run the comparison and print it."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--mb", type=int, default=256)
    options.add_argument("--workers", type=int, default=8)
    options.add_argument("--runs", type=int, default=5)
    given = options.parse_args()
    names = [f"worker-{number}" for number in range(given.workers)]
    with tempfile.TemporaryDirectory(prefix="hypha-crowd-") as name, LocalCluster(Path(name) / "cluster") as cluster:
        data = Path(name) / NAME
        data.mkdir()
        rows = (given.mb << 20) // ROW_BYTES
        write_tensors(data / SLICE, {"input_ids": ("U8", (rows, ROW_BYTES), bytes(rows * ROW_BYTES))})
        size = (data / SLICE).stat().st_size * given.workers
        cluster.make_authority(["data", "fetcher", "nginx", *names])
        node = cluster.start("data", "gateway,data", config=f'dataset_path = ["{data}"]')
        while not (data / "manifest.json").exists():
            time.sleep(0.05)
        fetchers = Fetchers(cluster, node.address, node.peer_id, names)
        peak = 0
        with nginx(Path(name) / "nginx", cluster.certificates, data) as curl:
            targets = [f"{name}/by-curl-{number}" for number in range(given.workers)]
            plain = [[*curl, target] for target in targets]
            ours = [[*curl_from(node.address, cluster), target] for target in targets]
            verified = [[*curl, target, "&&", "sha256sum", target] for target in targets]
            contenders: dict[str, Callable[[], float]] = {
                "nginx to curl, not verified": lambda: by_curl(plain),
                "nginx to curl, then sha256sum": lambda: by_curl(verified),
                "ours to curl, not verified": lambda: by_curl(ours),
                "ours, verified": fetchers.fetch,
            }
            times: dict[str, list[float]] = {which: [] for which in contenders}
            for run in range(given.runs + 1):
                for which, contender in contenders.items():
                    for target in targets:
                        Path(target).unlink(missing_ok=True)
                    os.sync()
                    seconds = contender()
                    peak = max(peak, psutil.Process(node.process.pid).memory_info().rss)
                    if run:
                        times[which].append(seconds)
        fetchers.close()
    print(f"{given.workers} at once, {given.mb} MiB each, {given.runs} runs in turns")
    base_s = statistics.median(next(iter(times.values())))
    for which, found in times.items():
        median = statistics.median(found)
        print(f"{which:<32}{size / 1e6 / median:>8,.0f} MB/s  {base_s / median:>6.2f}")
    print(f"data node: {peak / 1e6:.0f} MB resident at most")


if __name__ == "__main__":
    main()
