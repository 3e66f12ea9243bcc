"""The folder of a job's versions: where each file lies, and files that are written and hashed at once.

A version's `weights` and `momentum` are files of the fragment that its round exchanged. A tensor's value is in the
newest file that has it: with one fragment in the version's own, with several in one of the last so many, or in the
whole version that the folder began with.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from node.errors import TensorFileError
from node.training.files import (
    CHUNK,
    Array,
    Layout,
    TensorReader,
    TensorWriter,
    header_of,
    pieces,
    row,
    size_of,
    write_order,
)
from node.training.fragments import fragment_in
from node.training.lanes import Turns
from node.training.traits import Traits
from node.wire import Sync

Piece = tuple[str, int, int]
"""(name, start, length)."""


@dataclass(frozen=True, slots=True)
class FileMade:
    """A file under its final name."""

    sha256: str
    size_bytes: int


def path_of(folder: Path, kind: str, version: int) -> Path:
    """Where a file of a version lies: its `weights`, `momentum`, `delta`, or the `residual` of the delta's codec."""
    return folder / f"{kind}-{version}.safetensors"


def pieces_of(layout: Layout) -> list[Piece]:
    """All pieces, in the order of a file with this layout."""
    return [
        (name, start, length) for name in write_order(layout) for start, length in pieces(math.prod(layout[name][1]))
    ]


class Held:
    """The values of one kind as of a version. Where no file has a tensor, it is zero."""

    def __init__(self, stack: ExitStack[bool | None], folder: Path, kind: str, version: int, fragments: int) -> None:
        self.readers: dict[str, TensorReader] = {}
        for number in range(version, max(-1, version - fragments), -1):
            path = path_of(folder, kind, number)
            if path.exists():
                reader = stack.enter_context(TensorReader(path))
                self.readers = dict.fromkeys(reader.entries, reader) | self.readers

    def read_into(self, name: str, start: int, out: Array) -> None:
        """Fills `out` with the values of a tensor from `start` on."""
        reader = self.readers.get(name)
        if reader is None:
            out[:] = 0
        else:
            reader.read_into(name, start, out)


class Model:
    """What the weights of a version say of the model."""

    def __init__(self, folder: Path, version: int, fragments: int) -> None:
        self.version = version
        with ExitStack() as stack:
            readers = Held(stack, folder, "weights", version, fragments).readers
            if not readers:
                raise TensorFileError(f"version {version} of the weights is not here")
            self.layout: Layout = {
                name: (reader.entries[name].dtype, reader.entries[name].shape)
                for name, reader in sorted(readers.items())
            }
            self.traits = Traits.of(next(iter(readers.values())).metadata)

    @classmethod
    def newest(cls, folder: Path, fragments: int) -> Model:
        """From the newest version that is here; all have the same."""
        numbers = [int(path.stem.removeprefix("weights-")) for path in folder.glob("weights-*.safetensors")]
        if not numbers:
            raise TensorFileError("there is no version of the weights here")
        return cls(folder, max(numbers), fragments)

    def fragment(self, sync: Sync, round_number: int) -> Layout:
        """The tensors that a round exchanges."""
        names = fragment_in(self.layout, round_number, sync.fragments)
        return {name: self.layout[name] for name in names}

    def metadata_of(self, kind: str) -> dict[str, str]:
        """The metadata of its files of this kind."""
        return self.traits.metadata if kind == "weights" else {}

    def size_of(self, kind: str) -> int:
        """The bytes of a whole file of this kind."""
        return len(header_of(self.layout, self.metadata_of(kind))) + sum(map(size_of, self.layout.values()))


class Stream:
    """A float32 file that is written and hashed piece by piece."""

    def __init__(
        self, stack: ExitStack[bool | None], path: Path, layout: Layout, metadata: Mapping[str, str] | None = None
    ) -> None:
        self.writer = TensorWriter(path, layout, metadata)
        stack.callback(self.writer.discard)
        self.turns = Turns()
        self._hash = hashlib.sha256(self.writer.header)

    def write(self, number: int, name: str, start: int, values: Array) -> None:
        """Piece `number`, counted in the order of the file."""
        self.writer.write(name, start, values)
        with self.turns.at(number):
            self._hash.update(memoryview(values))

    def publish(self) -> FileMade:
        """Gives the file its name."""
        self.writer.publish()
        return FileMade(self._hash.hexdigest(), self.writer.size_bytes)


def write_held(folder: Path, model: Model, kind: str, fragments: int, layout: Layout, target: Path) -> FileMade:
    """Writes the values of one kind that these tensors have as of `model`'s version."""
    piece = row(CHUNK)
    with ExitStack() as stack:
        held = Held(stack, folder, kind, model.version, fragments)
        stream = Stream(stack, target, layout, model.metadata_of(kind))
        for number, (name, start, length) in enumerate(pieces_of(layout)):
            held.read_into(name, start, piece[:length])
            stream.write(number, name, start, piece[:length])
        return stream.publish()


def assemble(folder: Path, version: int, fragments: int) -> dict[str, FileMade]:
    """Makes whole files of a version, its weights and above version 0 its momentum, at `whole_path_of`."""
    model = Model(folder, version, fragments)
    kinds = ("weights", "momentum") if version else ("weights",)
    return {
        kind: write_held(folder, model, kind, fragments, model.layout, whole_path_of(folder, kind, version))
        for kind in kinds
    }


def whole_path_of(folder: Path, kind: str, version: int) -> Path:
    """Where `assemble` puts a whole file."""
    return path_of(folder, f"whole-{kind}", version)
