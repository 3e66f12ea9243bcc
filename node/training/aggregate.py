"""Closing a round: one pseudo-gradient out of the updates, one outer step, the next version of the weights.

Everything is read and written piece by piece, by a few threads; memory grows neither with the model nor, for the mean,
with the number of updates. Updates are taken in the order of their names, so the result does not depend on who came
first. Nothing is forced to the disk: a version is only prepared here, and whoever commits it takes its delta over.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from node.errors import TensorFileError
from node.training import robust
from node.training.codec import Codec, Int8, codec_named, codec_of, shapes_metadata
from node.training.files import (
    CHUNK,
    Array,
    Layout,
    TensorReader,
    TensorWriter,
    check_layout,
    pieces,
    row,
    sha256_of,
)
from node.training.folder import FileMade, Held, Model, Stream, path_of, pieces_of, write_held
from node.training.identity import KINDS, next_identities
from node.training.lanes import in_lanes
from node.training.outer import clear, move, move_by_step
from node.training.reading import Values
from node.training.traits import Traits
from node.training.updates import check_update, finite_square
from node.training.versions import CONTENT, VERSION, VOID, Outer
from node.wire import Aggregation, Sync

ROWS = 8
"""Updates whose values are in memory at once, for a mean."""
EVERYTHING = Sync()
MEAN = Aggregation()


@dataclass(frozen=True, slots=True)
class Update:
    """An update that was found sound: whose, how much it counts for, how long it is."""

    path: Path
    weight: float
    task_id: str = ""
    norm: float = 0.0


@dataclass(frozen=True, slots=True)
class Prepared:
    """A version whose files are all there. `left_out` and `clipped` are by task."""

    version: int
    weights: FileMade
    momentum: FileMade
    delta: FileMade
    left_out: dict[str, str] = field(default_factory=dict)
    clipped: dict[str, float] = field(default_factory=dict)


def check(folder: Path, path: Path, round_number: int, sync: Sync) -> float:
    """The norm of an update for this round. Raises TensorFileError naming what is wrong with it."""
    model = Model.newest(folder, sync.fragments)
    with TensorReader(path) as reader:
        return check_update(reader, model.fragment(sync, round_number), model.traits)


def commit(
    folder: Path,
    round_number: int,
    updates: Sequence[Update],
    *,
    outer: Outer,
    sync: Sync = EVERYTHING,
    rules: Aggregation = MEAN,
) -> Prepared:
    """Prepares version `round_number + 1`. Done again it gives the same bytes.

    With no update, or no samples behind them, or a result that is not finite, the round is void: weights and momentum
    stay as they are.
    """
    for update in updates:
        if not (math.isfinite(update.weight) and update.weight >= 0):
            raise TensorFileError(f"{update.path.name}: weight {update.weight} is not a number of samples")
    model = Model(folder, round_number, sync.fragments)
    fragment = model.fragment(sync, round_number)
    left_out = {update.task_id: "there are no samples behind it" for update in updates if update.weight == 0}
    counted = []
    with ExitStack() as stack:
        for update in sorted(updates, key=lambda update: str(update.path)):
            try:
                if update.weight > 0:
                    counted.append(_Source(update, stack.enter_context(TensorReader(update.path)), model, fragment))
            except TensorFileError as error:
                left_out[update.task_id] = error.message
        try:
            if counted:
                return _Round(stack, folder, model, fragment, counted, outer, sync, rules).make(left_out)
        except _NotFinite as error:
            left_out |= {source.task_id: str(error) for source in counted}
            stack.close()
        return _void(folder, model, sync, left_out)


class _Source:
    """An update that takes part: its file, open."""

    def __init__(self, update: Update, reader: TensorReader, model: Model, fragment: Layout) -> None:
        self.task_id, self.weight, self.norm = update.task_id, update.weight, update.norm
        self.factor = np.float32(1)
        self.reader = reader
        self.values = Values(reader, fragment, model.traits)


class _NotFinite(Exception):
    """The outer step of finite updates can still overflow."""


class _Lane:
    """One thread's space."""

    def __init__(self, rows: int, down: Codec) -> None:
        self.mean, self.piece, self.theta, self.speed, self.scratch = (row(CHUNK) for _ in range(5))
        self.rows = row(rows * CHUNK).reshape(rows, CHUNK)
        self.down = codec_of(down.metadata)


