"""What must hold after a job, whatever has happened to its cluster."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from tests.chaos.site import Site
from tests.integration.support import processes_naming

PASSES_OPEN = 2
"""A pass is over when its last row is committed; a worker that is held up may have it while others go on."""
LOSS_TOLERANCE = 0.01
"""At the end, against the undisturbed job. Computed 6 times with other orders of the rows, the loss after 25 rounds of
800 samples varies by 0.15 % (standard deviation, worst 0.25 %); with each worker lost, optimizer and all, in 15 % of
its rounds by 0.3 % (worst 0.8 %). Steps of twice the size in each fifth round move it by 0.6 % to 2.8 %."""
COURSE_TOLERANCE = 0.02
"""Mean over all evaluations. The order of the rows moves it by 0.1 %. On a cluster whose parameter server made steps of
0.4 times the size it was 6 % too high, where the end was only 0.5 % off."""
DIFFERS, APPLIED = "base.differs", "round.applied"
"""What executors log."""


@dataclass
class Outcome:
    """How one job ended."""

    state: str = ""
    reason: str = ""
    rounds: int = 0
    samples: int = 0
    void: int = 0
    """Rounds that averaged nothing."""
    replicas: int = 0
    """Updates that were averaged."""
    seconds: float = 0.0
    """From the first commit to the last."""
    losses: dict[int, float] = field(default_factory=dict)
    """Validation loss by samples committed."""
    faults: list[str] = field(default_factory=list)
    """What is wrong."""


def loss_at(losses: Mapping[int, float], samples: int) -> float:
    """The validation loss when so many samples were committed, on a line between the two known beside it."""
    for (low, before), (high, after) in pairwise(sorted(losses.items())):
        if low <= samples <= high:
            return before + (after - before) * (samples - low) / (high - low)
    return float("nan")


def loss_gap(losses: Mapping[int, float], undisturbed: Mapping[int, float]) -> float:
    """How far the one is above the other, as a share, where both have a loss for the last time; nan where nowhere."""
    samples = min(max(losses, default=0), max(undisturbed, default=0))
    return loss_at(losses, samples) / loss_at(undisturbed, samples) - 1


def loss_wrong(losses: Mapping[int, float], undisturbed: Mapping[int, float]) -> list[str]:
    """At equal samples the validation loss is that of the undisturbed job: at the end neither higher nor lower, and on
    the way not higher on average. (It may be lower: with a worker missing, as many samples are more rounds.)"""
    found = []
    gap = loss_gap(losses, undisturbed)
    if not abs(gap) <= LOSS_TOLERANCE:
        found.append(f"the validation loss is {gap:+.2%} off the undisturbed job's at equal samples")
    last = max(undisturbed, default=0)
    gaps = [loss / loss_at(undisturbed, samples) - 1 for samples, loss in losses.items() if 0 < samples <= last]
    if gaps and sum(gaps) / len(gaps) > COURSE_TOLERANCE:
        found.append(f"on its way the validation loss was {sum(gaps) / len(gaps):+.2%} above the undisturbed job's")
    return found


def judge(site: Site, job_id: str, rows: dict[int, int]) -> Outcome:
    """The outcome of a job, from the scheduler's database. `rows`: of each slice of the dataset."""
    state, reason, round_ = site.state(job_id)
    rounds = site.rows("SELECT round, samples, committed_unix FROM rounds WHERE job_id = ? ORDER BY round", job_id)
    shares = dict(site.rows("SELECT round, count(*) FROM contributions WHERE job_id = ? GROUP BY round", job_id))
    times = [float(row[2]) for row in rounds]
    made = Outcome(
        state=state,
        reason=reason,
        rounds=round_,
        samples=sum(int(row[1]) for row in rounds),
        void=sum(not shares.get(row[0]) for row in rounds),
        replicas=sum(shares.values()),
        seconds=times[-1] - times[0] if times else 0.0,
    )
    total, by_version = 0, {0: 0}
    for number, samples, _ in rounds:
        total += int(samples)
        by_version[int(number) + 1] = total
    sql = "SELECT round, value FROM metrics WHERE job_id = ? AND name = 'eval_loss' AND worker = '' ORDER BY rowid"
    for number, value in site.rows(sql, job_id):
        made.losses[by_version.get(int(number), total)] = float(value)
    if state != "done":
        made.faults.append(f"the job is {state or 'unknown'}: {reason}")
    if [row[0] for row in rounds] != list(range(len(rounds))):
        made.faults.append(f"rounds are not consecutive: {[row[0] for row in rounds]}")
    made.faults += samples_wrong(site, job_id, rows)
    made.faults += bytes_wrong(site)
    return made


