"""Kills of what serves, fetches and reads a stream, at random points: the log of samples must not show them.

    python -m benchmarks.kills [--kills 100] [--seed 1]

Two data nodes serve a dataset over mutual TLS to 1 to 5 readers, processes that share a cache with room for a part of
it. In each run three epochs are read and some of them are killed with SIGKILL: a data node or both, a reader while a
slice is on its way to it, a reader anywhere, or all readers, after which another number of them goes on. A reader goes
on from its last checkpoint, and its log is cut where that says. At the end every log is compared, in order, with what
a loader gives in this process that reads the folder and that nobody disturbs; and every sample is in the logs once.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Final

import numpy as np

from hypha_tui.local_cluster import LocalCluster
from node.errors import HyphaError
from node.streaming import FolderSource, StreamingConfig, StreamingLoader, StreamState, merge
from node.streaming.remote import RemoteSource
from node.streaming.state import from_json
from node.tensorfile import write_tensors

SLICES, SLICE_ROWS, ROW_BYTES = 30, 40, 25_000
ROWS: Final = SLICES * SLICE_ROWS
EPOCHS: Final = 3
KILLS_A_RUN: Final = 5
CHECKPOINT_ROWS: Final = 7
PACE_S: Final = 0.004
WAIT_S: Final = 120.0
VICTIMS: Final = ("data node", "both data nodes", "reader that fetches", "reader", "all readers")


@dataclass(frozen=True)
class Site:
    """Where the data nodes and the readers' files are."""

    folder: Path
    addresses: tuple[str, ...]
    certificate: Path

    def log(self, rank: int) -> Path:
        """A reader's log: 8 bytes for each sample, epoch times `ROWS` plus its number."""
        return self.folder / f"log-{rank}"

    def state(self, rank: int) -> Path:
        """A reader's last checkpoint: the state, after the length of its log."""
        return self.folder / f"state-{rank}"


def main() -> None:
    """Kill, compare, and print what was found."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--kills", type=int, default=100)
    options.add_argument("--seed", type=int, default=1)
    given = options.parse_args()
    done: Counter[str] = Counter()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="hypha-kills-") as name, LocalCluster(Path(name) / "cluster") as cluster:
        addresses = serve(cluster, Path(name))
        for run in count():
            if done.total() == given.kills:
                break
            chance = random.Random(f"{given.seed} {run}")
            site = Site(Path(name) / f"run-{run}", addresses, cluster.certificates / "reader")
            site.folder.mkdir()
            most = min(KILLS_A_RUN, given.kills - done.total())
            disturbed = Run(site, cluster, Path(name) / "data-1" / "kills", chance, 1 + run % 5)
            done += disturbed.go(most)
            print(f"run {run}: readers {disturbed.crews}, {disturbed.killed}: as undisturbed", flush=True)
    told = ", ".join(f"{which} {count}" for which, count in sorted(done.items()))
    print(f"{done.total()} kills ({told}) in {time.monotonic() - began:.0f} s: no sample lost, none seen twice")


def serve(cluster: LocalCluster, folder: Path) -> tuple[str, ...]:
    """Start both data nodes; their addresses once they serve the dataset."""
    names = ("data-1", "data-2")
    cluster.make_authority([*names, "reader"])
    for name in names:
        where = folder / name / "kills"
        where.mkdir(parents=True)
        for index in range(SLICES):
            ids = np.arange(index * SLICE_ROWS, (index + 1) * SLICE_ROWS)
            noise = random.Random(index).randbytes(SLICE_ROWS * ROW_BYTES)
            tensors = {"id": ("I64", [SLICE_ROWS], ids.tobytes()), "x": ("U8", [SLICE_ROWS, ROW_BYTES], noise)}
            write_tensors(where / f"slice-{index:04}.safetensors", tensors, durable=False)
        cluster.start(name, "data", config=f'dataset_path = ["{where}"]')
    addresses = tuple(cluster.nodes[name].address.partition("/p2p/")[0] for name in names)
    for address in addresses:
        opened(Site(folder, (address,), cluster.certificates / "reader"), 1).close()
    return addresses


def opened(site: Site, readers: int) -> RemoteSource:
    """The dataset, once a data node serves it, through the cache that the readers share: each holds a slice and two
    that come."""
    cert, key, trust = (Path(f"{site.certificate}-{kind}.pem") for kind in ("cert", "key", "trust"))
    cache = site.folder / "cache"
    room = (3 * readers + 3) * (SLICE_ROWS * ROW_BYTES + 2000)
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            return RemoteSource("kills", site.addresses, cert=cert, key=key, trust=trust, cache=cache, cache_bytes=room)
        except HyphaError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def config_of(readers: int, rank: int) -> StreamingConfig:
    """How a reader reads."""
    return StreamingConfig(world_size=readers, rank=rank, shuffle_seed=9, prefetch_slices=1)


def read(site: Site, readers: int, rank: int) -> None:
    """A reader's process: from its checkpoint to the end of the last epoch."""
    length, _, text = site.state(rank).read_text().partition(" ")
    os.truncate(site.log(rank), int(length))
    with (
        StreamingLoader(opened(site, readers), config_of(readers, rank)) as loader,
        site.log(rank).open("ab", buffering=0) as log,
    ):
        loader.restore(from_json(text))
        while loader.epoch < EPOCHS:
            epoch = loader.epoch
            for taken, row in enumerate(loader, start=1):
                log.write(int(epoch * ROWS + row["id"]).to_bytes(8, "little"))
                time.sleep(PACE_S * readers)
                if taken % CHECKPOINT_ROWS == 0:
                    keep(site, rank, log.tell(), loader.state())
            keep(site, rank, log.tell(), loader.state())
            # readers that train together are never more than an epoch apart
            wait(lambda: min(kept(site, one)[1].passes[0].epoch for one in range(readers)) > epoch)  # noqa: B023


