"""Rows from a loader, beside litdata and mosaicml-streaming: 65,536 rows of 4 KB, one process, in order of use.

    python -m benchmarks.loader [--runs 5] [--rows 65536] [--peers PYTHON]

Ours cold reads from a data node (a `hypha-node` process) over mutual TLS into an empty cache; warm reads from the
cache. litdata reads its own chunks from a local folder, mosaicml-streaming copies its shards from a local folder into a
cache. Every reader is a new process each time, and all of them take turns; figures are medians. `PYTHON` is an
interpreter with the two peers installed (`pip install litdata mosaicml-streaming`); without it ours run alone.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from hypha_tui.local_cluster import LocalCluster
from node.tensorfile import write_tensors

ROW_BYTES = 4096
SLICE_ROWS = 2048

OURS = """
import json, sys, time
began = time.perf_counter()
from pathlib import Path
from node.streaming import StreamingConfig, StreamingLoader
from node.streaming.remote import RemoteSource
address, base, cache, rows = sys.argv[1:]
pem = {kind: Path(f"{base}-{kind}.pem") for kind in ("cert", "key", "trust")}
start = time.perf_counter()
source = RemoteSource("bench", [address], cache=Path(cache), **pem)
count, first, check = 0, 0.0, 0
with StreamingLoader(source, StreamingConfig(shuffle_seed=1, shuffle="slices", prefetch_slices=2)) as loader:
    for row in loader:
        if not count:
            first = time.perf_counter() - start
        count += 1
        check += int(row["x"][0])
assert count == int(rows), count
print(json.dumps({"rows_s": count / (time.perf_counter() - start), "first_s": first}))
"""

WRITE_PEERS = """
import sys, numpy as np
from pathlib import Path
import litdata
from streaming import MDSWriter
folder, rows = Path(sys.argv[1]), int(sys.argv[2])
def row(n):
    return {"x": np.full(4096, n % 251, dtype=np.uint8)}
if __name__ == "__main__":
    with MDSWriter(out=str(folder / "mds"), columns={"x": "bytes"}) as out:
        for n in range(rows):
            out.write({"x": row(n)["x"].tobytes()})
    litdata.optimize(fn=row, inputs=list(range(rows)), output_dir=str(folder / "lit"), num_workers=1, chunk_bytes="4MB")
"""

LITDATA = """
import json, sys, time
import litdata
folder, rows = sys.argv[1:]
if __name__ == "__main__":
    start, count, first = time.perf_counter(), 0, 0.0
    for row in litdata.StreamingDataset(folder, shuffle=False):
        if not count:
            first = time.perf_counter() - start
        count += 1
        row["x"][0]
    assert count == int(rows), count
    print(json.dumps({"rows_s": count / (time.perf_counter() - start), "first_s": first}))
"""

MOSAIC = """
import json, sys, time
from streaming import StreamingDataset
remote, cache, rows = sys.argv[1:]
if __name__ == "__main__":
    start, count, first = time.perf_counter(), 0, 0.0
    for row in StreamingDataset(remote=remote, local=cache, shuffle=False, batch_size=64):
        if not count:
            first = time.perf_counter() - start
        count += 1
        row["x"][0]
    assert count == int(rows), count
    print(json.dumps({"rows_s": count / (time.perf_counter() - start), "first_s": first}))
"""


def main() -> None:
    """Run the comparison and print it."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--runs", type=int, default=5)
    options.add_argument("--rows", type=int, default=65_536)
    options.add_argument("--peers", default="")
    given = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="hypha-loader-") as name, LocalCluster(Path(name) / "cluster") as cluster:
        print_figures(measure(Path(name), cluster, given.rows, given.runs, given.peers))


def measure(folder: Path, cluster: LocalCluster, rows: int, runs: int, peers: str) -> dict[str, list[dict[str, float]]]:
    """All figures of all contenders, in turns."""
    write_ours(folder / "bench", rows)
    cluster.make_authority(["data-1", "reader"])
    node = cluster.start("data-1", "data", config=f'dataset_path = ["{folder / "bench"}"]')
    cluster.wait_ready(node)
    if peers:
        run(peers, WRITE_PEERS, str(folder), str(rows))
    cache = folder / "cache"
    ours = [node.address.partition("/p2p/")[0], str(cluster.certificates / "reader"), str(cache), str(rows)]
    figures: dict[str, list[dict[str, float]]] = {}
    for _ in range(runs):
        shutil.rmtree(cache, ignore_errors=True)
        for which in ("ours, cold over mutual TLS", "ours, warm"):
            figures.setdefault(which, []).append(run(sys.executable, OURS, *ours))
        if peers:
            mosaic = folder / "mosaic-cache"
            shutil.rmtree(mosaic, ignore_errors=True)
            figures.setdefault("litdata, local folder", []).append(run(peers, LITDATA, str(folder / "lit"), str(rows)))
            for which in ("mosaicml, cold", "mosaicml, warm"):
                arguments = [str(folder / "mds"), str(mosaic), str(rows)]
                figures.setdefault(which, []).append(run(peers, MOSAIC, *arguments))
    return figures


def write_ours(folder: Path, rows: int) -> None:
    """The dataset as slices."""
    folder.mkdir()
    for first in range(0, rows, SLICE_ROWS):
        count = min(SLICE_ROWS, rows - first)
        content = np.repeat(np.arange(first, first + count) % 251, ROW_BYTES).astype(np.uint8)
        write_tensors(folder / f"slice-{first:08}.safetensors", {"x": ("U8", [count, ROW_BYTES], content.tobytes())})


def run(python: str, code: str, *arguments: str) -> dict[str, float]:
    """What a program prints last, as JSON."""
    with tempfile.NamedTemporaryFile("w", suffix=".py") as file:
        file.write(code)
        file.flush()
        done = subprocess.run([python, file.name, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{done.stderr[-2000:]}")
    lines = done.stdout.strip().splitlines()
    found: dict[str, float] = json.loads(lines[-1]) if lines and lines[-1].startswith("{") else {}
    return found


def print_figures(figures: dict[str, list[dict[str, float]]]) -> None:
    """Medians, and how ours compare."""
    rows_s = {which: statistics.median(one["rows_s"] for one in found) for which, found in figures.items()}
    for which, found in figures.items():
        first_ms = statistics.median(one["first_s"] for one in found) * 1000
        print(f"{which:28} {rows_s[which]:>10,.0f} rows/s   first row {first_ms:6.0f} ms")
    cold, warm = rows_s["ours, cold over mutual TLS"], rows_s["ours, warm"]
    if "mosaicml, cold" in rows_s:
        lit, mosaic = rows_s["litdata, local folder"], rows_s["mosaicml, cold"]
        print(
            f"cold: {cold / lit:.2f} x litdata, {cold / mosaic:.1f} x mosaicml cold; warm: {warm / lit:.2f} x litdata"
        )


if __name__ == "__main__":
    main()
