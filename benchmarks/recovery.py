"""How long a loss holds a job up: SIGKILL of a worker, of the parameter server, of the scheduler.

    python -m benchmarks.recovery [--repeats 3] [--seed 1] [--minutes 3]

A real cluster (gateway, scheduler, data node, four workers, mutual TLS, the product's executor), a model of 12.9 MB, 20
batches a round: the job that torchft was measured with. A batch sleeps 0.12 s beside its real step. Each victim is
killed in the inner steps and in the exchange (as soon as the first update of a round has reached the parameter server),
and started again one second later. In the inner steps the instants are spread evenly: with three kills of a kind, one
falls at random in each third of the time between a commit and the first update after it. Times are from the scheduler's
own records.

The second part compares the commits of so many minutes undisturbed with those at one worker killed a minute (and
started again after 5 s), without and with a fifth machine in reserve (`spare_workers = 1`).
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.job import Job, write_dataset
from tests.chaos.site import Site

WORKERS = 4
BATCH = 8
STEPS = 20
PACE_S = 0.12
BALLAST = 3_200_000
RESTART_S = 1.0
ROLES = ("worker", "parameter-server", "scheduler")
MOMENTS = ("inner", "exchange")
LIMIT_S = 60.0
MINUTE_RESTART_S = 5.0


def the_job(rounds: int, spares: int = 0) -> Job:
    """20 batches of each worker a round."""
    return Job(
        rounds=rounds,
        samples=WORKERS * BATCH * STEPS,
        workers=WORKERS,
        spares=spares,
        batch=BATCH,
        pace_s=PACE_S,
        ballast=BALLAST,
    )


@dataclass
class Recovery:
    """What one kill cost."""

    role: str
    moment: str
    share: float
    """How much of the inner steps had passed; 1 in the exchange."""
    next_commit_s: float
    """From the kill to the next commit."""
    back_s: float
    """From the restart to the next commit (scheduler), or to the first one that the restarted node has a part in."""
    lost: int
    """Commits that were there before and are not any more."""


def kill_once(site: Site, job_id: str, role: str, share: float) -> Recovery:
    """Wait until this share of the inner steps has passed (1: the exchange), kill, start again, and wait until all is
    well."""
    round_ = site.state(job_id)[2]
    site.wait_round(job_id, round_ + 2, within_s=LIMIT_S)
    server = site.wait(site.server, LIMIT_S, "a parameter server")
    _wait_for_update(site, server)
    began = site.commits(job_id)[-1][1]
    inner_s = time.time() - began
    site.wait(lambda: site.commits(job_id)[-1][1] > began, LIMIT_S, "a commit")
    others = [name for name in site.trainers() if name != server]
    victim = {"worker": others[0] if others else server, "parameter-server": server, "scheduler": "scheduler"}[role]
    if share < 1:
        time.sleep(max(0.0, site.commits(job_id)[-1][1] + share * inner_s - time.time()))
    else:
        _wait_for_update(site, server)
    before = site.commits(job_id)
    killed = time.time()
    site.fell(victim)
    time.sleep(RESTART_S)
    restarted = time.time()
    site.revive(victim)
    peer = site.nodes[victim].peer_id if site.nodes[victim].info else _peer_of(site, victim)

    def next_commit() -> float:
        return next((at for _, at in site.commits(job_id) if at > killed), 0.0)

    def contribution() -> float:
        sql = (
            "SELECT min(rounds.committed_unix) FROM contributions JOIN rounds USING (job_id, round)"
            " WHERE rounds.job_id = ? AND peer_id = ? AND committed_unix > ?"
        )
        return float(site.rows(sql, job_id, peer, restarted)[0][0] or 0.0)

    committed = site.wait(next_commit, LIMIT_S, f"a commit after the {role} was killed")
    back = committed if role == "scheduler" else site.wait(contribution, LIMIT_S, f"{victim} contributes again")
    after = site.commits(job_id)
    lost = len(set(before) - set(after))
    site.wait(lambda: site.is_whole, LIMIT_S, "all serve again")
    return Recovery(role, "inner" if share < 1 else "exchange", share, committed - killed, back - restarted, lost)


def _wait_for_update(site: Site, server: str) -> None:
    """Until a new update lies at the parameter server."""
    folder = site.folder / server / "work"
    known = {path.name for path in folder.glob("hypha-*/updates/*")}
    deadline = time.monotonic() + LIMIT_S
    while not {path.name for path in folder.glob("hypha-*/updates/*")} - known:
        if time.monotonic() > deadline:
            raise AssertionError("no update came")
        time.sleep(0.005)


def _peer_of(site: Site, name: str) -> str:
    site.wait(lambda: site.nodes[name].info, LIMIT_S, f"{name} serves")
    return site.nodes[name].peer_id


def kills(folder: Path, repeats: int, seed: int) -> list[Recovery]:
    """Every role at every moment, so many times, on one cluster and one job."""
    found = []
    draw = random.Random(seed)
    with Site(folder / "cluster") as site:
        datasets = write_dataset(folder / "datasets", rows=40_000)
        site.build([datasets, datasets.with_name("letters-validation")], workers=WORKERS)
        job_id = site.submit(the_job(100_000))
        site.wait_round(job_id, 2, within_s=90)
        for turn in range(repeats):
            for role in ROLES:
                for share in ((turn + draw.random()) / repeats, 1.0):
                    one = kill_once(site, job_id, role, share)
                    print(
                        f"  {one.role:<18}{one.moment:<10}at {one.share:4.0%}  next commit {one.next_commit_s:6.2f} s"
                        f"   back {one.back_s:6.2f} s   lost {one.lost}",
                        flush=True,
                    )
                    found.append(one)
    return found


@dataclass
class Pace:
    """Commits after the first one of a while, until the last one."""

    commits: int
    updates: int
    seconds: float
    kills: int


def pace(folder: Path, minutes: float, *, kill_every_s: float | None, spares: int = 0) -> Pace:
    """Run for so many minutes, with a worker (never the parameter server's) killed in regular turns."""
    with Site(folder / "cluster") as site:
        datasets = write_dataset(folder / "datasets", rows=40_000)
        site.build([datasets, datasets.with_name("letters-validation")], workers=WORKERS + spares)
        job_id = site.submit(the_job(100_000, spares))
        site.wait_round(job_id, 3, within_s=90)
        began, began_unix = time.monotonic(), time.time()
        count = 0
        next_kill = kill_every_s / 2 if kill_every_s else float("inf")
        next_start, victim = float("inf"), ""
        while (now := time.monotonic() - began) < minutes * 60:
            if now >= next_kill and kill_every_s:
                server = site.server()
                names = [name for name in site.trainers() if name != server]
                victim = names[count % len(names)]
                site.fell(victim)
                count += 1
                next_kill += kill_every_s
                next_start = now + MINUTE_RESTART_S
            if now >= next_start:
                site.revive(victim)
                next_start = float("inf")
            site.tick()
            time.sleep(0.05)
        (first, first_at), *rounds = [row for row in site.commits(job_id) if row[1] >= began_unix]
        sql = "SELECT count(*) FROM contributions WHERE job_id = ? AND round > ?"
        updates = int(site.rows(sql, job_id, first)[0][0])
        return Pace(len(rounds), updates, rounds[-1][1] - first_at, count)


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.recovery", description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1, help="of the instants in the inner steps")
    parser.add_argument("--minutes", type=float, default=3.0, help="of each pace; 0: leave it out")
    chosen = parser.parse_args()
    if chosen.repeats:
        with tempfile.TemporaryDirectory(prefix="hypha-bench-") as name:
            found = kills(Path(name), chosen.repeats, chosen.seed)
        print(f"\n{'killed':<18}{'in':<10}{'next commit':>12}{'worst':>8}{'back':>8}{'worst':>8}{'lost':>6}")
        for role in ROLES:
            for moment in MOMENTS:
                some = [one for one in found if (one.role, one.moment) == (role, moment)]
                commits, backs = [one.next_commit_s for one in some], [one.back_s for one in some]
                print(
                    f"{role:<18}{moment:<10}{statistics.median(commits):>10.2f} s{max(commits):>6.2f} s"
                    f"{statistics.median(backs):>6.2f} s{max(backs):>6.2f} s{sum(one.lost for one in some):>6}"
                )
    if chosen.minutes:
        undisturbed: Pace | None = None
        for what, every, spares in (
            ("undisturbed", None, 0),
            ("one kill a minute", 60.0, 0),
            ("the same, one spare", 60.0, 1),
        ):
            with tempfile.TemporaryDirectory(prefix="hypha-bench-") as name:
                one = pace(Path(name), chosen.minutes, kill_every_s=every, spares=spares)
            undisturbed = undisturbed or one
            kept = one.commits / one.seconds / (undisturbed.commits / undisturbed.seconds)
            updates_kept = one.updates / one.seconds / (undisturbed.updates / undisturbed.seconds)
            print(
                f"{what:<20} commits a minute {one.commits / one.seconds * 60:6.2f} ({kept:.1%}),"
                f" updates {one.updates / one.seconds * 60:6.2f} ({updates_kept:.1%}), kills {one.kills}",
                flush=True,
            )


if __name__ == "__main__":
    main()
