"""What a job is: the `[scheduler.job]` table, in the documented and in the real spelling, made one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, Literal

import msgspec

from node.errors import ConfigError
from node.jobbounds import check_inference, check_training
from node.modeltypes import PREPROCESSORS, TASKS, normalised
from node.mounts import checked
from node.schema import Origin, Strict, convert, nearest, parse_toml
from node.storeurl import checked_dataset_url, is_store_url, name_in
from node.wire import Aggregation, BindMount, InnerOptimizer, ModelSource, OuterOptimizer, Output, Resources, Sync

INFERENCE_BATCH = 16


class ModelSpec(Strict, frozen=True):
    """The model, or a preprocessor. Without a `repository` its files are in the job's own folder."""

    type: str
    repository: str = ""
    revision: str = ""
    filenames: list[str] = []
    token: str = ""
    input_names: list[str] = []
    path: str = ""
    """Folder within the job's folder."""
    config: str = ""
    """File of the job's folder with the Transformers configuration, when it is not among `filenames`."""
    seed: int = 0
    """Makes the initial weights when there are none."""

    def source(self) -> ModelSource:
        """The wire form, without the token. A folder among `filenames` stands for all that is in it."""
        names = list(self.filenames)
        if self.config and self.config not in names:
            names.append(self.config)
        if self.path and not self.repository:
            names = [f"{self.path}/{name}" for name in names] or [self.path]
        return ModelSource(
            task=self.type,
            repository=self.repository,
            revision=self.revision,
            filenames=names,
            input_names=self.input_names,
            seed=self.seed,
        )


class DatasetSpec(Strict, frozen=True):
    """A dataset by its announced name, or by its address in object storage."""

    dataset: str


class Rounds(Strict, frozen=True):
    """How many times to synchronise, and after how many samples of the whole group."""

    update_rounds: int
    avg_samples_between_updates: int
    max_batch_size: int | None = None


class InnerSpec(Strict, frozen=True):
    """AdamW on each worker."""

    learning_rate: float
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8
    weight_decay: float = 0.01
    schedule: str = ""
    warmup_steps: int = 0
    total_steps: int = 0
    decay_steps: int = 0


class OuterSpec(Strict, frozen=True):
    """Nesterov SGD on the parameter server."""

    learning_rate: float
    momentum: float


class SyncSpec(Sync, frozen=True, forbid_unknown_fields=True, omit_defaults=False):
    """How updates travel, as written."""


class AggregationSpec(Aggregation, frozen=True, forbid_unknown_fields=True, omit_defaults=False):
    """How a round is closed, as written."""


class CheckpointSpec(Strict, frozen=True):
    """Whole copies of a version, beside the journal that the scheduler keeps of every commit."""

    every: int = 0
    """Commits between two of them; 0 is none."""
    to: str = ""
    """A folder on the scheduler's machine, `peer:`, or `s3://`, `gs://`, `az://`. Empty: the scheduler's own."""
    keep: int = 2
    start_from: str = ""
    """The checkpoints of an earlier job, `<to>/<job id>`, of which the newest counts, or one `version-<n>` of them."""


class PartitionSpec(Strict, frozen=True):
    """Which worker is given which slices, or which rows. `num_partitions` and `hash_seed` are of `hash`, `ranges` (of
    slices or rows, one for each worker, the end not included) of `range`, `base` and `rebalance_threshold` of
    `adaptive`."""

    strategy: Literal["first-come", "round-robin", "contiguous", "hash", "range", "stratified", "adaptive"] = (
        "first-come"
    )
    unit: Literal["slices", "rows"] = "slices"
    num_partitions: int = 64
    hash_seed: int = 0
    ranges: list[tuple[int, int]] = []
    base: Literal["round-robin", "contiguous", "hash"] = "round-robin"
    rebalance_threshold: float = 0.2


class OutputSpec(Strict, frozen=True):
    """What an inference job writes of each row, and where; the fields of `wire.Output`."""

    kind: str
    format: str = ""
    """`jsonl` (what classes and tokens default to) or `safetensors` (all else)."""
    to: str = ""
    """A folder on the scheduler's machine, `peer:<name or id>` of a data node, or `s3://`, `gs://`, `az://`. Empty: the
    scheduler's own folder of the job."""
    max_new_tokens: int = 32