def keep(site: Site, rank: int, length: int, state: StreamState) -> None:
    """Write a checkpoint, whole or not at all."""
    new = site.state(rank).with_suffix(".new")
    new.write_bytes(b"%d %s" % (length, state.to_json()))
    new.replace(site.state(rank))


def kept(site: Site, rank: int) -> tuple[int, StreamState]:
    """A reader's last checkpoint: the length of its log, and the state."""
    length, _, text = site.state(rank).read_text().partition(" ")
    return int(length), from_json(text)


class Run:
    """Three epochs, read by crews of readers one after the other; a crew is followed by one of another size."""

    def __init__(self, site: Site, cluster: LocalCluster, folder: Path, chance: random.Random, readers: int) -> None:
        self._site = site
        self._cluster = cluster
        self._folder = folder
        self._chance = chance
        self._processes: list[SpawnProcess] = []
        self._seen: Counter[int] = Counter()
        self._undisturbed: list[Iterator[int]] = []
        self.crews: list[int] = []
        self.killed: list[str] = []
        with StreamingLoader(FolderSource(folder), config_of(1, 0)) as loader:
            self._begin(readers, merge([loader.state()]))

    def go(self, most: int) -> Counter[str]:
        """Read to the end, with up to `most` kills on the way; what was killed. Ends the program where a log is wrong.

        While a data node starts again the readers may come to an end: then nothing is killed, and nothing counted.
        """
        points = sorted(self._chance.uniform(0, 0.9) for _ in range(most))
        try:
            for point in points:
                wait(lambda: self._progress() >= point * EPOCHS * ROWS)  # noqa: B023 - used at once
                victim = self._chance.choice(VICTIMS)
                if self._kill(victim):
                    self.killed.append(victim)
            for process in self._processes:
                process.join(WAIT_S)
                check(process.exitcode == 0, f"a reader ended with exit code {process.exitcode}")
        finally:
            for process in self._processes:
                process.kill()
                process.join()
        self._take_logs(is_over=True)
        check(self._seen == Counter(range(EPOCHS * ROWS)), "a sample is missing, or is there twice")
        return Counter(self.killed)

    def _begin(self, readers: int, state: StreamState) -> None:
        """A crew of readers that goes on from the state of all of the last one."""
        self.crews.append(readers)
        self._undisturbed = []
        for rank in range(readers):
            loader = StreamingLoader(FolderSource(self._folder), config_of(readers, rank))
            loader.restore(state)
            self._undisturbed.append(samples(loader))
            self._site.log(rank).write_bytes(b"")
            keep(self._site, rank, 0, loader.state())
        self._processes = [self._started(rank) for rank in range(readers)]

    def _started(self, rank: int) -> SpawnProcess:
        process = multiprocessing.get_context("spawn").Process(
            target=read, args=(self._site, self.crews[-1], rank), daemon=True
        )
        process.start()
        return process

    def _progress(self) -> int:
        logs = [self._site.log(rank) for rank in range(self.crews[-1])]
        return self._seen.total() + sum(log.stat().st_size // 8 for log in logs)

    def _kill(self, victim: str) -> bool:
        if not all(process.is_alive() for process in self._processes):
            return False
        if "data node" in victim:
            names = list(self._cluster.nodes) if "both" in victim else [self._chance.choice(list(self._cluster.nodes))]
            for name in names:
                self._cluster.kill(name)
            for name in names:
                self._cluster.restart(name)
        elif victim == "all readers":
            for process in self._processes:
                kill(process)
            states = [kept(self._site, rank)[1] for rank in range(self.crews[-1])]
            self._take_logs()
            self._begin(self._chance.choice([size for size in range(1, 6) if size != self.crews[-1]]), merge(states))
        else:
            ranks = [self._chance.randrange(len(self._processes))]
            if "fetches" in victim:
                wait(lambda: self._fetching(ranks) or self._progress() > 0.95 * EPOCHS * ROWS, every_s=0.0005)
            if not ranks or not self._processes[ranks[0]].is_alive():
                return False
            kill(self._processes[ranks[0]])
            self._processes[ranks[0]] = self._started(ranks[0])
        return True

    def _fetching(self, ranks: list[int]) -> list[int]:
        """Make `ranks` those of the readers to which a slice is on its way."""
        ranks.clear()
        if any(path.suffix == ".part" for path in (self._site.folder / "cache").iterdir()):
            for rank, process in enumerate(self._processes):
                with contextlib.suppress(OSError):
                    files = [file.readlink() for file in Path(f"/proc/{process.pid}/fd").iterdir()]
                    if any(file.suffix == ".part" for file in files):
                        ranks.append(rank)
        return ranks

    def _take_logs(self, *, is_over: bool = False) -> None:
        """Compare the logs, as far as the checkpoints say, with what an undisturbed loader gives."""
        for rank, undisturbed in enumerate(self._undisturbed):
            length, _ = kept(self._site, rank)
            found = np.frombuffer(self._site.log(rank).read_bytes()[:length], dtype="<i8").tolist()
            expected = [next(undisturbed, None) for _ in found]
            check(
                found == expected, f"the log of reader {rank} of {len(self._undisturbed)} differs after {self.killed}"
            )
            if is_over:
                check(next(undisturbed, None) is None, f"the log of reader {rank} ends too early")
            self._seen += Counter(found)


def samples(loader: StreamingLoader) -> Iterator[int]:
    """What a loader reads to the end of the last epoch, as a log has it."""
    with loader:
        while (epoch := loader.epoch) < EPOCHS:
            yield from (int(epoch * ROWS + row["id"]) for row in loader)


def kill(process: SpawnProcess) -> None:
    """SIGKILL, as a crash would."""
    process.kill()
    process.join()


def wait(is_so: Callable[[], object], every_s: float = 0.002) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + WAIT_S
    while not is_so():
        check(time.monotonic() < deadline, f"it did not come within {WAIT_S:.0f} s")
        time.sleep(every_s)


def check(is_so: bool, otherwise: str) -> None:
    """End the program with a line unless something is so."""
    if not is_so:
        sys.exit(f"wrong: {otherwise}")


if __name__ == "__main__":
    main()