class _Round:
    """The files of one round, open while the next version is made."""

    def __init__(
        self,
        stack: ExitStack[bool | None],
        folder: Path,
        model: Model,
        fragment: Layout,
        sources: Sequence[_Source],
        outer: Outer,
        sync: Sync,
        rules: Aggregation,
    ) -> None:
        round_number = model.version
        self.version = version = round_number + 1
        self.model, self.fragment, self.sources, self.outer, self.rule = model, fragment, sources, outer, rules.rule
        self._buffers, self._counters = model.traits.buffers, model.traits.counters
        self.folder, self.fragments = folder, sync.fragments
        self.base = Held(stack, folder, "weights", round_number, sync.fragments)
        self.velocity = Held(stack, folder, "momentum", round_number, sync.fragments)
        self.down = codec_named(_down(sync), sync.density)
        self._weigh(rules)

        self.streams = {
            kind: Stream(stack, path_of(folder, kind, version), fragment, model.metadata_of(kind)) for kind in KINDS
        }
        delta_layout = self.down.layout(self.fragment, self._buffers)
        metadata = delta_metadata(self.down, sync, version, model.traits) | shapes_metadata(self.down, self.fragment)
        self.delta = Stream(stack, path_of(folder, "delta", version), delta_layout, metadata)
        self.residual_before: TensorReader | None = None
        self.residual: TensorWriter | None = None
        if self.down.keeps_residual:
            kept = {name: kind for name, kind in fragment.items() if name not in self._buffers}
            self.residual_before = _existing(stack, path_of(folder, "residual", version - sync.fragments), kept)
            self.residual = TensorWriter(path_of(folder, "residual", version), kept)
            self.stale_residual = path_of(folder, "residual", round_number - sync.fragments)
            stack.callback(self.residual.discard)

    def _weigh(self, rules: Aggregation) -> None:
        total = sum(source.weight for source in self.sources)
        self.clipped = robust.clip_factors({source.task_id: source.norm for source in self.sources}, rules.clip_norm)
        shares = []
        for source in self.sources:
            factor = self.clipped.get(source.task_id, 1.0)
            source.factor = np.float32(factor)
            shares.append(source.weight / total * factor)
        self.shares = np.array(shares, np.float32)
        codecs = [source.values.codec for source in self.sources if isinstance(source.values.codec, Int8)]
        self.int8 = codecs[0] if rules.rule == "mean" and len(codecs) == len(self.sources) else None
        self.cut = robust.cut_of(rules.rule, len(self.sources), rules.trim)
        self.cut_places: list[Array] = []

    def make(self, left_out: dict[str, str]) -> Prepared:
        """Does the work. Some have been left out before."""
        numbered = list(enumerate(pieces_of(self.fragment)))
        turns = [stream.turns for stream in (*self.streams.values(), self.delta)]
        in_lanes(numbered, self._lane, self._advance, turns)
        delta = self._delta_made()
        files = {kind: stream.publish() for kind, stream in self.streams.items()}
        known = next_identities(self.folder, self.model, self.fragments, files)
        if self.residual is not None:
            self.residual.publish()
            self.stale_residual.unlink(missing_ok=True)
        places = sum(math.prod(shape) for _, shape in self.fragment.values())
        tasks = [source.task_id for source in self.sources]
        cut = robust.left_out(tasks, np.sum(self.cut_places, axis=0), places) if self.cut else {}

        clipped = {task: factor for task, factor in self.clipped.items() if task not in cut}
        return Prepared(self.version, known["weights"], known["momentum"], delta, left_out | cut, clipped)

    def _delta_made(self) -> FileMade:
        if self.down.name == "none":
            return self.delta.publish()
        self.delta.writer.publish()
        path = self.delta.writer.path
        return FileMade(sha256_of(path), self.delta.writer.size_bytes)

    def _lane(self) -> _Lane:
        return _Lane(min(ROWS, len(self.sources)) if self.rule == "mean" else len(self.sources), self.down)

    def _advance(self, lane: _Lane, numbered: tuple[int, tuple[str, int, int]]) -> None:
        number, (name, start, length) = numbered
        theta, speed = lane.theta[:length], lane.speed[:length]
        self.base.read_into(name, start, theta)
        self.velocity.read_into(name, start, speed)
        step = self._step(lane, number, name, start, speed)
        clear(speed, lane.scratch[:length], self.version)
        np.add(theta, step, out=theta)
        if not (_is_finite(theta) and _is_finite(speed)):
            raise _NotFinite(f"the outer step leaves values that are not finite in {name}")
        self.streams["weights"].write(number, name, start, theta)
        self.streams["momentum"].write(number, name, start, speed)

    def _step(self, lane: _Lane, number: int, name: str, start: int, speed: Array) -> Array:
        """The step of a piece, written to the delta; `speed` becomes the new momentum."""
        mean, scratch = lane.mean[: len(speed)], lane.scratch[: len(speed)]
        self._mean(lane, name, start, mean)
        rates = {"learning_rate": self.outer.learning_rate, "momentum": self.outer.momentum}
        is_buffer = name in self._buffers
        if self.down.name == "none":
            if not is_buffer:
                move_by_step(mean, speed, scratch, **rates)
            self.delta.write(number, name, start, mean)
            return mean
        if is_buffer:
            self.delta.writer.write(name, start, mean)
            return mean
        if self.residual is not None:
            np.add(mean, self._left_before(lane, name, start, len(mean)), out=mean)
        parts = lane.down.encode(mean)
        lane.down.write(self.delta.writer, name, start, parts)
        sent = lane.piece[: len(speed)]
        lane.down.decode(parts, sent)
        if self.residual is not None:
            self.residual.write(name, start, np.subtract(mean, sent, out=mean))
        move(sent, speed, scratch, **rates)
        return sent

    def _mean(self, lane: _Lane, name: str, start: int, mean: Array) -> None:
        is_counter = name in self._counters
        if self.rule == "mean" or is_counter or name in self._buffers:
            some = lane.scratch[: len(mean)]
            for first in range(0, len(self.sources), ROWS):
                self._mean_of_some(lane, name, start, first, some if first else mean)
                if first:
                    (np.maximum if is_counter else np.add)(mean, some, out=mean)
            return
        rows = lane.rows[:, : len(mean)]
        for place, source in zip(rows, self.sources, strict=True):
            source.values.read(name, start, place)
            if source.factor != 1:
                np.multiply(place, source.factor, out=place)
        self.cut_places.append(robust.trimmed_mean(rows, self.cut, mean, lane.scratch[: len(mean)]))

    def _mean_of_some(self, lane: _Lane, name: str, start: int, first: int, out: Array) -> None:
        """What so many updates from this one on add to the mean; of a counter, the most."""
        sources = self.sources[first : first + ROWS]
        shares, rows = self.shares[first : first + ROWS], lane.rows[: len(sources), : len(out)]
        if self.int8 is not None and name not in self._buffers:
            parts = [self.int8.read_parts(source.reader, name, start, len(out)) for source in sources]
            self.int8.mix(parts, shares, rows, out)
            return
        for place, source in zip(rows, sources, strict=True):
            source.values.read(name, start, place)
        if name in self._counters:
            rows.max(axis=0, out=out)
        else:
            np.dot(shares, rows, out=out)

    def _left_before(self, lane: _Lane, name: str, start: int, length: int) -> Array:
        left = lane.scratch[:length]
        if self.residual_before is None:
            left[:] = 0
        else:
            self.residual_before.read_into(name, start, left)
        return left


