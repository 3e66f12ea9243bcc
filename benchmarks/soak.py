"""A data node and a loader for a long time: nothing may grow.

    python -m benchmarks.soak [--minutes 30]

The loader reads a dataset over mutual TLS again and again through a cache with room for a sixth of it, so that every
slice is fetched anew and another one removed. Each epoch has a loader of its own, and begins with a client that breaks
off in the middle of a slice. Memory, open files and threads of both processes are looked at once a second; the first
third of the time warms up. Ends with 1 where memory grows by 1 MB a minute or more (the line through the samples), or
where there are more files or threads at the end than before.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import psutil

from hypha_tui.local_cluster import LocalCluster
from node.addresses import Address, parse
from node.errors import HyphaError
from node.identity.credentials import Identity, load_identity
from node.network.addressbook import AddressBook
from node.network.connecting import Connector
from node.network.stream import Stream
from node.streaming import StreamingConfig, StreamingLoader
from node.streaming.remote import RemoteSource
from node.tensorfile import write_tensors

SLICES, SLICE_ROWS, ROW_BYTES = 60, 64, 16_384
PAUSE_S: Final = 0.02
SAMPLE_S: Final = 1.0
MOST_MB_A_MINUTE: Final = 1.0


@dataclass
class Grown:
    """What was seen of one process."""

    name: str
    process: psutil.Process
    resident_mb: list[float] = field(default_factory=list)
    files: list[int] = field(default_factory=list)
    threads: list[int] = field(default_factory=list)

    def look(self) -> None:
        """Take one sample."""
        self.resident_mb.append(self.process.memory_info().rss / 1e6)
        self.files.append(self.process.num_fds())
        self.threads.append(self.process.num_threads())

    def judge(self, minutes: float) -> bool:
        """Print what it grew by, after the first third of the time; whether that is too much."""
        warm = len(self.files) // 3
        resident, files, threads = self.resident_mb[warm:], self.files[warm:], self.threads[warm:]
        slope = float(np.polyfit(np.linspace(0, minutes * 2 / 3, len(resident)), resident, 1)[0])
        quarter = max(1, len(files) // 4)
        print(
            f"{self.name}: {np.median(resident):.0f} MB, {slope:+.2f} MB a minute; "
            f"files {max(files[:quarter])} at most at first, {max(files[-quarter:])} at the end; "
            f"threads {max(threads[:quarter])}, {max(threads[-quarter:])}"
        )
        more = max(files[-quarter:]) > max(files[:quarter]) + 2 or max(threads[-quarter:]) > max(threads[:quarter]) + 2
        return more or slope >= MOST_MB_A_MINUTE


def main() -> None:
    """Let them run, look on, and judge."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--minutes", type=float, default=30.0)
    minutes = options.parse_args().minutes
    with tempfile.TemporaryDirectory(prefix="hypha-soak-") as name, LocalCluster(Path(name) / "cluster") as cluster:
        folder = Path(name) / "soak"
        folder.mkdir()
        for index in range(SLICES):
            content = os.urandom(SLICE_ROWS * ROW_BYTES)
            tensors = {"x": ("U8", [SLICE_ROWS, ROW_BYTES], content)}
            write_tensors(folder / f"slice-{index:04}.safetensors", tensors, durable=False)
        cluster.make_authority(["data-1", "reader"])
        node = cluster.start("data-1", "data", config=f'dataset_path = ["{folder}"]')
        slices = multiprocessing.get_context("spawn").Value("q", 0)
        told = (node.address, node.peer_id, str(cluster.certificates / "reader"), name, slices)
        reader = multiprocessing.get_context("spawn").Process(target=read, args=told, daemon=True)
        reader.start()
        seen = [Grown("data node", psutil.Process(node.process.pid)), Grown("loader", psutil.Process(reader.pid))]
        end = time.monotonic() + minutes * 60
        while time.monotonic() < end and reader.is_alive():
            time.sleep(SAMPLE_S)
            for one in seen:
                one.look()
        is_over = reader.is_alive()
        reader.kill()
        print(f"{slices.value:,} slices in {minutes:g} minutes, load {os.getloadavg()[0]:.1f}")
        grown = [one.judge(minutes) for one in seen]
    sys.exit(any(grown) or not is_over)


def read(address: str, peer: str, base: str, folder: str, slices: Any) -> None:
    """The loader's process: one epoch after the other."""
    cert, key, trust = (Path(f"{base}-{kind}.pem") for kind in ("cert", "key", "trust"))
    cache = Path(folder) / "cache"
    cache_bytes = SLICES * SLICE_ROWS * ROW_BYTES // 6
    epoch = 0
    while True:
        try:
            source = RemoteSource(
                "soak", [address], cert=cert, key=key, trust=trust, cache=cache, cache_bytes=cache_bytes
            )
        except HyphaError:  # at the start it has not read its datasets
            time.sleep(0.1)
            continue
        asyncio.run(break_off(load_identity(cert, key, trust), parse(address).pinned(peer)))
        with StreamingLoader(source, StreamingConfig(shuffle_seed=1, batch_size=SLICE_ROWS)) as loader:
            loader.reset(epoch)
            for _ in loader:
                slices.value += 1
                time.sleep(PAUSE_S)
        epoch += 1


async def break_off(identity: Identity, address: Address) -> None:
    """Be a client that leaves in the middle of a slice."""
    peer = address.peer_id or ""
    book = AddressBook()
    book.dialled(peer, address)
    connection = await Connector(identity, book).connect(peer)
    stream = Stream(connection, peer, 5.0)
    try:
        stream.ask("/bulk/datasets/soak/slices/0", {}).read(1000)
    finally:
        stream.close()


if __name__ == "__main__":
    main()
