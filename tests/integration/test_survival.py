"""What is killed leaves nothing broken: workers, daemons, the whole node, at any moment."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path
from typing import Any

import pytest

from hypha_tui.local_cluster import LocalCluster
from tests.integration.support import (
    dataset,
    job_at,
    job_folder,
    live_leases,
    processes_naming,
    small_cluster,
    submit,
    tui,
    until,
)

pytestmark = pytest.mark.timeout(240)


def test_a_worker_killed_in_mid_round_is_replaced_or_missed_and_the_job_finishes(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    """Its lease lapses, its slices go back, the job says so, goes on, and is done. U28, H43."""
    small_cluster(cluster, workers=3, data=[dataset(tmp_path, rows=2048)])
    scheduler = cluster.nodes["scheduler"]
    job_id = submit(scheduler, job_folder(tmp_path / "job", rounds=6, samples=1200, workers=2))
    job = until(
        lambda: (found := job_at(scheduler, job_id)).get("round", 0) >= 1 and found, within_s=60, what="a first round"
    )
    by_peer = {node.peer_id: name for name, node in cluster.nodes.items()}
    servers = {task["peer_id"] for task in job["tasks"] if task["role"] == "aggregate"}
    victim = next(task for task in job["tasks"] if task["role"] == "train" and task["peer_id"] not in servers)
    cluster.kill(by_peer[victim["peer_id"]])

    until(
        lambda: [event for event in tui(scheduler, "events") if event["name"] == "worker.lost"] or None,
        within_s=15,
        what="the loss is told",
    )
    ended = until(
        lambda: (found := job_at(scheduler, job_id))["state"] in ("done", "failed") and found,
        within_s=120,
        what="the end",
    )
    assert ended["state"] == "done", ended["reason"]
    assert ended["round"] == 6
    lost = next(task for task in ended["tasks"] if task["task_id"] == victim["task_id"])
    assert lost["state"] == "lost"


def test_a_cancelled_job_leaves_no_process(cluster: LocalCluster, tmp_path: Path) -> None:
    """U29."""
    workers = small_cluster(cluster, workers=2, data=[dataset(tmp_path, rows=1024)])
    job_id = submit(workers[0], job_folder(tmp_path / "job", rounds=500, samples=4000))
    until(lambda: job_at(workers[0], job_id).get("round", 0) >= 1, within_s=60, what="a first round")
    assert processes_naming("node.executors")
    tui(workers[1], "cancel", job_id)
    until(lambda: not processes_naming(str(tmp_path / "cluster" / "worker-1" / "work")), within_s=6, what="no executor")
    until(lambda: not processes_naming(str(tmp_path / "cluster" / "worker-2" / "work")), within_s=6, what="no executor")
    assert job_at(workers[0], job_id)["state"] == "cancelled"
    until(lambda: live_leases(workers[0]) == [], within_s=5, what="no lease")


def test_a_killed_worker_node_takes_its_executors_along_and_starts_again_clean(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    """H33, U41: SIGKILL of the daemon, no manual step."""
    (worker,) = small_cluster(cluster, workers=1, data=[dataset(tmp_path, rows=1024)])
    job_id = submit(cluster.nodes["scheduler"], job_folder(tmp_path / "job", rounds=500, samples=4000, workers=1))
    until(lambda: job_at(cluster.nodes["scheduler"], job_id).get("round", 0) >= 1, within_s=60, what="a first round")
    work = str(tmp_path / "cluster" / "worker-1" / "work")
    old = [path for path in Path(work).glob("hypha-*") if (path / "tmp").exists()]
    assert old
    cluster.kill("worker-1")
    until(lambda: not processes_naming(work), within_s=3, what="the executors die with their node")
    cluster.restart("worker-1")
    until(lambda: not any(path.exists() for path in old), within_s=10, what="old work directories are swept")
    until(
        lambda: job_at(cluster.nodes["scheduler"], job_id).get("workers") == 1,
        within_s=60,
        what="the worker is taken again",
    )
    tui(worker, "cancel", job_id)


def test_a_node_killed_at_random_moments_always_starts_again(cluster: LocalCluster, tmp_path: Path) -> None:
    """U41, U30: SIGKILL at any instant leaves a state that the next start accepts."""
    seed = 20251
    moment = random.Random(seed)
    cluster.make_authority(["all"])
    node = cluster.launch("all", "gateway,scheduler,worker,data", config=f'dataset_path = "{dataset(tmp_path)}"')
    for _ in range(6):
        time.sleep(moment.uniform(0.1, 1.2))
        cluster.kill("all")
        node.info = {}
        node = cluster.launch("all", node.roles, config=f'dataset_path = "{tmp_path / "tiny"}"')
    cluster.wait_ready(node)
    assert [peer["name"] for peer in tui(node, "peers")] == ["all"]
    until(lambda: [row["name"] for row in tui(node, "datasets")] == ["tiny"], within_s=5, what="the dataset is served")


def test_a_killed_parameter_server_is_placed_again_and_the_job_goes_on_from_its_last_commit(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    """U28, H11, H62: SIGKILL of its node; no round is done twice, and workers keep their tasks."""
    small_cluster(cluster, workers=3, data=[dataset(tmp_path, rows=2048)])
    scheduler = cluster.nodes["scheduler"]
    job_id = submit(scheduler, job_folder(tmp_path / "job", rounds=8, samples=1200, workers=2))
    job = until(
        lambda: (found := job_at(scheduler, job_id)).get("round", 0) >= 2 and found, within_s=60, what="two rounds"
    )
    by_peer = {node.peer_id: name for name, node in cluster.nodes.items()}
    server = next(task for task in job["tasks"] if task["role"] == "aggregate")
    survivors = {t["task_id"] for t in job["tasks"] if t["role"] == "train" and t["peer_id"] != server["peer_id"]}
    committed = job["round"]
    cluster.kill(by_peer[server["peer_id"]])
    ended = until(
        lambda: (found := job_at(scheduler, job_id))["state"] in ("done", "failed") and found,
        within_s=120,
        what="the end",
    )
    assert ended["state"] == "done", ended["reason"]
    assert ended["round"] == 8
    kept = {task["task_id"]: task["state"] for task in ended["tasks"]}
    assert all(kept[task_id] == "finished" for task_id in survivors), kept
    rounds = rounds_of(ended)
    assert [line["round"] for line in rounds] == list(range(8))
    assert {line["epoch"] for line in rounds[:committed]} == {0}
    assert rounds[-1]["epoch"] == 1
    assert_rows_count_once(rounds)


def rounds_of(job: dict[str, Any]) -> list[dict[str, Any]]:
    """The rounds in a finished job's training record."""
    record: dict[str, Any] = json.loads((Path(job["model_dir"]) / "training.json").read_text())
    return list(record["rounds"])


