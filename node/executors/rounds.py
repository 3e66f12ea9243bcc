"""The executor's part in a round: batches until told, the update out, the step in; until the bridge says Done.

With `overlap` the next round's batches begin while the update is on its way. What answers it is applied between two
batches, once `delay_batches` of them are done, and before the round's own update at the latest: there is never more
than one exchange at a time.
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from node.errors import JobError
from node.executors.bridge_client import Arrival, Bridge, BridgeError, Fetched
from node.executors.exchange import Exchange, Source
from node.executors.job import TrainConfig
from node.executors.reports import Reports

if TYPE_CHECKING:
    from node.executors.batches import Batch, Slice
    from node.executors.trainer import Trainer

log = logging.getLogger(__name__)

T = TypeVar("T")

RUN_AHEAD_S = 0.2
RUN_AHEAD_BATCHES = 2
"""On a device that computes by itself, losses are read so much later that it never waits for Python: at most so many
batches have begun by then, and no more than this time's worth."""


class Ranks(Protocol):
    """The processes of one executor. One of them talks to the bridge, all do the same."""

    def share(self, call: Callable[[], T]) -> T:
        """Runs `call` in the main process; its result, or its error, is everybody's."""

    def wait(self) -> None:
        """Until all have come here."""


class RoundLoop:
    """Runs rounds from a version of the weights on."""

    def __init__(
        self,
        config: TrainConfig,
        trainer: Trainer,
        bridge: Bridge,
        arrivals: Source | None,
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
        self._round = version
        self._validation = validation
        self._open_slice = open_slice
        self._batch_size = 0
        self._reports: Reports | None = None
        self._exchange: Exchange | None = None
        self._is_exchanging = False
        self._goes_on = False
        self._begun: deque[tuple[Any, int]] = deque()
        self._settled_at = 0.0
        self._begin_round()
        self._batches = self._read_batches()

    def run(self) -> None:
        """Returns when the job is done."""
        if self._config.evaluate:
            self._evaluate()
        if self._arrivals is not None:
            self._reports = Reports(self._bridge.status)
        try:
            while not (self._train_round() or self._finish_round()):
                pass
        finally:
            if self._reports is not None:
                self._reports.close()

    # ---- batches ----------------------------------------------------------------------------------

    def _begin_round(self) -> None:
        self._began = time.monotonic()
        self._samples = self._count = 0
        self._loss_sum = 0.0
        if self._reports is not None:
            self._reports.begin()

    def _train_round(self) -> bool:
        """Batches until it is time for the update. True if the job ended meanwhile."""
        while True:
            what = self._ranks.share(self._next_thing)
            if what == "done":
                return True
            if what == "merge":
                if self._merge():
                    return True
            elif what == "update" and not self._begun:
                return False
            elif what == "update":
                self._settle(0)
            else:
                self._train_batch()

    def _next_thing(self) -> str:
        """In the main process: what comes next, `batch`, `merge`, `update` or `done`."""
        exchange = self._exchange
        assert self._reports is not None
        if exchange is not None and exchange.is_over and self._count >= self._config.sync.delay_batches:
            return "merge"
        if self._count == 0:
            return "batch"
        wants = self._reports.wants_more(self._count)
        return "done" if wants is None else "batch" if wants else "update"

    def _train_batch(self) -> None:
        batch, rows = next(self._batches)
        if not self._begun:
            self._settled_at = time.monotonic()
        self._begun.append((self._trainer.train(batch), rows))
        self._count += 1
        self._settle(self._ahead())

    def _ahead(self) -> int:
        """How many batches may have begun whose loss has not been read."""
        if self._count == 1 or self._reports is None or not self._trainer.is_asynchronous:
            return 0
        return min(RUN_AHEAD_BATCHES, int(RUN_AHEAD_S / max(self._reports.batch_s, 1e-6)))

    def _settle(self, left: int) -> None:
        """Reads losses until those of the `left` newest batches are missing."""
        while len(self._begun) > left:
            handle, rows = self._begun.popleft()
            loss = float(handle)
            if not math.isfinite(loss):
                raise JobError(f"the loss is {loss} in round {self._round}, about batch {self._count}")
            self._samples += rows
            self._loss_sum += loss * rows
            now = time.monotonic()
            if self._reports is not None:
                self._reports.add(rows, now - self._settled_at, loss)
            self._settled_at = now

    def _read_batches(self) -> Iterator[tuple[Batch, int]]:
        """Batches of slice after slice. A slice is asked for when the one before has been trained on and reported."""
        empty = 0
        while True:
            self._settle(0)
            fetched = self._ranks.share(self._next_slice)
            for entry in fetched:
                part = self._open_slice(entry.path)
                empty = 0 if part.rows else empty + 1
                if empty > 1000:
                    raise JobError("the dataset has no rows")
                if not self._batch_size and part.rows:
                    limit = min(self._config.batch_size, part.rows)
                    fits = self._trainer.probe(limit, part.head)
                    self._batch_size = self._config.batch_size if fits == limit else fits
                yield from part.read_all(self._batch_size or self._config.batch_size)
            if not fetched:
                raise BridgeError("the bridge gave no slice")

    def _next_slice(self) -> list[Fetched]:
        assert self._reports is not None
        self._reports.flush()
        return self._bridge.fetch(self._config.data)

    # ---- the exchange -----------------------------------------------------------------------------

    def _finish_round(self) -> bool:
        """The update out and, without overlap, the step in. True if that was the last round."""
        if self._is_exchanging and self._merge():
            return True
        if not self._base_is_sound():
            return False
        answer = self._status("update")
        is_last = answer.get("last") is True or self._round + 1 == self._config.rounds
        self._goes_on = self._config.sync.overlap and not is_last
        self._start_exchange(str(answer.get("codec") or self._config.sync.codec))
        self._round += 1
        self._begin_round()
        return False if self._goes_on else self._merge()

    def _start_exchange(self, codec: str) -> None:
        self._is_exchanging = True
        round_ = self._round
        metrics = {
            "loss": self._loss_sum / self._samples,
            "samples": float(self._samples),
            "batches": float(self._count),
            "seconds": time.monotonic() - self._began,
            "learning_rate": self._trainer.learning_rate,
        }
        loss = metrics["loss"]
        log.info("round.trained round=%d samples=%d batches=%d loss=%.4f", round_, self._samples, self._count, loss)
        if self._arrivals is None:
            return
        self._exchange = Exchange(
            self._bridge,
            self._arrivals,
            self._config.updates,
            round_=round_,
            path=self._out / f"update-{round_}.safetensors",
            write=self._trainer.update_writer(round_, codec, is_later=self._goes_on),
            metrics=metrics,
        )
        if self._goes_on:
            self._exchange.start()

    def _merge(self) -> bool:
        """Waits for what answers the last update, and takes it in. True if the job is done."""
        arrival = self._ranks.share(self._arrived)
        self._exchange, self._is_exchanging = None, False
        self._version = self._version + 1 if arrival.version is None else arrival.version
        self._trainer.apply(arrival, self._version, mixing=self._config.sync.mixing if self._goes_on else 0.0)
        if self._version > self._round:
            self._round = self._version
            if self._reports is not None:
                self._reports.forget_target()
        self._ranks.wait()  # the others may still be reading
        self._ranks.share(lambda: _remove(arrival.path, arrival.momentum))
        answer = self._status("update-received")
        log.info("round.applied version=%d content=%s counted=%s", self._version, arrival.content, arrival.counted)
        if answer.get("evaluate") is True:
            self._evaluate()
        return answer.get("type") == "Done"

    def _arrived(self) -> Arrival:
        assert self._exchange is not None
        return self._exchange.result() if self._goes_on else self._exchange.run()

    def _base_is_sound(self) -> bool:
        """Whether the weights that the round began with are the committed ones. Others are replaced; by those of a
        later version the round is over, and False is answered."""
        files = self._ranks.share(self._correction)
        if not files:
            return True
        version = files[0].version or 0
        momentum = next((entry.path for entry in files if entry.kind == "momentum"), None)
        weights = next(entry.path for entry in files if entry.kind == "weights")
        is_same = version == self._version
        self._trainer.apply_weights(weights, momentum, keeps_progress=is_same)
        if not is_same:
            self._version = self._round = version
            self._begin_round()
        return is_same

    def _correction(self) -> list[Fetched]:
        if self._trainer.base_is_sound() or self._config.weights is None:
            return []
        log.warning("base.differs version=%d: the whole weights are fetched", self._version)
        return self._bridge.fetch(self._config.weights)

    # ---- the rest ---------------------------------------------------------------------------------

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


def _remove(*paths: Path | None) -> None:
    for path in paths:
        if path is not None:
            path.unlink(missing_ok=True)
