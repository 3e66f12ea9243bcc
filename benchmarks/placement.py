"""Placement: from a job's acceptance until all its leases are held, over real processes.

    python -m benchmarks.placement [JOBS]

Starts a gateway, a scheduler, a data node and two workers with mutual TLS on loopback; submits JOBS (default 20) jobs
of one parameter server and two training workers one after the other, each cancelled once it is placed. The scheduler
measures: the time in its `job.placed` event runs from the moment the job is in its store.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from hypha_tui.local_cluster import LocalCluster
from tests.integration.support import dataset, job_at, job_folder, live_leases, small_cluster, submit, tui, until


def placed_after_s(cluster: LocalCluster, folder: Path) -> float:
    """Submit one job, wait until its leases are held, cancel it; seconds that the placement took."""
    scheduler = cluster.nodes["scheduler"]
    job_id = submit(scheduler, folder)

    def placed() -> dict[str, Any] | None:
        for event in tui(scheduler, "events"):
            if event["name"] == "job.placed" and event["fields"].get("job") == job_id:
                return dict(event)
        return None

    event = until(placed, within_s=15, what="the job is placed")
    tui(scheduler, "cancel", job_id)
    until(lambda: job_at(scheduler, job_id)["state"] == "cancelled", within_s=10, what="cancelled")
    until(lambda: live_leases(scheduler) == [], within_s=10, what="leases are released")
    return float(event["fields"]["seconds"])


def main() -> None:
    """Run and print."""
    jobs = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    with tempfile.TemporaryDirectory(prefix="hypha-bench-") as name, LocalCluster(Path(name) / "cluster") as cluster:
        small_cluster(cluster, data=[dataset(Path(name))])
        folder = job_folder(Path(name) / "job")
        time.sleep(1.0)
        times = sorted(placed_after_s(cluster, folder) for _ in range(jobs))
    p95 = times[min(len(times) - 1, round(0.95 * (len(times) - 1)))]
    median = statistics.median(times)
    print(f"placement of 1 + 2 leases: median {median:.3f} s, p95 {p95:.3f} s, worst {times[-1]:.3f} s, jobs {jobs}")


if __name__ == "__main__":
    main()
