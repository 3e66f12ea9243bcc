"""The parameter server's program: JSON lines on stdin, one answer a line on stdout, log on stderr; ends with stdin.

| `do` | fields | answer |
|---|---|---|
| `prepare` | `artifacts`, `model`, `out` | makes version 0: `version`, `digest`, `schema`, `size_bytes` |
| `check` | `path` | `norm` of an update; error `invalid` names the tensor |
| `commit` | `round`, `updates` (`path`, `weight`), `learning_rate`, `momentum` | the files of version `round + 1` |
| `export` | `version`, `out` | a folder that `from_pretrained` loads: `files` |

Every request has an `id`, which its answer repeats with `ok`; a refusal has `error` (a code) and `detail`. Versions lie
in `out` of `prepare`, else in the work directory. Any request may name `folder` (where the versions lie), `artifacts`
and `model`, so that a new process goes on where another one was killed.
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

if TYPE_CHECKING:
    from node.executors.models import LoadedModel
    from node.training.files import Layout

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
        self._schema: Layout = {}
        self._model: tuple[Path, Answer] | None = None

    def prepare(self, request: Answer) -> Answer:
        """Makes version 0 of the weights, once, for everybody."""
        from node.training.aggregate import weights_path
        from node.training.files import write_tensors
        from node.training.updates import buffers_metadata, layout_of, state_of

        self._model = (Path(request["artifacts"]), request["model"])
        self._folder = Path(request["out"])
        self._folder.mkdir(parents=True, exist_ok=True)
        loaded = self._load()
        tensors, buffers = state_of(loaded.module)
        if not tensors:
            raise JobError("the model has no parameters")
        self._schema = layout_of(tensors)
        path = weights_path(self._folder, 0)
        digest = write_tensors(path, tensors, buffers_metadata(buffers))
        return {
            "version": 0,
            "digest": digest,
            "schema": {name: [dtype, list(shape)] for name, (dtype, shape) in self._schema.items()},
            "size_bytes": path.stat().st_size,
        }

    def check(self, request: Answer) -> Answer:
        """Is this update one of our model's, and finite?"""
        from node.training.files import TensorReader
        from node.training.updates import check_layout, check_values

        with TensorReader(Path(request["path"])) as reader:
            check_layout(reader, self._expected())
            return {"norm": check_values(reader)}

    def commit(self, request: Answer) -> Answer:
        """Makes the next version."""
        from node.training.aggregate import Update, commit

        done = commit(
            self._folder,
            int(request["round"]),
            [Update(Path(update["path"]), float(update["weight"])) for update in request["updates"]],
            learning_rate=float(request["learning_rate"]),
            momentum=float(request["momentum"]),
        )
        return {
            "version": done.version,
            "digest": done.digest,
            "step_digest": done.step_digest,
            "step_bytes": done.step_bytes,
            "weights_bytes": done.weights_bytes,
        }

    def export(self, request: Answer) -> Answer:
        """Writes a version as a model folder."""
        from node.executors.models import export_model
        from node.training.aggregate import weights_path

        weights = weights_path(self._folder, int(request["version"]))
        if not weights.is_file():
            raise Refusal("unknown", f"version {request['version']} is not here")
        return {"files": export_model(self._load(), weights, Path(request["out"]))}

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
        handlers = {"prepare": self.prepare, "check": self.check, "commit": self.commit, "export": self.export}
        if not isinstance(name, str) or name not in handlers:
            raise Refusal("invalid", f"unknown request {name!r}")
        return handlers[name]

    def _load(self) -> LoadedModel:
        from node.executors.models import load_model

        if self._model is None:
            raise Refusal("unknown", "no model has been prepared here")
        artifacts, source = self._model
        return load_model(
            artifacts, str(source.get("task", "")), int(source.get("seed", 0)), source.get("filenames") or ()
        )

    def _expected(self) -> Layout:
        """The schema of the model: from `prepare`, or after a restart from any version that is here."""
        from node.training.files import TensorReader

        if not self._schema:
            for path in sorted(self._folder.glob("weights-*.safetensors")):
                with TensorReader(path) as reader:
                    self._schema = reader.layout
                    return self._schema
            raise Refusal("unknown", "no model has been prepared here")
        return self._schema


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
