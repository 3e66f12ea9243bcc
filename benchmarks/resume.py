"""Going on at 90 % of 10 million rows: the time to the first batch, and whether each row after it is the right one.

    python -m benchmarks.resume [--rows 10000000] [--runs 5]

Slices or rows are dealt out, to 1 or 5 workers; and where 5 have stopped, 3 go on. The states are those of loaders that
have read 90 % of an epoch. Times are those of the last worker, medians, each of a new process: from opening the source
(a folder; a data node over mutual TLS into an empty cache) to the first batch of 64 rows, by the clock and of the
process's CPU. What all workers read to the end of the epoch is compared with an order that is made here from the seed
alone, without a loader.
"""

from __future__ import annotations

import argparse
import hashlib
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from hypha_tui.local_cluster import LocalCluster
from node.errors import HyphaError
from node.ordering import order_of
from node.streaming import FolderSource, Source, StreamingConfig, StreamingLoader, StreamState, merge
from node.streaming.config import Unit
from node.streaming.hashing import Ids, shuffled
from node.streaming.remote import RemoteSource
from node.streaming.state import from_json
from node.tensorfile import write_tensors
from node.wire import Manifest, SliceInfo

T = TypeVar("T")

SLICE_ROWS: Final = 5_000
SEED: Final = 7
CASES: Final[Sequence[tuple[Unit, int, int]]] = (
    ("slices", 1, 1),
    ("slices", 5, 5),
    ("slices", 5, 3),
    ("rows", 1, 1),
    ("rows", 5, 5),
    ("rows", 5, 3),
)


def main() -> None:
    """Write the dataset, stop, go on, compare, and print the figures."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rows", type=int, default=10_000_000)
    options.add_argument("--runs", type=int, default=5)
    given = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="hypha-resume-") as name, LocalCluster(Path(name) / "cluster") as cluster:
        folder = Path(name) / "resume"
        write(folder, given.rows // SLICE_ROWS)
        cluster.make_authority(["data-1", "reader"])
        node = cluster.start("data-1", "data", config=f'dataset_path = ["{folder}"]')
        remote = (node.address.partition("/p2p/")[0], str(cluster.certificates / "reader"), name)
        wait_served(remote)
        print(f"load {os.getloadavg()[0]:.1f}, {given.rows:,} rows in {given.rows // SLICE_ROWS:,} slices")
        for unit, before, after in CASES:
            one(folder, remote, unit, before, after, given.runs)


def one(folder: Path, remote: tuple[str, str, str], unit: Unit, before: int, after: int, runs: int) -> None:
    """Print how one case does."""
    states = [stopped(folder, unit, before, rank) for rank in range(before)]
    starts = [merge(states)] * after if before != after else states
    expected = left_of(folder, unit, before, after, [state.passes[0].count for state in states])
    wrong = [rank for rank in range(after) if not is_right(folder, unit, after, rank, starts[rank], expected[rank])]
    last = after - 1
    shown = []
    for where, address in (("folder", None), ("data node", remote)):
        told = (str(folder), address, unit, after, last, starts[last].to_json())
        times = [in_new_process(first_batch, told) for _ in range(runs)]
        wall_s, cpu_s = (statistics.median(column) for column in zip(*times, strict=True))
        shown.append(f"first batch from a {where} {wall_s * 1000:.0f} ms (CPU {cpu_s * 1000:.0f})")
    times_shown = ", ".join(shown)
    size = max(len(state.to_json()) for state in starts)
    rows = sum(map(len, expected))
    exact = f"workers {wrong} read other rows" if wrong else f"all {rows:,} rows that were left as they should be"
    print(f"{unit} dealt out, {before} workers then {after}: {times_shown}; state {size} bytes; {exact}", flush=True)
    if wrong:
        sys.exit(1)


def write(folder: Path, slices: int) -> None:
    """The dataset with its manifest: rows of an id and 16 bytes."""
    folder.mkdir()
    infos = []
    for index in range(slices):
        ids = np.arange(index * SLICE_ROWS, (index + 1) * SLICE_ROWS)
        tensors = {"id": ("I64", [SLICE_ROWS], ids.tobytes()), "x": ("U8", [SLICE_ROWS, 16], bytes(16 * SLICE_ROWS))}
        path = folder / f"slice-{index:06}.safetensors"
        write_tensors(path, tensors, durable=False)
        content = path.read_bytes()
        infos.append(SliceInfo(path.name, len(content), SLICE_ROWS, hashlib.sha256(content).hexdigest()))
    (folder / "manifest.json").write_bytes(msgspec.json.encode(Manifest("resume", infos)))


def config_of(unit: Unit, workers: int, rank: int, batch_size: int) -> StreamingConfig:
    """How a worker reads."""
    return StreamingConfig(world_size=workers, rank=rank, unit=unit, shuffle_seed=SEED, batch_size=batch_size)


def stopped(folder: Path, unit: Unit, workers: int, rank: int) -> StreamState:
    """The state of a worker that has read 90 % of its share, and stops in the middle of a slice."""
    with StreamingLoader(FolderSource(folder), config_of(unit, workers, rank, 977)) as loader:
        goal = len(loader) * 9 // 10
        while loader.stats().samples_loaded < goal:
            loader.next()
        return loader.state()


def left_of(folder: Path, unit: Unit, before: int, after: int, counts: Sequence[int]) -> list[Ids]:
    """What each of the new workers has to read: the epoch's order, dealt out, cut, and dealt again to other workers."""
    slices = len(list(folder.glob("*.safetensors")))
    order = [n * SLICE_ROWS + shuffled(SLICE_ROWS, f"hypha rows {SEED} 0 {n}") for n in order_of(SEED, 0, slices)]
    if unit == "rows":
        whole = np.concatenate(order)
        rest = [whole[rank::before][counts[rank] :] for rank in range(before)]
        if before == after:
            return rest
        is_left: NDArray[np.bool_] = np.ones(len(whole), dtype=bool)
        for rank in range(before):
            is_left[rank::before][: counts[rank]] = False
        return [whole[is_left][rank::after] for rank in range(after)]
    for rank in range(before):
        used = counts[rank]
        for place in range(rank, slices, before):
            order[place], used = order[place][used:], max(0, used - SLICE_ROWS)
    parts = order if before == after else [part for part in order if len(part)]
    return [np.concatenate(parts[rank::after]) for rank in range(after)]


