"""The folder of a job's versions: where each file lies, and files that are written and hashed at once."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from node.errors import TensorFileError
from node.training.files import Array, Layout, TensorReader, TensorWriter, pieces, write_order
from node.training.fragments import fragment_in
from node.training.lanes import Turns
from node.training.updates import buffers_named
from node.wire import Sync


@dataclass(frozen=True, slots=True)
class FileMade:
    """A file under its final name."""

    sha256: str
    size_bytes: int


def path_of(folder: Path, kind: str, version: int) -> Path:
    """Where a file of a version lies: its `weights`, `momentum`, `delta`, or the `residual` of the delta's codec."""
    return folder / f"{kind}-{version}.safetensors"


class Model:
    """What the weights of a version say of the model."""

    def __init__(self, folder: Path, version: int) -> None:
        self.version = version
        with TensorReader(path_of(folder, "weights", version)) as reader:
            self.layout = reader.layout
            self.buffers = buffers_named(reader)

    @classmethod
    def of_any(cls, folder: Path) -> Model:
        """From any version that is here: they have all the same."""
        for path in folder.glob("weights-*.safetensors"):
            return cls(folder, int(path.stem.removeprefix("weights-")))
        raise TensorFileError("there is no version of the weights here")

    def fragment(self, sync: Sync, round_number: int) -> Layout:
        """The tensors that a round exchanges."""
        names = fragment_in(self.layout, round_number, sync.fragments)
        return {name: self.layout[name] for name in names}

    def pieces(self) -> list[tuple[str, int, int]]:
        """(name, start, length) of all pieces, in the order of a weights file."""
        return [
            (name, start, length)
            for name in write_order(self.layout)
            for start, length in pieces(math.prod(self.layout[name][1]))
        ]


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
