"""The streaming loader: an epoch's rows one after the other, from wherever the slices lie, resumable at any row."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import numpy as np
from msgspec.structs import replace

from node.errors import ConfigError
from node.streaming import partition
from node.streaming.config import StreamingConfig
from node.streaming.coordinator import StreamCoordinator
from node.streaming.epoch import Epoch
from node.streaming.hashing import Ids
from node.streaming.slicefile import Columns, Rows, SliceFile
from node.streaming.source import RowSource, Source
from node.streaming.state import Generation, Pass, StreamState
from node.streaming.walk import Labels, Share

CHUNK_BYTES = 1 << 20
"""Shuffled rows are copied so many bytes at a time, which bounds the memory and keeps the copies in the cache."""

Checkpoint = Callable[[StreamState], None]


@dataclass(slots=True)
class LoaderStats:
    """What a loader has done so far. `local_samples` came from slices that were here when they were opened."""

    samples_loaded: int = 0
    local_samples: int = 0
    remote_samples: int = 0
    prefetch_hits: int = 0
    prefetch_misses: int = 0
    slices_loaded: int = 0
    wait_s: float = 0.0
    num_checkpoints: int = 0
    began: float = 0.0

    @property
    def avg_load_time_us(self) -> float:
        """Time that was waited for slices, by the sample."""
        return self.wait_s / self.samples_loaded * 1e6 if self.samples_loaded else 0.0

    @property
    def worker_utilization(self) -> float:
        """The part of the time in which whoever reads did not wait for slices."""
        elapsed = time.monotonic() - self.began if self.began else 0.0
        return max(0.0, 1.0 - self.wait_s / elapsed) if elapsed > 0 else 0.0


@dataclass(slots=True)
class _Opening:
    """A slice that is being opened, and which of its rows are wanted."""

    index: int
    rows: Ids
    was_here: bool
    future: Future[Rows]


class StreamingLoader:
    """Rows (or batches) of one worker's share of a dataset. One thread may read it; `close()` it, or use `with`.

    Iterating yields what is left of the present epoch, as dictionaries of arrays: views of the file, or of a copy where
    rows are shuffled. The next iteration is the next epoch. `labels` are the classes of all units, for the stratified
    strategy: of rows in the dataset's order, or of slices. Raises `ConfigError` and what the source raises.
    """

    def __init__(
        self,
        source: Source | RowSource,
        config: StreamingConfig | None = None,
        *,
        coordinator: StreamCoordinator | None = None,
        on_checkpoint: Checkpoint | None = None,
        labels: Labels | None = None,
    ) -> None:
        self.config = config or StreamingConfig()
        self.config.validate()
        units = len(source.rows) if self.config.unit == "slices" else sum(source.rows)
        partition.check(self.config.strategy, self.config.world_size, units, labels)
        self._source = source
        self._coordinator = coordinator
        self._on_checkpoint = on_checkpoint
        self._labels = labels
        self._stats = LoaderStats()
        self._passes = [Pass(0)]
        self._used = 0
        """How many rows of the present pass are used; what `_passes` says of that is of when it was begun."""
        self._speeds: tuple[float, ...] | None = None
        self._before = 0
        self._pool = ThreadPoolExecutor(max(1, self.config.prefetch_slices), thread_name_prefix="slice")
        self._single: Iterator[Columns] | None = None
        self._pieces: Iterator[tuple[int, Ids]] | None = None
        self._ahead: deque[_Opening] = deque()
        self._reading = 0
        self._is_within_slice = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Fetch nothing more."""
        self._stop()
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._source.close()

    @property
    def epoch(self) -> int:
        """The epoch that the next row is of."""
        return self._passes[0].epoch

    def __len__(self) -> int:
        """How many samples of the present epoch are this worker's, those that are used included."""
        return self._share().whole()

    @property
    def is_empty(self) -> bool:
        """Whether nothing of the present epoch is left."""
        return next(self._share().pieces(), None) is None

    # ---- reading --------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Columns]:
        """What is left of the epoch; a second iterator takes over from the first."""
        if self._is_within_slice:
            self._stop()
        self._reading += 1
        return self._batches(self._reading) if self.config.batch_size else self._rows(self._reading)

    def next(self) -> Columns | None:
        """The next row or batch, or None once at the end of the epoch; after that, those of the next epoch."""
        if self._single is None:
            self._single = iter(self)
        found = next(self._single, None)
        if found is None:
            self._single = None
        return found

    def prefetch(self, count: int) -> int:
        """Start to fetch the slices of the next `count` samples; how many are on their way or here now."""
        coming = sum(len(opening.rows) for opening in self._ahead)
        while coming < count and (opened := self._open_next()) is not None:
            coming += len(opened.rows)
        return coming

    def reset(self, epoch: int = 0) -> None:
        """Go to the beginning of an epoch."""
        self._stop()
        self._passes, self._used, self._before = [Pass(epoch)], 0, 0

    # ---- state ----------------------------------------------------------------------------------------------

    def state(self) -> StreamState:
        """Where the stream is: what was yielded counts as used."""
        config = self.config
        return StreamState(
            dataset=self._source.digest,
            seed=config.shuffle_seed,
            shuffle=config.shuffle,
            unit=config.unit,
            strategy=config.strategy,
            world_size=config.world_size,
            rank=config.rank,
            passes=(replace(self._passes[0], count=self._used), *self._passes[1:]),
            speeds=self._speeds,
            before=self._before,
        )

    def restore(self, state: StreamState) -> None:
        """Go on where a state was taken: this worker's own, or that of all workers together, whose number may have been
        another. Raises `ConfigError` where the state is not of this stream."""
        config = self.config
        own = {
            "dataset": self._source.digest,
            "seed": config.shuffle_seed,
            "shuffle": config.shuffle,
            "unit": config.unit,
            "strategy": config.strategy,
        }
        for name, value in own.items():
            if getattr(state, name) != value:
                raise ConfigError(
                    f"the state is of another stream: its {name} is {getattr(state, name)!r}, not {value!r}"
                )
        is_own = (state.rank, state.world_size) == (config.rank, config.world_size)
        if state.rank is not None and not is_own:
            raise ConfigError(
                f"the state is that of worker {state.rank} of {state.world_size}, this is {config.rank} of "
                f"{config.world_size}",
                hint="merge the states of all workers, then any number can go on",
            )
        if state.rank is None and state.speeds is not None and len(state.speeds) != config.world_size:
            raise ConfigError(f"the state has the speeds of {len(state.speeds)} workers, there are {config.world_size}")
        self._stop()
        self._passes = list(state.passes)
        self._used = state.passes[0].count
        self._speeds = state.speeds
        self._before = state.before

    def stats(self) -> LoaderStats:
        """What was loaded so far."""
        return self._stats

    # ---- inside ---------------------------------------------------------------------------------------------

    def _share(self) -> Share:
        """The worker's share of the present pass, without what it has used."""
        config, present = self.config, self._passes[0]
        epoch = Epoch(self._source.rows, present.epoch, config.shuffle_seed, config.shuffle)
        counts = tuple(self._used if rank == config.rank else 0 for rank in range(config.world_size))
        generations = (*present.generations, Generation(counts, self._speeds))
        return Share(epoch, config.strategy, config.unit, generations, config.rank, self._labels)

    def _stop(self) -> None:
        self._pieces, self._single, self._is_within_slice = None, None, False
        self._reading += 1
        while self._ahead:
            opening = self._ahead.pop()
            opening.future.cancel()
            self._source.release(opening.index)

    def _open_next(self) -> _Opening | None:
        """Begin to open the next slice of the share; None where there is none."""
        if self._pieces is None:
            self._pieces = self._share().pieces()
        piece = next(self._pieces, None)
        if piece is None:
            return None
        index, rows = piece
        opening = _Opening(index, rows, self._source.is_here(index), self._pool.submit(self._open, index, rows))
        self._ahead.append(opening)
        return opening

    def _open(self, index: int, rows: Ids) -> Rows:
        if isinstance(self._source, RowSource):
            return self._source.open_rows(index, self.config.columns, int(rows.min()), int(rows.max()) + 1)
        return SliceFile(self._source.open(index), self.config.columns)

    def _slices(self, reading: int) -> Iterator[tuple[Rows, Ids]]:
        """The open slices of what is left of the epoch, each until its rows are used."""
        stats = self._stats
        stats.began = stats.began or time.monotonic()
        while reading == self._reading:
            while len(self._ahead) <= self.config.prefetch_slices and self._open_next() is not None:
                pass
            if not self._ahead:
                return
            opening = self._ahead[0]
            stats.prefetch_hits += opening.future.done()
            stats.prefetch_misses += not opening.future.done()
            began = time.monotonic()
            part = opening.future.result()
            stats.wait_s += time.monotonic() - began
            self._ahead.popleft()
            self._is_within_slice = True
            stats.slices_loaded += 1
            before = stats.samples_loaded
            try:
                yield part, opening.rows
            finally:
                self._source.release(opening.index)
                used = stats.samples_loaded - before
                if opening.was_here:
                    stats.local_samples += used
                else:
                    stats.remote_samples += used
            if reading == self._reading:
                self._is_within_slice = False

    def _rows(self, reading: int) -> Iterator[Columns]:
        for part, rows in self._slices(reading):
            names = part.columns
            for chunk in _chunks(part, rows):
                for values in zip(*part.read(chunk).values(), strict=True):
                    self._use(1)
                    yield dict(zip(names, values))  # noqa: B905 - the line above checks it, once and not for each row
                    if reading != self._reading:
                        return
        self._end_epoch(reading)

    def _batches(self, reading: int) -> Iterator[Columns]:
        """Batches of the same size, across slices; the last one of an epoch may be smaller."""
        size = self.config.batch_size
        kept: list[Columns] = []
        room = size
        for part, rows in self._slices(reading):
            for at in _cuts(len(rows), room, size):
                kept.append(part.read(_compact(rows[at])))
                room -= at.stop - at.start
                if room:
                    continue
                batch, kept, room = _joined(kept), [], size
                self._use(size)
                yield batch
                if reading != self._reading:
                    return
        if kept and reading == self._reading:
            self._use(size - room)
            yield _joined(kept)
        self._end_epoch(reading)

    def _use(self, count: int) -> None:
        """Count rows as used, just before they are yielded."""
        stats, every = self._stats, self.config.checkpoint_every
        self._used += count
        stats.samples_loaded += count
        if every and stats.samples_loaded % every < count:
            self._checkpoint()

    def _checkpoint(self) -> None:
        state = self.state()
        self._stats.num_checkpoints += 1
        if self._coordinator is not None:
            self._coordinator.register_checkpoint(self.config.rank, state)
        if self._on_checkpoint is not None:
            self._on_checkpoint(state)

    def _end_epoch(self, reading: int) -> None:
        """The next epoch is the present one."""
        if reading != self._reading:
            return
        self._pieces = None
        self._before = self._share().whole()
        last = self._passes.pop(0)
        if not self._passes:
            self._passes.append(Pass(last.epoch + 1))
        self._used = self._passes[0].count


def _compact(rows: Ids) -> Ids | slice:
    """Consecutive rows as a slice, which costs no copy."""
    first, last = int(rows[0]), int(rows[-1])
    is_run = last - first == len(rows) - 1 and (len(rows) < 3 or bool(np.all(np.diff(rows) == 1)))
    return slice(first, last + 1) if is_run else rows


def _chunks(part: Rows, rows: Ids) -> Iterator[Ids | slice]:
    """The rows as they are read: all at once where that costs no copy, else by pieces of bounded size."""
    whole = _compact(rows)
    if isinstance(whole, slice) and part.is_viewed:
        yield whole
        return
    step = max(1, CHUNK_BYTES // part.row_bytes)
    for start in range(0, len(rows), step):
        yield rows[start : start + step]


def _cuts(count: int, first: int, size: int) -> Iterator[slice]:
    """`count` rows cut after `first` rows, and from there on after every `size`."""
    at = 0
    while at < count:
        end = min(count, at + (first if at == 0 else size))
        yield slice(at, end)
        at = end


def _joined(parts: list[Columns]) -> Columns:
    if len(parts) == 1:
        return parts[0]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
