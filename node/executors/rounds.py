"""The executor's part in a round: batches until told, the update out, the step in; until the bridge says Done."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from node.errors import JobError
from node.executors.bridge_client import Arrival, Arrivals, Bridge, BridgeError
from node.executors.job import TrainConfig

if TYPE_CHECKING:
    from node.executors.batches import Batch, Slice
    from node.executors.trainer import Trainer

log = logging.getLogger(__name__)

T = TypeVar("T")


class Ranks(Protocol):
    """The processes of one executor. One of them talks to the bridge, all do the same."""

    def share(self, call: Callable[[], T]) -> T:
        """Runs `call` in the main process; its result, or its error, is everybody's."""


class RoundLoop:
    """Runs rounds from a version of the weights on."""

    def __init__(
        self,
        config: TrainConfig,
        trainer: Trainer,
        bridge: Bridge,
        arrivals: Arrivals | None,
        ranks: Ranks,
        *,
        work_dir: Path,
        version: int,
        validation: Sequence[Path],
        open_slice: Callable[[Path], Slice],
    ) -> None:
        self._config = config
        self._trainer = trainer
        self._bridge = bridge
        self._arrivals = arrivals
        self._ranks = ranks
        self._out = work_dir / "out"
        self._out.mkdir(exist_ok=True)
        self._version = version
        self._validation = validation
        self._open_slice = open_slice
        self._batch_size = 0
        self._batches = self._read_batches()

    def run(self) -> None:
        """Returns when the job is done."""
        if self._config.evaluate:
            self._evaluate()
        while not (self._train_round() or self._finish_round()):
            pass

    def _train_round(self) -> bool:
        """Batches until it is time for the update. True if the job ended meanwhile."""
        self._began = time.monotonic()
        self._samples = self._count = 0
        self._loss_sum = 0.0
        left: int | None = None
        while left is None or left > 0:
            batch, rows = next(self._batches)
            began = time.monotonic()
            loss = self._trainer.train(batch)
            if not math.isfinite(loss):
                raise JobError(f"the loss is {loss} in batch {self._count + 1} of round {self._version}")
            self._samples += rows
            self._count += 1
            self._loss_sum += loss * rows
            took_ms = round((time.monotonic() - began) * 1000, 3)
            answer = self._status({"status": {"batch_size": rows, "round_time": took_ms, "loss": loss}})
            if answer.get("type") == "Done":
                return True
            if answer.get("type") == "ScheduleUpdate":
                left = _counter(answer)
            elif left is not None:
                left -= 1
        return False

    def _finish_round(self) -> bool:
        """The update out, the step in. True if that was the last round."""
        round_number = self._version
        metrics = {
            "loss": self._loss_sum / self._samples,
            "samples": float(self._samples),
            "batches": float(self._count),
            "seconds": time.monotonic() - self._began,
            "learning_rate": self._trainer.learning_rate,
        }
        self._ranks.share(lambda: self._deliver(round_number, metrics))
        arrival = self._ranks.share(self._next_version)
        if arrival.is_weights:
            self._trainer.apply_weights(arrival.path)
        else:
            self._trainer.apply_step(arrival.path)
        self._version = round_number + 1 if arrival.version is None else arrival.version
        self._ranks.share(lambda: arrival.path.unlink(missing_ok=True))
        answer = self._status("update-received")
        log.info(
            "round.applied round=%d samples=%d batches=%d loss=%.4f",
            round_number,
            self._samples,
            self._count,
            metrics["loss"],
        )
        if answer.get("evaluate") is True:
            self._evaluate()
        return answer.get("type") == "Done"

    def _deliver(self, round_number: int, metrics: dict[str, float]) -> None:
        self._bridge.status("update")
        path = self._out / f"update-{round_number}.safetensors"
        metrics["update_norm"] = self._trainer.write_update(path)
        self._bridge.send(self._config.updates, path)
        self._bridge.status({"metrics": {"round": round_number, "metrics": metrics}})
        # 200 means accepted, not delivered: only the round before is surely out of use
        (self._out / f"update-{round_number - 1}.safetensors").unlink(missing_ok=True)

    def _next_version(self) -> Arrival:
        """The next step or weights; what was seen before a reconnect is passed over."""
        assert self._arrivals is not None
        while True:
            arrival = self._arrivals.take()
            if arrival.version is None or arrival.is_weights or arrival.version == self._version + 1:
                return arrival
            if arrival.version > self._version:
                raise BridgeError(f"the step to version {arrival.version} came, but version {self._version} is here")
            arrival.path.unlink(missing_ok=True)

    def _evaluate(self) -> None:
        """Reports the validation loss of the current version."""
        if not self._validation:
            raise JobError("the job wants a validation loss and has no validation dataset")

        def measure() -> float:
            slices = (self._open_slice(path) for path in self._validation)
            return self._trainer.evaluate(slices, self._batch_size or self._config.batch_size)

        loss: float = self._ranks.share(measure)
        log.info("round.evaluated version=%d eval_loss=%.4f", self._version, loss)
        self._status({"metrics": {"round": self._version, "metrics": {"eval_loss": loss}}})

    def _status(self, body: object) -> dict[str, Any]:
        return self._ranks.share(lambda: self._bridge.status(body))

    def _read_batches(self) -> Iterator[tuple[Batch, int]]:
        """Batches of slice after slice. A slice is asked for when the one before has been trained on."""
        empty = 0
        while True:
            fetched = self._ranks.share(lambda: self._bridge.fetch(self._config.data))
            for entry in fetched:
                part = self._open_slice(entry.path)
                empty = 0 if part.rows else empty + 1
                if empty > 1000:
                    raise JobError("the dataset has no rows")
                if not self._batch_size and part.rows:
                    limit = min(self._config.batch_size, part.rows)
                    fits = self._trainer.probe(limit, part.head)
                    self._batch_size = self._config.batch_size if fits == limit else fits
                for start, end in part.batches(self._batch_size or self._config.batch_size):
                    yield part.read(start, end), end - start
            if not fetched:
                raise BridgeError("the bridge gave no slice")


def _counter(answer: dict[str, Any]) -> int:
    counter = answer.get("counter")
    if type(counter) is not int or counter < 0:
        raise BridgeError(f"the bridge asked for {counter!r} more batches")
    return counter
