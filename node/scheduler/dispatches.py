"""The messages that start a job's tasks. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from node.scheduler.group import Task
from node.scheduler.order import Order
from node.wire import AggregateTask, Dispatch, Member, TrainTask, VersionFile


def aggregate_dispatch(
    order: Order,
    task: Task,
    members: Sequence[Member],
    start: Sequence[VersionFile],
    contributors: Sequence[tuple[str, int]],
) -> Dispatch:
    """Be the parameter server, from version 0 or from what these files make with the updates of these contributors."""
    body = AggregateTask(
        model=order.model,
        optimizer=order.outer,
        rounds=order.rounds,
        members=list(members),
        min_members=order.min_workers,
        sync=order.sync,
        aggregation=order.aggregation,
        preprocessor=order.preprocessor,
        start=list(start),
        contributors=list(contributors),
    )
    return _dispatch(order, task, body)


def train_dispatch(order: Order, task: Task, parameter_server: str, *, evaluate: bool) -> Dispatch:
    """Train with this parameter server."""
    body = TrainTask(
        model=order.model,
        dataset=order.dataset,
        parameter_server=parameter_server,
        optimizer=order.inner,
        batch_size=order.batch_size,
        rounds=order.rounds,
        preprocessor=order.preprocessor,
        validation_dataset=order.validation_dataset,
        evaluate=evaluate,
        sync=order.sync,
        outer=order.outer,
        precision=order.precision,
    )
    return _dispatch(order, task, body)


def _dispatch(order: Order, task: Task, body: TrainTask | AggregateTask) -> Dispatch:
    return Dispatch(
        lease_id=task.lease_id,
        job_id=order.job_id,
        task_id=task.task_id,
        epoch=task.epoch,
        executor=order.needs[task.role].executor,
        task=body,
        folder_sha256=order.folder_sha256,
        runs_job_code=order.runs_job_code,
        mounts=list(order.needs[task.role].mounts),
    )
