"""The parameter server's program: JSON lines on stdin, one answer a line on stdout, log on stderr; ends with stdin.

| `do` | fields | answer |
|---|---|---|
| `prepare` | `out` | makes version 0: `version`, `weights` |
| `replay` | `out`, `files` (`kind`, `number`, `path`), `outer` | the newest version of a journal |
| `check` | `path`, `round` | `norm` of an update; error `invalid` names the tensor |
| `commit` | `round`, `updates`, `outer`, `aggregation` | version `round + 1`; also `left_out`, `clipped` |
| `assemble` | `version` | whole files of a version that lies here in fragments |
| `export` | `version`, `out`, `preprocessor` (where its files lie) | a folder that `from_pretrained` loads: `files` |

An update is `path`, `weight`, `task_id`, `norm`; `outer` stands for `learning_rate` and `momentum`. Every request has
an `id`, which its answer repeats with `ok`; a refusal has `error` (a code) and `detail`. A file (`weights`,
`momentum`, `delta`) is told by its `sha256` and `size_bytes`. Any request may name `folder` (where the versions lie),
`artifacts`, `model` and `sync`, so that a new process goes on where another one was killed. Torch is there for
`prepare` and `export` alone: NumPy does the rest, and is there in a tenth of a second.
"""

from __future__ import annotations

import argparse
import errno
import logging
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec

from node import logs
from node.errors import HyphaError, JobError, TensorFileError
from node.wire import Aggregation, Sync

if TYPE_CHECKING:
    from node.executors.models import LoadedModel
    from node.training.folder import FileMade
    from node.training.versions import Outer

log = logging.getLogger(__name__)

Answer = dict[str, Any]


class Refusal(Exception):
    """A request that is declined with a code."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code = code


class Aggregator:
    """Carries out requests. All state is in files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._model: tuple[Path, Answer] | None = None

    def prepare(self, request: Answer) -> Answer:
        """Makes version 0 of the weights, once, for everybody."""
        from node.training.files import write_tensors
        from node.training.folder import path_of
        from node.training.updates import state_of

        self._folder = Path(request["out"])
        self._folder.mkdir(parents=True, exist_ok=True)
        tensors, traits = state_of(self._load().module)
        if not tensors:
            raise JobError("the model has no parameters")
        path = path_of(self._folder, "weights", 0)
        digest = write_tensors(path, tensors, traits.metadata)
        return {"version": 0, "weights": {"sha256": digest, "size_bytes": path.stat().st_size}}

    def replay(self, request: Answer) -> Answer:
        """Makes the newest version of a journal."""
        from node.training.replay import replay

        self._folder = Path(request["out"])
        self._folder.mkdir(parents=True, exist_ok=True)
        files = [(str(file["kind"]), int(file["number"]), Path(file["path"])) for file in request["files"]]
        version, weights, momentum = replay(self._folder, files, _outer(request), _sync(request).fragments)
        return {"version": version, "weights": _told(weights), "momentum": momentum and _told(momentum)}

    def check(self, request: Answer) -> Answer:
        """Is this update one of our model's and this round's, and finite?"""
        from node.training.aggregate import check

        return {"norm": check(self._folder, Path(request["path"]), int(request["round"]), _sync(request))}

    def commit(self, request: Answer) -> Answer:
        """Prepares the next version."""
        from node.training.aggregate import Update, commit

        made = commit(
            self._folder,
            int(request["round"]),
            [
                Update(Path(one["path"]), float(one["weight"]), str(one["task_id"]), float(one["norm"]))
                for one in request["updates"]
            ],
            outer=_outer(request),
            sync=_sync(request),
            rules=msgspec.convert(request.get("aggregation", {}), Aggregation),
        )
        files = {"weights": made.weights, "momentum": made.momentum, "delta": made.delta}
        told = {kind: _told(file) for kind, file in files.items()}
        return {"version": made.version, **told, "left_out": made.left_out, "clipped": made.clipped}

    def assemble(self, request: Answer) -> Answer:
        """Makes whole files of a version."""
        from node.training.folder import assemble

        version = int(request["version"])
        made = assemble(self._folder, version, _sync(request).fragments)
        return {"version": version, **{kind: _told(file) for kind, file in made.items()}}

    def export(self, request: Answer) -> Answer:
        """Writes a version as a model folder."""
        from node.executors.models import copy_preprocessor, export_model, listed
        from node.training.folder import assemble, path_of, whole_path_of

        version, fragments = int(request["version"]), _sync(request).fragments
        weights = path_of(self._folder, "weights", version)
        if not weights.is_file():
            raise Refusal("unknown", f"version {version} is not here")
        if fragments > 1:
            assemble(self._folder, version, fragments)
            weights = whole_path_of(self._folder, "weights", version)
        out = Path(request["out"])
        export_model(self._load(), weights, out)
        if "preprocessor" in request:
            copy_preprocessor(Path(request["preprocessor"]), request.get("preprocessor_files") or (), out)
        return {"files": listed(out)}

    def answer(self, line: bytes) -> Answer:
        """The answer to one line. Whatever goes wrong is an answer too."""
        identity: Any = None
        try:
            request = msgspec.json.decode(line)
            if not isinstance(request, dict):
                raise Refusal("invalid", "a request is a JSON object")
            identity = request.get("id")
            if "folder" in request:
                self._folder = Path(request["folder"])
            if "artifacts" in request and "model" in request:
                self._model = (Path(request["artifacts"]), request["model"])
            return {"id": identity, "ok": True, **self._handler(request.get("do"))(request)}
        except Exception as error:
            code, detail = _refusal_of(error)
            log.warning("aggregate.refused id=%s code=%s detail=%s", identity, code, detail)
            if code == "failed":
                log.debug("aggregate.failed", exc_info=error)
            return {"id": identity, "ok": False, "error": code, "detail": detail}

    def _handler(self, name: object) -> Callable[[Answer], Answer]:
        handlers = {
            "prepare": self.prepare,
            "replay": self.replay,
            "check": self.check,
            "commit": self.commit,
            "assemble": self.assemble,
            "export": self.export,
        }
        if not isinstance(name, str) or name not in handlers:
            raise Refusal("invalid", f"unknown request {name!r}")
        return handlers[name]

    def _load(self) -> LoadedModel:
        from node.executors.models import enter_folder, load_model

        if self._model is None:
            raise Refusal("unknown", "no model has been prepared here")
        artifacts, source = self._model
        task = str(source.get("task", ""))
        enter_folder(artifacts, task)
        return load_model(artifacts, task, int(source.get("seed", 0)), source.get("filenames") or ())


