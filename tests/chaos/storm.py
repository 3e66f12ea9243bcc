"""Runs one job while a schedule of faults goes over its cluster, and says what came of it."""

from __future__ import annotations

import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from tests.chaos.checks import Outcome, judge, left_after_stop, left_behind, loss_wrong, slices_of
from tests.chaos.job import Job, write_dataset
from tests.chaos.schedule import Fault, faults
from tests.chaos.site import ENDED, TRAIN, Site, send

Tell = Callable[[str], None]

FIRST_COMMIT_WITHIN_S = 120.0
CLEAN_WITHIN_S = 15.0
DUTY_S = (0.3, 0.1)
"""A slow worker's executor is stopped and runs in turns of this length: a quarter of its speed."""
SLOW_MBIT_S, SLOW_DELAY_S = 2.0, 0.1
DEFAULT_JOB = Job(rounds=30, samples=800, workers=4)
NODES_BESIDE_WORKERS = ("gateway", "scheduler", "data")


@dataclass(frozen=True)
class Settings:
    """One kind of run; the seed decides the rest."""

    workers: int = 4
    minutes: float = 0.5
    """How long faults go on, and about how long the undisturbed job takes."""
    faults_a_minute: float = 10.0
    job: Job = DEFAULT_JOB
    kinds: tuple[str, ...] = ()
    """Only these kinds of faults; none given: all."""
    roles: tuple[str, ...] = ()

    def limit_s(self) -> float:
        """After so long the job counts as stuck."""
        return 90.0 + 4 * 60 * self.minutes


def settings_of(*, workers: int, minutes: float, faults_a_minute: float, sections: str = "") -> Settings:
    """A job of about so many minutes for so many workers, with two passes or more over its dataset."""
    made = Job(rounds=0, samples=200 * workers, workers=workers, pace_s=0.04, sections=sections)
    rounds = max(8, round(minutes * 60 / 1.2))
    return Settings(workers, minutes, faults_a_minute, replace(made, rounds=rounds))


@dataclass
class Run:
    """What came of one seed."""

    seed: int | None
    outcome: Outcome
    took_s: float
    harm: list[str]


