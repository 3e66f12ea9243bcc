"""An inference job as its machine needs it, and the message that starts one of its tasks. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from node.jobspec import JobSpec
from node.scheduler.allocation import Need
from node.scheduler.group import Task
from node.scheduler.order import INFER
from node.wire import Dispatch, ExecutorKind, InferTask, ModelSource, Output

NAME_LENGTH = 100
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True)
class InferenceOrder:
    """All that never changes while the job runs."""

    job_id: str
    name: str
    dataset: str
    workers: int
    model: ModelSource
    output: Output
    batch_size: int
    need: Need
    preprocessor: ModelSource | None = None
    precision: str = "fp32"
    model_job: str = ""
    folder_sha256: str = ""

    @property
    def stem(self) -> str:
        """What the names of the results begin with."""
        return _UNSAFE.sub("-", self.dataset)[:NAME_LENGTH].lstrip(".-") or "results"

    def result_name(self, index: int, first_row: int, rows: int) -> str:
        """`<dataset>-<slice>-rows-<first>-<end>.<format>`: rows as they are numbered in the dataset."""
        return f"{self.stem}-{index:06d}-rows-{first_row}-{first_row + rows}.{self.output.format}"


def inference_order(job_id: str, spec: JobSpec, folder_sha256: str) -> InferenceOrder:
    """The order that a job file makes."""
    price = spec.worker_price
    kind = ExecutorKind(class_=INFER, name=spec.worker_executor)
    return InferenceOrder(
        job_id=job_id,
        name=spec.name,
        dataset=spec.dataset,
        workers=spec.num_workers,
        model=spec.model_source(),
        output=spec.wire_output(),
        batch_size=spec.batch_size,
        need=Need(job_id, INFER, kind, spec.worker, price.bid, price.limit, tuple(spec.bind_mounts), spec.stores()),
        preprocessor=spec.preprocessor_source(),
        precision=spec.precision,
        model_job=spec.model_job,
        folder_sha256=folder_sha256,
    )


def infer_dispatch(order: InferenceOrder, task: Task) -> Dispatch:
    """Run the model over slices."""
    sources = [order.model] if order.preprocessor is None else [order.model, order.preprocessor]
    return Dispatch(
        lease_id=task.lease_id,
        job_id=order.job_id,
        task_id=task.task_id,
        epoch=task.epoch,
        executor=order.need.executor,
        task=InferTask(
            model=order.model,
            dataset=order.dataset,
            output=order.output,
            batch_size=order.batch_size,
            preprocessor=order.preprocessor,
            precision=order.precision,
            model_job=order.model_job,
        ),
        folder_sha256=order.folder_sha256,
        runs_job_code=any(source.task == "torch" for source in sources),
        mounts=list(order.need.mounts),
    )
