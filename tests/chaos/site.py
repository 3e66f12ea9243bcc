"""A cluster that can be hurt: each node is behind a link of its own, can be killed, stopped, slowed, brought back."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil

from benchmarks.asking import ask
from benchmarks.links import Links, free_port
from hypha_tui.local_cluster import LocalCluster, LocalNode, is_ready
from tests.chaos.job import STAMPS, Job
from tests.integration.support import tui

WORKER = """
work_dir = "{work}"
job_code = "allow"
[resources]
cpu = {cpu}
memory = 8
storage = 10
gpu = 0
"""
TRAINS = """
[[executors]]
class = "train"
name = "diloco-transformer"
runtime = "process"
cmd = "/usr/bin/env"
args = [
    "HYPHA_PACE={pace}", "PYTHONSAFEPATH=1", "PYTHONPATH={root}", "{python}", "-m", "node.executors.train",
    "--socket", "{{SOCKET_PATH}}", "--work-dir", "{{WORK_DIR}}", "--job", "{{JOB_JSON}}",
]
"""
AGGREGATES = """
[[executors]]
class = "aggregate"
name = "parameter-server"
runtime = "parameter-server"
"""
SERVER = "server"
AGGREGATE = "node.executors.aggregate"
TRAIN = "node.executors.train"
ENDED = ("done", "failed", "cancelled")


class Site(LocalCluster):
    """A gateway, a scheduler, a data node and workers, each reached through its link alone. Linux only.

    Without links (`is_linked`) nothing costs time that would not in a cluster, and no node can be felled.
    """

    def __init__(self, folder: Path, *, is_linked: bool = True) -> None:
        super().__init__(folder)
        self._is_linked = is_linked
        self.links = Links()
        self.links.pid_of = self._pids
        self._ports: dict[str, int] = {}
        self._waiting: set[str] = set()
        """Started again, and not known to serve yet."""
        self._stopped: dict[str, list[int]] = {}

    def __enter__(self) -> Site:
        self.links.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.wake()
            super().__exit__(kind, error, trace)
        finally:
            self.links.__exit__(kind, error, trace)

    # ---- building -------------------------------------------------------------------------------------

    def build(
        self,
        datasets: Sequence[Path],
        *,
        workers: int,
        cpu: float = 2,
        paces: Sequence[float] = (),
        apart: bool = False,
    ) -> None:
        """Make the authority and start every node. Worker n is `paces[n]` times slower than the job says. `apart`: the
        parameter server has a node of its own, so that all traffic with it passes the links."""
        names = [f"worker-{number}" for number in range(1, workers + 1)]
        self.make_authority(["gateway", "scheduler", "data", SERVER, *names])
        paths = ", ".join(f'"{path}"' for path in datasets)
        self.add("gateway", "gateway")
        self.wait_ready(self.nodes["gateway"])
        self.add("scheduler", "scheduler")
        self.add("data", "data", f"dataset_path = [{paths}]")
        for number, name in enumerate(names):
            config = WORKER.format(work=self.folder / name / "work", cpu=cpu)
            pace = paces[number] if number < len(paces) else 1.0
            config += TRAINS.format(pace=pace, root=Path.cwd(), python=sys.executable)
            self.add(name, "worker", config + ("" if apart else AGGREGATES))
        if apart:
            self.add(SERVER, "worker", WORKER.format(work=self.folder / SERVER / "work", cpu=cpu) + AGGREGATES)
        self.wait_ready(*self.nodes.values())

    def add(self, name: str, roles: str, config: str = "") -> LocalNode:
        """Start one node behind a link."""
        own = free_port()
        self._ports[name] = self.links.add(name, own) if self._is_linked else own
        gateway = [] if name == "gateway" else [f"/ip4/127.0.0.1/tcp/{self._ports['gateway']}"]
        config = f'external_addresses = ["/ip4/127.0.0.1/tcp/{self._ports[name]}"]\n' + config
        return self.launch(name, roles, config=config, gateways=gateway, port=own)

    @property
    def workers(self) -> list[str]:
        """Names of the nodes that work."""
        return [name for name, node in self.nodes.items() if node.roles == "worker"]

    # ---- harm -----------------------------------------------------------------------------------------

    def fell(self, name: str) -> None:
        """SIGKILL, and its port refuses connections, as that of a machine without the program does."""
        self.kill(name)
        self._waiting.discard(name)
        self.links.close(name)

    def revive(self, name: str) -> None:
        """Start a killed node again, without waiting for it; `tick` opens its link once it serves."""
        node = self.nodes[name]
        node.info = {}
        node.process = self._spawn(node.command, node.log_path)
        self._waiting.add(name)

    def tick(self) -> None:
        """Open the links of nodes that serve again; call it often."""
        for name in list(self._waiting):
            node = self.nodes[name]
            if node.process.poll() is not None:
                raise AssertionError(
                    f"{name} ended with {node.process.returncode} when started again: {node.last_lines()}"
                )
            if is_ready(node):
                self._waiting.discard(name)
                self.links.open(name)

    @property
    def is_whole(self) -> bool:
        """Whether every node runs and serves."""
        return not self._waiting and all(node.process.poll() is None for node in self.nodes.values())

    def freeze(self, name: str, *, executors: bool = True) -> None:
        """SIGSTOP for a node, as for a machine that is suspended; its executors too."""
        pids = [self.nodes[name].process.pid]
        pids += [child.pid for child in self.children(name)] if executors else []
        self._stopped.setdefault(name, []).extend(pids)
        send(pids, signal.SIGSTOP)

    def wake(self, name: str = "") -> None:
        """SIGCONT for what was stopped of this node, or of all."""
        for one in [name] if name else list(self._stopped):
            send(self._stopped.pop(one, []), signal.SIGCONT)

    def children(self, name: str, naming: str = "") -> list[psutil.Process]:
        """Processes below a node, or those whose command line holds `naming`."""
        try:
            found = psutil.Process(self.nodes[name].process.pid).children(recursive=True)
            return [child for child in found if naming in " ".join(_words(child))]
        except psutil.Error:
            return []

    def server(self) -> str:
        """The node with the parameter server; empty while there is none."""
        return next((name for name in self.workers if self.children(name, AGGREGATE)), "")

    def trainers(self) -> list[str]:
        """Nodes that train."""
        return [name for name in self.workers if self.children(name, TRAIN)]

    def leases_of(self, name: str) -> list[str]:
        """Leases that this worker holds resources for, by its own word."""
        node = self.nodes[name]
        found = ask(node, "/api/v1/leases")
        held = [lease for lease in found if lease["worker"] == node.peer_id and lease["state"] in ("offered", "held")]
        return [str(lease["id"]) for lease in held]

    def _pids(self) -> dict[int, str]:
        return {node.process.pid: name for name, node in list(self.nodes.items())}

    # ---- jobs -----------------------------------------------------------------------------------------

    def submit(self, job: Job, *, within_s: float = 30.0) -> str:
        """Submit a job at the gateway; its id."""
        folder = job.write(self.folder / f"job-{time.monotonic_ns()}")
        deadline = time.monotonic() + within_s
        while True:
            try:
                return str(tui(self.nodes["gateway"], "submit", str(folder))["job_id"])
            except AssertionError:  # the gateway has not met the scheduler yet
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.3)

    def rows(self, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """What the scheduler has in its database."""
        path = self.nodes["scheduler"].state_dir / "state.db"
        return read_rows(path, sql, parameters)

    def state(self, job_id: str) -> tuple[str, str, int]:
        """(state, reason, round) as written."""
        found = self.rows("SELECT state, reason, round FROM jobs WHERE job_id = ?", job_id)
        return found[0] if found else ("", "", 0)

    def commits(self, job_id: str) -> list[tuple[int, float]]:
        """(round, when in Unix time) of each commit."""
        sql = "SELECT round, committed_unix FROM rounds WHERE job_id = ? ORDER BY round"
        return [(int(row[0]), float(row[1])) for row in self.rows(sql, job_id)]

    def wait_round(self, job_id: str, round_: int, *, within_s: float = 60.0) -> None:
        """Wait until so many rounds are committed."""
        self.wait(
            lambda: self.state(job_id)[2] >= round_ or self.state(job_id)[0] in ENDED, within_s, f"round {round_}"
        )

    def wait(self, look: Callable[[], Any], within_s: float, what: str) -> Any:
        """Look until there is something; ticks meanwhile."""
        deadline = time.monotonic() + within_s
        while not (seen := look()):
            self.tick()
            if time.monotonic() > deadline:
                raise AssertionError(f"{what}: not within {within_s:.0f} s")
            time.sleep(0.05)
        return seen

    def log(self, name: str) -> str:
        """All that a node logged."""
        return self.nodes[name].log_path.read_text(errors="replace")

    def steps(self, name: str) -> list[tuple[float, float]]:
        """Beginning and end of each step (forward, backward, optimizer) of this worker's executors, on the monotonic
        clock; the last few are not known yet."""
        found: list[tuple[float, float]] = []
        for path in (self.folder / name).rglob("*.log"):
            for line in path.read_text(errors="replace").splitlines():
                if line.startswith(STAMPS):
                    found += [(began, ended) for began, ended in json.loads(line[len(STAMPS) :])]
        return sorted(found)


def read_rows(path: Path, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
    """Rows of a database that another process has open; waits a little where that is in the way."""
    deadline = time.monotonic() + 5.0
    while True:
        try:
            connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=2.0)
            try:
                return connection.execute(sql, parameters).fetchall()
            finally:
                connection.close()
        except sqlite3.OperationalError as error:
            if "no such" in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def send(pids: Sequence[int], number: signal.Signals) -> None:
    """A signal to each process that still lives."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []
