"""What a parameter server has its program compute, in our types."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from node.errors import JobError
from node.wire import AggregateTask, ExportedFile, VersionFile
from node.worker.aggregator import Aggregator
from node.worker.rounds import Closing, label

T = TypeVar("T")


class _File(msgspec.Struct, frozen=True):
    sha256: str
    size_bytes: int


class _Answer(msgspec.Struct, frozen=True):
    version: int
    weights: _File
    momentum: _File | None = None
    delta: _File | None = None
    left_out: dict[str, str] = {}
    clipped: dict[str, float] = {}


class Made(msgspec.Struct, frozen=True, kw_only=True):
    """A version that lies on the disk, whole. `left_out` and `clipped` are by the labels of updates."""

    number: int
    files: list[VersionFile]
    left_out: dict[str, str] = {}
    clipped: dict[str, float] = {}

    def file(self, kind: str) -> VersionFile:
        """Its file of this kind. Raises `JobError`."""
        found = next((file for file in self.files if file.kind == kind), None)
        if found is None:
            raise JobError(f"the aggregate process made version {self.number} without its {kind}")
        return found


class _Norm(msgspec.Struct, frozen=True):
    norm: float


class _Files(msgspec.Struct, frozen=True):
    files: list[ExportedFile]


class Arithmetic:
    """The questions of one job. Each raises `Refused` with the program's code, `JobError` where it cannot go on."""

    def __init__(self, aggregator: Aggregator, task: AggregateTask, folder: Path, artifacts: Path) -> None:
        self._aggregator = aggregator
        self._task = task
        self._folder = folder
        self._artifacts = artifacts

    async def prepare(self) -> Made:
        """Make version 0 of the weights."""
        return _made(await self._ask("prepare", _Answer, out=str(self._folder)))

    async def replay(self, files: Mapping[Path, VersionFile]) -> Made:
        """Make the newest version out of an earlier one and the deltas since."""
        listed = [{"kind": file.kind, "number": file.number, "path": str(path)} for path, file in files.items()]
        return _made(await self._ask("replay", _Answer, out=str(self._folder), files=listed, **self._outer()))

    async def check(self, path: Path, round_: int) -> float:
        """The norm of an update that can be used."""
        return (await self._ask("check", _Norm, path=str(path), round=round_)).norm

    async def commit(self, closing: Closing) -> Made:
        """Make the version that a round leads to."""
        updates = [
            {
                "path": update.path,
                "weight": update.contribution.weight,
                "task_id": label(update.contribution, closing.round),
                "norm": update.contribution.norm,
            }
            for update in closing.updates
        ]
        answer = await self._ask(
            "commit",
            _Answer,
            round=closing.round,
            updates=updates,
            aggregation=msgspec.to_builtins(self._task.aggregation),
            **self._outer(),
        )
        return _made(answer)

    async def assemble(self, version: int) -> Made:
        """Make whole files of a version."""
        return _made(await self._ask("assemble", _Answer, version=version))

    async def export(self, version: int, out: Path, preprocessor: Path | None) -> list[ExportedFile]:
        """Write a version as a folder that `from_pretrained` loads, with the preprocessor's files."""
        fields: dict[str, Any] = {"version": version, "out": str(out)}
        if preprocessor is not None and self._task.preprocessor is not None:
            fields |= {"preprocessor": str(preprocessor), "preprocessor_files": self._task.preprocessor.filenames}
        return (await self._ask("export", _Files, **fields)).files

    def _outer(self) -> dict[str, float]:
        optimizer = self._task.optimizer
        return {"learning_rate": optimizer.learning_rate, "momentum": optimizer.momentum}

    async def _ask(self, do: str, kind: type[T], **fields: Any) -> T:
        answer = await self._aggregator.ask(
            do,
            folder=str(self._folder),
            artifacts=str(self._artifacts),
            model=msgspec.to_builtins(self._task.model),
            sync=msgspec.to_builtins(self._task.sync),
            **fields,
        )
        try:
            return msgspec.convert(answer, kind)
        except msgspec.ValidationError as error:
            raise JobError(f"the aggregate process answered {do!r} unreadably: {error}") from error


def _made(answer: _Answer) -> Made:
    number = answer.version
    files = [
        VersionFile(kind=kind, number=number, sha256=file.sha256, size_bytes=file.size_bytes)
        for kind, file in (("weights", answer.weights), ("momentum", answer.momentum), ("delta", answer.delta))
        if file is not None
    ]
    return Made(number=number, files=files, left_out=answer.left_out, clipped=answer.clipped)