def assert_rows_count_once(rounds: list[dict[str, Any]]) -> None:
    """No row of a pass over the data was trained on twice by what the rounds committed."""
    counted = [
        (pass_, index, row)
        for line in rounds
        for share in line["contributions"]
        for pass_, index, start, end in share["spans"]
        for row in range(start, end)
    ]
    assert len(counted) == len(set(counted)) == sum(line["samples"] for line in rounds) > 0


def test_a_scheduler_that_starts_again_goes_on_with_its_job_where_it_was(cluster: LocalCluster, tmp_path: Path) -> None:
    """U34: ended and killed, its workers train on under the same leases; no round is lost, no task is started twice."""
    workers = small_cluster(cluster, workers=2, data=[dataset(tmp_path, rows=2048)])
    scheduler = cluster.nodes["scheduler"]
    job_id = submit(scheduler, job_folder(tmp_path / "job", rounds=8, samples=1200))

    def at_round(number: int) -> dict[str, Any]:
        return until(
            lambda: (found := job_at(cluster.nodes["scheduler"], job_id)).get("round", 0) >= number and found,
            within_s=60,
            what=f"round {number}",
        )

    job = at_round(2)
    began = time.monotonic()
    scheduler.process.terminate()
    assert scheduler.process.wait(6) == 0
    assert time.monotonic() - began < 5
    assert len({lease["id"] for lease in live_leases(workers[0])}) == 3, "they are kept for the next start"
    cluster.restart("scheduler")
    at_round(4)
    cluster.kill("scheduler")
    assert len({lease["id"] for lease in live_leases(workers[0])}) == 3
    cluster.restart("scheduler")
    scheduler = cluster.nodes["scheduler"]
    ended = until(
        lambda: (found := job_at(scheduler, job_id)).get("state") in ("done", "failed") and found,
        within_s=120,
        what="the end",
    )
    assert (ended["state"], ended["round"]) == ("done", 8), ended["reason"]
    assert {task["task_id"] for task in ended["tasks"]} == {task["task_id"] for task in job["tasks"]}
    rounds = rounds_of(ended)
    assert [(line["round"], line["epoch"]) for line in rounds] == [(number, 0) for number in range(8)]
    assert_rows_count_once(rounds)
    until(lambda: live_leases(workers[0]) == [], within_s=5, what="no lease")


def test_every_node_of_a_busy_cluster_ends_at_once_and_the_job_goes_on_after_a_restart(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    """U34, U41, U50: SIGTERM for all, in mid-round; exit code 0 within 5 s, no executor, no manual step."""
    workers = small_cluster(cluster, workers=2, data=[dataset(tmp_path, rows=1024)])
    scheduler = cluster.nodes["scheduler"]
    job_id = submit(scheduler, job_folder(tmp_path / "job", rounds=6, samples=1200))
    job = until(
        lambda: (found := job_at(scheduler, job_id)).get("round", 0) >= 1 and found, within_s=60, what="a first round"
    )
    began = time.monotonic()
    assert set(cluster.stop().values()) == {0}
    assert time.monotonic() - began < 5
    assert not processes_naming(str(tmp_path / "cluster"))
    assert not any("stop_overdue" in node.log_path.read_text() for node in cluster.nodes.values())
    for name in cluster.nodes:
        cluster.restart(name)
    ended = until(
        lambda: (found := job_at(scheduler, job_id)).get("state") == "done" and found,
        within_s=90,
        what="the job is done",
    )
    rounds = rounds_of(ended)
    assert [line["round"] for line in rounds] == list(range(6))
    assert all(line["epoch"] == 0 for line in rounds[: job["round"]])
    assert_rows_count_once(rounds)
    until(lambda: live_leases(workers[0]) == [], within_s=5, what="no lease")


def test_a_gateway_comes_back_and_every_node_finds_it(cluster: LocalCluster) -> None:
    """H58, U13: static addresses, no multicast."""
    cluster.make_authority(["gateway", "data", "late"])
    gateway = cluster.start("gateway", "gateway")
    data = cluster.start("data", "data", gateways=[gateway.address])
    cluster.kill("gateway")
    cluster.restart("gateway")
    late = cluster.start("late", "data", gateways=[gateway.address])
    for node in (gateway, data, late):
        until(
            lambda node=node: sum(peer["state"] == "up" for peer in tui(node, "peers")) == 3,
            within_s=15,
            what=f"{node.name} sees all three",
        )
