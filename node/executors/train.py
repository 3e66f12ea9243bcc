"""The train executor: `python -m node.executors.train --socket S --work-dir D --job JSON|@FILE`.

Fetches the model and the current weights, then trains in rounds (DiLoCo) as the bridge tells it: inner AdamW steps on
slices, the weight change out, the outer step in. Exit code 0 when the job is done; otherwise the last line of stderr
says what went wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import logging
import os
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

from node import logs
from node.errors import HyphaError, JobError
from node.executors.bridge_client import RESULT_DEADLINE_S, Arrivals, Bridge, Fetched
from node.executors.job import Job, parse
from node.executors.rounds import RoundLoop

log = logging.getLogger(__name__)

T = TypeVar("T")

ARTIFACTS = "artifacts"
INCOMING = "incoming"


class LocalRanks:
    """One process."""

    def share(self, call: Callable[[], T]) -> T:
        """Runs `call`."""
        return call()

    def wait(self) -> None:
        """There is nobody to wait for."""


class LaunchedRanks:
    """The processes that `accelerate launch` started on this machine."""

    def __init__(self, accelerator: Any) -> None:
        self._is_main = accelerator.is_main_process
        self._wait = accelerator.wait_for_everyone

    def share(self, call: Callable[[], T]) -> T:
        """Runs `call` in the main process; its result, or its error, is everybody's."""
        from accelerate.utils import broadcast_object_list

        box: list[Any] = [None]
        if self._is_main:
            try:
                box = [(True, call())]
            except Exception as error:
                box = [(False, str(error) or type(error).__name__)]
        broadcast_object_list(box)
        ok, value = box[0]
        if not ok:
            raise JobError(value)
        result: T = value
        return result

    def wait(self) -> None:
        """Until all have come here."""
        self._wait()


def run(job: Job, bridge: Bridge, work_dir: Path) -> None:
    """Trains until the bridge says Done."""
    with contextlib.closing(bridge):
        if os.environ.get("RANK", "0") != "0":
            _run(job, bridge, work_dir, None)
            return
        with contextlib.closing(bridge.arrivals(job.config.results, INCOMING)) as arrivals:
            _run(job, bridge, work_dir, arrivals)


def _run(job: Job, bridge: Bridge, work_dir: Path, arrivals: Arrivals | None) -> None:
    """`arrivals` is None in the processes that do not talk to the bridge."""
    config = job.config
    is_main = arrivals is not None
    # imports take seconds: the files come meanwhile
    model_files = _in_background(lambda: _fetch_model(job, bridge) if is_main else [])
    tensor_files = _in_background(lambda: _fetch_tensors(job, bridge) if is_main else ([], []))
    import torch
    from accelerate import Accelerator
    from accelerate.utils import InitProcessGroupKwargs

    from node.executors.batches import Slice
    from node.executors.denormals import start_threads
    from node.executors.models import enter_folder, load_model, load_preprocessor
    from node.executors.trainer import Trainer

    start_threads()
    # Several processes without a device each are told so: Accelerate would go by what launched them.
    several_on_cpu = int(os.environ.get("WORLD_SIZE", "1")) > 1 and not torch.cuda.is_available()
    waits = InitProcessGroupKwargs(timeout=timedelta(seconds=2 * RESULT_DEADLINE_S))
    accelerator = Accelerator(cpu=several_on_cpu, kwargs_handlers=[waits])
    ranks = LaunchedRanks(accelerator) if accelerator.num_processes > 1 else LocalRanks()
    artifacts = work_dir / ARTIFACTS
    names = [
        str(entry.path.relative_to(artifacts))
        for entry in ranks.share(model_files.result)
        if entry.path.is_relative_to(artifacts)
    ]
    seed = hashlib.sha256(f"{job.job_id}:{work_dir.name}:{accelerator.process_index}".encode()).digest()
    torch.manual_seed(int.from_bytes(seed[:4], "big"))
    enter_folder(artifacts, config.model.task)
    loaded = load_model(artifacts, config.model.task, config.model.seed, names)
    preprocessor = None
    if config.preprocessor is not None:
        own_files = config.preprocessor.artifact.get("filenames") or ()
        preprocessor = load_preprocessor(artifacts, config.preprocessor.task, own_files)
    trainer = Trainer(
        accelerator,
        loaded,
        config.optimizer,
        config.scheduler,
        sync=config.sync,
        outer=config.outer,
        precision=config.precision,
    )
    files, validation = ranks.share(tensor_files.result)
    version = 0
    if files:
        kinds = {entry.kind: entry for entry in files}
        trainer.apply_weights(kinds["weights"].path, kinds["momentum"].path if "momentum" in kinds else None)
        version = kinds["weights"].version or 0
    log.info("train.ready job=%s version=%d device=%s", job.job_id, version, accelerator.device)
    RoundLoop(
        config,
        trainer,
        bridge,
        arrivals,
        ranks,
        work_dir=work_dir,
        version=version,
        validation=[entry.path for entry in validation],
        open_slice=lambda path: Slice(path, config.model.input_names, preprocessor),
    ).run()
    accelerator.end_training()
    log.info("train.done job=%s", job.job_id)


def _fetch_model(job: Job, bridge: Bridge) -> list[Fetched]:
    config = job.config
    files = bridge.fetch(config.model.artifact)
    if config.preprocessor is not None and config.preprocessor.artifact != config.model.artifact:
        bridge.fetch(config.preprocessor.artifact)
    return files


def _fetch_tensors(job: Job, bridge: Bridge) -> tuple[list[Fetched], list[Fetched]]:
    """The current weights, as soon as there are any, and the validation slices."""
    config = job.config
    weights = bridge.fetch(config.weights) if config.weights else []
    return weights, bridge.fetch(config.validation) if config.validation else []


def _in_background(call: Callable[[], T]) -> Future[T]:
    """A result to come. The thread does not keep the process alive when something else fails first."""
    future: Future[T] = Future()

    def work() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=work, name="fetch", daemon=True).start()
    return future


def main(arguments: Sequence[str] | None = None) -> int:
    """The program."""
    parser = argparse.ArgumentParser(prog="python -m node.executors.train")
    parser.add_argument("--socket", required=True)
    parser.add_argument("--work-dir", type=Path, required=True)
    parser.add_argument("--job", required=True, help="JSON, or @FILE")
    options = parser.parse_args(arguments)
    logs.setup()
    work_dir = options.work_dir.resolve()
    try:
        run(parse(options.job), Bridge(options.socket, work_dir), work_dir)
    except HyphaError as error:
        log.error("train.failed %s", error)
        return error.exit_code
    except Exception as error:
        log.error("train.crashed", exc_info=error)
        log.error("train.failed %s: %s", type(error).__name__, " ".join(str(error).split())[:500])
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
