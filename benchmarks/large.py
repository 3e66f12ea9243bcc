"""Files over 2 GB between two nodes, both ways: the time, and what memory each end takes for it.

    python -m benchmarks.large [--mb 2200]

One node sends and takes a file of this size over mutual TLS as data nodes, workers and schedulers do; another fetches
it and sends it back, verified. Memory is the highest resident size during a transfer, less the one before it.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from aiohttp import web

from hypha_tui.local_cluster import LocalCluster
from node.board import Board
from node.config import NodeConfig
from node.identity.caller import Caller
from node.identity.credentials import load_identity
from node.network import bulk
from node.network.overlay import Overlay
from node.network.server import BulkHandler
from node.network.serving import receive_file, send_file
from node.store import Store

FILE: Final = "large.bin"
ADDRESS: Final = "/bulk/large"
BLOCK_BYTES: Final = 1 << 20


def main() -> None:
    """Run both transfers and print the figures; with three arguments of its own, be the other node."""
    if len(sys.argv) == 5:
        asyncio.run(serve(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])))
        return
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--mb", type=int, default=2200)
    size = options.parse_args().mb * 10**6
    with tempfile.TemporaryDirectory(prefix="hypha-large-") as name:
        cluster = LocalCluster(Path(name) / "cluster")
        cluster.make_authority(["server", "client"])
        (Path(name) / "server").mkdir()
        sha256 = write(Path(name) / "server" / FILE, size)
        asyncio.run(measure(Path(name), cluster.certificates, sha256, size))


def write(path: Path, size: int) -> str:
    """Make the file; its digest."""
    digest, block = hashlib.sha256(), os.urandom(BLOCK_BYTES)
    with path.open("wb") as file:
        for number in range(0, size, BLOCK_BYTES):
            piece = (number.to_bytes(8, "little") + block)[: min(BLOCK_BYTES, size - number)]
            file.write(piece)
            digest.update(piece)
    return digest.hexdigest()


@asynccontextmanager
async def node(
    name: str, certificates: Path, folder: Path, gateways: list[str], routes: Mapping[str, BulkHandler]
) -> AsyncIterator[Overlay]:
    """A node's part of the network, which answers these methods for the file."""
    cert, key, trust = (certificates / f"{name}-{kind}.pem" for kind in ("cert", "key", "trust"))
    config = NodeConfig(
        name=name,
        roles=["worker"],
        state_dir=folder,
        listen_addresses=["/ip4/127.0.0.1/tcp/0"],
        gateway_addresses=gateways,
        mdns=False,
    )
    identity = load_identity(cert, key, trust)
    async with Store.open(folder / "state.db") as store, asyncio.TaskGroup() as tasks:
        overlay = Overlay(config, identity, Board(identity.peer_id), store)
        for method, handler in routes.items():
            overlay.bulk_route(method, ADDRESS, handler)
        running = tasks.create_task(overlay.run())
        await overlay.listening.wait()
        yield overlay
        running.cancel()


async def serve(certificates: Path, folder: Path, sha256: str, size: int) -> None:
    """Be the node that has the file, until stdin ends."""

    async def send(_: Caller, request: web.Request) -> web.StreamResponse:
        return await send_file(request, folder / FILE, sha256=sha256)

    async def take(_: Caller, request: web.Request) -> web.StreamResponse:
        await receive_file(request, folder / "taken", sha256=sha256, size_bytes=size, limit_bytes=size)
        return web.Response()

    async with node("server", certificates, folder, [], {"GET": send, "PUT": take}) as overlay:
        print(json.dumps([overlay.peer_id, overlay.addresses[0]]), flush=True)
        await asyncio.to_thread(sys.stdin.read)


async def measure(folder: Path, certificates: Path, sha256: str, size: int) -> None:
    """Fetch the file and send it back."""
    command = [sys.executable, "-m", "benchmarks.large", str(certificates), str(folder / "server"), sha256, str(size)]
    pipe = asyncio.subprocess.PIPE
    server = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
    assert server.stdin is not None and server.stdout is not None
    (folder / "client").mkdir()
    target = folder / "client" / FILE
    try:
        peer, address = json.loads(await server.stdout.readline())
        async with node("client", certificates, folder / "client", [address], {}) as overlay:
            while not any(known.record.peer_id == peer for known in overlay.peers()):
                await asyncio.sleep(0.02)
            fetch = bulk.download(overlay, [peer], ADDRESS, target, sha256=sha256, size_bytes=size)
            await one("down", server.pid, size, fetch)
            await one("up", server.pid, size, bulk.upload(overlay, peer, ADDRESS, target))
    finally:
        server.stdin.close()
        await server.wait()


async def one(way: str, server: int, size: int, transfer: Awaitable[object]) -> None:
    """Print what a transfer takes."""
    pids = {"server": server, "client": os.getpid()}
    before = {name: resident(pid, "VmRSS") for name, pid in pids.items()}
    for pid in pids.values():
        Path(f"/proc/{pid}/clear_refs").write_text("5")  # the highest resident size is counted from here on
    began = time.perf_counter()
    await transfer
    took_s = time.perf_counter() - began
    shown = ", ".join(f"{name} +{resident(pid, 'VmHWM') - before[name]:.0f} MB" for name, pid in pids.items())
    print(f"{way}: {size / 1e9:.2f} GB in {took_s:.1f} s; {shown}; load {os.getloadavg()[0]:.1f}", flush=True)


def resident(pid: int, which: str) -> float:
    """A process's resident memory in MB, now or at its highest."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(which)) / 1000


if __name__ == "__main__":
    main()
