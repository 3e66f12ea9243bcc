"""The newest version out of an earlier one and the deltas since, as a scheduler keeps them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from node.errors import TensorFileError
from node.training.files import CHUNK, Layout, TensorReader, check_layout, row
from node.training.folder import FileMade, Stream, path_of, pieces_of
from node.training.identity import identities
from node.training.lanes import in_lanes
from node.training.traits import Traits
from node.training.updates import finite_square
from node.training.versions import Delta, Outer, Work

File = tuple[str, int, Path]
"""(kind, number, where)."""


def replay(out: Path, files: Sequence[File], outer: Outer, fragments: int = 1) -> tuple[int, FileMade, FileMade | None]:
    """Makes whole weights and momentum of the newest version, and says what they are known by: (version, weights,
    momentum; None for version 0).

    Each piece of the model goes through all deltas before the next one is read.
    """
    base = _only(files, "weights")
    deltas = sorted((file for file in files if file[0] == "delta"), key=lambda file: file[1])
    if [number for _, number, _ in deltas] != list(range(base[1] + 1, base[1] + 1 + len(deltas))):
        raise TensorFileError(f"the deltas do not lead on from version {base[1]} one by one")
    version = base[1] + len(deltas)
    with ExitStack() as stack:
        weights = stack.enter_context(TensorReader(base[2]))
        layout, traits = weights.layout, Traits.of(weights.metadata)
        velocity = None
        if base[1]:
            velocity = stack.enter_context(TensorReader(_only(files, "momentum")[2]))
            check_layout(velocity, layout)
        opened = [stack.enter_context(TensorReader(path)) for _, _, path in deltas]
        chain = [_delta(reader, layout, traits) for reader in opened]
        for (_, number, _), (_, delta) in zip(deltas, chain, strict=True):
            if delta.version != str(number):
                raise TensorFileError(f"the delta to version {number} says that it leads to {delta.version[:20]!r}")
        weights_out = Stream(stack, path_of(out, "weights", version), layout, traits.metadata)
        momentum_out = Stream(stack, path_of(out, "momentum", version), layout) if version else None

        def advance(work: _Lane, numbered: tuple[int, tuple[str, int, int]]) -> None:
            number, (name, start, length) = numbered
            theta, speed = work.theta[:length], work.speed[:length]
            weights.read_into(name, start, theta)
            speed[:] = 0
            if velocity is not None:
                velocity.read_into(name, start, speed)
            for names, delta in chain:
                if name in names:
                    delta.apply(name, start, theta, speed, outer, work)
            finite_square(theta, f"version {version}", name)
            weights_out.write(number, name, start, theta)
            if momentum_out is not None:
                momentum_out.write(number, name, start, speed)

        turns = [stream.turns for stream in (weights_out, momentum_out) if stream is not None]
        in_lanes(list(enumerate(pieces_of(layout))), _Lane, advance, turns)
        made = {"weights": weights_out.publish()}
        if momentum_out is not None:
            made["momentum"] = momentum_out.publish()
            made = identities(out, version, fragments, made)
        return version, made["weights"], made.get("momentum")


class _Lane(Work):
    def __init__(self) -> None:
        super().__init__()
        self.theta = row(CHUNK)
        self.speed = row(CHUNK)


def _delta(reader: TensorReader, layout: Layout, traits: Traits) -> tuple[frozenset[str], Delta]:
    """A delta of whichever tensors it holds."""
    held = {name: kind for name, kind in layout.items() if name in reader.entries}
    return frozenset(held), Delta(reader, held, traits)


def _only(files: Sequence[File], kind: str) -> File:
    found = [file for file in files if file[0] == kind]
    if len(found) != 1:
        raise TensorFileError(f"{len(found)} {kind} files to start from")
    return found[0]