def _outer(request: Answer) -> Outer:
    from node.training.versions import Outer

    return Outer(float(request["learning_rate"]), float(request["momentum"]))


def _sync(request: Answer) -> Sync:
    return msgspec.convert(request.get("sync", {}), Sync)


def _told(file: FileMade) -> Answer:
    return {"sha256": file.sha256, "size_bytes": file.size_bytes}


def _refusal_of(error: Exception) -> tuple[str, str]:
    if isinstance(error, Refusal):
        return error.code, str(error)
    if isinstance(error, TensorFileError | JobError):
        return "invalid", str(error)
    if isinstance(error, HyphaError):
        return "failed", str(error)
    if isinstance(error, KeyError):
        return "invalid", f"the request lacks {error}"
    if isinstance(error, msgspec.DecodeError | TypeError | ValueError):
        return "invalid", f"the request is malformed: {error}"
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "full", "no room on the disk"
    if isinstance(error, MemoryError):
        return "full", "no room in memory"
    return "failed", f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def serve(aggregator: Aggregator, requests: BinaryIO, answers: BinaryIO) -> None:
    """Answers line after line until the other end closes."""
    for line in requests:
        if line.strip():
            answers.write(msgspec.json.encode(aggregator.answer(line)) + b"\n")
            answers.flush()


def main(arguments: Sequence[str] | None = None) -> int:
    """`python -m node.executors.aggregate --work-dir DIR`."""
    parser = argparse.ArgumentParser(prog="python -m node.executors.aggregate")
    parser.add_argument("--work-dir", type=Path, required=True)
    options = parser.parse_args(arguments)
    logs.setup()
    # the lanes are threads enough, and those of a linear algebra library spin
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # libraries print; what they print belongs to the log, not among the answers
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    with answers:
        try:
            serve(Aggregator(options.work_dir), sys.stdin.buffer, answers)
        except BrokenPipeError:
            log.warning("aggregate.ended reason=no-reader")
    return 0


if __name__ == "__main__":
    sys.exit(main())
