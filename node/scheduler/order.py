"""A training job as its machine needs it, from the job's file. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from node.jobspec import JobSpec, PartitionSpec
from node.scheduler.allocation import Need
from node.wire import Aggregation, ExecutorKind, InnerOptimizer, ModelSource, OuterOptimizer, Sync

TRAIN = "train"
AGGREGATE = "aggregate"
INFER = "inference"
BATCH_SIZE = 16
"""Where the job does not bound it."""


@dataclass(frozen=True, slots=True)
class Order:
    """A job as its machine needs it: all that never changes while it runs."""

    job_id: str
    name: str
    dataset: str
    validation_dataset: str
    rounds: int
    budget: int
    batch_size: int
    workers: int
    min_workers: int
    model: ModelSource
    inner: InnerOptimizer
    outer: OuterOptimizer
    needs: dict[str, Need]
    preprocessor: ModelSource | None = None
    folder_sha256: str = ""
    spares: int = 0
    """Leases held in reserve beside those of the workers."""
    sync: Sync = field(default_factory=Sync)
    aggregation: Aggregation = field(default_factory=Aggregation)
    precision: str = "fp32"
    checkpoint_every: int = 0
    partition: PartitionSpec = field(default_factory=PartitionSpec)

    @property
    def runs_job_code(self) -> bool:
        """Whether code from the job's own folder is to run on the workers."""
        sources = [self.model] if self.preprocessor is None else [self.model, self.preprocessor]
        return any(source.task == "torch" for source in sources)


def order_of_spec(job_id: str, spec: JobSpec, folder_sha256: str) -> Order:
    """The order that a job file makes. With fragments, each of them has its own round, and its share of the samples."""
    fragments = spec.sync.fragments
    budget = max(1, spec.rounds.avg_samples_between_updates // fragments)
    share = max(1, budget // spec.num_workers)
    train, server = spec.worker_price, spec.parameter_server_price
    return Order(
        job_id=job_id,
        name=spec.name,
        dataset=spec.dataset,
        validation_dataset=spec.validation_dataset,
        rounds=spec.rounds.update_rounds * fragments,
        budget=budget,
        batch_size=min(spec.rounds.max_batch_size or BATCH_SIZE, share),
        workers=spec.num_workers,
        min_workers=spec.min_workers,
        model=spec.model_source(),
        inner=spec.inner(),
        outer=spec.outer(),
        preprocessor=spec.preprocessor_source(),
        folder_sha256=folder_sha256,
        spares=spec.spare_workers,
        sync=spec.sync,
        aggregation=spec.aggregation,
        precision=spec.precision,
        checkpoint_every=spec.checkpoint.every,
        partition=spec.partition,
        needs={
            TRAIN: Need(
                job_id,
                TRAIN,
                ExecutorKind(class_=TRAIN, name=spec.worker_executor),
                spec.worker,
                train.bid,
                train.limit,
                tuple(spec.bind_mounts),
                spec.stores(),
            ),
            AGGREGATE: Need(
                job_id,
                AGGREGATE,
                ExecutorKind(class_=AGGREGATE, name=spec.parameter_server_executor),
                spec.parameter_server,
                server.bid,
                server.limit,
                tuple(spec.bind_mounts),
            ),
        },
    )
