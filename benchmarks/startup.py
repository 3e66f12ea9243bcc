"""Start-up: both `--version` commands, a data node until it serves, and what it idles at.

    python -m benchmarks.startup [RUNS]

Prints the median and the range of RUNS (default 7) runs each, after one that is not counted. The two commands are
timed alternating, so that a slow moment of the machine meets both.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from hypha_tui.local_cluster import LocalCluster, command

COMMANDS = {
    "hypha-node --version": ["node.cli", "--version"],
    "hypha-tui --version": ["hypha_tui", "--version"],
}


def seconds_of(module: str, *arguments: str) -> float:
    """Wall time of one run of a command."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-m", module, *arguments], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def row(name: str, values: list[float], unit: str = "s") -> None:
    """One line of the report."""
    median, low, high = statistics.median(values), min(values), max(values)
    print(f"{name:<42} median {median:7.3f} {unit}   range {low:.3f} to {high:.3f}   runs {len(values)}")


def main() -> None:
    """Run and print everything."""
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 7
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for number in range(runs + 1):
        for name, words in COMMANDS.items():
            took = seconds_of(*words)
            if number:
                times[name].append(took)
    for name, values in times.items():
        row(name, values)

    serves, resident, busy = [], [], []
    with tempfile.TemporaryDirectory(prefix="hypha-bench-") as folder, LocalCluster(Path(folder)) as cluster:
        cluster.make_authority(["data"])
        source = Path(folder) / "text"
        source.mkdir()
        (source / "a.txt").write_text("some text to serve\n" * 5_000)
        dataset = Path(folder) / "dataset" / "text"
        command("dataset", "build", str(source), "--out", str(dataset), "--format", "text")
        for number in range(runs + 1):
            began = time.perf_counter()
            node = cluster.start("data", "data", config=f'dataset_path = "{dataset}"')
            took = time.perf_counter() - began
            if number:
                serves.append(took)
                process = psutil.Process(node.process.pid)
                time.sleep(2.0)
                before = sum(process.cpu_times()[:2])
                time.sleep(3.0)
                busy.append((sum(process.cpu_times()[:2]) - before) / 3.0 * 100)
                resident.append(process.memory_info().rss / 1e6)
            cluster.stop()
    row("data node: start to serving", serves)
    row("data node: resident when idle", resident, "MB")
    row("data node: of one core when idle", busy, "%")


if __name__ == "__main__":
    main()