class Price(Strict, frozen=True):
    """What a lease may cost an hour: `bid` is offered openly, `max` stays with the scheduler."""

    bid: float = 0.0
    max: float | None = None

    @property
    def limit(self) -> float:
        """The most that is paid; the bid, when no maximum is given."""
        return self.bid if self.max is None else self.max


class ResourceTable(Strict, frozen=True):
    """Resources as a table."""

    cpu: float = 0.0
    memory: float = 0.0
    storage: float = 0.0
    gpu: float = 0.0


class Requirement(Strict, frozen=True):
    """One line of the array form: `{type = "GPU", min = 10}` or `{kind = "<executor name>"}`."""

    type: str = ""
    min: float = 0.0
    kind: str = ""


class ResourcesSpec(Strict, frozen=True):
    """The machines a job asks for, as written."""

    num_workers: int = 1
    min_workers: int = 1
    spare_workers: int = 0
    """Leases held in reserve, for the first workers that are lost."""
    worker: ResourceTable | list[Requirement] = ResourceTable()
    parameter_server: ResourceTable | list[Requirement] = ResourceTable()
    worker_price: Price = Price()
    parameter_server_price: Price = Price()


class InferenceResources(Strict, frozen=True):
    """The machines an inference job asks for, as written."""

    num_workers: int = 1
    worker: ResourceTable | list[Requirement] = ResourceTable()
    worker_price: Price = Price()


class InferenceModel(ModelSpec, frozen=True):
    """The model of an inference job; it may also be the final one of a training job at the same scheduler."""

    job: str = ""


class InferenceTable(Strict, frozen=True):
    """The keys of a job of `type = "inference"`, as written."""

    model: InferenceModel
    output: OutputSpec
    resources: InferenceResources = InferenceResources()
    type: str = "inference"
    name: str = ""
    preprocessor: ModelSpec | None = None
    dataset: DatasetSpec | str | None = None
    dataset_name: str = ""
    batch_size: int = INFERENCE_BATCH
    precision: str = "fp32"
    bind_mounts: list[BindMount] = []


class JobTable(Strict, frozen=True):
    """The job's keys, as written."""

    model: ModelSpec
    rounds: Rounds
    inner_optimizer: InnerSpec
    outer_optimizer: OuterSpec
    resources: ResourcesSpec = ResourcesSpec()
    type: str = "diloco"
    name: str = ""
    preprocessor: ModelSpec | None = None
    dataset: DatasetSpec | str | None = None
    dataset_name: str = ""
    validation_dataset: DatasetSpec | str = ""
    min_workers: int | None = None
    precision: str = "fp32"
    sync: SyncSpec = SyncSpec()
    aggregation: AggregationSpec = AggregationSpec()
    checkpoint: CheckpointSpec = CheckpointSpec()
    partition: PartitionSpec = PartitionSpec()
    bind_mounts: list[BindMount] = []


class JobSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A checked job, in one form whatever the spelling of its file."""

    name: str
    model: ModelSpec
    dataset: str
    rounds: Rounds
    inner_optimizer: InnerSpec
    outer_optimizer: OuterSpec
    preprocessor: ModelSpec | None = None
    validation_dataset: str = ""
    num_workers: int = 1
    min_workers: int = 1
    spare_workers: int = 0
    precision: str = "fp32"
    sync: SyncSpec = SyncSpec()
    aggregation: AggregationSpec = AggregationSpec()
    checkpoint: CheckpointSpec = CheckpointSpec()
    partition: PartitionSpec = PartitionSpec()
    worker: Resources = Resources()
    worker_executor: str = ""
    parameter_server: Resources = Resources()
    parameter_server_executor: str = ""
    worker_price: Price = Price()
    parameter_server_price: Price = Price()
    output: OutputSpec | None = None
    """Of an inference job alone. It has no rounds and no optimizers; these fields say so."""
    batch_size: int = 0
    model_job: str = ""
    bind_mounts: list[BindMount] = []
    """What all tasks of the job see of their worker's machine, each with its `container_path`."""

    @property
    def is_inference(self) -> bool:
        """Whether the job runs a model over a dataset, and trains none."""
        return self.output is not None

    def stores(self) -> tuple[str, ...]:
        """The addresses in object storage that its workers read."""
        return tuple(name for name in (self.dataset, self.validation_dataset) if is_store_url(name))

    @property
    def token(self) -> str:
        """The secret for the model's repository."""
        return self.model.token or (self.preprocessor.token if self.preprocessor else "")

    def model_source(self) -> ModelSource:
        """Where the model comes from, without the token."""
        return self.model.source()

    def preprocessor_source(self) -> ModelSource | None:
        """Where the preprocessor comes from, without the token."""
        return self.preprocessor.source() if self.preprocessor else None

    def inner(self) -> InnerOptimizer:
        """The optimizer of the training tasks."""
        return InnerOptimizer(**msgspec.structs.asdict(self.inner_optimizer))

    def outer(self) -> OuterOptimizer:
        """The optimizer of the parameter server."""
        return OuterOptimizer(**msgspec.structs.asdict(self.outer_optimizer))

    def wire_output(self) -> Output:
        """What an inference task is to write of each row."""
        assert self.output is not None, "not an inference job"
        return Output(kind=self.output.kind, format=self.output.format, max_new_tokens=self.output.max_new_tokens)

    def without_secrets(self) -> JobSpec:
        """The same job with its tokens taken out, fit to be stored and shown."""
        preprocessor = self.preprocessor and msgspec.structs.replace(self.preprocessor, token="")
        return msgspec.structs.replace(
            self, model=msgspec.structs.replace(self.model, token=""), preprocessor=preprocessor
        )


def parse_job(text: str, source: str = "job") -> JobSpec:
    """The job in a TOML text: its `[scheduler.job]` table, or else the job's keys at the top level."""
    data = parse_toml(text, source)
    origin = Origin(source, text)
    scheduler = data.get("scheduler")
    if isinstance(scheduler, dict) and isinstance(scheduler.get("job"), dict):
        return job_from(scheduler["job"], origin.inside("scheduler", "job"))
    return job_from(data, origin)


def job_from(data: Mapping[str, Any], origin: Origin, *, lax: bool = False) -> JobSpec:
    """The job in a parsed table. `lax` takes "2.5" for 2.5."""
    kind = data.get("type")
    if isinstance(kind, str) and kind.lower() == "inference":
        return _inference(convert(InferenceTable, _underscored(data), origin, lax=lax), origin)
    table = convert(JobTable, _underscored(data), origin, lax=lax)
    if table.type.lower() != "diloco":
        raise origin.error(["type"], f"{table.type!r} is not a kind of job", 'there are "diloco" and "inference"')
    dataset = _dataset(table, origin)
    resources = table.resources
    worker, worker_executor = _resources(resources.worker, origin.inside("resources", "worker"))
    server, server_executor = _resources(resources.parameter_server, origin.inside("resources", "parameter_server"))
    spec = JobSpec(
        name=table.name or name_in(dataset),
        model=_model(table.model, origin.inside("model"), TASKS),
        preprocessor=table.preprocessor
        and _model(table.preprocessor, origin.inside("preprocessor"), (*TASKS, *PREPROCESSORS)),
        dataset=dataset,
        validation_dataset=_checked_dataset("validation_dataset", table.validation_dataset, origin),
        rounds=table.rounds,
        inner_optimizer=table.inner_optimizer,
        outer_optimizer=table.outer_optimizer,
        num_workers=resources.num_workers,
        min_workers=resources.min_workers if table.min_workers is None else table.min_workers,
        spare_workers=resources.spare_workers,
        precision=table.precision,
        sync=table.sync,
        aggregation=table.aggregation,
        checkpoint=table.checkpoint,
        partition=table.partition,
        worker=worker,
        worker_executor=worker_executor,
        parameter_server=server,
        parameter_server_executor=server_executor,
        worker_price=resources.worker_price,
        parameter_server_price=resources.parameter_server_price,
        bind_mounts=_mounts(table, origin),
    )
    check_training(spec, origin)
    return spec


