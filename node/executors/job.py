"""The job as the bridge's worker hands it to a process executor."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import msgspec

from node.errors import JobError
from node.wire import OuterOptimizer, Sync

Reference = dict[str, Any]
C = TypeVar("C", bound=msgspec.Struct)


class Model(msgspec.Struct, frozen=True):
    """What to load; `artifact` is the reference that its files are fetched by."""

    task: str
    artifact: Reference
    input_names: list[str] = []
    seed: int = 0


class Optimizer(msgspec.Struct, frozen=True):
    """AdamW."""

    learning_rate: float
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8
    weight_decay: float = 0.01


class Schedule(msgspec.Struct, frozen=True):
    """Learning-rate schedule; `total_steps` and `training_steps` are the same."""

    type: str = ""
    warmup_steps: int = 0
    training_steps: int = 0
    total_steps: int = 0
    decay_steps: int = 0


class TrainConfig(msgspec.Struct, frozen=True):
    """The `config` of a train executor. `weights` and what follows it are ours; other bridges leave them out."""

    model: Model
    data: Reference
    updates: Reference
    results: Reference
    optimizer: Optimizer
    batch_size: int
    preprocessor: Model | None = None
    scheduler: Schedule | None = None
    weights: Reference | None = None
    validation: Reference | None = None
    evaluate: bool = False
    rounds: int = 0
    """The version that the job ends with; 0 where the bridge does not say."""
    sync: Sync = Sync()
    outer: OuterOptimizer | None = None
    precision: str = "fp32"


class Job(msgspec.Struct, frozen=True):
    """A training job."""

    job_id: str
    config: TrainConfig


def read_config(argument: str, kind: type[C]) -> tuple[str, C]:
    """The job's id and its `config`, in a JSON text, or in the file that `@path` names. Keys may be spelled with `-` or
    `_`."""
    try:
        text = Path(argument[1:]).read_text() if argument.startswith("@") else argument
        raw = msgspec.json.decode(text)
        config = {_plain(key): _fields(value) for key, value in raw["executor"]["config"].items()}
        return str(raw.get("job_id", "")), msgspec.convert(config, kind)
    except OSError as error:
        raise JobError(f"the job cannot be read: {error.strerror}") from error
    except (msgspec.MsgspecError, KeyError, TypeError, AttributeError) as error:
        raise JobError(f"the job is not valid: {error}") from error


def parse(argument: str) -> Job:
    """A training job."""
    job = Job(*read_config(argument, TrainConfig))
    if job.config.batch_size < 1:
        raise JobError(f"the job is not valid: batch_size {job.config.batch_size}")
    if job.config.sync.codec != "none" and job.config.outer is None:
        raise JobError("the job is not valid: a codec needs the outer optimizer")
    return job


def _fields(value: Any) -> Any:
    """A table with plain keys. What is inside a reference belongs to the bridge and stays as it is."""
    return {_plain(key): inner for key, inner in value.items()} if isinstance(value, dict) else value


def _plain(key: str) -> str:
    return key.replace("-", "_")
