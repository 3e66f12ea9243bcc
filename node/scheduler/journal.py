"""What a scheduler keeps of a job's versions, so that none is lost with its parameter server. Pure.

The chain is one whole version, the *base* (weights, and momentum above version 0), and every delta since. From it the
newest version can be made again, bit for bit, anywhere. Once the deltas outweigh the base, or are many, a new base is
due; when that lies here whole, what came before it may go.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from node.wire import VersionFile

DELTAS_ALLOWED = 32
"""Deltas since the base, at most: each one costs a new parameter server time."""

WEIGHTS, MOMENTUM, DELTA = "weights", "momentum", "delta"
KINDS = (WEIGHTS, MOMENTUM, DELTA)


def file_name(file: VersionFile) -> str:
    """What a file is called in the journal's folder."""
    return f"{file.kind}-{file.number}.safetensors"


@dataclass(slots=True)
class Chain:
    """The files of one job's journal."""

    base: list[VersionFile] = field(default_factory=list)
    deltas: list[VersionFile] = field(default_factory=list)

    @classmethod
    def of(cls, files: Iterable[VersionFile]) -> Chain:
        """The chain that these files make, in whatever order they come."""
        chain = cls()
        for file in sorted(files, key=lambda file: (file.number, KINDS.index(file.kind))):
            (chain.deltas if file.kind == DELTA else chain.base).append(file)
        return chain

    @property
    def version(self) -> int | None:
        """The newest version that can be made from it; None without a base."""
        return None if not self.base else self.base[0].number + len(self.deltas)

    def files(self) -> list[VersionFile]:
        """Base first, then the deltas in order: what a new parameter server starts from."""
        return [*self.base, *self.deltas]

    def find(self, kind: str, number: int) -> VersionFile | None:
        """One file of it."""
        return next((file for file in self.files() if (file.kind, file.number) == (kind, number)), None)

    def add(self, delta: VersionFile) -> None:
        """A round is committed: its delta goes on from the newest version."""
        assert self.version is not None and delta.number == self.version + 1, "a gap in the journal"
        self.deltas.append(delta)

    def is_base_due(self) -> bool:
        """Whether the deltas have become a burden."""
        weight = sum(file.size_bytes for file in self.base)
        return len(self.deltas) >= DELTAS_ALLOWED or sum(file.size_bytes for file in self.deltas) > weight

    def rebase(self, files: Sequence[VersionFile]) -> None:
        """These files of one version lie here whole: the chain begins with them."""
        number = files[0].number
        assert all(file.number == number and file.kind != DELTA for file in files)
        self.base = sorted(files, key=lambda file: KINDS.index(file.kind))
        self.deltas = [delta for delta in self.deltas if delta.number > number]

    def validate(self) -> None:
        """Raise AssertionError where the chain has a gap."""
        assert not self.deltas or self.base, "deltas without a base"
        if self.base:
            first = self.base[0].number
            assert [file.kind for file in self.base] == ([WEIGHTS, MOMENTUM] if first else [WEIGHTS])
            assert [delta.number for delta in self.deltas] == list(range(first + 1, first + 1 + len(self.deltas)))
