"""An hour's recording, replayed at 60 times its speed: does memory stay flat?

`python -m benchmarks.replay [--peers 200]` makes the recording (four frames a second, 50 changes in each), opens the
terminal on it without a screen, and prints the resident memory every ten seconds. It fails over 120 MB.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from hypha_tui.client.recording import Recorder
from hypha_tui.client.replay import ReplayClient
from hypha_tui.screens.app import HyphaApp
from hypha_tui.store.series import CAPACITY
from node.views import Delta, Event, Point, Snapshot
from tests.terminal.feed import cluster_items, job, lease, peer_id

SECONDS: Final = 3_600
FRAMES_PER_S: Final = 4
CHANGES: Final = 50
MOST_MB: Final = 120.0
PAGE: Final = os.sysconf("SC_PAGE_SIZE")


def resident_mb() -> float:
    """Resident memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE / 1e6


def make(path: Path, peers: int) -> None:
    """A recording of a busy hour."""
    moment = [0.0]
    recorder = Recorder(path, clock=lambda: moment[0], wall=lambda: 1_700_000_000.0)
    recorder.frame(Snapshot(seq=1, items=cluster_items(peers)))
    for number in range(1, SECONDS * FRAMES_PER_S):
        moment[0] = number / FRAMES_PER_S
        round_ = number // (30 * FRAMES_PER_S)
        first = number * CHANGES % peers
        leases = [replace(lease((first + at) % peers, remaining_s=9.0), renewals=number % 999) for at in range(CHANGES)]
        points = [
            Point(
                job_id="diloco-7", name="loss", round=round_, value=5 / (round_ + 1), t_s=moment[0], worker=peer_id(at)
            )
            for at in range(4, 20)
        ]
        event = Event(node=peer_id(4), seq=number, name="slice.used", text=f"train-{number:05d} is used")
        is_second = number % FRAMES_PER_S == 0
        items = [*leases, job(round_=round_)] if is_second else leases
        while recorder._queue.qsize() > 1_000:
            time.sleep(0.01)
        recorder.frame(Delta(seq=number + 1, items=items, events=[event], points=points if is_second else []))
    recorder.close()


async def play(path: Path) -> list[float]:
    """Resident memory while it plays, every ten seconds."""
    client = ReplayClient(path, speed=60.0)
    app = HyphaApp(client, label="bench", environment={"LANG": "C.UTF-8", "TERM": "xterm-256color"})
    found: list[float] = []
    async with app.run_test(size=(120, 40)) as pilot:
        for key in ("3", "6", "7", "1", "3", "6", "7"):
            began = time.monotonic()
            await pilot.press(key)
            while time.monotonic() - began < 9.5 and client.now() < client.last:
                await asyncio.sleep(0.1)
            found.append(resident_mb())
            print(f"  at {client.now():6.0f} s  {found[-1]:6.1f} MB  {len(app.store.events)} events")
        assert client.now() >= client.last - 5, client.now()
        assert len(app.store.events) <= 5_000
        assert all(len(series) <= CAPACITY + 512 for series in app.store.series.values())
    return found


def main() -> int:
    """The exit code: 1 where it takes too much."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--peers", type=int, default=200)
    peers = parser.parse_args().peers
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "hour.hyp"
        began = time.monotonic()
        pid = os.fork()  # what it takes to make the recording is not counted
        if not pid:
            make(path, peers)
            os._exit(0)
        os.waitpid(pid, 0)
        size = path.stat().st_size / 1e6
        print(f"an hour of {peers} peers: {size:.1f} MB, made in {time.monotonic() - began:.0f} s")
        found = asyncio.run(play(path))
    print(f"resident at most {max(found):.1f} MB, in the last half {max(found[3:]) - min(found[3:]):.1f} MB apart")
    return int(max(found) > MOST_MB)


if __name__ == "__main__":
    sys.exit(main())
