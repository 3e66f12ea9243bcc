"""The inference executor: `python -m node.executors.infer --socket S --work-dir W --job JSON`.

Loads a model once, then asks the bridge for slices until there is none left, and sends one result for each. Batches
begin at the first row of a slice and generation is greedy, so a slice gives the same result whoever computes it.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from node import logs
from node.errors import HyphaError, JobError
from node.executors.bridge_client import Bridge, Fetched
from node.executors.job import Model, Reference, read_config

if TYPE_CHECKING:
    from node.executors.outputs import Sink

log = logging.getLogger("hypha.infer")

ARTIFACTS = "artifacts"
OUT = "out"
TOKENIZER = "tokenizer.json"


class InferConfig(msgspec.Struct, frozen=True):
    """The `config` of an inference executor."""

    model: Model
    data: Reference
    results: Reference
    output: dict[str, Any]
    batch_size: int
    preprocessor: Model | None = None
    precision: str = "fp32"


class Answering:
    """A loaded model and all that turns a slice into a result."""

    def __init__(self, config: InferConfig, bridge: Bridge, work_dir: Path) -> None:
        self._config = config
        self._bridge = bridge
        self._out = work_dir / OUT
        self._out.mkdir(exist_ok=True)
        artifacts = work_dir / ARTIFACTS
        files = bridge.fetch(config.model.artifact)
        extra = config.preprocessor
        if extra is not None and extra.artifact != config.model.artifact:
            bridge.fetch(extra.artifact)
        # Importing takes seconds; a job that cannot fetch its model fails before that.
        import torch

        from node.executors.models import enter_folder, load_model, load_preprocessor
        from node.executors.outputs import OutputConfig, Predictor

        self._output = msgspec.convert(config.output, OutputConfig)
        names = [str(file.path.relative_to(artifacts)) for file in files if file.path.is_relative_to(artifacts)]
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        enter_folder(artifacts, config.model.task)
        loaded = load_model(artifacts, config.model.task, config.model.seed, names)
        self._images: Any = None
        self._tokenizer: Any = None
        if extra is not None:
            made = load_preprocessor(artifacts, extra.task, extra.artifact.get("filenames") or ())
            if extra.task == "tokenizer":
                self._tokenizer = made
            else:
                self._images = made
        elif self._output.kind == "tokens" and (loaded.folder / TOKENIZER).is_file():
            self._tokenizer = load_preprocessor(artifacts, "tokenizer", names)
        self._predictor = Predictor(loaded, self._output, device, config.precision)
        log.info("infer.ready kind=%s device=%s", self._output.kind, device)

    def answer(self, found: Fetched) -> Path:
        """The result of a slice, whole."""
        from node.executors.batches import Slice

        part = Slice(found.path, self._config.model.input_names, self._images)
        with self._sink(found, part.rows) as sink:
            for start, end in part.batches(self._config.batch_size):
                began = time.monotonic()
                columns = self._predictor(part.read(start, end))
                if any(len(column) != end - start for column in columns.values()):
                    raise JobError(f"the model answers {end - start} rows with {[len(c) for c in columns.values()]}")
                sink.write(columns)
                took_ms = (time.monotonic() - began) * 1000
                self._bridge.status({"status": {"batch_size": end - start, "round_time": took_ms}})
            return sink.finish()

    def _sink(self, found: Fetched, rows: int) -> Sink:
        from node.executors.outputs import LineSink, TensorSink

        target = self._out / f"{found.path.stem}.{self._output.format}"
        if self._output.format == "safetensors":
            return TensorSink(target, rows)
        labels = self._predictor.labels if self._output.kind == "classes" else {}
        return LineSink(target, found.first_row, labels, self._text if self._tokenizer is not None else None)

    def _text(self, tokens: list[int]) -> str:
        return str(self._tokenizer.decode(tokens, skip_special_tokens=True))


def run(config: InferConfig, bridge: Bridge, work_dir: Path) -> None:
    """Answer slice after slice, until there is none left."""
    answering = Answering(config, bridge, work_dir)
    count = 0
    while found := bridge.fetch(config.data):
        result = answering.answer(found[0])
        bridge.send(config.results, result)
        result.unlink()
        count += 1
    log.info("infer.done slices=%d", count)


def main(arguments: Sequence[str] | None = None) -> int:
    """The program."""
    parser = argparse.ArgumentParser(prog="python -m node.executors.infer")
    parser.add_argument("--socket", required=True)
    parser.add_argument("--work-dir", type=Path, required=True)
    parser.add_argument("--job", required=True, help="JSON, or @FILE")
    options = parser.parse_args(arguments)
    logs.setup()
    work_dir = options.work_dir.resolve()
    try:
        _, config = read_config(options.job, InferConfig)
        if config.batch_size < 1:
            raise JobError(f"the job is not valid: batch_size {config.batch_size}")
        run(config, Bridge(options.socket, work_dir), work_dir)
    except HyphaError as error:
        log.error("infer.failed %s", error)
        return error.exit_code
    except Exception as error:
        log.error("infer.crashed", exc_info=error)
        log.error("infer.failed %s: %s", type(error).__name__, " ".join(str(error).split())[:500])
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
