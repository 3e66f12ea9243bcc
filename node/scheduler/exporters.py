"""Metrics for outside tools: every value of every job, to each sink that the configuration names.

No sink can disturb training, or another sink: values wait in bounded queues that drop the oldest, and files and
libraries are used by processes of their own. What fails costs values and nothing else.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from node.scheduler.exporters_feed import QUEUE_LIMIT, Feed, Tell
from node.scheduler.exporters_sinks import Value
from node.scheduler.status_bridge import StatusBridge
from node.views import Point

if TYPE_CHECKING:
    from node.config import NodeConfig

log = logging.getLogger(__name__)

SHORT_ID = 6


class _Runs(Protocol):
    async def run(self) -> None: ...


class Exports:
    """All sinks of a scheduler; without any it takes values and forgets them."""

    def __init__(self, config: NodeConfig, name_of: Callable[[str], str], tell: Tell) -> None:
        self._name_of = name_of
        self._bridge = StatusBridge(config.status_bridge)
        exports = config.exports
        targets = {
            "tensorboard": str(exports.tensorboard or ""),
            "csv": str(exports.csv or ""),
            "mlflow": exports.mlflow,
            "wandb": exports.wandb,
        }
        folder = Path(config.state_dir) / "exports"
        self.feeds = {kind: Feed(kind, target, folder, tell) for kind, target in targets.items() if target}

    def put(self, point: Point) -> None:
        """Queue a value for every sink; never blocks, never fails."""
        self._bridge.put(point)
        if self.feeds:
            value = self._value(point, time.time())
            for feed in self.feeds.values():
                feed.put(value)

    def recall(self, points: Sequence[Point], began_unix: float) -> None:
        """A job goes on after a restart: the CSV file gets what the store has and the file lacks."""
        feed = self.feeds.get("csv")
        if feed is not None:
            for point in points[-QUEUE_LIMIT:]:
                feed.put(self._value(point, began_unix + point.t_s))

    def ended(self, job_id: str, state: str) -> None:
        """A job is over."""
        for feed in self.feeds.values():
            feed.put(Value(job_id, ended=state))

    async def run(self) -> None:
        """Feed the sinks until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(_contained(self._bridge, "status_bridge"))
            for kind, feed in self.feeds.items():
                tasks.create_task(_contained(feed, kind))

    def _value(self, point: Point, wall_s: float) -> Value:
        peer_id = point.worker
        worker = f"{self._name_of(peer_id)}-{peer_id[-SHORT_ID:]}" if peer_id else ""
        return Value(
            job_id=point.job_id,
            metric=point.name,
            round=point.round,
            value=point.value,
            wall_s=wall_s,
            after_s=point.t_s,
            worker=worker,
            peer_id=peer_id,
        )


async def _contained(sink: _Runs, name: str) -> None:
    """A fault of ours in one export ends that export, not the scheduler."""
    try:
        await sink.run()
    except Exception:
        log.exception("exports.broken sink=%s", name)