class Storm:
    """Lets faults begin and end at their time."""

    def __init__(self, site: Site, schedule: Iterable[Fault], tell: Tell) -> None:
        self._site = site
        self._left = sorted(schedule)
        self._ends: list[tuple[float, Callable[[], None]]] = []
        self._busy: set[str] = set()
        self._slowed: dict[str, float] = {}
        self._cuts = 0
        self._tell = tell
        self.done: list[str] = []

    @property
    def is_over(self) -> bool:
        """Whether nothing is wrong any more and nothing will be."""
        return not self._left and not self._ends and self._site.is_whole

    def tick(self, now_s: float) -> None:
        """Do what is due, `now_s` seconds after the first commit."""
        self._site.tick()
        while self._left and self._left[0].at_s <= now_s:
            self._begin(self._left.pop(0), now_s)
        for end in [end for end in self._ends if end[0] <= now_s]:
            self._ends.remove(end)
            end[1]()
        for name, since in self._slowed.items():
            stopped = (now_s - since) % sum(DUTY_S) < DUTY_S[0]
            pids = [child.pid for child in self._site.children(name, TRAIN)]
            send(pids, signal.SIGSTOP if stopped else signal.SIGCONT)

    def end(self) -> None:
        """End all that is going on, and bring everything back."""
        self._left = []
        for _, undo in self._ends:
            undo()
        self._ends = []

    def _begin(self, fault: Fault, now_s: float) -> None:
        name = self._choose(fault)
        if not name:
            return
        undo = self._harm(fault, name, now_s)
        self._busy.add(name)
        text = f"{fault} ({name})"
        self.done.append(text)
        self._tell(f"    {text}")

        def finish() -> None:
            undo()
            self._busy.discard(name)

        self._ends.append((now_s + fault.lasts_s, finish))

    def _choose(self, fault: Fault) -> str:
        site = self._site
        if fault.role in NODES_BESIDE_WORKERS:
            names = [fault.role]
        elif fault.role == "parameter-server":
            names = [site.server()] if site.server() else []
        else:
            names = site.workers
        free = [name for name in names if name not in self._busy and site.nodes[name].process.poll() is None]
        return free[int(fault.draw * len(free))] if free else ""

    def _harm(self, fault: Fault, name: str, now_s: float) -> Callable[[], None]:
        site = self._site
        if fault.kind == "kill":
            site.fell(name)
            return lambda: site.revive(name)
        if fault.kind == "freeze":
            site.freeze(name, executors=fault.draw < 0.7)
            return lambda: site.wake(name)
        if fault.kind == "cut":
            return self._cut(fault, name)
        if fault.kind == "slow-line":
            site.links.shape(name, mbit_s=SLOW_MBIT_S, delay_s=SLOW_DELAY_S)
            return lambda: site.links.shape(name)
        self._slowed[name] = now_s

        def restore() -> None:
            del self._slowed[name]
            send([child.pid for child in site.children(name, TRAIN)], signal.SIGCONT)

        return restore

    def _cut(self, fault: Fault, name: str) -> Callable[[], None]:
        names = list(self._site.nodes)
        some = {name}
        if fault.half:
            start = names.index(name)
            some = {names[(start + step) % len(names)] for step in range(len(names) // 2)}
        self._site.links.cut(some, set(names) - some)
        self._cuts += 1

        def heal() -> None:
            self._cuts -= 1
            if not self._cuts:
                self._site.links.heal()

        return heal


def run(
    seed: int | None,
    settings: Settings,
    *,
    base: Outcome | None = None,
    tell: Tell = lambda text: None,
) -> Run:
    """One job on a cluster of its own; without a seed undisturbed. `base`: the undisturbed outcome to compare with."""
    folder = Path(tempfile.mkdtemp(prefix="hypha-chaos-"))
    began = time.monotonic()
    try:
        dataset = write_dataset(folder / "datasets", rows=settings.job.rounds * settings.job.samples // 3)
        with Site(folder / "cluster") as site:
            site.build([dataset, dataset.with_name("letters-validation")], workers=settings.workers)
            try:
                outcome, harm = suffer(site, seed, settings, dataset, tell)
            except AssertionError as error:
                outcome, harm = Outcome(faults=[str(error)]), []
            runtime = site.runtime
            outcome.faults += left_after_stop(folder, site.stop(), runtime)
        if base is not None and outcome.state == "done":
            outcome.faults += loss_wrong(outcome.losses, base.losses)
        if outcome.faults:
            keep(folder, seed, tell)
        return Run(seed, outcome, time.monotonic() - began, harm)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def suffer(site: Site, seed: int | None, settings: Settings, dataset: Path, tell: Tell) -> tuple[Outcome, list[str]]:
    """Run one job on this cluster; its outcome and what was done to it."""
    schedule: list[Fault] = []
    if seed is not None:
        schedule = faults(seed, seconds=60 * settings.minutes, a_minute=settings.faults_a_minute)
    if settings.kinds:
        schedule = [fault for fault in schedule if fault.kind in settings.kinds]
    if settings.roles:
        schedule = [fault for fault in schedule if fault.role in settings.roles]
    storm = Storm(site, schedule, tell)
    job_id = site.submit(settings.job)
    try:
        site.wait(lambda: site.state(job_id)[2] >= 1, FIRST_COMMIT_WITHIN_S, "the first commit")
        began = time.monotonic()
        while site.state(job_id)[0] not in ENDED and time.monotonic() - began < settings.limit_s():
            storm.tick(time.monotonic() - began)
            time.sleep(0.03)
    finally:
        storm.end()
    site.wait(lambda: site.is_whole, 30, "every node serves again")
    outcome = judge(site, job_id, slices_of(dataset))
    if outcome.state in ENDED:
        outcome.faults += _left(site)
    return outcome, storm.done


def _left(site: Site) -> list[str]:
    deadline = time.monotonic() + CLEAN_WITHIN_S
    while True:
        found = left_behind(site)
        if not found:
            found = [f"{name} holds a lease: {lease}" for name in site.workers for lease in site.leases_of(name)]
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.3)


def keep(folder: Path, seed: int | None, tell: Tell) -> None:
    """Keep logs and databases of a run that failed."""
    kept = Path(tempfile.gettempdir()) / f"hypha-chaos-failed-{seed}"
    shutil.rmtree(kept, ignore_errors=True)
    for path in folder.rglob("*"):
        if path.suffix in (".log", ".db", ".db-wal", ".toml") and path.is_file():
            target = kept / path.relative_to(folder)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
    tell(f"    logs and databases are in {kept}")
