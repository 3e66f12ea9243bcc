"""A job is paused, gone on with and moved off a worker, by an operator, on real nodes."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

from hypha_tui.local_cluster import LocalCluster, LocalNode
from tests.integration.support import (
    dataset,
    job_at,
    job_folder,
    live_leases,
    processes_naming,
    run_tui,
    small_cluster,
    submit,
    tui,
    until,
)


def steer(cluster: LocalCluster, *words: str) -> Any:
    """A command of the operator, given through the gateway."""
    done = run_tui(*words, "--node", cluster.nodes["gateway"].address, *cluster.certificate_flags(), "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def peer(node: LocalNode, name: str) -> dict[str, Any]:
    return next(one for one in tui(node, "peers") if one["name"] == name)


def test_a_job_is_paused_resumed_and_drained_off_a_worker_and_every_row_counts_once(tmp_path: Path) -> None:
    with LocalCluster(tmp_path / "cluster") as cluster:
        small_cluster(cluster, workers=2, data=[dataset(tmp_path)], cpu=3)
        scheduler = cluster.nodes["scheduler"]
        folder = job_folder(tmp_path / "job", name="long", workers=2, rounds=400)
        job_id = submit(scheduler, folder)
        until(lambda: job_at(scheduler, job_id)["round"] >= 1, within_s=30, what="a round is committed")
        assert steer(cluster, "job", "pause", "long") == {"job_id": job_id, "paused": True}
        paused = until(
            lambda: (job := job_at(scheduler, job_id))["state"] == "paused" and job, within_s=20, what="it is paused"
        )
        assert paused["reason"].startswith("paused by ")
        until(lambda: not live_leases(scheduler), within_s=5, what="its leases are back")
        steer(cluster, "job", "resume", "long")
        before = paused["round"]
        until(lambda: job_at(scheduler, job_id)["round"] > before, within_s=30, what="it goes on")
        drained = cluster.nodes["worker-1"]
        steer(cluster, "worker", "drain", "worker-1")
        until(
            lambda: (
                not peer(scheduler, "worker-1")["draining"]
                and not any(lease["worker"] == drained.peer_id for lease in live_leases(scheduler))
            ),
            within_s=30,
            what="worker-1 is drained",
        )
        assert peer(scheduler, "worker-1")["cordoned"]
        assert any(event["name"] == "worker.drained" for event in tui(scheduler, "events"))
        now = job_at(scheduler, job_id)["round"]
        until(lambda: job_at(scheduler, job_id)["round"] > now, within_s=30, what="it goes on elsewhere")
        steer(cluster, "job", "cancel", "long")
        until(lambda: job_at(scheduler, job_id)["state"] == "cancelled", within_s=10, what="it is cancelled")
        with sqlite3.connect(scheduler.state_dir / "state.db") as db:
            lines = [json.loads(line) for (line,) in db.execute("SELECT spans FROM contributions")]
        db.close()
        counted = [(a, b, row) for spans in lines for a, b, start, end in spans for row in range(start, end)]
        assert len(counted) == len(set(counted)) > 0
    assert processes_naming(str(tmp_path)) == []
