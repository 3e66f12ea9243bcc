"""Slice fetch beside curl from nginx: mutual TLS 1.3 on loopback, the same file, in turns.

    python -m benchmarks.slices [--mb 256] [--runs 7] [--asyncio]

Ours is a data node (a `hypha-node` process) and a fetcher in another process; what it fetches is verified by SHA-256
while it is written. curl writes the file and verifies nothing; the line with sha256sum verifies it afterwards. Each run
takes all contenders one after the other; speeds are medians.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from hypha_tui.local_cluster import LocalCluster
from node.board import Board
from node.config import NodeConfig
from node.identity.credentials import load_identity
from node.network.bulk import download
from node.network.overlay import Overlay
from node.store import Store
from node.tensorfile import write_tensors
from node.wire import Manifest

NAME = "bench"
SLICE = "slice-00000.safetensors"
ROW_BYTES = 1024

NGINX = """
daemon off; worker_processes 1; pid {dir}/nginx.pid; error_log stderr error; {user}
events {{}}
http {{
  access_log off; sendfile on;
  client_body_temp_path {dir}/t1; proxy_temp_path {dir}/t2; fastcgi_temp_path {dir}/t3;
  uwsgi_temp_path {dir}/t4; scgi_temp_path {dir}/t5;
  server {{
    listen 127.0.0.1:{port} ssl; root {root};
    ssl_certificate {cert}; ssl_certificate_key {key}; ssl_client_certificate {trust};
    ssl_verify_client on; ssl_verify_depth 3; ssl_protocols TLSv1.3;
  }}
}}
"""


# ---- our fetcher, a process of its own ------------------------------------------------------------


async def fetcher(address: str, peer: str, certificates: Path, folder: Path, name: str) -> None:
    """Fetch the slice once for each line on stdin (`durable` or not); print the seconds that each took."""
    folder.mkdir(parents=True, exist_ok=True)
    base = f"{certificates}/{name}"
    cert, key, trust = (Path(f"{base}-{kind}.pem") for kind in ("cert", "key", "trust"))
    config = NodeConfig(
        name=name,
        roles=["worker"],
        state_dir=folder,
        listen_addresses=["/ip4/127.0.0.1/tcp/0"],
        gateway_addresses=[address],
        mdns=False,
    )
    identity = load_identity(cert, key, trust)
    async with Store.open(folder / "state.db") as store, asyncio.TaskGroup() as tasks:
        overlay = Overlay(config, identity, Board(identity.peer_id), store)
        running = tasks.create_task(overlay.run())
        async with asyncio.timeout(10):
            while not any(known.record.peer_id == peer for known in overlay.peers()):
                await asyncio.sleep(0.02)
        async with overlay.open(peer, "GET", f"/bulk/datasets/{NAME}/manifest") as answer:
            info = msgspec.json.decode(await answer.read(), type=Manifest).slices[0]
        target = folder / info.name
        while line := (await asyncio.to_thread(sys.stdin.readline)).strip():
            started = time.perf_counter()
            await download(
                overlay,
                [peer],
                f"/bulk/datasets/{NAME}/slices/0",
                target,
                sha256=info.sha256,
                size_bytes=info.size_bytes,
                durable=line == "durable",
            )
            print(json.dumps(time.perf_counter() - started), flush=True)
            target.unlink()
        running.cancel()


# ---- the comparison -------------------------------------------------------------------------------


@contextmanager
def nginx(folder: Path, certificates: Path, root: Path) -> Iterator[list[str]]:
    """nginx with mutual TLS; yields the curl command that fetches the slice from it."""
    folder.mkdir()
    base = f"{certificates}/nginx"
    paths = {kind: f"{base}-{kind}.pem" for kind in ("cert", "key", "trust")}
    user = "user root;" if os.geteuid() == 0 else ""
    port = free_port()
    config = folder / "nginx.conf"
    config.write_text(NGINX.format(dir=folder, user=user, port=port, root=root, **paths))
    binary = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin") or sys.exit("nginx is not installed")
    process = subprocess.Popen([binary, "-p", str(folder), "-c", str(config)])
    try:
        wait_for(port)
        yield [*curl_command(certificates), f"https://127.0.0.1:{port}/{SLICE}", "-o"]
    finally:
        process.terminate()
        process.wait(5)


def curl_command(certificates: Path) -> list[str]:
    """curl as the fetcher, without what it fetches."""
    base = f"{certificates}/fetcher"
    files = ["--cacert", f"{base}-trust.pem", "--cert", f"{base}-cert.pem", "--key", f"{base}-key.pem"]
    return ["curl", "-sSf", "--tlsv1.3", *files]


def wait_for(port: int) -> None:
    """Wait until somebody listens on a port."""
    deadline = time.monotonic() + 5
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def timed(*commands: list[str]) -> float:
    """Seconds that these commands took together."""
    started = time.perf_counter()
    for command in commands:
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started


def report(name: str, times: list[float], size: int, base_s: float) -> str:
    """One line: median speed, its spread, and its ratio to the base."""
    median = statistics.median(times)
    speeds = sorted(size / 1e6 / seconds for seconds in times)
    return (
        f"{name:<44}{size / 1e6 / median:>8,.0f} MB/s  ({speeds[0]:,.0f} .. {speeds[-1]:,.0f}){base_s / median:>9.2f}"
    )


def compare(folder: Path, size_mb: int, runs: int, *, plain_asyncio: bool) -> None:
    """Run and print."""
    data = folder / NAME
    data.mkdir()
    rows = (size_mb << 20) // ROW_BYTES
    write_tensors(data / SLICE, {"input_ids": ("U8", (rows, ROW_BYTES), os.urandom(1 << 20) * size_mb)})
    size = (data / SLICE).stat().st_size
    with LocalCluster(folder / "cluster") as cluster:
        cluster.make_authority(["data", "fetcher", "nginx"])
        node = cluster.start("data", "gateway,data", config=f'dataset_path = ["{data}"]')
        while not (data / "manifest.json").exists():
            time.sleep(0.05)
        arguments = [sys.executable, "-m", "benchmarks.slices", "--fetch", node.address, node.peer_id]
        arguments += ["--certificates", str(cluster.certificates), "--folder", str(folder / "ours")]
        arguments += ["--asyncio"] if plain_asyncio else []
        child = subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert child.stdin is not None and child.stdout is not None

        def ours(kind: str) -> float:
            assert child.stdin is not None and child.stdout is not None
            child.stdin.write(f"{kind}\n")
            child.stdin.flush()
            return float(child.stdout.readline())

        with nginx(folder / "nginx", cluster.certificates, data) as curl:
            target = str(folder / "by-curl")
            contenders: dict[str, Callable[[], float]] = {
                "curl from nginx, written, not verified": lambda: timed([*curl, target]),
                "ours, written and verified (SHA-256)": lambda: ours("quick"),
                "curl from nginx, then sha256sum": lambda: timed([*curl, target], ["sha256sum", target]),
                "ours, verified and flushed to the disk": lambda: ours("durable"),
            }
            times: dict[str, list[float]] = {name: [] for name in contenders}
            for run in range(runs + 1):
                for name, contender in contenders.items():
                    seconds = contender()
                    Path(target).unlink(missing_ok=True)
                    if run:
                        times[name].append(seconds)
        child.stdin.close()
        child.wait(10)
        child.stdout.close()
    base_s = statistics.median(next(iter(times.values())))
    print(f"one slice of {size_mb} MiB, mutual TLS 1.3, loopback, {os.cpu_count()} cores, {runs} runs in turns")
    print(f"{'':<44}{'median':>13}  {'(range)':<18}of curl")
    for name, values in times.items():
        print(report(name, values, size, base_s))


def main() -> None:
    """Parse the arguments and run."""
    parser = argparse.ArgumentParser(prog="benchmarks.slices", description=__doc__)
    parser.add_argument("--mb", type=int, default=256)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--asyncio", action="store_true", help="the fetcher on plain asyncio, without uvloop")
    parser.add_argument("--fetch", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--certificates", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--as", dest="name", default="fetcher", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.fetch:
        with asyncio.Runner(loop_factory=loop_factory(plain=chosen.asyncio)) as runner:
            address, peer = chosen.fetch
            runner.run(fetcher(address, peer, chosen.certificates, chosen.folder, chosen.name))
        return
    with tempfile.TemporaryDirectory(prefix="hypha-bench-") as name:
        compare(Path(name), chosen.mb, chosen.runs, plain_asyncio=chosen.asyncio)


def loop_factory(*, plain: bool) -> Callable[[], asyncio.AbstractEventLoop]:
    """The loop a node would use, or the plain one."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    return asyncio.new_event_loop if plain else uvloop.new_event_loop


if __name__ == "__main__":
    main()