def is_right(folder: Path, unit: Unit, workers: int, rank: int, state: StreamState, expected: Ids) -> bool:
    """Whether a worker that goes on reads exactly this to the end of the epoch."""
    with StreamingLoader(FolderSource(folder), config_of(unit, workers, rank, 1000)) as loader:
        loader.restore(state)
        return np.array_equal(np.concatenate([batch["id"] for batch in loader]), expected)


def source_of(folder: str, remote: tuple[str, str, str] | None, cache: str) -> Source:
    """The dataset in its folder, or at a data node."""
    if remote is None:
        return FolderSource(Path(folder))
    address, base, _ = remote
    cert, key, trust = (Path(f"{base}-{kind}.pem") for kind in ("cert", "key", "trust"))
    return RemoteSource("resume", [address], cert=cert, key=key, trust=trust, cache=Path(cache))


def first_batch(
    folder: str, remote: tuple[str, str, str] | None, unit: Unit, workers: int, rank: int, state: bytes
) -> tuple[float, float]:
    """Seconds until the first batch is here, by the clock and of CPU."""
    with tempfile.TemporaryDirectory(dir=remote[2] if remote else None) as cache:
        start, start_cpu = time.perf_counter(), time.process_time()
        source = source_of(folder, remote, cache)
        with StreamingLoader(source, config_of(unit, workers, rank, 64)) as loader:
            loader.restore(from_json(state))
            batch = loader.next()
            took_s = time.perf_counter() - start, time.process_time() - start_cpu
    assert batch is not None and len(batch["id"]) == 64
    return took_s


def in_new_process(work: Callable[..., T], arguments: tuple[object, ...]) -> T:
    """What a function answers in a process of its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(work, arguments)


def wait_served(remote: tuple[str, str, str]) -> None:
    """Wait until the data node has read the dataset."""
    for _ in range(600):
        try:
            source_of("", remote, remote[2]).close()
        except HyphaError:
            time.sleep(0.1)
        else:
            return
    sys.exit("the data node does not serve the dataset")


if __name__ == "__main__":
    main()
