"""Several workers that read one dataset: how they are, where they are, and when their shares should be made anew."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from node.errors import ConfigError
from node.streaming.partition import Adaptive, spread
from node.streaming.state import StreamState, merge

SILENT_AFTER_S: Final = 30.0
SLOW_BELOW: Final = 0.5
"""The part of the middle speed below which a worker is slow."""

GONE: Final = ("failed", "unknown")

Status = Literal["active", "idle", "slow", "failed", "unknown"]


@dataclass(frozen=True, slots=True)
class WorkerHealth:
    """A worker as the coordinator sees it now. `throughput` is in samples per second."""

    rank: int
    status: Status
    heard_s: float
    samples_processed: int
    throughput: float


@dataclass(slots=True)
class _Worker:
    heard_at: float
    samples: int = 0
    throughput: float = 0.0
    checkpoint: StreamState | None = None


class StreamCoordinator:
    """Health and checkpoints of the workers of one stream. Any thread may call it.

    `rebalance_threshold`: how far apart speeds may lie before shares are made anew, the range over the mean; the
    adaptive strategy's own, where the checkpoints are of one.
    """

    def __init__(
        self,
        world_size: int,
        *,
        rebalance_threshold: float = 0.2,
        silent_after_s: float = SILENT_AFTER_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if world_size < 1:
            raise ConfigError(f"world_size is {world_size}", hint="it must be at least 1")
        self._world = world_size
        self._threshold = rebalance_threshold
        self._silent_after_s = silent_after_s
        self._clock = clock
        self._workers: dict[int, _Worker] = {}
        self._lock = threading.Lock()

    def register_worker(self, rank: int) -> None:
        """A worker has begun."""
        if not 0 <= rank < self._world:
            raise ConfigError(f"rank is {rank}", hint=f"it must be from 0 to {self._world - 1}")
        with self._lock:
            self._workers[rank] = _Worker(self._clock())

    def update_worker_health(self, rank: int, samples: int, throughput: float) -> None:
        """A sign of life: how many samples it has had in all, and how many it has in a second."""
        with self._lock:
            worker = self._known(rank)
            worker.heard_at, worker.samples, worker.throughput = self._clock(), samples, throughput

    def register_checkpoint(self, rank: int, state: StreamState) -> None:
        """Where a worker is."""
        with self._lock:
            worker = self._known(rank)
            worker.heard_at, worker.checkpoint = self._clock(), state

    def checkpoint(self, rank: int) -> StreamState | None:
        """Where a worker was when it told it last."""
        with self._lock:
            return self._known(rank).checkpoint

    def worker_health(self, rank: int) -> WorkerHealth:
        """How a worker is."""
        with self._lock:
            now = self._clock()
            worker = self._workers.get(rank)
            if worker is None:
                return WorkerHealth(rank, "unknown", 0.0, 0, 0.0)
            speeds = sorted(one.throughput for one in self._workers.values())
            middle = speeds[len(speeds) // 2]
            heard_s = now - worker.heard_at
            status: Status = "active"
            if heard_s > self._silent_after_s:
                status = "failed"
            elif worker.throughput == 0:
                status = "idle"
            elif worker.throughput < SLOW_BELOW * middle:
                status = "slow"
            return WorkerHealth(rank, status, heard_s, worker.samples, worker.throughput)

    def needs_rebalance(self) -> bool:
        """Whether a worker has failed, or the speeds lie further apart than the threshold."""
        health = [self.worker_health(rank) for rank in range(self._world)]
        if any(one.status in GONE for one in health):
            return True
        return spread([one.throughput for one in health]) > self._threshold_now()

    def rebalance_if_needed(self, ranks: Sequence[int] | None = None) -> StreamState | None:
        """The state that the workers are to go on from, where shares should be made anew; else None.

        `ranks`: who goes on, in their new order; without it all that have not failed. A worker that failed counts with
        what it had used at its last checkpoint; the rest of its share goes to the others. Every worker must have
        stopped at the checkpoint that it gave last. Raises `ConfigError` where a checkpoint is missing.
        """
        if not self.needs_rebalance():
            return None
        health = [self.worker_health(rank) for rank in range(self._world)]
        alive = [one.rank for one in health if one.status not in GONE]
        going_on = alive if ranks is None else list(ranks)
        if not going_on:
            raise ConfigError("no worker is left")
        with self._lock:
            states = [worker.checkpoint for _, worker in sorted(self._workers.items()) if worker.checkpoint is not None]
        speeds = [health[rank].throughput for rank in going_on]
        return merge(states, speeds=speeds if all(speeds) else None)

    def _threshold_now(self) -> float:
        for worker in self._workers.values():
            if worker.checkpoint is not None and isinstance(worker.checkpoint.strategy, Adaptive):
                return worker.checkpoint.strategy.rebalance_threshold
        return self._threshold

    def _known(self, rank: int) -> _Worker:
        if rank not in self._workers:
            raise ConfigError(f"worker {rank} is not registered", hint="call register_worker first")
        return self._workers[rank]