def _inference(table: InferenceTable, origin: Origin) -> JobSpec:
    dataset, output, resources = _dataset(table, origin), table.output, table.resources
    worker, executor = _resources(resources.worker, origin.inside("resources", "worker"))
    known = (*TASKS, *PREPROCESSORS)
    written = msgspec.structs.asdict(table.model)
    model_job = written.pop("job")
    spec = JobSpec(
        name=table.name or name_in(dataset),
        model=_model(ModelSpec(**written), origin.inside("model"), TASKS),
        model_job=model_job,
        preprocessor=table.preprocessor and _model(table.preprocessor, origin.inside("preprocessor"), known),
        dataset=dataset,
        rounds=Rounds(update_rounds=0, avg_samples_between_updates=0),
        inner_optimizer=InnerSpec(learning_rate=0.0),
        outer_optimizer=OuterSpec(learning_rate=0.0, momentum=0.0),
        num_workers=resources.num_workers,
        precision=table.precision,
        worker=worker,
        worker_executor=executor,
        worker_price=resources.worker_price,
        output=msgspec.structs.replace(output, format=output.format or _format_of(output.kind)),
        batch_size=table.batch_size,
        bind_mounts=_mounts(table, origin),
    )
    check_inference(spec, origin)
    return spec


def _dataset(table: JobTable | InferenceTable, origin: Origin) -> str:
    dataset = _checked_dataset("dataset", table.dataset or table.dataset_name, origin)
    if not dataset:
        raise origin.error(["dataset"], "is missing", "name the dataset the workers read")
    return dataset


def _checked_dataset(key: str, written: DatasetSpec | str, origin: Origin) -> str:
    """A dataset's name, or its address in object storage."""
    dataset = written.dataset if isinstance(written, DatasetSpec) else written
    try:
        return checked_dataset_url(dataset) if is_store_url(dataset) else dataset
    except ConfigError as error:
        raise origin.error([key], error.message, error.hint) from error


def _mounts(table: JobTable | InferenceTable, origin: Origin) -> list[BindMount]:
    has_code = any(model and normalised(model.type) == "torch" for model in (table.model, table.preprocessor))
    return checked(table.bind_mounts, origin.inside("bind_mounts"), has_code=has_code)


def _format_of(kind: str) -> str:
    return "jsonl" if kind in ("classes", "tokens") else "safetensors"


def _underscored(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key.replace("-", "_"): _underscored(item) for key, item in value.items()}
    return [_underscored(item) for item in value] if isinstance(value, list) else value


def _model(model: ModelSpec, origin: Origin, known: Sequence[str]) -> ModelSpec:
    kind = normalised(model.type)
    if kind not in known:
        close = nearest(kind, known)
        hint = f"did you mean {close}?" if close else "e.g. causal-lm"
        raise origin.error(["type"], f"{model.type!r} is not a model type", hint)
    for key, names in (("filenames", model.filenames), ("path", [model.path]), ("config", [model.config])):
        for name in names:
            if name and (name.startswith("/") or ".." in PurePosixPath(name).parts or "\\" in name or "\0" in name):
                raise origin.error([key], f"{name!r} is outside the job's folder", "use names relative to it")
    return msgspec.structs.replace(model, type=kind, path=model.path.strip("/"))


def _resources(written: ResourceTable | list[Requirement], origin: Origin) -> tuple[Resources, str]:
    if isinstance(written, ResourceTable):
        written_values = msgspec.structs.asdict(written)
        executor = ""
    else:
        written_values = {}
        executor = ""
        for index, line in enumerate(written):
            kind = line.type.lower()
            if line.kind and not kind:
                executor = line.kind
            elif kind in ("cpu", "gpu", "memory", "storage"):
                written_values[kind] = max(line.min, written_values.get(kind, 0.0))
            else:
                raise origin.error([index, "type"], f"{line.type!r} is not a resource", "GPU, CPU, Memory or Storage")
    for name, value in written_values.items():
        if not 0 <= value < 1e12:
            raise origin.error([name], f"{value} is out of bounds")
    return Resources(**written_values), executor