def delta_metadata(codec: Codec, sync: Sync, version: int, traits: Traits) -> dict[str, str]:
    """What a delta says of itself."""
    content = "step" if sync.codec == "none" else "gradient"
    return codec.metadata | {CONTENT: content, VERSION: str(version)} | traits.tied_metadata


def _void(folder: Path, model: Model, sync: Sync, left_out: dict[str, str]) -> Prepared:
    round_number = model.version
    version = round_number + 1
    codec = codec_named("none")
    metadata = delta_metadata(codec, sync, version, model.traits) | {VOID: "1"}
    has_zeros = sync.codec == "none" and sync.fragments == 1
    delta = _zeros(path_of(folder, "delta", version), model.layout if has_zeros else {}, metadata)
    files = {kind: _same(folder, model, kind, sync) for kind in KINDS}
    residual = path_of(folder, "residual", version - sync.fragments)
    if residual.exists():
        _link(residual, path_of(folder, "residual", version))
    known = next_identities(folder, model, sync.fragments, files)
    return Prepared(version, known["weights"], known["momentum"], delta, left_out)


def _zeros(path: Path, layout: Layout, metadata: Mapping[str, str] | None = None) -> FileMade:
    writer = TensorWriter(path, layout, metadata)
    try:
        nothing = row(CHUNK)
        nothing[:] = 0
        for name in writer.names:
            for start, length in pieces(math.prod(layout[name][1])):
                writer.write(name, start, nothing[:length])
        writer.publish()
    finally:
        writer.discard()
    return FileMade(sha256_of(path), writer.size_bytes)


def _same(folder: Path, model: Model, kind: str, sync: Sync) -> FileMade:
    """The next version's file, with the values that are there."""
    fragment = model.fragment(sync, model.version)
    target = path_of(folder, kind, model.version + 1)
    return write_held(folder, model, kind, sync.fragments, fragment, target)


def _link(source: Path, target: Path) -> None:
    """The same file under another name: files of a version are never written to again."""
    part = target.with_name(target.name + ".part")
    part.unlink(missing_ok=True)
    os.link(source, part)
    part.replace(target)
    part.unlink(missing_ok=True)  # renaming to another name of the same file does nothing


def _existing(stack: ExitStack[bool | None], path: Path, layout: Layout) -> TensorReader | None:
    if not path.exists():
        return None
    reader = stack.enter_context(TensorReader(path))
    check_layout(reader, layout)
    return reader


def _down(sync: Sync) -> str:
    """The codec of the answer. Where workers choose theirs, int8: it is good enough for any of them."""
    return "int8" if sync.codec == "auto" else sync.codec


def _is_finite(values: Array) -> bool:
    try:
        finite_square(values, "", "")
    except TensorFileError:
        return False
    return True
