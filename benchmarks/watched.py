"""A node watched while something goes on: how fast it answers, and what it occupies."""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path

import psutil

from benchmarks.asking import ask
from hypha_tui.local_cluster import LocalNode

EVERY_S = 0.05


class Watched:
    """A thread that asks a node's `/healthz` twenty times a second over its local socket, each time on a new
    connection, and adds up what the node and its executors have in memory. Use it as a context manager."""

    def __init__(self, node: LocalNode, folder: Path) -> None:
        self.answers_s: list[float] = []
        self.resident_mb: list[float] = []
        self.disk_mb: list[float] = []
        self._node = node
        self._folder = folder
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watched")

    def __enter__(self) -> Watched:
        self._thread.start()
        return self

    def __exit__(self, *details: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._is_over.wait(EVERY_S):
            began = time.perf_counter()
            ask(self._node, "/healthz")
            self.answers_s.append(time.perf_counter() - began)
            self.resident_mb.append(self._resident_bytes() / 1e6)
            self.disk_mb.append(self._disk_bytes() / 1e6)

    def _resident_bytes(self) -> int:
        own = psutil.Process(self._node.process.pid)
        total = 0
        for process in (own, *own.children(recursive=True)):
            try:
                total += process.memory_info().rss
            except psutil.Error:
                continue
        return total

    def _disk_bytes(self) -> int:
        total = 0
        for path in self._folder.rglob("*"):
            with contextlib.suppress(FileNotFoundError):
                total += path.stat().st_blocks * 512
        return total
