"""One exchange with the parameter server: an update out, what answers it in; inline, or in a thread meanwhile."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from node.executors.bridge_client import Arrival, Bridge, BridgeError
from node.executors.job import Reference

log = logging.getLogger(__name__)


class Source(Protocol):
    """Where files from the parameter server come from, in order."""

    def take(self) -> Arrival:
        """The next one; raises `BridgeError` after a long wait."""


class Exchange:
    """The exchange of one round, in the process that talks to the bridge."""

    def __init__(
        self,
        bridge: Bridge,
        arrivals: Source,
        updates: Reference,
        *,
        round_: int,
        path: Path,
        write: Callable[[Path], float],
        metrics: dict[str, float],
    ) -> None:
        self._bridge = bridge
        self._arrivals = arrivals
        self._updates = updates
        self._round = round_
        self._path = path
        self._write = write
        self._metrics = metrics
        self._over = threading.Event()
        self._arrival: Arrival | None = None
        self._failure: BaseException | None = None

    def start(self) -> None:
        """Goes on in a thread, which does not keep the process alive."""
        threading.Thread(target=self._work, name="exchange", daemon=True).start()

    def run(self) -> Arrival:
        """Delivers and waits for the answer."""
        self._work()
        return self.result()

    @property
    def is_over(self) -> bool:
        """Whether `result` would answer at once."""
        return self._over.is_set()

    def result(self) -> Arrival:
        """What arrived; the waits inside are bounded, so this one is."""
        self._over.wait()
        if self._failure is not None:
            raise self._failure
        assert self._arrival is not None
        return self._arrival

    def _work(self) -> None:
        try:
            self._deliver()
            self._arrival = self._next_version()
        except BaseException as error:
            self._failure = error
        self._over.set()

    def _deliver(self) -> None:
        self._metrics["update_norm"] = self._write(self._path)
        self._bridge.send(self._updates, self._path)
        self._bridge.status({"metrics": {"round": self._round, "metrics": self._metrics}})
        # 200 means accepted, not delivered: only the round before is surely out of use
        self._path.with_name(f"update-{self._round - 1}.safetensors").unlink(missing_ok=True)

    def _next_version(self) -> Arrival:
        """The next step or weights; what was seen before a reconnect is passed over."""
        while True:
            arrival = self._arrivals.take()
            if arrival.version is None or arrival.is_weights or arrival.version == self._round + 1:
                return arrival
            if arrival.version > self._round + 1:
                raise BridgeError(f"the step to version {arrival.version} came, but version {self._round} is here")
            arrival.path.unlink(missing_ok=True)
