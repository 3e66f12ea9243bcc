"""Hostile safetensors headers and range requests against the parser and a data node, with a seed.

    python -m benchmarks.fuzz_data [--headers 100000] [--requests 100000] [--seed 1]

The data node is a `hypha-node` process, spoken to over mutual TLS by hand, on several connections at once. Another
client fetches a slice all along, and every byte it gets is compared. Fails at the first crash, hang or wrong byte.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
import tempfile
import time
from pathlib import Path

import psutil

from hypha_tui.local_cluster import LocalCluster
from node.addresses import parse
from node.errors import TensorFileError
from node.identity.credentials import load_identity
from node.tensorfile import parse_header, write_tensors
from tests.unit.hostile_bytes import Client, header_mutants, request_mutants

NAME = "texts"
PATH = f"/bulk/datasets/{NAME}/slices/0"
CONNECTIONS = 8
MOST_ABOVE_IDLE_MB = 64.0


def headers(count: int, seed: int) -> str:
    """Let the parser read so many headers; what came of it."""
    process = psutil.Process()
    idle = process.memory_info().rss
    sound, slowest, most = 0, 0.0, idle
    for number, (prefix, size) in enumerate(itertools.islice(header_mutants(random.Random(seed)), count)):
        began = time.perf_counter()
        try:
            parse_header(prefix, size)
            sound += 1
        except TensorFileError:
            pass
        slowest = max(slowest, time.perf_counter() - began)
        if number % 1_000 == 0:
            most = max(most, process.memory_info().rss)
    above = (most - idle) / 1e6
    assert above <= MOST_ABOVE_IDLE_MB, f"{above:.0f} MB above idle"
    return f"{count:,} headers: {sound:,} sound, slowest {slowest * 1e3:.1f} ms, at most {above:.1f} MB above idle"


async def requests(cluster: LocalCluster, content: bytes, count: int, seed: int) -> list[str]:
    """Send a data node so many requests; what came of it."""
    node = cluster.nodes["data"]
    where = parse(node.address)
    clients = []
    for name in ["good"] + ["bad"] * CONNECTIONS:
        base = cluster.certificates / name
        files = [Path(f"{base}-{kind}.pem") for kind in ("cert", "key", "trust")]
        context = load_identity(files[0], files[1], files[2], None).client_context()
        clients.append(Client(where.host, where.port, context, content))
    good, bad = clients[0], clients[1:]
    process = psutil.Process(node.process.pid)
    whole = f"GET {PATH} HTTP/1.1\r\nHost: x\r\n\r\n".encode()
    await good.ask(whole, keep=True)
    idle = most = process.memory_info().rss
    latencies: list[float] = []
    done = asyncio.Event()

    async def fetch() -> None:
        while not done.is_set():
            began = time.perf_counter()
            assert await good.ask(whole, keep=True) == 200
            latencies.append(time.perf_counter() - began)
            await asyncio.sleep(0.02)

    async def attack(client: Client, share: int, own_seed: int) -> None:
        nonlocal most
        for number, (request, keep) in enumerate(
            itertools.islice(request_mutants(random.Random(own_seed), PATH, len(content)), share)
        ):
            await client.ask(request, keep=keep)
            if number % 100 == 0:
                most = max(most, process.memory_info().rss)
        await client.close()

    began = time.perf_counter()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(fetch())
        async with asyncio.TaskGroup() as attacks:
            for number, client in enumerate(bad):
                attacks.create_task(attack(client, count // len(bad), seed * 1_000 + number))
        done.set()
    took = time.perf_counter() - began
    await good.close()
    above = (most - idle) / 1e6
    assert node.process.poll() is None
    assert above <= MOST_ABOVE_IDLE_MB, f"{above:.0f} MB above idle"
    statuses: dict[int, int] = {}
    for client in bad:
        for status, times in client.statuses.items():
            statuses[status] = statuses.get(status, 0) + times
    latencies.sort()
    middle = latencies[len(latencies) // 2]
    told = ", ".join(f"{status or 'none'}: {times:,}" for status, times in sorted(statuses.items()))
    return [
        f"{sum(statuses.values()):,} requests in {took:.0f} s, at most {above:.1f} MB above idle; answers: {told}",
        f"the other client: {len(latencies):,} fetches, all right, median {middle * 1e3:.1f} ms, "
        f"slowest {latencies[-1] * 1e3:.0f} ms",
    ]


def main() -> None:
    """Run both and print what came of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--headers", type=int, default=100_000)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    print(headers(given.headers, given.seed), flush=True)
    with tempfile.TemporaryDirectory() as folder, LocalCluster(Path(folder)) as cluster:
        dataset = cluster.folder / NAME
        dataset.mkdir()
        write_tensors(dataset / "s0.safetensors", {"x": ("U8", (100, 640), bytes(range(256)) * 250)})
        cluster.make_authority(["data", "good", "bad"])
        cluster.start("data", "gateway,data", config=f'dataset_path = "{dataset}"')
        content = (dataset / "s0.safetensors").read_bytes()
        for line in asyncio.run(requests(cluster, content, given.requests, given.seed)):
            print(line)


if __name__ == "__main__":
    main()