def samples_wrong(site: Site, job_id: str, rows: dict[int, int]) -> list[str]:
    """By what each contribution says it was trained on: no row twice in a pass, and none missing from a pass that is
    over."""
    found = []
    seen: dict[tuple[int, int], list[tuple[int, int, int]]] = defaultdict(list)
    shares = site.rows("SELECT round, task_id, samples, spans FROM contributions WHERE job_id = ?", job_id)
    for round_, task_id, samples, text in shares:
        spans = json.loads(text)
        for pass_, index, start, end in spans:
            seen[pass_, index].append((start, end, round_))
        if (counted := sum(end - start for _, _, start, end in spans)) != samples:
            found.append(f"round {round_}: {task_id} says {samples} samples and names {counted} rows")
    for (pass_, index), parts in sorted(seen.items()):
        parts.sort()
        for before, after in pairwise(parts):
            if after[0] < before[1]:
                where = f"pass {pass_} slice {index}: rows {after[0]} to {min(before[1], after[1])}"
                found.append(f"{where} count twice, in rounds {before[2]} and {after[2]}")
        if parts[0][0] < 0 or parts[-1][1] > rows[index]:
            found.append(f"pass {pass_} slice {index}: rows outside the slice")
    ((over,),) = site.rows("SELECT pass FROM jobs WHERE job_id = ?", job_id)
    begun = max((pass_ for pass_, _ in seen), default=0)
    for pass_ in range(over):
        for index, size in rows.items():
            if (counted := sum(end - start for start, end, _ in seen[pass_, index])) != size:
                found.append(f"pass {pass_} slice {index}: {counted} of {size} rows, and the pass is over")
    if begun > over + PASSES_OPEN:
        found.append(f"pass {over} is not over, and pass {begun} has begun")
    total = sum(int(row[0]) for row in site.rows("SELECT samples FROM rounds WHERE job_id = ?", job_id))
    if total != sum(share[2] for share in shares):
        found.append(f"the rounds say {total} samples, their contributions {sum(share[2] for share in shares)}")
    return found


def bytes_wrong(site: Site) -> list[str]:
    """Executors compare the digest of each version that they hold with the committed one, and say where it differs.

    No word of it counts only where executors did say that they took versions over."""
    found, applied = [], 0
    for name in site.workers:
        for path in (site.folder / name / "work" / "hypha-logs").glob("*.log*"):
            lines = path.read_text(errors="replace").splitlines()
            found += [f"{name}: {line.strip()[:200]}" for line in lines if DIFFERS in line]
            applied += sum(APPLIED in line for line in lines)
    return found if applied else [*found, "no executor's log tells of a version that was taken over"]


def left_behind(site: Site) -> list[str]:
    """What a job has left when it is over and nothing is down: leases, processes, work directories, part files."""
    found = []
    for name in site.workers:
        running = site.children(name)
        found += [f"{name} still runs process {child.pid}" for child in running]
        work = site.folder / name / "work"
        found += [
            f"{name} keeps {path.name}"
            for path in work.glob("hypha-*")
            if path.name not in ("hypha-logs", "hypha-cache")
        ]
    for folder, _, names in os.walk(site.folder):
        found += [f"a part file: {folder}/{name}" for name in names if name.endswith(".part")]
    return found


def left_after_stop(folder: Path, codes: dict[str, int], runtime: Path | None) -> list[str]:
    """What is left when all nodes have ended."""
    found = [f"{name} ended with exit code {code}" for name, code in codes.items() if code != 0]
    found += [f"process {pid} is left" for pid in processes_naming(str(folder))]
    if runtime is not None and runtime.exists():
        found += [f"a socket: {path.name}" for path in runtime.rglob("*") if path.is_socket()]
    return found


def slices_of(dataset: Path) -> dict[int, int]:
    """Rows of each slice, from the manifest."""
    manifest = json.loads((dataset / "manifest.json").read_text())
    return {number: int(one["rows"]) for number, one in enumerate(manifest["slices"])}
